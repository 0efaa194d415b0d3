"""Acknowledgements that are written together, and ack deadlines."""

import gc

from tests.support.consuming import acks, after, consume, is_settled, number_of, publish, take
from tests.support.waiting import until

__all__ = ["acks", "consume", "is_settled", "publish"]


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
