"""Publish in windows to a real server: unacknowledged, resent and refused messages."""

import asyncio
import json
from collections import Counter

import nats
import pytest

from ce_nats import EncodeError, Headers, NatsMessage
from ce_nats.aio import PublishResult
from ce_nats.aio.publishing._bulk import BulkPublisher
from ce_nats.errors import DeliveryError, ErrorCode
from ce_nats.testing import NatsServer
from ce_nats.wire._frames import frames_of
from tests.support.broker import ignore
from tests.support.pausing import paused
from tests.support.reading import read as stored
from tests.support.reading import until_stored
from tests.support.scripted_server import ACK, IN_PROCESS, NO_ANSWER, NO_RESPONDERS, REFUSED, TOO_MANY, scripted

SECONDS = 60  # for the publishing of one test, so that a hanging one fails


def connecting_to(url):
    async def connect(client):
        try:
            await client.connect(
                url, allow_reconnect=False, max_reconnect_attempts=1, connect_timeout=10, error_cb=ignore
            )
        except (nats.errors.Error, OSError) as error:
            raise DeliveryError(ErrorCode.CONNECTION_FAILED, "cannot connect") from error

    return connect


@pytest.fixture
def connect(server):
    return connecting_to(server.url)


def numbered(subject, numbers, payload=b""):
    """Return messages with a Nats-Msg-Id each."""
    return [NatsMessage(subject, payload or b"%d" % n, Headers({"Nats-Msg-Id": f"{subject}-{n}"})) for n in numbers]


async def publish(connect, messages, **options):
    async with BulkPublisher(connect, **options) as publisher:
        return await asyncio.wait_for(publisher.publish(messages), SECONDS)


# --- Stored messages -------------------------------------------------------------------------------------------------


async def test_messages_are_stored_unchanged_and_in_order(connect, js, subject, stream):
    messages = [
        NatsMessage(
            f"{subject}.{number % 3}", bytes([number % 256]) * number, Headers([("n", str(number)), ("N", "ü")])
        )
        for number in range(1_203)
    ]
    assert await publish(connect, messages, window=100) == PublishResult(1_203, 0)
    assert [
        NatsMessage(item.subject, item.data, Headers(item.headers)) for item in await stored(js, stream)
    ] == messages


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9])
async def test_last_window_may_be_partial(connect, js, subject, stream, count):
    assert await publish(connect, numbered(subject, range(count)), window=8) == PublishResult(count, 0)
    assert (await js.stream_info(stream)).state.messages == count


async def test_duplicates_are_counted(connect, js, subject, stream):
    assert await publish(connect, numbered(subject, range(10))) == PublishResult(10, 0)
    assert await publish(connect, numbered(subject, range(5, 20)), window=4) == PublishResult(15, 5)
    assert (await js.stream_info(stream)).state.messages == 20


async def test_window_of_messages_of_max_payload(connect, js, subject, stream):
    messages = [NatsMessage(subject, bytes(2**20 - 12)) for _ in range(150)]
    assert await publish(connect, messages, window=150) == PublishResult(150, 0)
    assert (await js.stream_info(stream)).state.bytes > 150 * 2**20


async def test_connection_is_reused_by_later_calls(subject, stream, server):
    clients = []

    async def connect(client):
        clients.append(client)
        await connecting_to(server.url)(client)

    async with BulkPublisher(connect) as publisher:
        assert clients == []
        for first in range(0, 30, 10):
            await publisher.publish(numbered(subject, range(first, first + 10)))
        assert len(clients) == 1
        assert clients[0].is_connected
    assert clients[0].is_closed


async def test_at_most_a_window_is_unacknowledged(connect, nc, subject):
    """The receiver acknowledges after a whole window; it would have received messages beyond it."""
    seen, most = [], 0
    subscription = await nc.subscribe(subject)
    await nc.flush()

    async def acknowledge():
        nonlocal most
        while True:
            waiting = [await subscription.next_msg(timeout=SECONDS) for _ in range(25)]
            await nc.flush()
            most = max(most, len(waiting) + subscription.pending_msgs)
            seen.extend(waiting)
            for message in waiting:
                await message.respond(json.dumps({"stream": "S", "seq": len(seen)}).encode())

    task = asyncio.create_task(acknowledge())
    try:
        assert await publish(connect, numbered(subject, range(200)), window=25) == PublishResult(200, 0)
    finally:
        task.cancel()
    assert [message.data for message in seen] == [b"%d" % number for number in range(200)]
    assert most == 25


