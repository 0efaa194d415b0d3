"""Ranges of a stream, read from a real server, with all kinds of missing messages."""

import asyncio
import time
from contextlib import aclosing
from functools import partial

import nats
import pytest
from nats.js.api import ConsumerConfig, RetentionPolicy

from ce_nats._ranges import StreamRange
from ce_nats.aio._jetstream_api import StreamApi
from ce_nats.aio.reading import _range_reader as ranges
from ce_nats.aio.reading._range_reader import read_range
from ce_nats.aio.reading._raw_pull import RawPull
from ce_nats.aio.reading._stored_messages import metadata
from ce_nats.errors import DataLossError, DeliveryError
from ce_nats.testing import NatsServer
from tests.support.pausing import paused
from tests.support.reading import fetch, publish_all, until_stored, until_stream
from tests.support.waiting import until

SECONDS = 60  # for one read, so that a hanging one fails


def connecting_to(url):
    async def connect(client):
        await client.connect(url, max_reconnect_attempts=1, reconnect_time_wait=0.05, connect_timeout=2)

    return connect


@pytest.fixture
def connect(server):
    return connecting_to(server.url)


@pytest.fixture(params=["consumer", "api"])
def way(request, monkeypatch):
    """Read through a consumer, and through the API, which is used if the consumer cannot be created."""
    if request.param == "api":
        refuse_consumers(monkeypatch)


def refuse_consumers(monkeypatch):
    async def through_consumer(self):
        raise ranges._NoConsumerError
        yield

    monkeypatch.setattr(ranges._Attempt, "_through_consumer", through_consumer)


async def batches_of(connect, wanted, **options):
    async def read():
        async with aclosing(read_range(connect, wanted, **options)) as batches:
            return [batch async for batch in batches]

    return await asyncio.wait_for(read(), SECONDS)


async def numbers(connect, stream, first, last, **fields):
    batches = await batches_of(connect, StreamRange(stream, first, last, **fields))
    return [metadata(reply)[0] for batch in batches for _, reply, _, _ in batch.messages]


async def fill(js, subject, count):
    await publish_all(js, [(subject.format(number), b"") for number in range(count)])


@pytest.fixture
async def ten(nc, js, subject, stream):
    """A stream of ten messages, alternating between two subjects."""
    for number in range(1, 11):
        await js.publish(f"{subject}.{'odd' if number % 2 else 'even'}", str(number).encode())
    return stream


# --- Existing messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "last"), [(1, 10), (3, 7), (10, 10), (1, 1), (5, 4), (11, 10)])
async def test_first_and_last_are_inclusive(connect, way, ten, first, last):
    assert await numbers(connect, ten, first, last) == list(range(first, last + 1))


async def test_messages_are_bytes_on_the_wire(connect, way, js, subject, stream, send_raw):
    send_raw(subject, b"b: 1\r\na: \xff\r\nB: 3\r\nb: 1\r\n", b"\0\xfe")
    send_raw(subject, None, b"{}")
    (batch,) = await batches_of(connect, StreamRange(stream, 1, 2))
    (name, _, payload, block), (_, _, _, no_block) = batch.messages
    assert (name, payload, no_block) == (subject.encode(), b"\0\xfe", None)
    assert block == b"NATS/1.0\r\nb: 1\r\na: \xff\r\nB: 3\r\nb: 1\r\n\r\n"
    stored = await js.get_msg(stream, 1)
    assert int(batch.messages[0][1].split(b".")[7]) // 10**9 == int(stored.time.timestamp())


async def test_stored_header_status_does_not_end_a_request(connect, way, js, subject, stream, send_raw):
    """Only a status of the server ends a request, not a message of a client."""
    for _ in range(3):
        await js.publish(subject, b"", headers={"Status": "404"})
    assert await numbers(connect, stream, 1, 3) == [1, 2, 3]


@pytest.mark.parametrize("patterns", [("*.*.even",), ("{}.odd", "{}.even"), ("{}.even", "nothing.here")])
async def test_subjects_are_filtered(connect, way, ten, subject, patterns):
    patterns = tuple(pattern.format(subject) for pattern in patterns)
    expected = [number for number in range(3, 10) if number % 2 == 0 or "odd" in patterns[0]]
    assert await numbers(connect, ten, 3, 9, subjects=patterns) == expected


async def test_subject_without_messages_ends_at_once(connect, way, ten):
    wanted = StreamRange(ten, 1, 10, subjects=("nothing.here",))
    assert await batches_of(connect, wanted, request_timeout=600) == []


