"""Reads and requests during an election, after the leader of three servers was killed."""

import asyncio
import subprocess
import sys

import pytest
from nats.js.api import ConsumerConfig

from ce_nats import sync
from ce_nats._ranges import StreamRange
from ce_nats.aio import PullConsumer
from ce_nats.aio.consumer._dead_letters import requeue_all
from ce_nats.aio.jetstream import read_stream
from ce_nats.aio.reading._range_reader import read_range
from ce_nats.aio.reading._stored_messages import metadata
from ce_nats.capture import count_captured, last_captured
from ce_nats.errors import ApiError, DeliveryError
from ce_nats.redelivery import DeadLetter, Reason
from ce_nats.spark.connector._connection import Connection
from ce_nats.spark.connector._streams import Streams
from tests.support import clusters
from tests.support.clusters import SECONDS, connected
from tests.support.reading import publish_all

pytestmark = pytest.mark.faults

# An election takes longer, so that an operation without retries fails.
ONE_REQUEST = 0.5
COUNT = 3_000
ALL = list(range(1, COUNT + 1))
EVENT = b'{"specversion":"1.0","id":"%d","source":"/elections","type":"t"}'


@pytest.fixture
async def stream(cluster, subject):
    name = subject.replace(".", "_")
    async with connected(*cluster.servers) as nc:
        js = nc.jetstream(timeout=SECONDS)
        await clusters.add_stream(js, name, subjects=[subject])
        await publish_all(js, [(subject, EVENT % number) for number in ALL])
        await js.add_consumer(name, ConsumerConfig(durable_name="existing", ack_policy="explicit"))
        await clusters.until_replicated(js, name)
    return name


@pytest.fixture
async def letters(cluster, stream, subject):
    """A stream of dead letters, with originals from ``stream``."""
    name = f"{stream}_dead"
    async with connected(*cluster.servers) as nc:
        js = nc.jetstream(timeout=SECONDS)
        await clusters.add_stream(js, name, subjects=[f"dead.{subject}"])
        letters = [(number, DeadLetter(Reason.REJECTED, "", "", subject, stream, "c", number, 1)) for number in ALL]
        messages = [(f"dead.{subject}", b"again %d" % number, dict(letter.headers())) for number, letter in letters]
        await publish_all(js, messages)
        await clusters.until_replicated(js, name)
    return name


def kill_leader(cluster, stream=None):
    """Kill the leader of JetStream or a stream; return the servers that remain."""
    leader = cluster.leader(stream)
    leader.kill()
    return [server for server in cluster.servers if server is not leader]


async def sequences(js, stream, **options):
    return [message.sequence async for batch in read_stream(js, stream, **options) for message in batch]


async def first_id(js, stream, consumer, **options):
    consumer = PullConsumer(js, stream, consumer, dead_letter=None, **options)
    async with consumer as deliveries, await anext(deliveries) as event:
        return event.get_id()


def first_id_without_asyncio(urls, stream, consumer):
    options = {"dead_letter": None, "create": ConsumerConfig()}
    with sync.connect(urls) as nc, nc.consumer(stream, consumer, **options) as deliveries, next(deliveries) as event:
        return event.get_id()


async def sequences_as_in_spark(url, stream):
    """With a new connection for each attempt."""

    async def connect(client):
        await client.connect(url)

    batches = read_range(connect, StreamRange(stream, 1, COUNT), request_timeout=ONE_REQUEST)
    return [metadata(reply)[0] async for batch in batches for _, reply, _, _ in batch.messages]


def last_as_in_spark(urls, stream):
    streams = Streams(Connection(urls, request_timeout=ONE_REQUEST))
    try:
        return streams.states([stream])[stream].last
    finally:
        streams.close()