async def test_window_slides_over_calls(connect, nc, subject):
    """``send()`` waits for a free slot, not for the acknowledgements of its messages."""
    subscription = await nc.subscribe(subject)
    await nc.flush()
    async with BulkPublisher(connect, window=10) as publisher:
        prefix = await publisher.reply_prefix()
        for first in range(0, 10, 5):
            framed = [(message, b"") for message in numbered(subject, range(first, first + 5))]
            await asyncio.wait_for(publisher.send(frames_of(framed, publisher.next_number, prefix)), SECONDS)
        waiting = [await subscription.next_msg(timeout=SECONDS) for _ in range(10)]
        full = asyncio.create_task(publisher.send(frames_of([(NatsMessage(subject, b"10"), b"")], 10, prefix)))
        await nc.flush()
        assert not full.done()
        for message in waiting:
            await message.respond(b'{"stream":"S","seq":1}')
        await asyncio.wait_for(full, SECONDS)
        await (await subscription.next_msg(timeout=SECONDS)).respond(b'{"stream":"S","seq":1}')
        assert await asyncio.wait_for(publisher.drain(), SECONDS) == PublishResult(11, 0)


# --- Rare answers ----------------------------------------------------------------------------------------------------


def answers(*script):
    """Publish two messages to a server that answers each publish with a line of a script; return it and the result."""

    async def run():
        async with scripted(*script) as (server, nc):
            url = nc.connected_url.geturl()
            result = await publish(connecting_to(url), numbered("s", range(2)), ack_timeout=0.3, retry_timeout=2.0)
            return [frame.payload for frame in server.received], result

    return run()


DUPLICATE = {**ACK, "duplicate": True}


@pytest.mark.parametrize(
    ("script", "received", "result"),
    [
        ([ACK, ACK], [b"0", b"1"], PublishResult(2, 0)),
        ([ACK, DUPLICATE], [b"0", b"1"], PublishResult(2, 1)),
        ([ACK, NO_ANSWER, DUPLICATE], [b"0", b"1", b"1"], PublishResult(2, 0)),
        ([NO_ANSWER, ACK, DUPLICATE], [b"0", b"1", b"0"], PublishResult(2, 0)),
        ([NO_ANSWER, NO_ANSWER, ACK, ACK], [b"0", b"1", b"0", b"1"], PublishResult(2, 0)),
        ([ACK, NO_RESPONDERS, DUPLICATE], [b"0", b"1", b"1"], PublishResult(2, 1)),
    ],
)
async def test_unanswered_messages_are_resent(script, received, result):
    """A copy that was resent is not counted as a duplicate, unless the first one was not stored."""
    assert await answers(*script) == (received, result)


@pytest.mark.parametrize("reply", [IN_PROCESS, TOO_MANY], ids=["in process", "too many requests"])
async def test_message_that_is_not_stored_now_is_retried(reply):
    received, result = await answers(reply, ACK, ACK)
    assert (received, result) == ([b"0", b"1", b"0"], PublishResult(2, 0))


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ([REFUSED], ErrorCode.PUBLISH_REFUSED),
        ([ACK, {"stream": ""}], ErrorCode.UNEXPECTED_ANSWER),
        ([NO_RESPONDERS] * 20, ErrorCode.NO_RESPONDERS),
        ([ACK, *([NO_ANSWER] * 20)], ErrorCode.TIMEOUT),
    ],
    ids=["refused", "no puback", "no responders", "no answer"],
)
async def test_answers_that_are_errors(script, code):
    with pytest.raises(DeliveryError, match="s: ") as info:
        await answers(*script)
    assert info.value.code == code


ACKS = [
    ({"stream": "S", "seq": 12}, 0),
    ({"stream": "S", "seq": 12, "duplicate": True}, 1),
    ({"stream": "S", "seq": 12, "domain": "hub"}, 0),
    ({"stream": "S", "domain": "hub", "seq": 12, "duplicate": True}, 1),
    ({"stream": "S", "domain": "", "seq": 12}, 0),
    ({"stream": 'S"', "seq": 1, "val": "5"}, 0),
    ({"stream": "S"}, 0),
]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")], ids=["short", "long"])
async def test_forms_of_acknowledgements(separators):
    """Those that servers write, and others, which are read in another way."""
    async with scripted() as (server, nc):
        task = asyncio.create_task(publish(connecting_to(nc.connected_url.geturl()), numbered("s", range(len(ACKS)))))
        await server.receives(len(ACKS))
        for frame, (ack, _) in zip(server.received, ACKS):
            server.reply(frame.reply, json.dumps(ack, separators=separators).encode())
        assert await asyncio.wait_for(task, SECONDS) == PublishResult(len(ACKS), sum(count for _, count in ACKS))


