"""A service whose handler ends the process at some messages; test_isolation.py and test_keyed.py run it repeatedly."""

import asyncio
import os
import sys

from nats.js.api import ConsumerConfig

from ce_nats import aio

MAX_DELIVERIES = 3
ACK_WAIT = 0.5
PREFETCH = 20


def key_of(delivery: aio.Delivery) -> int:
    """Return one of five keys."""
    return delivery.sequence % 5


async def main(url: str, stream: str, dead_letter: str, concurrency: str, has_keys: str = "") -> None:
    async with await aio.connect(url) as nc:
        js = nc.jetstream()

        async def handle(delivery: aio.Delivery) -> None:
            data = delivery.event.get_data()
            if data == "poison":
                os._exit(9)
            if data == "failing" and delivery.deliveries == 1:
                raise KeyError(data)
            await asyncio.sleep(0)
            os.write(1, b"handled %d\n" % delivery.sequence)  # whole, although the process may be killed

        async with aio.PullConsumer(
            js,
            stream,
            "c",
            dead_letter=dead_letter,
            create=ConsumerConfig(ack_wait=ACK_WAIT),
            max_deliveries=MAX_DELIVERIES,
            prefetch=PREFETCH,
        ) as consumer:
            key = key_of if has_keys else None
            running = asyncio.create_task(consumer.run(handle, concurrency=int(concurrency), key=key))
            while not running.done():
                info = await js.consumer_info(stream, "c")
                if info.num_pending == info.num_ack_pending == 0:
                    consumer.stop()
                await asyncio.wait([running], timeout=0.05)
            await running


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
