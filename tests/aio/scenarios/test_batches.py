"""Fast ingest on three servers, while the leader of the stream is killed or changes."""

import asyncio

import pytest

from ce_nats import from_nats_message
from ce_nats.aio import Publisher
from ce_nats.aio.jetstream import read_stream
from tests.support import clusters
from tests.support.clusters import SECONDS, connected
from tests.support.linked_cluster import LinkedCluster

pytestmark = pytest.mark.faults

COUNT = 5_000


@pytest.fixture
async def batched(cluster, subject):
    name = subject.replace(".", "_")
    async with connected(*cluster.servers) as nc:
        await clusters.add_stream(nc.jetstream(timeout=SECONDS), name, subjects=[subject], allow_batched=True)
    return name


def change_by_kill(cluster, stream):
    leader = cluster.leader(stream)
    leader.kill()
    leader.start()


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "steps down"])
async def test_new_leaders_neither_lose_nor_reorder_events(cluster, batched, subject, make_event, is_killed):
    async with connected(*cluster.servers) as nc:
        js = nc.jetstream(timeout=SECONDS)

        async def change():
            for _ in range(2):
                await asyncio.sleep(0.3)
                if is_killed:
                    await asyncio.to_thread(change_by_kill, cluster, batched)
                else:
                    await clusters.change_leader(nc, batched)

        changing = asyncio.create_task(change())
        count = 0
        async with Publisher(js, retry_timeout=2 * SECONDS) as publisher:
            while count < COUNT or not changing.done():
                await publisher.publish(make_event(count), subject)
                count += 1
        await changing
        assert (publisher.acknowledged, publisher.failures) == (count, [])
        assert publisher.batched > count / 2
        found = [from_nats_message(message).get_id() async for batch in read_stream(js, batched) for message in batch]
        assert found == [f"event {number}" for number in range(count)]


async def test_leader_without_replicas_acknowledges_nothing(make_event):
    """
    A leader that cannot reach its replicas counts resent messages as duplicates, and never stores them.

    The events are resent to it after `ack_timeout`. They are acknowledged when the next leader has stored them.
    """
    with LinkedCluster() as cluster:
        server = cluster.servers[0]
        async with connected(server) as nc:
            js = nc.jetstream(timeout=SECONDS)
            await clusters.add_stream(js, "ISOLATED", subjects=["isolated"], allow_batched=True)
            while await asyncio.to_thread(cluster.leader, "ISOLATED") is not server:
                await clusters.change_leader(nc, "ISOLATED")
            async with Publisher(js, ack_timeout=0.3, retry_timeout=2 * SECONDS) as publisher:
                await publisher.publish(make_event(0), "isolated")
                await publisher.flush()
                with cluster.links.cut(0):
                    for number in range(1, 300):
                        await publisher.publish(make_event(number), "isolated")
                    await asyncio.sleep(1)
                    assert publisher.acknowledged == 1
            assert (publisher.acknowledged, publisher.failures) == (300, [])
            found = [message async for batch in read_stream(js, "ISOLATED") for message in batch]
            assert [from_nats_message(message).get_id() for message in found] == [f"event {n}" for n in range(300)]
