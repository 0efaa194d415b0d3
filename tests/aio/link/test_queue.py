"""Limits and counts of nats-py apply to subscriptions without a callback; iterations: core/test_subscribe.py."""

import asyncio

import nats.errors
import pytest

from ce_nats import from_nats_message
from ce_nats.aio import connect, events, flush, publish, subscribe
from ce_nats.aio.link._link import Link


def number_of(item):
    return int(item.event.get_id().split()[-1])


async def take(received, count):
    """Return the next messages."""
    return [await asyncio.wait_for(anext(received), 30) for _ in range(count)]


async def test_limit_of_pending_messages_is_kept(server, subject, make_event, caplog):
    slow = []

    async def note(error):
        slow.append(error)

    async with connect(server.url, error_cb=note) as nc:
        received = events(await nc.subscribe(subject, pending_msgs_limit=2))
        for number in range(5):
            await publish(nc, make_event(number), subject)
        await flush(nc)
        assert [type(error) for error in slow] == [nats.errors.SlowConsumerError] * 3
        assert received.dropped == 3
        assert [text for text in caplog.messages if f"subscription on '{subject}': 1 messages are lost so far" in text]
        assert [number_of(item) for item in await take(received, 2)] == [0, 1]
        assert received.subscription.pending_bytes == 0
        await publish(nc, make_event(5), subject)
        assert [number_of(item) for item in await take(received, 1)] == [5]


@pytest.mark.parametrize(("name", "value"), [("_pending_bytes_limit", 11), ("_maxsize", 2)])
async def test_limits_of_pending_messages_are_kept_for_raw_messages(server, subject, name, value, caplog):
    slow = []

    async def note(error):
        slow.append((type(error), error.subject, error.reply, error.sub))
        raise ValueError

    async with connect(server.url, error_cb=note) as nc, subscribe(nc, subject) as received:
        subscription = received.subscription
        setattr(subscription if hasattr(subscription, name) else subscription._pending_queue, name, value)
        for number in range(5):
            await nc.publish(subject, b"data%d" % number, reply="r")
        await flush(nc)
        assert (subscription.pending_msgs, subscription.pending_bytes, subscription.delivered) == (2, 10, 5)
        assert [item.message.data for item in await take(received, 2)] == [b"data0", b"data1"]
        assert slow == [(nats.errors.SlowConsumerError, subject, "r", subscription)] * 3
        assert received.dropped == 3
        assert sum("messages are lost so far" in text for text in caplog.messages) == 1
        await nc.publish(subject, b"data5")
        assert [item.message.data for item in await take(received, 1)] == [b"data5"]
        assert subscription.pending_bytes == 0


@pytest.mark.parametrize("way", ["stop", "unsubscribe", "drain", "close"])
async def test_receiver_of_raw_messages_is_removed_at_the_end(server, subject, way):
    async with connect(server.url) as nc:
        received = await subscribe(nc, subject)
        receivers = Link.of(nc).reading.receivers
        assert len(receivers) == 1
        end = {"stop": received.stop, "close": nc.close}.get(way) or getattr(received.subscription, way)
        await end()
        assert [item async for item in received] == []
        await asyncio.sleep(0)
        assert receivers == {}


async def test_iteration_and_next_msg_share_a_subscription(nc, subject, make_event):
    received = await subscribe(nc, subject)
    waiting = asyncio.create_task(anext(received))
    other = asyncio.create_task(received.subscription.next_msg(30))
    await asyncio.sleep(0)
    for number in range(2):
        await publish(nc, make_event(number), subject)
    item, message = await asyncio.wait_for(asyncio.gather(waiting, other), 30)
    assert {number_of(item), int(from_nats_message(message).get_id()[-1])} == {0, 1}
    await received.stop()
