"""Originals that do not fit into their dead letters."""

import asyncio

import nats
import pytest
from nats.js.api import ConsumerConfig, RetentionPolicy

from ce_nats import CeNatsError, DataLossError
from ce_nats.aio import PullConsumer, Reject
from ce_nats.aio.consumer._dead_letters import requeue, requeue_all, store
from ce_nats.aio.jetstream import publish, read_stream
from ce_nats.redelivery import DeadLetter, Reason
from ce_nats.testing import NatsServer
from tests.support.consuming import until_consumer
from tests.support.reading import until_stored
from tests.support.waiting import SECONDS, until

HEADERS = b"a: " + b"x" * 65_182 + b"\r\n"  # with the version and the empty line, 65,200 bytes


@pytest.fixture
def poison(nc, js, subject, stream, send_raw):
    """Store messages that are not events and leave no room for a dead letter's headers."""

    async def poison(payloads=1, headers=1):
        for _ in range(payloads):
            await js.publish(subject, b"\xff" * nc.max_payload)
        for _ in range(headers):
            send_raw(subject, HEADERS, b"not an event")
        await until_stored(js, stream, payloads + headers)

    return poison


@pytest.fixture
def consume(js, stream, dead):
    """Handle messages until a number of dead letters is stored; returns ids of handled events, and errors."""

    async def consume(letters, events=0, *, handler=None, stream=stream, dead=dead, **config):
        handled, errors = [], []

        async def handle(delivery):
            if handler is not None:
                await handler(delivery)
            handled.append(delivery.event.get_id())

        options = {"max_deliveries": 3, "backoff": [0], "on_error": lambda error, _: errors.append(error)}
        create = ConsumerConfig(ack_wait=60, **config)
        async with PullConsumer(js, stream, "c", dead_letter=dead, create=create, **options) as consumer:
            running = asyncio.create_task(consumer.run(handle))
            try:
                await until_stored(js, dead.replace(".", "_"), letters)
                await until(lambda: len(handled) >= events)
                await until_consumer(js, stream, lambda info: not info.num_ack_pending)
            finally:
                consumer.stop()
                await running
        return handled, errors

    return consume


async def all_of(js, stream):
    return [message async for batch in read_stream(js, stream) for message in batch]


def letter_of(message, **fields):
    origin = message.metadata
    numbers = {"sequence": origin.sequence.stream, "deliveries": origin.num_delivered}
    known = {"reason": Reason.REJECTED, "error": "", "text": "", "subject": message.subject, "stream": origin.stream}
    return DeadLetter(**{**known, "consumer": "c", **numbers, **fields})


async def test_undecodable_messages_of_any_size_do_not_block_a_consumer(
    js, subject, stream, dead, poison, consume, make_event
):
    """As many as max_ack_pending: while they were redelivered, nothing else would be delivered."""
    await poison(5, 1)
    await publish(js, make_event(7), subject)
    handled, errors = await consume(6, 1, max_ack_pending=6)
    assert (handled, errors) == (["event 7"], [])
    letters = await all_of(js, dead.replace(".", "_"))
    found = [DeadLetter.split(letter.headers) for letter in letters]
    originals = await all_of(js, stream)
    assert sorted(one.sequence for one, _ in found) == [1, 2, 3, 4, 5, 6]
    for one, headers in found:
        assert (one.reason, one.error, one.deliveries) == (Reason.UNDECODABLE, "not-a-cloudevent", 1)
        assert (one.is_complete, one.is_copied, one.is_reference, headers) == (False, False, True, [])
        assert one.time == str(originals[one.sequence - 1].timestamp)
    assert {letter.data for letter in letters} == {b""}
    # The originals stay in the stream, and nothing is unacknowledged.
    assert [len(message.data) for message in originals[:6]] == [1048576] * 5 + [12]
    await until_consumer(js, stream, lambda info: not info.num_ack_pending)
    info = await js.consumer_info(stream, "c")
    assert (info.num_redelivered, info.delivered.consumer_seq) == (0, 7)


