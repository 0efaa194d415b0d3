"""
Compare consuming with and without a key: ``PullConsumer.run(handler, concurrency=..., key=...)``.

The handler does nothing, so the figures show the cost of the consumer. Each run creates a consumer that starts at the
stream's first message. Each round runs all variants; medians over all rounds are shown, with CPU time of the client.

``python -m benchmarks.order_per_key [--rounds N] [--messages N] [--handlers N] [--keys N]``
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Hashable
from statistics import median

from cloudevents.core.v1.event import CloudEvent
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig

from ce_nats import aio
from ce_nats.extensions.partitioning import partition_key
from ce_nats.testing import NatsServer

STREAM, SUBJECT = "BENCH", "bench.events"
Key = Callable[[aio.Delivery], Hashable]

KEYS: dict[str, Key | None] = {
    "without a key": None,
    "key=lambda delivery: delivery.subject": lambda delivery: delivery.subject,
    "key=partition_key": partition_key,
}


async def consume(
    js: JetStreamContext, name: str, key: Key | None, arguments: argparse.Namespace
) -> tuple[float, float]:
    """Return messages per second, and microseconds of CPU time per message."""
    handled = 0
    create = ConsumerConfig(ack_wait=60, max_ack_pending=5000)
    async with aio.PullConsumer(js, STREAM, name, dead_letter=None, create=create, prefetch=256) as consumer:

        async def handle(_: aio.Delivery) -> None:
            nonlocal handled
            handled += 1
            if handled == arguments.messages:
                consumer.stop()

        began, cpu = time.perf_counter(), time.process_time()
        await consumer.run(handle, concurrency=arguments.handlers, key=key)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    await js.delete_consumer(STREAM, name)
    return arguments.messages / seconds, cpu / arguments.messages * 1e6


async def measure(url: str, arguments: argparse.Namespace) -> None:
    async with aio.connect(url) as nc:
        js = nc.jetstream()
        await js.add_stream(name=STREAM, subjects=[f"{SUBJECT}.>"], storage="memory")
        async with aio.Publisher(js) as publisher:
            for number in range(arguments.messages):
                key = f"key-{number % arguments.keys}"
                event = CloudEvent({"source": "/bench", "type": "bench", "partitionkey": key}, {"number": number})
                await publisher.publish(event, f"{SUBJECT}.{key}")
        figures: dict[str, list[tuple[float, float]]] = {name: [] for name in KEYS}
        for number in range(arguments.rounds):
            for name, function in KEYS.items():
                figures[name].append(await consume(js, f"c{number}", function, arguments))
    for name, found in figures.items():
        rate, cpu = median(rate for rate, _ in found), median(cpu for _, cpu in found)
        print(f"{name:40} {rate:10,.0f} messages/s {cpu:6.0f} µs CPU per message")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--handlers", type=int, default=8)
    parser.add_argument("--keys", type=int, default=100)
    arguments = parser.parse_args()
    with NatsServer(jetstream=True) as server:
        asyncio.run(measure(server.url, arguments))


if __name__ == "__main__":
    main()
