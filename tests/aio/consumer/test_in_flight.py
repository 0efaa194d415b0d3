"""Deliveries in flight: ack deadlines, dropped deliveries, and release at the end."""

import asyncio
import gc
import json
import logging

import pytest
from nats.js.api import ConsumerConfig

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


@pytest.mark.parametrize("key", [None, lambda delivery: delivery.sequence % 7], ids=["no key", "key"])
async def test_consumer_that_was_created_again_is_named_and_its_messages_are_fetched_together(
    nc, js, stream, publish, consume, is_settled, caplog, key
):
    """Its messages are delivered again, and not because the event loop was blocked."""
    await publish(*range(40))
    batches, handled = [], set()
    entered, permits = asyncio.Event(), asyncio.Semaphore(0)

    async def note(message):
        batches.append(json.loads(message.data)["batch"])

    async def handle(delivery):
        entered.set()
        await permits.acquire()
        handled.add(delivery.sequence)

    await nc.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.c", cb=note)
    async with consume(prefetch=8, ack_wait=10) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=2, key=key))
        await after(entered.wait())

        async def is_full():
            info = await js.consumer_info(stream, "c")
            return info.num_waiting == 0 and info.num_ack_pending >= 8  # the deletion would end a request

        await until(is_full)
        await js.delete_consumer(stream, "c")
        # Without messages that are handled when the next request is sent.
        config = ConsumerConfig(durable_name="c", ack_wait=10, deliver_policy="by_start_sequence", opt_start_seq=7)
        await js.add_consumer(stream, config)
        before = len(batches)
        for number in range(40):
            permits.release()
            if number == 5:
                await until(lambda: caplog.records)  # other events wait for a handler
        await is_settled()
        consumer.stop()
        await after(running)
    assert handled == set(range(1, 41))
    assert max(batches[before:]) > 1
    (record,) = caplog.records
    assert "it was deleted and created again, at 20" in record.getMessage()
