"""Atomic batches while the leader of the stream is killed or paused, with three servers."""

import pytest

from ce_nats import from_nats_message
from ce_nats.aio import AtomicBatch, DeliveryError
from ce_nats.aio.jetstream import configure_stream, read_stream
from ce_nats.aio.publishing import _atomic_commit
from tests.support import clusters
from tests.support.clusters import SECONDS, connected

pytestmark = pytest.mark.faults

COUNT = 20


@pytest.fixture
async def stream(cluster, subject):
    """A stream with three replicas that allows atomic batches."""
    name = subject.replace(".", "_")
    async with connected(*cluster.servers) as nc:
        js = nc.jetstream(timeout=SECONDS)
        await clusters.add_stream(js, name, subjects=[f"{subject}.*"])
        await configure_stream(js, name, allow_atomic=True)
        await clusters.until_replicated(js, name)
    return name


@pytest.fixture
def at_message(monkeypatch):
    """Return a function that registers a function to call before or after a message, counted over all attempts."""
    send, numbers = _atomic_commit.publish_with_block, iter(range(10**6))

    def register(number, function, *, is_before):
        async def publish_with_block(*arguments):
            is_it = next(numbers) == number
            if is_it and is_before:
                function()
            await send(*arguments)
            if is_it and not is_before:
                function()

        monkeypatch.setattr(_atomic_commit, "publish_with_block", publish_with_block)

    return register


async def outcome(js, subject, make_event, **options):
    """Publish a batch; return its acknowledgement, or its error."""
    batch = AtomicBatch(js, ack_timeout=2, retry_timeout=SECONDS, **options)
    try:
        async with batch:
            for number in range(COUNT):
                await batch.publish(make_event(number), f"{subject}.{number % 3}")
    except DeliveryError as error:
        return error
    return batch.ack


async def stored(js, stream):
    return [
        (message.sequence, from_nats_message(message).get_id())
        async for batch in read_stream(js, stream)
        for message in batch
    ]


WHOLE = [(number + 1, f"event {number}") for number in range(COUNT)]


@pytest.mark.parametrize(
    ("number", "is_before"),
    [(COUNT // 2, True), (COUNT - 1, False)],
    ids=["in the middle", "after the commit"],
)
async def test_leader_is_killed(cluster, stream, subject, make_event, at_message, number, is_before):
    """The batch is stored once, by the new leader or, if it was replicated, by the killed one."""
    leader = cluster.leader(stream)
    at_message(number, leader.kill, is_before=is_before)
    remaining = [server for server in cluster.servers if server is not leader]
    async with connected(*remaining) as nc:
        js = nc.jetstream()
        ack = await outcome(js, subject, make_event)
        assert not isinstance(ack, DeliveryError), ack
        assert (ack.first, ack.last) == (1, COUNT)
        assert await stored(js, stream) == WHOLE


async def test_paused_leader_may_store_the_batch_later(cluster, stream, subject, make_event, at_message):
    """Without ids a copy would be stored as well, so the batch is not resent, and the outcome is unknown."""
    leader = cluster.leader(stream)
    at_message(COUNT - 1, leader.pause, is_before=False)
    remaining = [server for server in cluster.servers if server is not leader]
    async with connected(*remaining) as nc:
        js = nc.jetstream()
        result = await outcome(js, subject, make_event, dedup=None)
        leader.resume()
        await clusters.until_replicated(nc.jetstream(timeout=SECONDS), stream)
        found = await stored(js, stream)
        if isinstance(result, DeliveryError):
            assert (result.code, found in ([], WHOLE)) == ("timeout", True)
        else:
            assert found == WHOLE