async def test_original_is_requeued_from_its_stream(js, subject, stream, dead, poison, consume):
    """With its bytes and headers. A payload of max_payload leaves no room for a Nats-Msg-Id."""
    await poison(1, 1)
    await consume(2)
    letters = await all_of(js, dead.replace(".", "_"))
    letters.sort(key=lambda letter: dict(letter.headers)["Dead-Letter-Sequence"])
    outcomes = [outcome async for outcome in requeue_all(js, each(letters), timeout=SECONDS)]
    assert [(outcome.ack.seq, outcome.is_deleted) for outcome in outcomes] == [(3, True), (4, True)]
    first, second, *copies = await all_of(js, stream)
    for copy, original in zip(copies, (first, second)):
        assert (copy.subject, copy.data) == (original.subject, original.data)
        assert [pair for pair in copy.headers if pair[0] != "Nats-Msg-Id"] == original.headers
    assert await all_of(js, dead.replace(".", "_")) == []
    assert ["Nats-Msg-Id" in dict(copy.headers) for copy in copies] == [False, True]


async def each(items):
    for item in items:
        yield item


@pytest.fixture
async def reference(js, stream, dead, poison, consume):
    """A dead letter that refers to its original, message 1 of the stream."""
    await poison(0, 1)
    await consume(1)
    (letter,) = await all_of(js, dead.replace(".", "_"))
    return letter


async def code_of(awaitable):
    with pytest.raises(CeNatsError) as info:
        await awaitable
    return str(info.value.code)


async def test_deleted_original_is_an_error(js, stream, reference):
    await js.delete_msg(stream, 1)
    with pytest.raises(CeNatsError, match=f"message-not-found: stream {stream} no longer has message 1"):
        await requeue(js, reference)
    await js.purge_stream(stream)
    assert await code_of(requeue(js, reference)) == "message-not-found"


async def test_later_message_with_the_same_sequence_is_not_the_original(js, stream, subject, reference):
    await js.delete_stream(stream)
    await js.add_stream(name=stream, subjects=[subject], storage="memory")
    await js.publish(subject, b"secret")
    with pytest.raises(CeNatsError, match="must be the original of the dead letter, got another one"):
        await requeue(js, reference)
    assert len(await all_of(js, stream)) == 1


@pytest.mark.parametrize("allowed", [None, ["test.>"]])
async def test_reference_cannot_have_other_messages_published(js, stream, subject, reference, allowed):
    """The author of a dead letter may have permission to read some subjects of the stream only."""
    forged = [
        (name, f"{subject}.mine" if name == "Dead-Letter-Subject" else value) for name, value in reference.headers
    ]
    assert await code_of(requeue(js, reference._replace(headers=forged), allowed=allowed)) == "message-not-found"
    assert len(await all_of(js, stream)) == 1


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("Time", "yesterday", "invalid-timestamp"),
        ("Sequence", "99999999999999999999", "invalid-header-value"),
        ("Sequence", "-1", "invalid-header-value"),
        ("Sequence", "0", "request-refused"),
        ("Sequence", "18446744073709551615", "message-not-found"),
        ("Stream", "ORDERS.>", "invalid-subject"),
    ],
)
async def test_malformed_reference_is_an_error(js, reference, subject, name, value, code):
    headers = [(known, value if known == f"Dead-Letter-{name}" else old) for known, old in reference.headers]
    assert await code_of(requeue(js, reference._replace(headers=headers), allowed=[subject])) == code


async def test_malformed_header_block_of_an_original_is_not_requeued(nc, js, subject, stream, dead, consume):
    """A dead letter has such a block in base64, which is longer."""
    block = b"no version\r\n" + b"x" * 60_000
    await nc._send_command(f"HPUB {subject} {len(block)} {len(block)}\r\n".encode() + block + b"\r\n")
    await nc.flush()
    await consume(1)
    (letter,) = await all_of(js, dead.replace(".", "_"))
    assert DeadLetter.split(letter.headers)[0].is_reference
    assert await code_of(requeue(js, letter)) == "invalid-message"


