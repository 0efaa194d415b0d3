"""
Compare publishing to a stream with the Publisher of ``ce_nats.sync`` and with that of ``ce_nats.aio``.

Both validate, encode and send the same typical events of ``benchmarks.codec``, and wait for acknowledgements. Each
round runs both in one process, in alternating order; ratios are computed within a round, and the median over all rounds
is shown. The stream is purged before each run.

``python -m benchmarks.sync [--rounds N] [--messages N] [--window N] [--markdown]``
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from statistics import median

from nats.js.api import StorageType, StreamConfig

from benchmarks.codec import events
from benchmarks.publish import PLAIN as SUBJECT
from ce_nats import ContentMode, aio, sync
from ce_nats.testing import NatsServer


def with_aio(url: str, mode: ContentMode, window: int, count: int) -> tuple[float, float]:
    """Return the seconds, and the CPU seconds of this process, from the first event to the last acknowledgement."""
    batch = events("typical", count)

    async def run() -> tuple[float, float]:
        async with await aio.connect(url) as nc, aio.Publisher(nc.jetstream(), mode=mode, window=window) as publisher:
            started, cpu = time.perf_counter(), time.process_time()
            for event in batch:
                await publisher.publish(event, SUBJECT)
            await publisher.flush()
            took = time.perf_counter() - started, time.process_time() - cpu
            assert (publisher.acknowledged, publisher.duplicates) == (count, 0)
            return took

    return asyncio.run(run())


def with_sync(url: str, mode: ContentMode, window: int, count: int) -> tuple[float, float]:
    """Return the same as :func:`with_aio`."""
    batch = events("typical", count)
    with sync.connect(url) as nc, nc.publisher(mode=mode, window=window) as publisher:
        started, cpu = time.perf_counter(), time.process_time()
        for event in batch:
            publisher.publish(event, SUBJECT)
        publisher.flush()
        took = time.perf_counter() - started, time.process_time() - cpu
        assert (publisher.acknowledged, publisher.duplicates) == (count, 0)
        return took


VARIANTS: list[Callable[[str, ContentMode, int, int], tuple[float, float]]] = [with_aio, with_sync]


def rounds(url: str, mode: ContentMode, arguments: argparse.Namespace) -> list[list[tuple[float, float]]]:
    """Return for each round the times of both. The first round is a warm-up and is not returned."""
    results = []
    with sync.connect(url) as nc:
        for number in range(arguments.rounds + 1):
            took = {}
            for variant in [0, 1] if number % 2 == 0 else [1, 0]:
                nc.run(nc.client.jetstream().purge_stream, "BENCH")
                time.sleep(0.3)  # longer than the duplicate window
                took[variant] = VARIANTS[variant](url, mode, arguments.window, arguments.messages)
            results.append([took[0], took[1]])
    return results[1:]


def run(arguments: argparse.Namespace) -> None:
    with NatsServer(jetstream=True) as server:
        with sync.connect(server.url) as nc:
            stream = StreamConfig("BENCH", subjects=[SUBJECT], duplicate_window=0.2, storage=StorageType.MEMORY)
            nc.run(nc.client.jetstream().add_stream, stream)
        for mode in ContentMode:
            show(mode, rounds(server.url, mode, arguments), arguments)
    print(
        f"{arguments.messages:,} events, window {arguments.window:,}, {arguments.rounds} rounds; Python "
        f"{platform.python_version()}, nats-py {version('nats-py')}, anyio {version('anyio')}, {os.cpu_count()} CPUs, "
        f"load {os.getloadavg()[0]:.1f}"
    )


def show(mode: ContentMode, took: list[list[tuple[float, float]]], arguments: argparse.Namespace) -> None:
    rates = [median(arguments.messages / round_[variant][0] for round_ in took) for variant in (0, 1)]
    cpu = [median(round_[variant][1] for round_ in took) / arguments.messages * 1e6 for variant in (0, 1)]
    ratios = [sync_[0] / aio_[0] for aio_, sync_ in took]
    cpu_ratio = median(sync_[1] / aio_[1] for aio_, sync_ in took)
    times = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    row = [str(mode), *(f"{rate:,.0f}" for rate in rates), times, *(f"{one:.1f}" for one in cpu), f"{cpu_ratio:.2f}"]
    if arguments.markdown:
        print("| " + " | ".join(row) + " |")
    else:
        names = ["events", "aio/s", "sync/s", "time, sync against aio", "CPU µs, aio", "sync", "ratio"]
        print("  ".join(f"{name}: {value}" for name, value in zip(names, row)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--window", type=int, default=1000)
    parser.add_argument("--markdown", action="store_true")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