async def test_messages_are_read_in_batches(connect, nc, js, subject, stream):
    await fill(js, subject, 12_000)
    batches = await batches_of(connect, StreamRange(stream, 2, 11_999))
    assert [metadata(reply)[0] for batch in batches for _, reply, _, _ in batch.messages] == list(range(2, 12_000))
    assert max(len(batch.messages) for batch in batches) == 10_000


async def test_filters_on_ten_thousand_subjects(connect, nc, js, subject, stream):
    await fill(js, subject + ".{}.x", 10_000)
    chosen = tuple(f"{subject}.{number}.*" for number in range(0, 10_000, 200))
    assert await numbers(connect, stream, 1, 10_000, subjects=chosen) == list(range(1, 10_001, 200))
    assert await numbers(connect, stream, 5_000, 10_000, subjects=(f"{subject}.4999.x",)) == [5_000]


async def test_few_messages_after_the_range_are_sent(connect, nc, js, subject, stream, monkeypatch):
    """The number of messages in a filtered range is unknown; requesting too many costs the server and the network."""
    await publish_all(js, [(f"{subject}.{number % 10}", b"") for number in range(20_000)])
    sent = []

    class Counting(RawPull):
        async def pull(self, *arguments):
            messages, status = await super().pull(*arguments)
            sent.append(len(messages))
            return messages, status

    monkeypatch.setattr(ranges, "RawPull", Counting)
    assert len(await numbers(connect, stream, 1, 15_000)) == sum(sent) == 15_000
    sent.clear()
    assert len(await numbers(connect, stream, 1, 15_000, subjects=(f"{subject}.7",))) == 1_500
    assert sum(sent) < 1_700


# --- Missing messages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [(1, 2), (4, 5, 6), (9, 10), tuple(range(1, 11)), (1, 5, 10)])
async def test_deleted_messages_are_skipped(connect, way, js, ten, gone):
    """The range begins with the stream, because single deletions at its beginning look like a purge."""
    for number in gone:
        await js.delete_msg(ten, number)
    state = (await js.stream_info(ten)).state
    kept = [number for number in range(1, 11) if number not in gone]
    first = state.first_seq if kept else 11
    assert await numbers(connect, ten, first, 10) == kept


@pytest.mark.parametrize("subjects", [(), ("test.>",)])
async def test_purge_is_a_loss(connect, way, js, ten, subjects):
    await js.purge_stream(ten, seq=5)
    with pytest.raises(DataLossError, match=rf"stream {ten}: messages 2 to 4 are gone .* begins at 5"):
        await numbers(connect, ten, 2, 10, subjects=subjects)
    with pytest.raises(DataLossError, match=r"^data-lost: .* message 4 is gone"):
        await numbers(connect, ten, 4, 10, subjects=subjects)
    assert await numbers(connect, ten, 5, 10, subjects=subjects) == [5, 6, 7, 8, 9, 10]
    assert await numbers(connect, ten, 2, 10, subjects=subjects, from_beginning=True) == [5, 6, 7, 8, 9, 10]


async def test_a_state_of_the_past_is_no_loss(connect, way, js, ten, subject):
    """A leader without its replicas may report a state that lacks messages of the range. The next leader has them."""

    async def publish_later():
        await asyncio.sleep(1)
        for number in range(11, 16):
            await js.publish(f"{subject}.odd", str(number).encode())

    publishing = asyncio.create_task(publish_later())
    assert await numbers(connect, ten, 1, 15) == [*range(1, 16)]
    await publishing


async def test_messages_removed_by_max_msgs_are_a_loss(connect, way, js, subject, stream):
    await js.update_stream(name=stream, subjects=[subject, f"{subject}.>"], storage="memory", max_msgs=5)
    for _ in range(12):
        await js.publish(subject, b"")
    with pytest.raises(DataLossError, match="messages 3 to 7 are gone"):
        await numbers(connect, stream, 3, 12)
    losses = []
    (batch,) = await batches_of(connect, StreamRange(stream, 3, 12), on_loss=losses.append)
    assert (batch.first, batch.last, len(batch.messages), len(losses)) == (8, 12, 5, 1)


async def test_replaced_messages_are_no_loss(connect, way, nc, js, subject, stream):
    """A stream that keeps the last message of each subject, as a key-value bucket, has many gaps."""
    await js.update_stream(name=stream, subjects=[subject, f"{subject}.>"], storage="memory", max_msgs_per_subject=1)
    for number in range(3_000):
        await nc.publish(f"{subject}.{number if number % 30 == 0 else 'busy'}", b"")
    await until_stored(js, stream, 3_000)
    kept = [*range(1, 3_000, 30), 3_000]
    assert await numbers(connect, stream, 1, 3_000) == kept
    assert await numbers(connect, stream, 500, 2_000) == [number for number in kept if 500 <= number <= 2_000]
    assert await numbers(connect, stream, 2, 30) == []


