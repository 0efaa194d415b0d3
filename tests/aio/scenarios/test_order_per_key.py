"""Order per key while servers are killed, and others become leaders of the consumer."""

import asyncio
from collections import defaultdict

import pytest
from nats.js.api import ConsumerConfig

from ce_nats.aio import Publisher, PullConsumer
from ce_nats.testing import NatsServer
from tests.support import clusters
from tests.support.clusters import SECONDS, connected
from tests.support.waiting import until

pytestmark = pytest.mark.faults

COUNT = 400
KEYS = 7


async def test_order_is_kept_when_leaders_change(cluster, subject, make_event):
    """Deliveries and acknowledgements are lost with each leader; some events fail at first."""
    name = subject.replace(".", "_")
    handled = defaultdict(list)
    async with connected(cluster.servers[0]) as nc, connected(cluster.servers[1]) as other:
        js = nc.jetstream(timeout=SECONDS)
        await clusters.add_stream(js, name, subjects=[subject])

        async def publish():
            async with Publisher(other.jetstream(timeout=1), retry_timeout=SECONDS) as publisher:
                for number in range(COUNT):
                    await publisher.publish(make_event(number), subject)
                    await asyncio.sleep(0.01)

        def total():
            return sum(map(len, handled.values()))

        async def change_leaders():
            """Elect another leader of the consumer twice, and kill a server that is neither client's."""
            for part in (1, 2, 3):
                await until(lambda part=part: total() > part * COUNT // 5)
                if part < 3:
                    await other.publish(f"$JS.API.CONSUMER.LEADER.STEPDOWN.{name}.c")
            cluster.servers[2].kill()

        await asyncio.wait_for(asyncio.gather(publish(), change_leaders(), consume(js, name, handled)), 3 * SECONDS)
    check_order(handled)


async def test_order_is_kept_when_the_server_is_killed(make_event):
    """It may not have saved its last deliveries and acknowledgements."""
    handled = defaultdict(list)
    with NatsServer(jetstream=True) as server:
        async with connected(server) as nc, connected(server) as other:
            js = nc.jetstream()
            await js.add_stream(name="KILLED", subjects=["killed"])

            async def publish():
                async with Publisher(other.jetstream(timeout=1), retry_timeout=SECONDS) as publisher:
                    for number in range(COUNT):
                        await publisher.publish(make_event(number), "killed")
                        await asyncio.sleep(0.005)

            async def kill():
                for part in (1, 2, 3):
                    await until(lambda part=part: sum(map(len, handled.values())) > part * COUNT // 5)
                    server.kill()
                    await asyncio.to_thread(server.start)

            await asyncio.wait_for(asyncio.gather(publish(), kill(), consume(js, "KILLED", handled)), 3 * SECONDS)
    check_order(handled)


async def consume(js, stream, handled):
    """Handle all events, some of which fail at first; add their sequences to lists, by key, at the first time."""
    failed = set()
    config = ConsumerConfig(ack_wait=2)
    async with PullConsumer(js, stream, "c", dead_letter=None, create=config, on_error=lambda *_: None) as consumer:

        async def handle(delivery):
            number = delivery.sequence
            if number % 11 == 0 and number not in failed:
                failed.add(number)
                raise KeyError(number)
            await asyncio.sleep(0.005)
            if number not in handled[number % KEYS]:
                handled[number % KEYS].append(number)
            if sum(map(len, handled.values())) == COUNT:
                consumer.stop()

        await consumer.run(handle, concurrency=4, key=lambda delivery: delivery.sequence % KEYS)


def check_order(handled):
    assert sorted(number for numbers in handled.values() for number in numbers) == list(range(1, COUNT + 1))
    assert all(numbers == sorted(numbers) for numbers in handled.values())
