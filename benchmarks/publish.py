"""
Compare ways to publish to a stream: nats-py alone, the Publisher of ce_nats, and the Publisher with fast ingest.

nats-py's ``publish_async()`` sends messages that were encoded before the measurement, and waits for all
acknowledgements. The Publisher checks and encodes events, and sends the same bytes: message by message, and in batches
to a stream with ``allow_batched``. ``encoding`` is its CPU time without sending. The events are the typical ones of
``benchmarks.codec``, which differ in id, time and trace. Each round runs all ways, in alternating order; ratios to
nats-py are computed within a round, and the median over all rounds is shown. The streams are purged before each run.

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

# Streams without and with fast ingest; their subjects have the same length.
PLAIN, BATCHED = "bench.plain", "bench.batch"
WAYS = ("nats-py", "Publisher", "fast ingest", "encoding")


def encoded(event: CloudEvent, mode: ContentMode) -> tuple[bytes, dict[str, str]]:
    message: NatsMessage = to_nats_message(event, PLAIN, mode=mode, headers={"Nats-Msg-Id": dedup_id(event)})
    return message.data, dict(message.headers.items())


async def publish_with_nats_py(js: JetStreamContext, messages: list[tuple[bytes, dict[str, str]]], window: int) -> None:
    js = js._nc.jetstream(publish_async_max_pending=window)
    acks = [await js.publish_async(PLAIN, data, headers=headers) for data, headers in messages]
    for ack in acks:
        await ack


async def publish_with_ce_nats(
    js: JetStreamContext, events: list[CloudEvent], subject: str, mode: ContentMode, window: int
) -> None:
    async with Publisher(js, mode=mode, window=window) as publisher:
        for event in events:
            await publisher.publish(event, subject)
    assert publisher.acknowledged == len(events)
    assert publisher.duplicates in (0, None)  # unknown with fast ingest


async def encode(js: JetStreamContext, events: list[CloudEvent], mode: ContentMode) -> None:
    publisher = Publisher(js, mode=mode)
    for event in events:
        publisher._preparation.encode(publisher._preparation.validated(event), PLAIN, headers=None, trace=None)


async def measured(js: JetStreamContext, run: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """Return the seconds, and the CPU seconds of this process, of a run on empty streams."""
    for stream in ("PLAIN", "BATCHED"):
        await js.purge_stream(stream)
    await asyncio.sleep(0.3)  # longer than the duplicate window
    started, cpu = time.perf_counter(), time.process_time()
    await run()
    return time.perf_counter() - started, time.process_time() - cpu


async def rounds(
    js: JetStreamContext, mode: ContentMode, arguments: argparse.Namespace
) -> list[list[tuple[float, float]]]:
    """Return for each round the times of all ways."""
    batch = events("typical", arguments.messages)
    messages = [encoded(event, mode) for event in batch]
    variants: list[Callable[[], Awaitable[None]]] = [
        lambda: publish_with_nats_py(js, messages, arguments.window),
        lambda: publish_with_ce_nats(js, batch, PLAIN, mode, arguments.window),
        lambda: publish_with_ce_nats(js, batch, BATCHED, mode, arguments.window),
        lambda: encode(js, batch, mode),
    ]
    for run in variants:
        await measured(js, run)
    results = []
    for number in track(range(arguments.rounds), f"{mode}, rounds", console=Console(stderr=True)):
        order = range(len(WAYS)) if number % 2 == 0 else reversed(range(len(WAYS)))
        took = {variant: await measured(js, variants[variant]) for variant in order}
        results.append([took[variant] for variant in range(len(WAYS))])
    return results


async def run(arguments: argparse.Namespace) -> None:
    with NatsServer(jetstream=True) as server:
        nc = await nats.connect(server.url)
        js = nc.jetstream()
        settings = {"duplicate_window": 0.2, "storage": arguments.storage}
        await js.add_stream(name="PLAIN", subjects=[PLAIN], **settings)
        await js.add_stream(name="BATCHED", subjects=[BATCHED], allow_batched=True, **settings)
        results = {mode: await rounds(js, mode, arguments) for mode in ContentMode}
        await nc.close()
    show(results, arguments)


def show(results: dict[ContentMode, list[list[tuple[float, float]]]], arguments: argparse.Namespace) -> None:
    table = Table("events", "way", "events/s", "to nats-py", "range", "CPU µs", "to nats-py", box=None)
    for mode, took in results.items():
        for variant, way in enumerate(WAYS):
            is_sent = way != "encoding"
            rate = median(arguments.messages / round_[variant][0] for round_ in took)
            cpu = median(round_[variant][1] for round_ in took) / arguments.messages * 1e6
            ratios = [round_[0][0] / round_[variant][0] for round_ in took]
            row = [
                str(mode),
                way,
                f"{rate:,.0f}" if is_sent else "",
                f"{median(ratios):.2f}" if is_sent else "",
                f"{min(ratios):.2f} to {max(ratios):.2f}" if is_sent else "",
                f"{cpu:.1f}",
                f"{median(round_[variant][1] / round_[0][1] for round_ in took):.2f}",
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
