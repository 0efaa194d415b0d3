"""
Compare consuming from a stream: nats-py's ``fetch()`` and the PullConsumer of ce_nats, with the same handlers.

A handler gets an event and waits for some milliseconds, as a handler that writes to a database does; several handlers
run concurrently. With nats-py, messages go through a queue to the same number of tasks, which decode and acknowledge
them while the next batch is fetched; with ``--bare`` they do not decode. Both prefetch the same number of messages.
Each run creates a consumer that starts at the stream's first message. Each round runs both, in alternating order;
medians over all rounds are shown, and the median of the ratios within rounds. The streams are on one server, and on a
cluster of three servers with three replicas.

``python -m benchmarks.consume [--rounds N] [--messages N] [--handlers N] [--milliseconds N] [--bare] [--markdown]``
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median

import nats
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import ServiceUnavailableError
from rich.console import Console
from rich.progress import track

from benchmarks.codec import events
from benchmarks.table import show
from ce_nats import from_nats_message
from ce_nats.aio import Delivery, Publisher, PullConsumer
from ce_nats.testing import NatsCluster, NatsServer

STREAM, SUBJECT = "BENCH", "bench.events"
PREFETCH = (64, 256)
ACK_WAIT = 60.0

Variant = Callable[[JetStreamContext, str, int, argparse.Namespace], Awaitable[None]]


async def consume_with_nats_py(js: JetStreamContext, name: str, prefetch: int, arguments: argparse.Namespace) -> None:
    subscription = await js.pull_subscribe_bind(consumer=name, stream=STREAM)
    queue: asyncio.Queue[Msg] = asyncio.Queue(prefetch)
    handled = 0

    async def work() -> None:
        nonlocal handled
        while True:
            message = await queue.get()
            if not arguments.bare:
                from_nats_message(message)
            await asyncio.sleep(arguments.milliseconds / 1000)
            await message.ack()
            handled += 1
            queue.task_done()

    workers = [asyncio.create_task(work()) for _ in range(arguments.handlers)]
    fetched = 0
    while fetched < arguments.messages:
        try:
            batch = await subscription.fetch(min(prefetch, arguments.messages - fetched), timeout=30)
        except ServiceUnavailableError:  # a new consumer with replicas has no leader for a moment
            continue
        for message in batch:
            fetched += 1
            await queue.put(message)
    await queue.join()
    for worker in workers:
        worker.cancel()
    assert handled == arguments.messages


async def consume_with_ce_nats(js: JetStreamContext, name: str, prefetch: int, arguments: argparse.Namespace) -> None:
    handled = 0

    async def handle(_: Delivery) -> None:
        nonlocal handled
        await asyncio.sleep(arguments.milliseconds / 1000)
        handled += 1
        if handled == arguments.messages:
            consumer.stop()

    async with PullConsumer(js, STREAM, name, dead_letter=None, prefetch=prefetch) as consumer:
        await consumer.run(handle, concurrency=arguments.handlers)


VARIANTS: tuple[Variant, ...] = (consume_with_nats_py, consume_with_ce_nats)


async def rate(js: JetStreamContext, variant: Variant, prefetch: int, arguments: argparse.Namespace) -> float:
    """Return the events per second of a run with a new consumer."""
    name = f"c{time.monotonic_ns()}"
    config = ConsumerConfig(
        name=name, durable_name=name, ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_WAIT, max_ack_pending=-1
    )
    await js.add_consumer(STREAM, config)
    started = time.perf_counter()
    await variant(js, name, prefetch, arguments)
    took = time.perf_counter() - started
    await js.delete_consumer(STREAM, name)
    return float(arguments.messages / took)


async def rounds(urls: list[str], replicas: int, arguments: argparse.Namespace) -> dict[int, list[list[float]]]:
    """Return for each prefetch the rates of nats-py and ce_nats in each round, in events per second."""
    nc = await nats.connect(urls)
    js = nc.jetstream(timeout=30)
    await js.add_stream(name=STREAM, subjects=[SUBJECT], num_replicas=replicas)
    async with Publisher(js) as publisher:
        for event in events("typical", arguments.messages):
            await publisher.publish(event, SUBJECT)
    results: dict[int, list[list[float]]] = {prefetch: [] for prefetch in PREFETCH}
    for number in track(range(arguments.rounds), f"{replicas} replicas, rounds", console=Console(stderr=True)):
        order = [0, 1] if number % 2 == 0 else [1, 0]
        for prefetch in PREFETCH:
            rates = {variant: await rate(js, VARIANTS[variant], prefetch, arguments) for variant in order}
            results[prefetch].append([rates[0], rates[1]])
    await nc.close()
    return results


def rows(servers: str, results: dict[int, list[list[float]]]) -> list[list[str]]:
    return [
        [
            servers,
            str(prefetch),
            *(f"{median(each[variant] for each in found):,.0f}" for variant in (0, 1)),
            f"{median(ours / bare for bare, ours in found):.2f}",
        ]
        for prefetch, found in results.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=3000)
    parser.add_argument("--handlers", type=int, default=8)
    parser.add_argument("--milliseconds", type=float, default=8)
    parser.add_argument("--bare", action="store_true", help="nats-py does not decode")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    with NatsServer(jetstream=True) as server:
        table = rows("one server", asyncio.run(rounds([server.url], 1, arguments)))
    with NatsCluster() as cluster:
        table += rows("three replicas", asyncio.run(rounds(cluster.urls, 3, arguments)))
    what = f"{arguments.messages:,} events, {arguments.handlers} handlers of {arguments.milliseconds:g} ms each"
    titles = ("stream on", "prefetch", "nats-py/s", "ce_nats/s", "ratio")
    show(titles, table, f"{what}, {arguments.rounds} rounds", markdown=arguments.markdown)


if __name__ == "__main__":
    main()