@pytest.mark.parametrize("retention", [RetentionPolicy.WORK_QUEUE, RetentionPolicy.INTEREST])
async def test_original_that_does_not_fit_is_lost_if_its_stream_deletes_it(
    nc, js, subject, dead, consume, make_event, retention
):
    """Both retentions delete terminated messages. The dead letter and on_error report it; the consumer continues."""
    name, subject = f"queue_{retention.value}_{subject.replace('.', '_')}", f"queue.{retention.value}.{subject}"
    await js.add_stream(name=name, subjects=[subject], storage="memory", retention=retention)
    await js.add_consumer(name, ConsumerConfig(durable_name="c", ack_policy="explicit"))
    await js.publish(subject, b"\xff" * nc.max_payload)
    await publish(js, make_event(2), subject)
    handled, errors = await consume(1, 1, stream=name)
    assert handled == ["event 2"]
    assert [(type(error), str(error.code)) for error in errors] == [(DataLossError, "data-lost")]
    assert (await js.stream_info(name)).state.messages == 0
    (letter,) = await all_of(js, dead.replace(".", "_"))
    found, _ = DeadLetter.split(letter.headers)
    assert (found.sequence, found.is_copied, found.is_reference, found.is_complete) == (1, False, False, False)
    assert await code_of(requeue(js, letter)) == "invalid-message"
    await js.delete_stream(name)


async def test_dead_letter_of_a_large_handled_event_refers_to_its_original(nc, js, subject, dead, consume, make_event):
    """After a rejection, and after the last delivery."""
    data = b"x" * (nc.max_payload - 200)
    await publish(js, make_event(1, data, datacontenttype="a/b"), subject, dedup=None)

    async def reject(_):
        raise Reject("no such customer")

    await consume(1, handler=reject)
    (letter,) = await all_of(js, dead.replace(".", "_"))
    found, _ = DeadLetter.split(letter.headers)
    assert (found.reason, found.text, found.is_reference) == (Reason.REJECTED, "no such customer", True)
    assert (await requeue(js, letter)).seq == 2


async def test_max_msg_size_of_the_dead_letter_stream_limits_copies(js, subject, stream):
    """First the copy does not fit, then the text of the error does not, either."""
    name = f"small.{subject}"
    size = 550
    await js.add_stream(name=name.replace(".", "_"), subjects=[name], max_msg_size=size, storage="memory")
    subscription = await js.pull_subscribe("", "c", stream)
    for number, text in enumerate(("", "é" * 300), 1):
        await js.publish(subject, b"x" * size)
        (message,) = await subscription.fetch(1)
        kept = await store(js, name, letter_of(message, text=text), message)
        assert (kept.is_reference, kept.sequence, kept.text) == (True, 2 * number - 1, "")
        assert (await requeue(js, (await all_of(js, name.replace(".", "_")))[-1])).seq == 2 * number
        (copy,) = await subscription.fetch(1)
        await copy.ack()
    await js.delete_stream(name.replace(".", "_"))


async def test_dead_letter_refers_to_its_original_without_permission_for_stream_info(make_event):
    config = """
    max_payload: 8KB
    authorization { users: [
      {user: admin, password: s3cret}
      {user: app, password: s3cret, permissions: {publish: [
        "$JS.API.CONSUMER.INFO.S.c", "$JS.API.CONSUMER.MSG.NEXT.S.c", "$JS.API.STREAM.MSG.GET.S", "$JS.ACK.>", "dead"
      ], subscribe: ["_INBOX.>"]}}
    ] }
    """
    with NatsServer(jetstream=True, config=config) as server:
        async with (
            await nats.connect(server.url, user="admin", password="s3cret") as admin,
            await nats.connect(server.url, user="app", password="s3cret") as nc,
        ):
            js = admin.jetstream()
            for name in ("S", "dead"):
                await js.add_stream(name=name, subjects=[name])
            await js.add_consumer("S", ConsumerConfig(durable_name="c", ack_policy="explicit"))
            await js.publish("S", b"\xff" * 8192)
            async with PullConsumer(nc.jetstream(), "S", "c", dead_letter="dead") as consumer:
                task = asyncio.create_task(anext(consumer))
                await until_stored(js, "dead", 1)
                consumer.stop()
                with pytest.raises(StopAsyncIteration):
                    await task
            (letter,) = await all_of(js, "dead")
            assert DeadLetter.split(letter.headers)[0].is_reference