async def command(urls, *arguments):
    """Run a command, which must succeed, and return its standard output."""
    options = ["--server", ",".join(urls), "--timeout", str(ONE_REQUEST)]
    line = [sys.executable, "-m", "ce_nats", *map(str, arguments), *options]
    process = await asyncio.create_subprocess_exec(*line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    stdout, stderr = await asyncio.wait_for(process.communicate(), 2 * SECONDS)
    assert process.returncode == 0, stderr
    return stdout.decode()


# --- Reading and consuming -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leader", ["of the stream", "of JetStream"])
async def test_operation_started_during_an_election_waits_for_it(cluster, stream, leader, tmp_path):
    remaining = kill_leader(cluster, stream if leader == "of the stream" else None)
    urls = tuple(server.url for server in remaining)
    output = tmp_path / "a.jsonl"
    async with connected(*remaining) as nc:
        js = nc.jetstream(timeout=ONE_REQUEST)
        found = await asyncio.gather(
            sequences(js, stream, end=100),
            sequences(js, stream),
            sequences_as_in_spark(urls[0], stream),
            asyncio.to_thread(last_as_in_spark, urls, stream),
            first_id(js, stream, "existing"),
            first_id(js, stream, "created", create=ConsumerConfig()),
            asyncio.to_thread(first_id_without_asyncio, urls, stream, "synchronous"),
            command(urls, "capture", output, "--stream", stream),
            return_exceptions=True,
        )
    assert found[:-1] == [ALL[:100], ALL, ALL, COUNT, "1", "1", "1"]
    assert not isinstance(found[-1], BaseException), found[-1]
    assert (last_captured(output).sequence, count_captured(output)) == (COUNT, COUNT)


@pytest.mark.parametrize("is_consumer", [False, True], ids=["one by one", "consumer"])
async def test_read_continues_after_an_election(cluster, stream, is_consumer, monkeypatch):
    monkeypatch.setattr("ce_nats.aio.reading._range_reader._FEW", 0 if is_consumer else COUNT)
    monkeypatch.setattr("ce_nats.aio.reading._range_reader._ONE_BY_ONE", 500)
    found = []
    async with connected(cluster.leader(stream), *cluster.servers) as nc:
        async for batch in read_stream(nc.jetstream(timeout=ONE_REQUEST), stream, batch_size=500):
            found += [message.sequence for message in batch]
            if len(found) == 500:
                kill_leader(cluster, stream)
    assert found == ALL


async def test_time_to_wait_is_limited(cluster, stream):
    """Without a majority there is no election."""
    first, second = kill_leader(cluster, stream)
    second.kill()
    async with connected(first) as nc:
        with pytest.raises(DeliveryError) as info:
            await asyncio.wait_for(sequences(nc.jetstream(timeout=ONE_REQUEST), stream, retry_timeout=2), SECONDS)
        assert info.value.code in ("timeout", "temporarily-unavailable", "no-responders")


async def test_missing_stream_is_an_error_at_once(cluster):
    for server in cluster.servers:
        async with connected(server) as nc:
            js = nc.jetstream(timeout=SECONDS)
            with pytest.raises(ApiError, match="there is no stream NOTHING"):
                await asyncio.wait_for(sequences(js, "NOTHING", retry_timeout=10 * SECONDS), SECONDS)


# --- Dead letters ----------------------------------------------------------------------------------------------------


async def requeued(cluster, stream):
    """Return the payloads that were stored in ``stream`` after its first messages."""
    async with connected(*cluster.servers) as nc:
        js = nc.jetstream(timeout=SECONDS)
        return sorted([message.data async for batch in read_stream(js, stream, start=COUNT + 1) for message in batch])


AGAIN = sorted(b"again %d" % number for number in ALL)


async def test_dead_letters_are_requeued_and_deleted_during_an_election(cluster, stream, letters):
    """The leader of the dead letters' stream is killed while hundreds of deletions are in flight."""
    results = []
    async with connected(*cluster.servers) as nc:
        js = nc.jetstream(timeout=ONE_REQUEST)
        found = (message async for batch in read_stream(js, letters) for message in batch)
        async for result in requeue_all(js, found, timeout=ONE_REQUEST):
            results.append(result)
            if len(results) == 1:
                kill_leader(cluster, letters)
        assert [(each.is_deleted, each.error) for each in results] == [(True, None)] * COUNT
        assert await sequences(js, letters) == []
    assert await requeued(cluster, stream) == AGAIN