async def test_messages_removed_by_max_age_are_a_loss(connect, js, subject):
    name = subject.replace(".", "_")
    await js.add_stream(name=name, subjects=[subject], storage="memory", max_age=0.5, duplicate_window=0.5)
    for _ in range(5):
        await js.publish(subject, b"")
    await until_stream(js, name, lambda state: state.messages == 0)
    await js.publish(subject, b"")
    with pytest.raises(DataLossError, match=r"messages 2 to 5 are gone .* begins at 6"):
        await numbers(connect, name, 2, 6)
    await js.delete_stream(name)


async def test_recreated_stream_is_a_loss(connect, way, js, subject, stream):
    await js.publish(subject, b"")
    created = (await StreamApi(js._nc).state(stream)).created
    assert await numbers(connect, stream, 1, 1, created=created) == [1]
    await js.delete_stream(stream)
    await js.add_stream(name=stream, subjects=[subject], storage="memory")
    await js.publish(subject, b"")
    with pytest.raises(DataLossError, match=f"stream {stream}: it was created at {created}"):
        await numbers(connect, stream, 1, 1, created=created)
    assert await batches_of(connect, StreamRange(stream, 1, 1, created), on_loss=lambda error: None) == []


async def test_stream_that_ends_before_the_range_is_a_loss(connect, way, ten, monkeypatch):
    """For example after it was restored from a backup."""
    monkeypatch.setattr("ce_nats.aio.reading._range_reader.OLD_STATE_SECONDS", 0.6)
    with pytest.raises(DataLossError, match="messages 11 to 12 are gone"):
        await numbers(connect, ten, 8, 12)


async def test_missing_stream_is_an_error_at_once(connect, way):
    with pytest.raises(DeliveryError, match="there is no stream NOTHING"):
        await batches_of(connect, StreamRange("NOTHING", 1, 10), request_timeout=600, retry_timeout=600)


# --- Large messages, and unavailable servers -------------------------------------------------------------------------


async def test_batches_of_large_messages_are_limited_in_bytes(connect, nc, js, subject, stream):
    payload = bytes(nc.max_payload - 100)
    for _ in range(40):
        await js.publish(subject, payload)
    batches = await batches_of(connect, StreamRange(stream, 1, 40))
    sizes = [[len(data) for _, _, data, _ in batch.messages] for batch in batches]
    assert [size for batch in sizes for size in batch] == [len(payload)] * 40
    assert max(map(sum, sizes)) <= 8 * 2**20


@pytest.fixture
def own_server():
    """A server that a test may stop."""
    with NatsServer(jetstream=True, config="max_payload: 16MB") as server:
        yield server


@pytest.fixture
async def filled(own_server):
    """A stream of 4,000 messages in files, on ``own_server``: more than the first request asks for."""
    nc = await nats.connect(own_server.url)
    js = nc.jetstream()
    await js.add_stream(name="FILLED", subjects=["filled"])
    await fill(js, "filled", 4_000)
    await nc.close()
    return "FILLED"


async def test_message_larger_than_a_batch(own_server):
    nc = await nats.connect(own_server.url)
    js = nc.jetstream()
    await js.add_stream(name="LARGE", subjects=["large"], storage="memory")
    for size in (12_000_000, 1, 9_000_000):
        await js.publish("large", bytes(size))
    await nc.close()
    batches = await batches_of(connecting_to(own_server.url), StreamRange("LARGE", 1, 3))
    assert [len(data) for batch in batches for _, _, data, _ in batch.messages] == [12_000_000, 1, 9_000_000]


@pytest.mark.parametrize("stop", ["kill", "restart"])
async def test_read_continues_after_a_restart(own_server, filled, stop):
    """Each message is yielded once, in order."""
    found = []
    async with aclosing(read_range(connecting_to(own_server.url), StreamRange(filled, 1, 4_000))) as batches:
        async for batch in batches:
            found += [metadata(reply)[0] for _, reply, _, _ in batch.messages]
            if len(found) == 1_000:
                if stop == "kill":
                    own_server.kill()
                # Not in a thread, so that the reader is blocked, as it is while Spark is busy.
                own_server.restart()
    assert found == list(range(1, 4_001))


async def test_read_continues_after_a_restart_during_a_request(own_server, filled):
    async def restart_during_a_read():
        async with await nats.connect(own_server.url) as nc:
            js = nc.jetstream()
            await until(lambda: js.consumers_info(filled))
        await asyncio.to_thread(own_server.kill)
        await asyncio.to_thread(own_server.restart)

    restarts = asyncio.create_task(restart_during_a_read())
    found = []
    while not restarts.done():
        found.append(await numbers(connecting_to(own_server.url), filled, 1, 4_000))
    await restarts
    assert all(read == list(range(1, 4_001)) for read in found)


