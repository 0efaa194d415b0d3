"""Deliveries in flight: ack deadlines, dropped deliveries, and release at the end."""

import asyncio
import gc
import logging

import pytest

from ce_nats.aio import jetstream as ce_js
from tests.support.consuming import acks, after, consume, is_settled, number_of, publish, take
from tests.support.waiting import until

__all__ = ["acks", "consume", "is_settled", "publish"]


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def test_loop_that_settles_nothing_is_warned_once(publish, consume, is_settled, caplog):
    """When the first unsettled delivery is garbage-collected; all are released at the end."""
    await publish(1, 2, 3)
    async with consume() as consumer:
        seen = []
        async for delivery in consumer:
            seen.append(delivery.sequence)
            if len(seen) == 3:
                break
        await until(lambda: warnings_of(caplog))
        (warning,) = warnings_of(caplog)
        assert "sequence 1: the program has dropped an unsettled delivery" in warning
        del delivery
    async with consume() as consumer:
        for _ in range(3):
            async with await take(consumer):
                pass
    await is_settled()
    assert len(warnings_of(caplog)) == 1


async def test_deliveries_settled_later_cause_no_warning(publish, consume, is_settled, caplog):
    await publish(*range(10))
    async with consume() as consumer:
        collected = [await take(consumer) for _ in range(10)]
        for delivery in collected[:5]:
            await delivery.ack()
        for delivery in collected[5:8]:
            await delivery.message.ack()  # with nats-py
        for delivery in collected[8:]:
            async with delivery:
                pass
        del collected, delivery
        gc.collect()
        await asyncio.sleep(0)
        assert consumer._in_flight._taken == consumer._in_flight._dropped == {}
    await is_settled()
    assert warnings_of(caplog) == []


async def test_dropped_delivery_is_held_until_the_block_ends(publish, consume, acks):
    await publish(1)
    async with consume(ack_wait=1) as consumer:
        await take(consumer)
        gc.collect()
        for _ in range(4):  # longer than ack_wait
            assert await after(acks.get()) == b"+WPI"
        await publish(2)
        async with (delivery := await take(consumer)):
            assert (delivery.sequence, delivery.deliveries) == (2, 1)
        assert await after(acks.get()) in (b"", b"+WPI")
    assert await drained(acks) == b"-NAK"


async def drained(acks):
    """Skip acknowledgements up to the release, and return it."""
    last = b""
    while last != b"-NAK":
        last = await after(acks.get())
    return last


async def test_sync_loop_that_settles_nothing_is_warned_once(server, stream, publish, consume, caplog):
    from ce_nats import sync

    await publish(1, 2, 3)
    async with consume():
        pass  # creates the consumer

    def read():
        with sync.connect(server.url) as nc, nc.consumer(stream, "c", dead_letter=None, timeout=1) as consumer:
            return [delivery.sequence for delivery in consumer]

    assert await asyncio.to_thread(read) == [1, 2, 3]
    assert len(warnings_of(caplog)) == 1


async def test_end_of_a_sync_consumer_causes_no_warning(server, stream, publish, consume, caplog):
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


async def test_ack_deadlines_are_extended_while_a_handler_runs(publish, consume, acks, is_settled):
    """Those of queued messages, too."""
    await publish(1, 2)
    async with consume(ack_wait=1.5) as consumer:
        async with (delivery := await take(consumer)):
            for _ in range(2 * 4):  # at a third of ack_wait, for two messages
                assert await after(acks.get()) == b"+WPI"
            assert delivery.deliveries == 1
        async with (delivery := await take(consumer)):
            assert (delivery.sequence, delivery.deliveries) == (2, 1)
    await is_settled()


async def test_message_redelivered_while_held_is_one_delivery(nc, publish, consume, is_settled):
    await publish(1, 2)
    async with consume() as consumer:
        async with (delivery := await take(consumer)) as event:
            await nc.publish(delivery.message.reply, b"-NAK")  # as the server does after ack_wait
            await until(lambda: delivery.deliveries == 2)
            assert number_of(event) == 1
        async with await take(consumer) as event:
            assert number_of(event) == 2
    await is_settled()


@pytest.mark.parametrize("prefetch", [1, 10])
async def test_unhandled_messages_are_released_at_once(publish, consume, is_settled, prefetch):
    await publish(*range(20))
    async with consume(prefetch=prefetch) as first:
        async with await take(first) as event:
            assert number_of(event) == 0
        given_out = await take(first)
    assert given_out.is_settled
    rest = set()
    async with consume() as second:
        while len(rest) < 19:
            async with await take(second) as event:
                rest.add(number_of(event))
    assert rest == set(range(1, 20))
    await is_settled()


async def test_messages_in_transit_are_released_at_once(js, subject, stream, make_event, consume, is_settled):
    """Events are so large that most are in transit when the first one arrives."""
    for number in range(30):
        await ce_js.publish(js, make_event(number, b"x" * 400_000), subject)
    async with consume() as first:
        await take(first)
    numbers = set()
    async with consume() as second:
        while len(numbers) < 30:
            async with await take(second) as event:
                numbers.add(number_of(event))
    await is_settled()
