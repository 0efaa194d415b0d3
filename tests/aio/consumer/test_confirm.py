"""Acknowledgements that the server confirms: the block waits, run() continues, and each failure is known."""

import asyncio

import pytest
from nats import connect

from ce_nats import DeliveryError
from tests.support.consuming import after, consume, is_settled, publish, take
from tests.support.relay import Relay, without
from tests.support.waiting import until

__all__ = ["consume", "is_settled", "publish"]

ACK = rb"PUB \$JS\.ACK\.\S+ \S+ 0(?=\r\n)"


@pytest.fixture
async def relayed(server):
    with Relay(server.url) as relay:
        nc = await connect(relay.url)
        yield relay, nc.jetstream(timeout=0.5)
        await nc.close()


def handling(consumer, count, seen):
    async def handle(delivery):
        seen.append(delivery.sequence)
        if len(seen) == count:
            consumer.stop()

    return handle


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_run_returns_when_all_are_confirmed(js, stream, publish, consume, concurrency):
    await publish(*range(600))
    seen = []
    async with consume(double_ack=True, prefetch=300) as consumer:
        await after(consumer.run(handling(consumer, 600, seen), concurrency=concurrency))
        info = await js.consumer_info(stream, "c")
    assert sorted(seen) == list(range(1, 601))
    assert (info.num_ack_pending, info.ack_floor.stream_seq) == (0, 600)


async def test_run_does_not_wait_for_each_confirmation(relayed, publish, consume, is_settled):
    relay, via = relayed
    await publish(*range(100))
    seen = []
    async with consume(double_ack=True, via=via, prefetch=300) as consumer:
        relay.delay = 0.3  # 30 s, if each one had to be awaited
        via._timeout = 30
        await asyncio.wait_for(consumer.run(handling(consumer, 100, seen)), 15)
    await is_settled()


async def test_block_waits_for_its_confirmation(js, stream, publish, consume):
    await publish(1)
    async with consume(double_ack=True) as consumer:
        async with await take(consumer):
            pass
        assert (await js.consumer_info(stream, "c")).ack_floor.stream_seq == 1


async def test_lost_acknowledgement_raises_from_its_block_and_is_reported_by_run(relayed, publish, consume):
    relay, via = relayed
    await publish(1, 2)
    reported = []
    options = {"double_ack": True, "on_error": lambda error, delivery: reported.append((error.code, delivery.sequence))}
    async with consume(via=via, **options) as consumer:
        relay.lost = lambda chunk: without(chunk, ACK)
        with pytest.raises(DeliveryError, match="not confirmed in time"):
            async with await take(consumer):
                pass
        await after(consumer.run(handling(consumer, 1, [])))
    assert reported == [("timeout", 2)]


async def test_acknowledgement_that_reaches_no_consumer_is_an_error(js, stream, publish, consume):
    await publish(1)
    async with consume(double_ack=True) as consumer:
        delivery = await take(consumer)
        await js.delete_consumer(stream, "c")
        with pytest.raises(DeliveryError, match=r"no-responders|timeout"):
            async with delivery:
                pass


@pytest.mark.parametrize("has_run", [True, False])
async def test_closed_connection_fails_what_is_not_confirmed(relayed, publish, consume, has_run):
    relay, via = relayed
    via._timeout = 60
    await publish(1)
    reported = []

    async def handle(delivery):
        relay.interrupt()

    async def settle_one(consumer):
        async with await take(consumer):
            relay.interrupt()

    async with consume(double_ack=True, via=via, on_error=lambda error, _: reported.append(error.code)) as consumer:
        running = asyncio.create_task(consumer.run(handle) if has_run else settle_one(consumer))
        await until(lambda: relay.is_interrupted)
        await asyncio.sleep(0.05)
        await via._nc.close()
        with pytest.raises(DeliveryError, match="connection-closed"):
            await after(running)
        relay.resume()
    assert reported == ["connection-closed"] * has_run
