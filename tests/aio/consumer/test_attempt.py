"""Deliveries that the program drops without settling them, and messages of nats-py that are made when they are used."""

import asyncio
import gc
import logging

from nats.aio.msg import Msg

from ce_nats.aio.consumer._attempt import Attempt
from ce_nats.aio.consumer._entry import Entry
from tests.support.consuming import consume, is_settled, publish, take
from tests.support.waiting import until

__all__ = ["consume", "is_settled", "publish"]


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def test_loop_that_settles_nothing_is_warned_once(publish, consume, subject, is_settled, caplog):
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
        assert f"sequence 1, delivery 1, subject '{subject}', id 'event 1', source " in warning
        assert ": the program has dropped an unsettled delivery" in warning
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
    await is_settled()
    assert warnings_of(caplog) == []


async def test_sync_loop_that_settles_nothing_is_warned_once(server, stream, publish, consume, caplog):
    from ce_nats import sync

    await publish(1, 2, 3)
    async with consume():
        pass  # creates the consumer

    def read():
        with sync.connect(server.url) as nc, nc.consumer(stream, "c", dead_letter=None) as consumer:
            return [next(consumer).sequence for _ in range(3)]

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
            nc.consumer(stream, "c", dead_letter=None) as consumer,
            next(consumer),
        ):
            pass

    await asyncio.to_thread(read)
    assert warnings_of(caplog) == []


async def test_message_of_nats_py_is_made_once_and_replaced_by_a_redelivery(nc):
    reply = b"$JS.ACK.S.c.%d.7.7.1000.0"
    entry = Entry(7, 1, (b"a.b", reply % 1, b"data", b"NATS/1.0\r\nA: b\r\n\r\n"))
    attempt = Attempt(nc, entry, None)
    message = attempt.message
    assert isinstance(message, Msg)
    assert (message.subject, message.reply, message.data, message.headers) == (
        "a.b",
        "$JS.ACK.S.c.1.7.7.1000.0",
        b"data",
        {"A": "b"},
    )
    assert attempt.message is message is entry.as_message(nc)
    entry.replace(Entry(7, 2, (b"a.b", reply % 2, b"data", None)))
    assert (attempt.message.reply, attempt.message.headers) == ("$JS.ACK.S.c.2.7.7.1000.0", None)
    assert (attempt.stream, attempt.consumer, attempt.sequence, attempt.deliveries) == ("S", "c", 7, 2)


async def test_attempt_is_settled_when_another_one_begins(nc):
    entry = Entry(7, 1, (b"a.b", b"$JS.ACK.S.c.1.7.7.1000.0", b"", None))
    attempt = Attempt(nc, entry, None)
    entry.turn += 1
    entry.retries += 1
    assert attempt.is_settled
    assert not Attempt(nc, entry, None).is_settled
    assert (attempt.deliveries, Attempt(nc, entry, None).deliveries) == (1, 2)
