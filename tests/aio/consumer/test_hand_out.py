"""Messages that are handed to other threads, and settled together when these have handled them."""

import pytest

from ce_nats.aio import connect
from tests.support.consuming import after, consume, is_settled, publish, take, until_consumer

__all__ = ["consume", "is_settled", "publish"]

LONG = 30.0  # ack_delay with which no timer writes acknowledgements


async def hand_out_all(consumer, count):
    """Put deliveries into the queue for threads, and return what hands them out."""
    hand_out = consumer._hand_out()
    for _ in range(count):
        hand_out.queue.put(await take(consumer))
    return hand_out


def handle(hand_out):
    """Handle the next message, as a thread does."""
    [delivery] = hand_out.queue.take()
    del hand_out.queue.take()[0]
    delivery._enter_block()
    delivery._leave_block()
    hand_out.handled.append(delivery)
    return delivery


async def test_handled_messages_are_acknowledged_together(publish, consume, js, stream):
    await publish(*range(5))
    async with consume(ack_delay=LONG) as consumer:
        hand_out = await hand_out_all(consumer, 5)
        handled = [handle(hand_out) for _ in range(3)]
        assert all(map(hand_out.is_acknowledged_later, handled))
        hand_out.settle()
        assert [delivery.is_settled for delivery in handled] == [True] * 3
        hand_out.flush()
        await until_consumer(js, stream, lambda info: info.ack_floor.stream_seq == 3)


async def test_messages_that_no_thread_has_taken_are_put_back_in_order(publish, consume, is_settled):
    await publish(*range(4))
    async with consume() as consumer:
        hand_out = await hand_out_all(consumer, 4)
        handle(hand_out)
        hand_out.take_back()
        again = [await take(consumer) for _ in range(3)]
        assert [(delivery.sequence, delivery.deliveries) for delivery in again] == [(2, 1), (3, 1), (4, 1)]
        for delivery in again:
            await delivery.ack()
        await after(hand_out.close())
    await is_settled()


async def test_message_whose_acknowledgement_may_fail_is_settled_by_a_task(publish, consume, is_settled):
    """The program has used the message of nats-py, so that it may have acknowledged it."""
    await publish(0)
    async with consume() as consumer:
        hand_out = await hand_out_all(consumer, 1)
        delivery = handle(hand_out)
        assert delivery.message.data
        assert not hand_out.is_acknowledged_later(delivery)
        hand_out.settle()
        assert not delivery.is_settled
        await after(hand_out.settle_all())
        assert delivery.is_settled
    await is_settled()


async def test_acknowledgement_that_fails_after_its_block_is_reported(publish, consume, nc, server):
    """The connection is closed between the end of the block and the next time that the loop runs."""
    await publish(0)
    errors = []
    async with (
        connect(server.url) as other,
        consume(via=other.jetstream(), on_error=lambda *error: errors.append(error)) as consumer,
    ):
        hand_out = await hand_out_all(consumer, 1)
        assert hand_out.is_acknowledged_later(hand_out.queue.take()[0])
        await other.close()
        delivery = handle(hand_out)
        await after(hand_out.settle_all())
    assert [(error.code, about) for error, about in errors] == [("connection-closed", delivery)]


async def test_handled_messages_are_acknowledged_before_the_connection_is_closed(publish, consume, server, js, stream):
    await publish(*range(3))
    async with connect(server.url) as other, consume(via=other.jetstream(), ack_delay=LONG) as consumer:
        hand_out = await hand_out_all(consumer, 3)
        handle(hand_out)
        handle(hand_out)
        await other.close()
    await until_consumer(js, stream, lambda info: info.ack_floor.stream_seq == 2)


@pytest.mark.parametrize(("options", "expected"), [({}, True), ({"skip_expired": True}, False)], ids=repr)
async def test_messages_that_may_expire_are_not_handed_out_before_threads_ask(consume, options, expected):
    async with consume(**options) as consumer:
        assert consumer._hand_out().may_read_ahead is expected


async def test_order_of_keys_hands_out_one_message_at_a_time(publish, consume):
    async with consume() as consumer:
        hand_out = consumer._hand_out()
        consumer._keep_order(lambda delivery: delivery.sequence)
        assert not hand_out.may_read_ahead
        await consumer._end_order()
        assert hand_out.may_read_ahead
