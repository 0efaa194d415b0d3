import asyncio

import nats
import pytest

from ce_nats import EncodeError, NatsMessage
from ce_nats.aio import DeliveryError
from ce_nats.aio.bulk import BulkPublisher, Sent
from ce_nats.aio.jetstream import read_stream
from ce_nats.testing import NatsServer


def connecting(server):
    async def ignore(error): ...

    async def connect(client):
        try:
            await client.connect(server.url, allow_reconnect=False, max_reconnect_attempts=1, error_cb=ignore)
        except Exception as error:
            raise DeliveryError("delivery-failed", str(error)) from error

    return connect


def messages(subject, count, **headers):
    return [NatsMessage(subject, b"x", {"Nats-Msg-Id": str(number), **headers}) for number in range(count)]


async def test_all_are_stored_as_they_are(server, js, subject, stream):
    sent = [
        NatsMessage(subject, b"\r\n\0", [("Tag", "b"), ("tag", "ä"), ("Tag", "a"), ("a(b)", "")]),
        NatsMessage(f"{subject}.none", b""),
    ]
    async with BulkPublisher(connecting(server)) as publisher:
        assert await publisher.publish(sent) == Sent(2, 0)
    (stored,) = [batch async for batch in read_stream(js, stream)]
    assert [(one.subject, one.headers, one.data) for one in stored] == [
        (message.subject, message.headers.items(), message.data) for message in sent
    ]


async def test_duplicates_are_counted(server, subject, stream):
    async with BulkPublisher(connecting(server), window=7) as publisher:
        assert await publisher.publish(messages(subject, 20)) == Sent(20, 0)
        assert await publisher.publish(messages(subject, 30)) == Sent(30, 20)


@pytest.mark.parametrize(
    ("stem", "headers", "code"),
    [("nobody.", {}, "no-responders"), ("", {"Nats-Expected-Last-Sequence": "7"}, "delivery-failed")],
)
async def test_a_refusal_is_final(server, subject, stream, stem, headers, code):
    """It is told at once, and not when the time for trying again is over."""
    async with BulkPublisher(connecting(server), ack_timeout=60, retry_timeout=60) as publisher:
        with pytest.raises(DeliveryError) as info:
            await asyncio.wait_for(publisher.publish(messages(stem + subject, 3, **headers)), 30)
    assert info.value.code == code


async def test_a_header_that_is_none_is_not_sent(server, js, subject, stream):
    async with BulkPublisher(connecting(server)) as publisher:
        with pytest.raises(EncodeError) as info:
            await publisher.publish([NatsMessage(subject), NatsMessage(subject, b"", {"a": "b\r\nc: d"})])
    assert info.value.code == "invalid-header-value"
    assert (await js.stream_info(stream)).state.messages == 0


async def test_core_nats_asks_for_no_acknowledgement(server, nc, subject):
    subscription = await nc.subscribe(subject)
    await nc.flush()
    async with BulkPublisher(connecting(server), acknowledged=False) as publisher:
        assert await publisher.publish(messages(subject, 3)) == Sent(3, 0)
    assert [(await subscription.next_msg()).reply for _ in range(3)] == [""] * 3


async def test_a_killed_server_costs_no_message():
    """Killed twice while messages are under way: each one is stored once."""
    with NatsServer(jetstream=True) as server:
        done = asyncio.Event()

        async def disturb():
            for _ in range(2):
                await asyncio.sleep(0.1)
                server.kill()
                server.restart()
            done.set()

        async with await nats.connect(server.url) as nc:
            await nc.jetstream().add_stream(name="S", subjects=["s"])
        disturbing, count = asyncio.create_task(disturb()), 0
        async with BulkPublisher(connecting(server), window=50, ack_timeout=1) as publisher:
            while not done.is_set():
                batch = [NatsMessage("s", b"", {"Nats-Msg-Id": str(count + number)}) for number in range(200)]
                assert (await publisher.publish(batch)).messages == 200
                count += 200
        await disturbing
        async with await nats.connect(server.url) as nc:
            stored = [message async for batch in read_stream(nc.jetstream(), "S") for message in batch]
        ids = [dict(message.headers)["Nats-Msg-Id"] for message in stored]
        assert sorted(map(int, ids)) == list(range(count))