@pytest.mark.parametrize("token", ["a", "1.2", "-1", "\u00b2", "9" * 30, "7"])
async def test_replies_with_other_tokens_are_ignored(token):
    async with scripted() as (server, nc):
        task = asyncio.create_task(publish(connecting_to(nc.connected_url.geturl()), numbered("s", range(2))))
        await server.receives(2)
        first, second = server.received
        for reply in (first.reply.removesuffix("0") + token, first.reply, second.reply):
            server.reply(reply, json.dumps(ACK).encode())
        assert await asyncio.wait_for(task, SECONDS) == PublishResult(2, 0)


async def test_time_between_calls_is_not_a_time_of_retries():
    """Input may be slow: an unacknowledged message is resent with the next one, and is not an error at once."""
    async with scripted(NO_ANSWER, NO_ANSWER, ACK, ACK) as (server, nc):
        connect = connecting_to(nc.connected_url.geturl())
        async with BulkPublisher(connect, ack_timeout=0.3, retry_timeout=0.3) as publisher:
            prefix = await publisher.reply_prefix()
            await publisher.send(frames_of([(NatsMessage("s", b"0"), b"")], 0, prefix))
            await asyncio.sleep(0.7)  # longer than both timeouts
            await publisher.send(frames_of([(NatsMessage("s", b"1"), b"")], 1, prefix))
            assert await asyncio.wait_for(publisher.drain(), SECONDS) == PublishResult(2, 0)
        assert [frame.payload for frame in server.received] == [b"0", b"1", b"0", b"1"]


async def test_publisher_can_be_used_after_an_error(connect, js, subject, stream):
    async with BulkPublisher(connect) as publisher:
        with pytest.raises(DeliveryError, match="no stream listens"):
            await publisher.publish(numbered(f"no.{subject}", range(3)))
        assert await publisher.publish(numbered(subject, range(3))) == PublishResult(3, 0)


# --- Unavailable servers ---------------------------------------------------------------------------------------------


async def make_stream(server, **config):
    nc = await nats.connect(server.url)
    await nc.jetstream().add_stream(name="S", subjects=["s"], duplicate_window=600, **config)
    await nc.close()


async def ids_in(server):
    nc = await nats.connect(server.url)
    found = [dict(message.headers)["Nats-Msg-Id"] for message in await stored(nc.jetstream(), "S")]
    await nc.close()
    return found


@pytest.mark.faults
async def test_restart_loses_and_duplicates_nothing(own_server):
    await make_stream(own_server)
    messages = numbered("s", range(9_000), payload=bytes(500))
    async with BulkPublisher(connecting_to(own_server.url), window=300, ack_timeout=2) as publisher:
        task = asyncio.create_task(publisher.publish(messages))
        for part in range(1, 4):
            async with await nats.connect(own_server.url) as nc:
                await until_stored(nc.jetstream(), "S", part * 2_000)
            await asyncio.to_thread(own_server.kill)
            await asyncio.to_thread(own_server.restart)
        sent = await asyncio.wait_for(task, SECONDS)
    assert sent.messages == 9_000
    counts = Counter(await ids_in(own_server))
    assert counts == Counter(message.headers.get("Nats-Msg-Id") for message in messages)


async def test_unreachable_server_is_an_error():
    with pytest.raises(DeliveryError, match="cannot connect"):
        await publish(connecting_to("nats://127.0.0.1:1"), numbered("s", range(3)), retry_timeout=0.3)


@pytest.mark.faults
async def test_server_that_does_not_return_is_an_error(own_server):
    await make_stream(own_server)
    async with BulkPublisher(connecting_to(own_server.url), ack_timeout=0.5, retry_timeout=0.5) as publisher:
        await publisher.publish(numbered("s", range(3)))
        own_server.kill()
        with pytest.raises(DeliveryError) as info:
            await asyncio.wait_for(publisher.publish(numbered("s", range(3, 6))), SECONDS)
    assert info.value.code in (ErrorCode.CONNECTION_FAILED, ErrorCode.CONNECTION_CLOSED, ErrorCode.TIMEOUT)


