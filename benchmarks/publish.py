"""
Compare publishing to a stream: nats-py alone and the Publisher of ce_nats, with the same window.

nats-py's ``publish_async()`` sends messages that were encoded before the measurement, and waits for all
acknowledgements. The Publisher checks and encodes events, and sends the same bytes. The events are the typical ones of
``benchmarks.codec``, which differ in id, time and trace. Each round runs both, in alternating order; ratios are
computed within a round, and the median over all rounds is shown. The stream is purged before each run.

``python -m benchmarks.publish [--rounds N] [--messages N] [--window N] [--markdown]``
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from statistics import median

import nats
from cloudevents.core.v1.event import CloudEvent
from nats.js import JetStreamContext
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.codec import events
from ce_nats import ContentMode, NatsMessage, dedup_id, to_nats_message
from ce_nats.aio import Publisher
from ce_nats.testing import NatsServer

SUBJECT = "bench.events"


def encoded(event: CloudEvent, mode: ContentMode) -> tuple[bytes, dict[str, str]]:
    message: NatsMessage = to_nats_message(event, SUBJECT, mode=mode, headers={"Nats-Msg-Id": dedup_id(event)})
    return message.data, dict(message.headers.items())


async def publish_with_nats_py(js: JetStreamContext, messages: list[tuple[bytes, dict[str, str]]], window: int) -> None:
    js = js._nc.jetstream(publish_async_max_pending=window)
    acks = [await js.publish_async(SUBJECT, data, headers=headers) for data, headers in messages]
    for ack in acks:
        await ack


async def publish_with_ce_nats(js: JetStreamContext, events: list[CloudEvent], mode: ContentMode, window: int) -> None:
    async with Publisher(js, mode=mode, window=window) as publisher:
        for event in events:
            await publisher.publish(event, SUBJECT)
    assert (publisher.acknowledged, publisher.duplicates) == (len(events), 0)


async def measured(js: JetStreamContext, run: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """Return the seconds, and the CPU seconds of this process, of a run on an empty stream."""
    await js.purge_stream("BENCH")
    await asyncio.sleep(0.3)  # longer than the duplicate window
    started, cpu = time.perf_counter(), time.process_time()
    await run()
    return time.perf_counter() - started, time.process_time() - cpu


async def rounds(
    js: JetStreamContext, mode: ContentMode, arguments: argparse.Namespace
) -> list[list[tuple[float, float]]]:
    """Return for each round the times of nats-py and ce_nats."""
    batch = events("typical", arguments.messages)
    messages = [encoded(event, mode) for event in batch]
    variants: list[Callable[[], Awaitable[None]]] = [
        lambda: publish_with_nats_py(js, messages, arguments.window),
        lambda: publish_with_ce_nats(js, batch, mode, arguments.window),
    ]
    for run in variants:
        await measured(js, run)
    results = []
    for number in track(range(arguments.rounds), f"{mode}, rounds", console=Console(stderr=True)):
        order = [0, 1] if number % 2 == 0 else [1, 0]
        took = {variant: await measured(js, variants[variant]) for variant in order}
        results.append([took[0], took[1]])
    return results


async def run(arguments: argparse.Namespace) -> None:
    with NatsServer(jetstream=True) as server:
        nc = await nats.connect(server.url)
        js = nc.jetstream()
        await js.add_stream(name="BENCH", subjects=[SUBJECT], duplicate_window=0.2, storage=arguments.storage)
        results = {mode: await rounds(js, mode, arguments) for mode in ContentMode}
        await nc.close()
    show(results, arguments)


def show(results: dict[ContentMode, list[list[tuple[float, float]]]], arguments: argparse.Namespace) -> None:
    table = Table("events", "nats-py/s", "ce_nats/s", "ratio", "range", "CPU µs, nats-py", "ce_nats", "ratio", box=None)
    for mode, took in results.items():
        rates = [[arguments.messages / round_[variant][0] for round_ in took] for variant in (0, 1)]
        cpu = [median(round_[variant][1] for round_ in took) / arguments.messages * 1e6 for variant in (0, 1)]
        ratios = [bare[0] / ours[0] for bare, ours in took]
        cpu_ratio = median(bare[1] / ours[1] for bare, ours in took)
        row = [
            str(mode),
            *(f"{median(rate):,.0f}" for rate in rates),
            f"{median(ratios):.2f}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
            *(f"{value:.1f}" for value in cpu),
            f"{cpu_ratio:.2f}",
        ]
        table.add_row(*row)
        if arguments.markdown:
            print("| " + " | ".join(row) + " |")
    if not arguments.markdown:
        Console().print(table)
    print(
        f"{arguments.messages:,} events, window {arguments.window:,}, {arguments.rounds} rounds, {arguments.storage} "
        f"stream; Python {platform.python_version()}, nats-py {version('nats-py')}, {os.cpu_count()} CPUs, load "
        f"{os.getloadavg()[0]:.1f}",
        file=sys.stderr if arguments.markdown else sys.stdout,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--window", type=int, default=1000)
    parser.add_argument("--storage", choices=["file", "memory"], default="file")
    parser.add_argument("--markdown", action="store_true")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
