"""The core of ``ce_nats.aio`` on supported versions of nats-server."""

import asyncio
from contextlib import suppress
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig

from ce_nats import ContentMode, aio
from ce_nats.aio.jetstream import read_stream
from ce_nats.errors import DeliveryError, ErrorCode
from ce_nats.testing import NatsServer
from tests.support.caching import available
from tests.support.programs import nats_server
from tests.support.strategies import plain_event

# A patch release of each minor version; None is the installed one.
VERSIONS = (None, "2.9.25", "2.10.26", "2.11.11", "2.12.8", "2.14.6", "2.15.1")
EVENTS = [
    plain_event({"number": number}, id=f"Zoë {number}%", datacontenttype="application/json") for number in range(20)
]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version or "installed")
async def test_core_and_streams(version: str | None) -> None:
    with NatsServer(jetstream=True, executable=_executable(version)) as server:
        connection = await nats.connect(server.url)
        try:
            found = connection.connected_server_version
            assert version in (None, f"{found.major}.{found.minor}.{found.patch}")
            await asyncio.wait_for(_core_and_streams(connection), 60)
        finally:
            await connection.close()


async def _core_and_streams(connection: Client) -> None:
    await _publish_and_subscribe(connection)
    await _request(connection)
    await _stream(connection)
    await _some_subjects(connection)
    await _settings(connection)
    await _atomic_batch(connection)


def _executable(version: str | None) -> Path | None:
    return None if version is None else available(lambda: nats_server(version), f"nats-server {version}")


async def _publish_and_subscribe(connection: Client) -> None:
    async with await aio.subscribe(connection, "core.*") as messages:
        await aio.flush(connection)
        for mode in ContentMode:
            await aio.publish(connection, EVENTS[0], "core.a", mode=mode)
            assert (await messages.__anext__()).event.get_id() == "Zoë 0%"


async def _request(connection: Client) -> None:
    with pytest.raises(DeliveryError) as caught:
        await aio.request(connection, EVENTS[0], "unbound")
    assert caught.value.code is ErrorCode.NO_RESPONDERS


async def _stream(connection: Client) -> None:
    js = connection.jetstream()
    await js.add_stream(name="S", subjects=["s"])
    async with aio.Publisher(js) as publisher:
        for event in EVENTS:
            await publisher.publish(event, "s")
    again = await aio.jetstream.publish(js, EVENTS[3], "s", mode=ContentMode.STRUCTURED)
    assert again.duplicate
    stored = [message async for batch in read_stream(js, "S", batch_size=7) for message in batch]
    assert [message.sequence for message in stored] == list(range(1, len(EVENTS) + 1))
    seen: list[tuple[str, int]] = []
    async with aio.PullConsumer(js, "S", "c", dead_letter=None, create=ConsumerConfig()) as consumer:
        async for delivery in consumer:
            seen.append((delivery.event.get_id(), delivery.deliveries))
            if len(seen) == 1:
                await delivery.nak(0)
            else:
                await delivery.ack()
            if len(seen) == len(EVENTS) + 1:
                break
    ids = [str(event.attributes["id"]) for event in EVENTS]
    assert sorted(seen) == sorted([*((one, 1) for one in ids), (ids[0], 2)])


async def _some_subjects(connection: Client) -> None:
    """Only selected subjects are read and consumed, or an error reports that the server does not support it."""
    js = connection.jetstream()
    await js.add_stream(name="F", subjects=["f.*"])
    subjects = ["f.a", "f.b", "f.c"] * 200
    async with aio.Publisher(js) as publisher:
        for number, subject in enumerate(subjects):
            await publisher.publish(plain_event(id=str(number)), subject)
    for wanted in (["f.b"], ["f.a", "f.b"], ["f.*"]):
        found = [message.subject async for batch in read_stream(js, "F", subject=wanted) for message in batch]
        assert found == [subject for subject in subjects if subject in wanted or wanted == ["f.*"]]
    assert await _consumed(js, "one", ConsumerConfig(filter_subjects=["f.c"])) == {"f.c"}
    several = ConsumerConfig(filter_subjects=["f.b", "f.c"])
    version = connection.connected_server_version
    if (version.major, version.minor) >= (2, 10):
        assert await _consumed(js, "several", several) == {"f.b", "f.c"}
        return
    for _ in range(2):  # twice: the first call created no consumer without the subjects
        with pytest.raises(DeliveryError, match=r"filter_subjects need nats-server 2\.10 or later") as caught:
            await _consumed(js, "several", several)
        assert caught.value.code is ErrorCode.INCOMPATIBLE_CONFIG


async def _consumed(js: JetStreamContext, name: str, config: ConsumerConfig) -> set[str]:
    """Return the subjects of the first deliveries of a new consumer."""
    found: set[str] = set()
    async with aio.PullConsumer(js, "F", name, dead_letter=None, create=config, prefetch=30) as consumer:
        for _ in range(20):
            delivery = await anext(consumer)
            async with delivery:
                found.add(delivery.subject)
    return found


async def _settings(connection: Client) -> None:
    """A setting is changed, or an error reports that the server ignores it."""
    js = connection.jetstream()
    await js.add_stream(name="C", subjects=["c"])
    version = connection.connected_server_version
    for setting, since in (("allow_direct", (2, 9)), ("allow_msg_ttl", (2, 11)), ("allow_atomic", (2, 12))):
        if (version.major, version.minor) >= since:
            assert (await aio.jetstream.configure_stream(js, "C", **{setting: True}))[setting] is True
            continue
        with pytest.raises(DeliveryError, match=f"ignored {setting}=True") as caught:
            await aio.jetstream.configure_stream(js, "C", **{setting: True})
        assert caught.value.code is ErrorCode.INCOMPATIBLE_CONFIG


async def _atomic_batch(connection: Client) -> None:
    """A batch is stored; servers before 2.12 would store each event, so nothing is sent to them."""
    js = connection.jetstream()
    await js.add_stream(name="A", subjects=["a.*"])
    with suppress(DeliveryError):
        await aio.jetstream.configure_stream(js, "A", allow_atomic=True)
    received = await connection.subscribe("a.*")
    version = connection.connected_server_version
    is_supported = (version.major, version.minor) >= (2, 12)

    async def publish(number: int, stream: str | None) -> aio.BatchAck | None:
        async with aio.AtomicBatch(js, stream=stream) as batch:
            await batch.publish(EVENTS[number], "a.x", expected_last_subject_sequence=number and number - 1)
            await batch.publish(EVENTS[number + 1], "a.y")
        return batch.ack

    for number, stream in ((0, None), (2, "A")):
        if is_supported:
            ack = await publish(number, stream)
            assert ack is not None
            assert (ack.first, ack.last) == (number + 1, number + 2)
            continue
        with pytest.raises(DeliveryError, match=r"with nats-server 2\.12\.1 or later") as caught:
            await publish(number, stream)
        assert caught.value.code is ErrorCode.INCOMPATIBLE_CONFIG
    await connection.flush()
    assert received.pending_msgs == (4 if is_supported else 0)
    assert (await js.stream_info("A")).state.messages == (4 if is_supported else 0)