@pytest.mark.faults
async def test_paused_server_is_an_error(own_server):
    """Connections of a paused process stay open."""
    await make_stream(own_server)
    async with BulkPublisher(connecting_to(own_server.url), ack_timeout=0.3, retry_timeout=0.3) as publisher:
        await publisher.publish(numbered("s", range(3)))
        with paused(own_server), pytest.raises(DeliveryError):
            await asyncio.wait_for(publisher.publish(numbered("s", range(3, 6))), SECONDS)


# --- Refusals --------------------------------------------------------------------------------------------------------


async def test_no_responders_is_an_error_at_once(connect, subject):
    with pytest.raises(DeliveryError, match=f"{subject}: ") as info:
        await asyncio.wait_for(publish(connect, numbered(subject, range(3)), retry_timeout=600), SECONDS)
    assert info.value.code == ErrorCode.NO_RESPONDERS


async def test_full_stream_is_an_error(connect, js, subject):
    name = subject.replace(".", "_")
    await js.add_stream(name=name, subjects=[subject], storage="memory", max_msgs=5, discard="new")
    with pytest.raises(DeliveryError, match=f"{subject}: .*maximum messages"):
        await asyncio.wait_for(publish(connect, numbered(subject, range(8)), retry_timeout=600), SECONDS)
    assert (await js.stream_info(name)).state.messages == 5
    await js.delete_stream(name)


async def test_reply_that_is_not_a_puback_is_an_error(connect, nc, subject):
    async def answer(message):
        await message.respond(b"thanks")

    await nc.subscribe(subject, cb=answer)
    await nc.flush()
    with pytest.raises(DeliveryError, match=f"{subject}: the reply is not a PubAck"):
        await asyncio.wait_for(publish(connect, numbered(subject, range(3)), retry_timeout=600), SECONDS)


async def test_failed_expectation_is_an_error(connect, js, subject, stream):
    message = NatsMessage(subject, b"", Headers({"Nats-Expected-Last-Sequence": "7"}))
    with pytest.raises(DeliveryError, match="wrong last sequence"):
        await publish(connect, [message])
    assert (await js.stream_info(stream)).state.messages == 0


async def test_deleted_stream_is_an_error_after_retries(connect, js, subject):
    """Its server could have been restarted and not be ready yet."""
    name = subject.replace(".", "_")
    await js.add_stream(name=name, subjects=[subject], storage="memory")
    async with BulkPublisher(connect, retry_timeout=0.5) as publisher:
        await publisher.publish(numbered(subject, range(3)))
        await js.delete_stream(name)
        with pytest.raises(DeliveryError, match=f"{subject}: "):
            await asyncio.wait_for(publisher.publish(numbered(subject, range(3, 6))), SECONDS)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (NatsMessage("{}", bytes(2**20 + 1)), "payload-too-large"),
        (NatsMessage("{}", bytes(2**20 - 20), Headers({"name": "value"})), "payload-too-large"),
        (NatsMessage("{}", b"", Headers({"name": "v" * 2**16})), "headers-too-large"),
    ],
    ids=["payload", "payload and headers", "headers"],
)
async def test_message_over_a_server_limit_is_rejected_before_its_window(connect, js, subject, stream, message, code):
    bad = NatsMessage(subject, message.data, message.headers)
    good = numbered(subject, range(6))
    with pytest.raises(EncodeError) as info:
        await asyncio.wait_for(publish(connect, [*good[:5], bad, *good[5:]], window=2), SECONDS)
    assert info.value.code == code
    assert (await js.stream_info(stream)).state.messages == 4


@pytest.mark.parametrize(
    ("message", "error"),
    [(NatsMessage("{}", b"", Headers({"a:b": "c"})), EncodeError), (NatsMessage("", b""), EncodeError)],
    ids=["header name", "no subject"],
)
async def test_message_that_nats_py_rejects_is_an_error_at_once(connect, subject, stream, message, error):
    bad = NatsMessage(message.subject.format(subject), b"", message.headers)
    with pytest.raises(error):
        await asyncio.wait_for(publish(connect, [*numbered(subject, range(3)), bad], retry_timeout=600), SECONDS)


async def test_limit_is_that_of_the_server():
    with NatsServer(jetstream=True, config="max_payload: 1000") as server:
        await make_stream(server, storage="memory")
        fits, larger = (NatsMessage("s", bytes(size)) for size in (1000, 1001))
        assert await publish(connecting_to(server.url), [fits]) == PublishResult(1, 0)
        with pytest.raises(EncodeError, match="at most 1000 bytes"):
            await publish(connecting_to(server.url), [larger])
