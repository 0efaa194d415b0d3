"""Deliveries that a program drops, and such that are held while it uses them."""

import asyncio
import gc
import logging

from tests.support import waiting
from tests.support.consuming import SECONDS, acks, after, consume, is_settled, publish, take

__all__ = ["acks", "consume", "is_settled", "publish"]


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def test_a_loop_that_settles_nothing_is_warned_at_once(publish, consume, is_settled, caplog):
    """As soon as the first delivery is gone; and everything is released at the end."""
    await publish(1, 2, 3)
    async with consume() as consumer:
        seen = []
        async for delivery in consumer:
            seen.append(delivery.sequence)
            if len(seen) == 3:
                break
        await waiting.until(lambda: warnings_of(caplog), seconds=SECONDS)
        (warning,) = warnings_of(caplog)
        assert "sequence 1: the program has dropped a delivery that it has not settled" in warning
        del delivery
    async with consume() as consumer:
        for _ in range(3):
            async with await take(consumer):
                pass
    await is_settled()
    assert len(warnings_of(caplog)) == 1


async def test_deliveries_that_are_settled_later_are_not_warned_of(publish, consume, is_settled, caplog):
    await publish(*range(10))
    async with consume() as consumer:
        collected = [await take(consumer) for _ in range(10)]
        for delivery in collected[:5]:
            await delivery.ack()
        for delivery in collected[5:8]:
            await delivery.message.ack()  # nats-py's own
        for delivery in collected[8:]:
            async with delivery:
                pass
        del collected, delivery
        gc.collect()
        await asyncio.sleep(0)
        assert consumer._holder._taken == consumer._holder._dropped == {}
    await is_settled()
    assert warnings_of(caplog) == []


async def test_a_dropped_delivery_is_held_until_the_consumer_is_left(publish, consume, acks):
    await publish(1)
    async with consume(ack_wait=1) as consumer:
        await take(consumer)
        gc.collect()
        for _ in range(4):  # ack_wait is over by then
            assert await after(acks.get()) == b"+WPI"
        await publish(2)
        async with (delivery := await take(consumer)):
            assert (delivery.sequence, delivery.deliveries) == (2, 1)
        assert await after(acks.get()) in (b"", b"+WPI")
    assert await drained(acks) == b"-NAK"


async def drained(acks):
    """The last acknowledgement."""
    last = b""
    while last != b"-NAK":
        last = await after(acks.get())
    return last


async def test_a_sync_loop_that_settles_nothing_is_warned_and_ends_without_further_warnings(
    server, stream, publish, consume, caplog
):
    from ce_nats import sync

    await publish(1, 2, 3)
    async with consume():
        pass  # creates it

    def read():
        with sync.connect(server.url) as nc, nc.consumer(stream, "c", dead_letter=None, timeout=1) as consumer:
            return [delivery.sequence for delivery in consumer]

    assert await asyncio.to_thread(read) == [1, 2, 3]
    assert len(warnings_of(caplog)) == 1


async def test_leaving_a_sync_consumer_warns_of_nothing(server, stream, publish, consume, caplog):
    from ce_nats import sync

    await publish(*range(5))
    async with consume():
        pass

    def read():
        with (
            sync.connect(server.url) as nc,
            nc.consumer(stream, "c", dead_letter=None, timeout=1) as consumer,
            next(consumer),
        ):
            pass

    await asyncio.to_thread(read)
    assert warnings_of(caplog) == []
