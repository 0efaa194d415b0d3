"""
Measure the CPU time of publishers, servers, consumers and Spark for an event: the figures of docs/guides/sizing.md.

``publish`` stores typical events with one ``Publisher`` in one stream or in four, which the server's subject mapping or
the publisher selects, with one replica and with three, message by message and with fast ingest. ``consume`` handles
them with a ``PullConsumer`` whose handler does nothing. ``spark`` reads a stream to columns in Parquet on a cluster of
one and of two workers, after a run that is not measured. CPU time is that of the processes between the first event and
the last; with three servers, the first figure is the largest of a server. Medians of the rounds. Needs ``/proc``.

``python -m benchmarks.sizing [publish] [consume] [spark] [--rounds N] [--messages N] [--markdown]``
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from cloudevents.core.v1.event import CloudEvent
from nats.js.api import ConsumerConfig

from benchmarks import table
from benchmarks.codec import events
from benchmarks.processes import cpu_seconds, own_cpu_seconds
from ce_nats import aio
from ce_nats.testing import NatsCluster, NatsServer

STREAMS = 4
MAPPING = f'mappings {{ "mapped.*": "orders.{{{{partition({STREAMS},1)}}}}.{{{{wildcard(1)}}}}" }}'
_SPARK_MESSAGES = 500_000


@dataclass(frozen=True)
class Setup:
    """
    Streams, and how events get into them.

    Attributes:
        streams: Number of streams.
        replicas: Number of replicas.
        subject: Returns the subject of an event by its number.
        batched: Whether the streams allow fast ingest.
    """

    streams: int
    replicas: int
    subject: Callable[[int], str]
    batched: bool = False


def _one(number: int) -> str:
    return f"orders.0.{number % 1000}"


def _mapped(number: int) -> str:
    return f"mapped.{number % 1000}"


def _selected(number: int) -> str:
    return f"orders.{number % STREAMS}.{number % 1000}"


SETUPS = {
    "one stream, R1": Setup(1, 1, _one),
    "four streams by mapping, R1": Setup(STREAMS, 1, _mapped),
    "four streams by the publisher, R1": Setup(STREAMS, 1, _selected),
    "one stream, R1, fast ingest": Setup(1, 1, _one, batched=True),
    "one stream, R3": Setup(1, 3, _one),
    "four streams by the publisher, R3": Setup(STREAMS, 3, _selected),
    "one stream, R3, fast ingest": Setup(1, 3, _one, batched=True),
}


class Servers:
    """One server, or a cluster of three."""

    def __init__(self, stack: ExitStack, count: int) -> None:
        if count == 1:
            server = stack.enter_context(NatsServer(jetstream=True, config=MAPPING))
            self._servers: Sequence[NatsServer] = [server]
        else:
            self._servers = stack.enter_context(NatsCluster(config=MAPPING)).servers
        self.urls = [server.url for server in self._servers]

    def cpu(self) -> list[float]:
        return [own_cpu_seconds(server._processes[-1].pid) for server in self._servers]


async def measured(servers: Servers, count: int, run: Callable[[], Awaitable[None]]) -> list[float]:
    """Return events/s, and CPU µs for an event: of this process, of the busiest server, of all servers."""
    before, own, started = servers.cpu(), time.process_time(), time.perf_counter()
    await run()
    seconds, own = time.perf_counter() - started, time.process_time() - own
    used = [after - less for after, less in zip(servers.cpu(), before)]
    return [count / seconds, *(value / count * 1e6 for value in (own, max(used), sum(used)))]


async def _create(js: Any, setup: Setup) -> None:
    for number in range(setup.streams):
        name, subjects = f"ORDERS_{number}", [f"orders.{number}.*"]
        await js.add_stream(
            name=name, subjects=subjects, num_replicas=setup.replicas, allow_batched=setup.batched, duplicate_window=1
        )


async def _delete(js: Any, setup: Setup) -> None:
    for number in range(setup.streams):
        await js.delete_stream(f"ORDERS_{number}")


async def publish(setup: Setup, batch: Sequence[CloudEvent], rounds: int) -> list[list[float]]:
    with ExitStack() as stack:
        servers = Servers(stack, setup.replicas)
        async with aio.connect(servers.urls) as nc:
            js = nc.jetstream(timeout=60)

            async def run() -> None:
                async with aio.Publisher(js, window=1000) as publisher:
                    for number, event in enumerate(batch):
                        await publisher.publish(event, setup.subject(number))
                if publisher.acknowledged != len(batch) or bool(publisher.batched) != setup.batched:
                    raise RuntimeError(f"got {publisher.acknowledged} events, {publisher.batched} of them in batches")

            found = []
            for _ in range(rounds + 1):
                await _create(js, setup)
                found.append(await measured(servers, len(batch), run))
                await _delete(js, setup)
            return found[1:]


async def consume(setup: Setup, batch: Sequence[CloudEvent], rounds: int) -> list[list[float]]:
    with ExitStack() as stack:
        servers = Servers(stack, setup.replicas)
        async with aio.connect(servers.urls) as nc:
            js = nc.jetstream(timeout=60)
            await _create(js, setup)
            async with aio.Publisher(js) as publisher:
                for event in batch:
                    await publisher.publish(event, "orders.0.1")
            runs = (partial(_handle, js, f"c{number}", len(batch)) for number in range(rounds + 1))
            found = [await measured(servers, len(batch), run) for run in runs]
            return found[1:]


async def _handle(js: Any, name: str, count: int) -> None:
    left = count

    async def handle(_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            consumer.stop()

    config = ConsumerConfig(max_ack_pending=10_000)
    async with aio.PullConsumer(js, "ORDERS_0", name, create=config, prefetch=1000, dead_letter=None) as consumer:
        await consumer.run(handle, concurrency=8)


def spark(workers: int, rounds: int, count: int) -> list[list[float]]:
    """Return messages/s, and CPU µs for a message: of Python, of the JVMs, of the server."""
    from benchmarks.growth._job import STREAM
    from benchmarks.growth._messages import create_stream, encoded, fill
    from benchmarks.growth._spark import session
    from ce_nats.spark import explode_cloudevents, register

    found = []
    with NatsServer(jetstream=True) as server, tempfile.TemporaryDirectory() as directory:
        asyncio.run(create_stream(server.url))
        asyncio.run(fill(server.url, list(encoded(10_000)), 0, count))
        context = session(f"local-cluster[{workers},1,1024]")
        register(context, functions=False)
        pid = server._processes[-1].pid
        for number in range(rounds + 1):
            reader = context.read.format("nats").option("url", server.url).option("stream", STREAM)
            before, started = {**cpu_seconds(os.getpid()), "server": own_cpu_seconds(pid)}, time.perf_counter()
            events = explode_cloudevents(reader.option("minPartitions", "4").load())
            events.write.parquet(str(Path(directory) / str(number)))
            seconds = time.perf_counter() - started
            after = {**cpu_seconds(os.getpid()), "server": own_cpu_seconds(pid)}
            used = {kind: (after[kind] - before[kind]) / count * 1e6 for kind in after}
            found.append([count / seconds, used["python"], used["jvm"], used["server"]])
        context.stop()
    return found[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="publish, consume, spark; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=20_000, help="events of publish and consume")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    parts = arguments.parts or ["publish", "consume", "spark"]
    batch = events("typical", arguments.messages)
    what = f"{arguments.messages:,} events, {arguments.rounds} rounds"
    titles = ["", "events/s", "client, CPU µs", "busiest server, CPU µs", "all servers, CPU µs"]
    for part, ways in (("publish", publish), ("consume", consume)):
        if part in parts:
            chosen = {name: SETUPS[name] for name in SETUPS if part == "publish" or name in _CONSUMED}
            found = {name: asyncio.run(ways(one, batch, arguments.rounds)) for name, one in chosen.items()}
            table.show([part, *titles[1:]], _rows(found), what, markdown=arguments.markdown)
    if "spark" in parts:
        found = {
            f"{workers} workers": spark(workers, max(1, arguments.rounds - 1), _SPARK_MESSAGES) for workers in (1, 2)
        }
        titles = ["spark", "messages/s", "Python, CPU µs", "JVMs, CPU µs", "server, CPU µs"]
        table.show(titles, _rows(found), f"{_SPARK_MESSAGES:,} messages", markdown=arguments.markdown)


_CONSUMED = ("one stream, R1", "one stream, R3")


def _rows(found: dict[str, list[list[float]]]) -> list[list[str]]:
    rows = []
    for name, values in found.items():
        rate, *costs = (median(column) for column in zip(*values))
        rows.append([name, f"{rate:,.0f}", *(f"{cost:.1f}" for cost in costs)])
        print(rows[-1], file=sys.stderr)
    return rows


if __name__ == "__main__":
    main()
