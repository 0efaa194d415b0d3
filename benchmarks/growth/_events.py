"""Events with many attributes, and events with large data."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from cloudevents.core.v1.event import CloudEvent
from pyspark.sql import DataFrame

from benchmarks.codec import as_received
from benchmarks.growth._curve import Curve, Point
from benchmarks.growth._spark import session
from benchmarks.processes import cpu_seconds, own_cpu_seconds
from benchmarks.spark_columns import HEADERS
from ce_nats import ContentMode, NatsMessage, aio, from_nats_message, to_nats_message
from ce_nats.arrow import explode_cloudevents
from ce_nats.spark import explode_cloudevents as explode_with_spark
from ce_nats.testing import NatsServer

ATTRIBUTES = (0, 1, 3, 10, 30, 100, 300, 1000)
SIZES = tuple(4**power * 1024 for power in range(8))
SCHEMA = pa.schema([("headers", HEADERS), ("data", pa.binary())])

# Different events of a batch; fewer if they are large.
_DISTINCT = 16
# Different values of attributes in a batch: more than the codec remembers.
_VALUES = 20_000
_BATCH_BYTES = 2**25
_RUN_SECONDS = 0.1
# Rows of a table have at most these attributes or bytes together.
_TABLE_ATTRIBUTES = 2_000_000
_TABLE_BYTES = 2**27
_TABLE_ROWS = 20_000
# Columns of Arrow have a cost for each name and batch, so the numbers of rows must not differ much.
_ARROW_ROWS = 1_000
_ITEM = {"sku": "A-1001", "quantity": 2, "price": 19.95, "note": "leave at the door"}
_ITEM_BYTES = 73

Run = Callable[[], object]


# --- Events -----------------------------------------------------------------------------------------------------------


def with_attributes(count: int, number: int) -> CloudEvent:
    """Return an event with a number of extension attributes."""
    attributes = {"specversion": "1.0", "id": str(number), "source": "/orders", "type": "com.example.order.created"}
    names = (f"extension{place}" for place in range(count))
    return CloudEvent(attributes | {name: f"value-{number}-{place}" for place, name in enumerate(names)}, {"total": 5})


def with_data(size: int, number: int) -> CloudEvent:
    """Return an event with about a number of bytes of JSON."""
    items = [_ITEM | {"line": line + number} for line in range(size // (_ITEM_BYTES + 13))]
    return CloudEvent({"id": str(number), "source": "/orders", "type": "com.example.order.created"}, {"items": items})


def table(received: Sequence[NatsMessage], rows: int) -> pa.Table:
    """Return the messages as rows, repeated up to a number of rows."""
    batch = [
        {"headers": [{"key": key, "value": value} for key, value in one.headers.items()], "data": one.data}
        for one in received
    ]
    whole = pa.Table.from_pylist(batch, schema=SCHEMA)
    return pa.concat_tables([whole] * -(-rows // len(batch))).slice(0, rows).combine_chunks()


# --- Measuring --------------------------------------------------------------------------------------------------------


def cost(run: Run, events: int, rounds: int) -> Point:
    """Return the medians of CPU time and wall time for an event, and the memory of a run that Python allocates."""
    run()
    once = _times(run, 1)[0]
    times = max(1, int(_RUN_SECONDS / max(once, 1e-6)))
    found = [_times(run, times) for _ in range(rounds)]
    cpu, wall = (median(values) / events for values in zip(*found))
    return Point(0, cpu, wall)


def _times(run: Run, times: int) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(times):
        run()
    return (time.process_time() - cpu) / times, (time.perf_counter() - wall) / times


def peak(run: Run) -> int:
    """Return the maximum of the bytes that Python and Arrow allocate in a run."""
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1] + (pool.max_memory() or 0)
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)


def _each(call: Callable[[Any], object], items: Sequence[Any]) -> Run:
    def run() -> None:
        for item in items:
            call(item)

    return run


class Measured:
    """Points of the curves, by name."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.points: dict[str, list[Point]] = {}

    def add(self, name: str, n: int, point: Point) -> None:
        self.points.setdefault(name, []).append(replace(point, n=n))
        print(f"{name}: {n:,}: {point.cpu * 1e6:,.1f} µs, {point.memory:,} bytes", file=sys.stderr)

    def codec(self, n: int, events: Sequence[CloudEvent], rows: int) -> None:
        """Measure the codec, and columns with Arrow."""
        for mode in ContentMode:
            encode = partial(to_nats_message, mode=mode)
            messages = [encode(event) for event in events]
            received = [as_received(message) for message in messages]
            ways: list[tuple[str, Callable[[Any], object], Sequence[Any]]] = [
                (f"to {mode}", encode, events),
                (f"from {mode}", from_nats_message, received),
            ]
            for name, call, items in ways:
                point = cost(_each(call, items), len(items), self.rounds)
                self.add(name, n, replace(point, memory=peak(partial(call, items[0]))))
            rows_of = table(messages, rows)
            decode = partial(explode_cloudevents, rows_of)
            point = cost(decode, rows, self.rounds)
            self.add(f"columns, Arrow, {mode}", n, replace(point, memory=peak(decode) // rows))

    def columns(self, frames: dict[int, dict[ContentMode, tuple[DataFrame, int]]], empty: DataFrame) -> None:
        """Measure columns on the JVM with reading of the rows, less the costs of a query without rows."""
        for mode in ContentMode:
            exploded = {n: explode_with_spark(by_mode[mode][0]) for n, by_mode in frames.items()}
            for query in (*exploded.values(), *exploded.values()):
                _query(query)  # code is compiled
            start = explode_with_spark(empty)
            base = [median(values) for values in zip(*(_query(start) for _ in range(2 * self.rounds + 1)))]
            for n, query in exploded.items():
                rows = frames[n][mode][1]
                found = [median(values) for values in zip(*(_query(query) for _ in range(self.rounds)))]
                cpu, wall = (max(0.0, value - least) / rows for value, least in zip(found, base))
                self.add(f"columns, JVM, {mode}", n, Point(n, cpu, wall))

    @property
    def curves(self) -> list[Curve]:
        return [Curve(name, points) for name, points in self.points.items()]


def _query(rows: DataFrame) -> tuple[float, float]:
    cpu, wall = sum(cpu_seconds(os.getpid()).values()), time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return sum(cpu_seconds(os.getpid()).values()) - cpu, time.perf_counter() - wall


Make = Callable[[int], tuple[list[CloudEvent], int]]


def _measure(numbers: Sequence[int], make: Make, rounds: int, *, with_server: bool) -> Iterator[list[Curve]]:
    """
    Yield the curves of events, each time with more points.

    Args:
        numbers: Numbers of attributes, or sizes of data.
        make: Returns events of a number, and the number of rows in a table.
        rounds: Number of repetitions.
        with_server: Whether to publish and read the events.
    """
    measured = Measured(rounds)
    for n in numbers:
        events, rows = make(n)
        gc.collect()
        gc.freeze()  # objects that exist before a measurement do not slow down garbage collections in it
        measured.codec(n, events, min(rows, _ARROW_ROWS))
        gc.unfreeze()
        yield measured.curves
    if with_server:
        asyncio.run(_through_a_server(measured, numbers, make))
        yield measured.curves
    with tempfile.TemporaryDirectory() as directory:
        spark = session("local[1]", "4g")
        _write_tables(Path(directory), numbers, make)
        frames: dict[int, dict[ContentMode, tuple[DataFrame, int]]] = {
            n: {mode: (spark.read.parquet(f"{directory}/{n}-{mode}.parquet"), make(n)[1]) for mode in ContentMode}
            for n in numbers
        }
        measured.columns(frames, spark.read.parquet(f"{directory}/empty.parquet"))
        spark.stop()
    yield measured.curves


def _write_tables(directory: Path, numbers: Sequence[int], make: Make) -> None:
    pq.write_table(SCHEMA.empty_table(), directory / "empty.parquet")
    for n in numbers:
        events, rows = make(n)
        for mode in ContentMode:
            messages = [to_nats_message(event, mode=mode) for event in events]
            path = directory / f"{n}-{mode}.parquet"
            pq.write_table(table(messages, rows), path, use_dictionary=False, row_group_size=rows)


def attributes(largest: int, rounds: int) -> Iterator[list[Curve]]:
    """Yield the curves of events with more and more extension attributes."""

    def make(n: int) -> tuple[list[CloudEvent], int]:
        rows = min(_TABLE_ROWS, _TABLE_ATTRIBUTES // (n + 4))
        distinct = max(_DISTINCT, min(256, _VALUES // (n + 1)))
        return [with_attributes(n, number) for number in range(distinct)], rows

    return _measure([n for n in ATTRIBUTES if n <= largest], make, rounds, with_server=False)


def data(largest: int, rounds: int) -> Iterator[list[Curve]]:
    """Yield the curves of events with more and more data."""

    def make(size: int) -> tuple[list[CloudEvent], int]:
        events = [with_data(size, number) for number in range(max(1, min(_DISTINCT, _BATCH_BYTES // size)))]
        return events, max(1, min(_TABLE_ROWS, _TABLE_BYTES // size))

    return _measure([size for size in SIZES if size <= largest], make, rounds, with_server=True)


# --- Through a server -------------------------------------------------------------------------------------------------


async def _through_a_server(measured: Measured, sizes: Sequence[int], make: Make) -> None:
    """Publish events to a stream in files, and read and decode them; CPU time of this process and of the server."""
    with NatsServer(jetstream=True, config="max_payload: 64MB") as server:
        (process,) = server._processes
        async with aio.connect(server.url) as nc:
            js = nc.jetstream()
            await js.add_stream(name="GROWTH", subjects=["growth"])
            for mode in ContentMode:
                for size in sizes:
                    events, rows = make(size)
                    count = min(rows, 2_000)
                    found = []
                    for _ in range(measured.rounds):
                        await js.purge_stream("GROWTH")
                        cpu, wall = own_cpu_seconds(process.pid) + time.process_time(), time.perf_counter()
                        await _there_and_back(js, [events[n % len(events)] for n in range(count)], mode)
                        used = own_cpu_seconds(process.pid) + time.process_time() - cpu
                        found.append((used / count, (time.perf_counter() - wall) / count))
                    measured.add(f"through a server, {mode}", size, Point(size, *map(median, zip(*found))))


async def _there_and_back(js: Any, events: Sequence[CloudEvent], mode: ContentMode) -> None:
    async with aio.Publisher(js, mode=mode, dedup=None) as publisher:
        for event in events:
            await publisher.publish(event, "growth")
    seen = 0
    async for batch in aio.jetstream.read_stream(js, "GROWTH"):
        for message in batch:
            from_nats_message(message)
            seen += 1
    if seen != len(events):
        raise RuntimeError(f"{len(events)} events must be read, got {seen}")
