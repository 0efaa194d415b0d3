"""Blocks of deliveries: settled by the block itself, by nats-py, at its end, or when it is cancelled."""

import asyncio

import pytest

from ce_nats.aio import Reject
from tests.support.consuming import SECONDS, acks, after, consume, is_settled, publish, take

__all__ = ["acks", "consume", "is_settled", "publish"]


async def test_block_settles_its_message_explicitly(publish, consume, acks, is_settled):
    await publish(1)
    async with consume() as consumer:
        async with (delivery := await take(consumer)):
            await delivery.nak(0.001)
        assert await after(acks.get()) == b'-NAK {"delay": 1000000}'
        async with (delivery := await take(consumer)):
            await delivery.nak()
        assert await after(acks.get()) == b"-NAK"
        async with (delivery := await take(consumer)):
            await delivery.ack()
            await delivery.reject()  # has no effect
        assert await after(acks.get()) == b""
    await is_settled()
    assert acks.empty()


async def test_message_acknowledged_with_nats_py_is_settled(publish, consume, acks, is_settled):
    await publish(1)
    async with consume() as consumer, (delivery := await take(consumer)):
        await delivery.message.ack()
    await is_settled()
    assert await after(acks.get()) == b""
    assert acks.empty()


async def test_cancelled_block_releases_its_message_at_once(publish, consume, acks):
    async def hang(consumer, entered):
        async with await take(consumer):
            entered.set()
            await asyncio.Event().wait()

    await publish(1)
    async with consume(backoff=[100]) as consumer:
        entered = asyncio.Event()
        task = asyncio.create_task(hang(consumer, entered))
        await after(entered.wait())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await after(acks.get()) == b"-NAK"
        async with (delivery := await take(consumer)):
            assert delivery.deliveries == 2


async def test_message_is_released_if_cancelled_while_its_dead_letter_is_stored(
    nc, js, subject, publish, consume, acks
):
    async def fail(consumer):
        async with await take(consumer):
            raise Reject

    await publish(1)
    silent = await nc.subscribe(f"silent.{subject}")
    await js.add_stream(name="silent", subjects=[f"silent.{subject}"], storage="memory")
    async with consume(dead_letter=f"silent.{subject}") as consumer:
        await js.delete_stream("silent")
        task = asyncio.create_task(fail(consumer))
        await silent.next_msg(SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await after(acks.get()) == b"-NAK"


async def test_cancelled_inner_task_is_a_failure_of_the_block(publish, consume, acks):
    """Otherwise it would be redelivered at once, repeatedly. (Python 3.10 cannot distinguish the two cancellations.)"""
    await publish(1)

    async def handle(consumer):
        async with await after(anext(consumer)):
            inner = asyncio.create_task(asyncio.Event().wait())
            asyncio.get_running_loop().call_soon(inner.cancel)
            await inner

    async with consume(backoff=[100]) as consumer:
        with pytest.raises(asyncio.CancelledError):
            await handle(consumer)
        delay = await after(acks.get())
    # On Python 3.10, some event loops have tasks that can: those of pytest-asyncio can since version 1.0.
    can_distinguish = hasattr(asyncio.current_task(), "cancelling")
    assert delay == (b'-NAK {"delay": 100000000000}' if can_distinguish else b"-NAK")