async def test_killed_server_is_an_error(own_server, filled):
    read = partial(read_range, connecting_to(own_server.url), StreamRange(filled, 1, 4_000), retry_timeout=1)
    async with aclosing(read()) as batches:
        await anext(batches)
        own_server.kill()
        started = time.perf_counter()
        with pytest.raises(DeliveryError, match=r"stream FILLED, from message 1001 on:"):
            await asyncio.wait_for(anext(batches), SECONDS)
        assert time.perf_counter() - started < 25  # the default is 30 seconds


async def test_paused_server_is_an_error(own_server, filled):
    """Connections of a paused process stay open."""
    read = partial(
        read_range,
        connecting_to(own_server.url),
        StreamRange(filled, 1, 4_000),
        request_timeout=0.5,
        retry_timeout=0.5,
    )
    async with aclosing(read()) as batches:
        await anext(batches)
        with paused(own_server), pytest.raises(DeliveryError, match="stream FILLED"):
            await asyncio.wait_for(anext(batches), SECONDS)


@pytest.mark.parametrize("error", [asyncio.TimeoutError(), ConnectionRefusedError(), nats.errors.NoServersError()])
async def test_errors_of_connecting_are_delivery_errors(error):
    """nats-py's own: before Python 3.11, asyncio.TimeoutError is neither an OSError nor one of nats-py."""
    attempts = []

    async def connect(client):
        attempts.append(client)
        raise error

    with pytest.raises(DeliveryError, match="stream S, from message 1 on"):
        async for _ in read_range(connect, StreamRange("S", 1, 10), retry_timeout=0.3):
            pass
    assert len(attempts) > 1


async def test_expired_consumer_is_recreated(connect, nc, js, subject, stream, monkeypatch):
    """Spark may process a batch for longer than the server keeps an inactive consumer."""
    monkeypatch.setattr(ranges, "_INACTIVE_SECONDS", 0.1)
    await fill(js, subject, 3_000)
    found = []
    async with aclosing(read_range(connect, StreamRange(stream, 1, 3_000))) as batches:
        async for batch in batches:
            found += [metadata(reply)[0] for _, reply, _, _ in batch.messages]
            if len(found) == 1_000:
                await until_stream(js, stream, lambda state: state.consumer_count == 0)
    assert found == list(range(1, 3_001))


# --- Cleanup and side effects ----------------------------------------------------------------------------------------


async def test_closed_iterator_leaves_no_tasks(connect, nc, js, subject, stream):
    await fill(js, subject, 3_000)
    before = asyncio.all_tasks()
    async with aclosing(read_range(connect, StreamRange(stream, 1, 3_000))) as batches:
        await anext(batches)
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("retention", [RetentionPolicy.WORK_QUEUE, RetentionPolicy.INTEREST])
async def test_reading_removes_no_messages(connect, js, subject, retention):
    """A consumer would be an additional interest of an interest stream, and a work queue allows only one."""
    name = subject.replace(".", "_")
    await js.add_stream(name=name, subjects=[subject], storage="memory", retention=retention)
    worker = await js.pull_subscribe(subject, durable="worker", config=ConsumerConfig(ack_wait=60))
    await fill(js, subject, 1_100)
    async with aclosing(read_range(connect, StreamRange(name, 1, 1_100))) as batches:
        await anext(batches)
        assert [info.name for info in await js.consumers_info(name)] == ["worker"]
    assert await numbers(connect, name, 1, 1_100) == list(range(1, 1_101))
    assert (await js.stream_info(name)).state.messages == 1_100
    for message in await fetch(worker, 5):
        await message.ack_sync()
    assert (await js.stream_info(name)).state.messages == 1_095
    await js.delete_stream(name)


async def test_stream_at_its_consumer_limit_is_read(connect, js, subject):
    name = subject.replace(".", "_")
    await js.add_stream(name=name, subjects=[subject], storage="memory", max_consumers=1)
    await js.pull_subscribe(subject, durable="only")
    await js.publish(subject, b"")
    assert await numbers(connect, name, 1, 1) == [1]
    await js.delete_stream(name)


async def test_domain_is_selected_by_its_prefix():
    with NatsServer(jetstream=True, config="jetstream { domain: hub }") as server:
        nc = await nats.connect(server.url)
        js = nc.jetstream(domain="hub")
        await js.add_stream(name="FAR", subjects=["far"], storage="memory")
        await js.publish("far", b"x")
        await nc.close()
        wanted = StreamRange("FAR", 1, 1)
        (batch,) = await batches_of(connecting_to(server.url), wanted, prefix="$JS.hub.API")
        assert [data for _, _, data, _ in batch.messages] == [b"x"]
