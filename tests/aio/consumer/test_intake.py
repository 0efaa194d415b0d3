"""Messages that arrive: those that were redelivered while they waited are released."""

import asyncio
import time

from tests.support.consuming import after, consume, is_settled, publish

__all__ = ["consume", "is_settled", "publish"]


async def test_several_messages_that_were_redelivered_while_they_waited_are_released_once(
    publish, consume, is_settled, caplog
):
    await publish(*range(30))
    handled = []

    async def handle(delivery):
        if len(handled) == 12:
            time.sleep(0.7)  # noqa: ASYNC251 - blocking is the fault
        await asyncio.sleep(0.02)
        handled.append(delivery.sequence)
        if len(set(handled)) == 30:
            consumer.stop()

    async with consume(ack_wait=0.3, prefetch=8) as consumer:
        await after(consumer.run(handle))
    assert sum("the event loop was blocked" in text for text in caplog.messages) == 1
    await is_settled()
