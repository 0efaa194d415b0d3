"""Large data is stored and read while the bucket's leader of three servers is killed."""

import asyncio

import pytest
from nats.js.errors import BadRequestError

from ce_nats import from_nats_message
from ce_nats.aio import ClaimCheck, Publisher
from tests.support import clusters
from tests.support.clusters import SECONDS, connected
from tests.support.reading import read
from tests.support.waiting import until

pytestmark = pytest.mark.faults

COUNT = 12


@pytest.fixture
async def bucket(cluster, subject):
    """A bucket with three replicas, and a stream for the events."""
    name = subject.replace(".", "_")
    async with connected(*cluster.servers) as nc:
        js = nc.jetstream(timeout=SECONDS)
        await clusters.add_stream(js, name, subjects=[subject])

        async def is_created():
            try:
                return await js.create_object_store(name, replicas=3)
            except BadRequestError:  # a restarted server is still considered offline
                return None

        await until(is_created)
        await clusters.until_replicated(js, f"OBJ_{name}")
    return name


def payload(number):
    return bytes([number]) * 500_000


async def test_data_is_stored_and_read_although_the_leader_is_killed(cluster, subject, bucket, make_event):
    """First while events are published, then, after the server is back, while they are read."""
    others = [server for server in cluster.servers if server is not cluster.leader(f"OBJ_{bucket}")]
    async with connected(*others) as nc:
        js = nc.jetstream(timeout=2)
        claim_check = ClaimCheck(js, bucket, over=1000)
        events = [make_event(number, payload(number)) for number in range(COUNT)]
        async with Publisher(js, claim_check=claim_check) as publisher:
            for event in events[: COUNT // 2]:
                await publisher.publish(event, subject)
            before = nc.stats["out_msgs"]
            publishing = asyncio.create_task(_publish_all(publisher, events[COUNT // 2 :], subject))
            await until(lambda: nc.stats["out_msgs"] > before + 1)  # the first chunk, after a request
            cluster.leader(f"OBJ_{bucket}").kill()
            await asyncio.wait_for(publishing, SECONDS)
        # Events that were resent during the election may be stored after later ones.
        sent = [from_nats_message(message) for message in await read(js, bucket)]
        sent.sort(key=lambda event: int(event.id.split()[1]))
        assert [event.id for event in sent] == [event.get_id() for event in events]

    for server in cluster.servers:
        server.start()
    cluster.wait_until_ready()
    async with connected(*cluster.servers) as nc:
        await clusters.until_replicated(nc.jetstream(timeout=SECONDS), f"OBJ_{bucket}")
    others = [server for server in cluster.servers if server is not cluster.leader(f"OBJ_{bucket}")]
    async with connected(*others) as nc:
        claim_check = ClaimCheck(nc.jetstream(timeout=2), bucket)
        for number, event in enumerate(sent):
            reading = asyncio.create_task(claim_check.resolve(event))
            if number == COUNT // 2:
                cluster.leader(f"OBJ_{bucket}").kill()
            assert (await asyncio.wait_for(reading, SECONDS)).data == payload(number)


async def _publish_all(publisher, events, subject):
    for event in events:
        await publisher.publish(event, subject)
