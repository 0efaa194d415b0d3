"""
Compare publishing events to a stream: rows of Spark, and the same events with the Publisher of ce_nats.

The rows have the attributes and the data of the typical events of ``benchmarks.codec``, cached by Spark; the Publisher
publishes the same events. The sink writes with one task and with two tasks. The time of Spark includes planning and
starting tasks. "Alone" is the writer of a task in this process, without Spark, so that its
CPU time can be measured. Each round runs all of them, in alternating order; ratios are computed within a round, and the
median over all rounds is shown. The stream is purged before each run, and counted after it.

``python -m benchmarks.sink [--rounds N] [--messages N] [--window N] [--structured] [--markdown]``
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import nats
import pyarrow as pa
from cloudevents.core.v1.event import CloudEvent
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from rich.console import Console
from rich.progress import track

from benchmarks import table
from benchmarks.codec import events
from benchmarks.spark import local_spark
from ce_nats import ContentMode
from ce_nats.aio import Publisher
from ce_nats.spark import cloudevent
from ce_nats.spark.connector._sink import NatsWriter, Target
from ce_nats.testing import NatsServer

SUBJECT = "bench.events"
PUBLISHER = "Publisher"
TEXTS = ("id", "source", "type", "subject", "datacontenttype", "dataschema")


def rows_of(batch: list[CloudEvent]) -> pa.Table:
    """Return events as a table: the attributes as columns, ``time`` as TIMESTAMP, and the data as JSON text."""
    columns: dict[str, Any] = {}
    given = [event.get_attributes() for event in batch]
    names = dict.fromkeys(name for attributes in given for name in attributes if name != "specversion")
    for name in names:
        values = [attributes.get(name) for attributes in given]
        columns[name] = pa.array(values, pa.timestamp("us", tz="UTC") if name == "time" else None)
    columns["data"] = pa.array([json.dumps(event.get_data()) for event in batch])
    return pa.table(columns)


def as_events(frame: DataFrame) -> DataFrame:
    names = set(frame.columns)
    core = {name: name for name in (*TEXTS, "time", "data") if name in names}
    extensions = {name: name for name in frame.columns if name not in core}
    event = cloudevent(**core, extensions=extensions or None)
    return frame.select(F.lit(SUBJECT).alias("subject"), event.alias("event"))


class Bench:
    """The compared programs, on one server."""

    def __init__(self, spark: SparkSession, url: str, arguments: argparse.Namespace) -> None:
        self._url = url
        self._messages = arguments.messages
        self._mode = ContentMode.STRUCTURED if arguments.structured else ContentMode.BINARY
        self._window = arguments.window
        self._events = events("typical", arguments.messages)
        self._frames = {}
        for partitions in (1, 2):
            frame = as_events(spark.createDataFrame(rows_of(self._events))).repartition(partitions).cache()
            frame.count()
            self._frames[partitions] = frame
        self._batches = self._frames[1].toArrow().to_batches(10_000)
        self._schema = self._frames[1].schema

    def variants(self) -> dict[str, Callable[[], float]]:
        """Return functions that publish all events, and return the CPU seconds of their processes."""
        return {
            PUBLISHER: self.publish,
            "sink, alone": self.write_alone,
            "Spark, 1 partition": lambda: self.write(1),
            "Spark, 2 partitions": lambda: self.write(2),
        }

    def publish(self) -> float:
        async def run() -> None:
            nc = await nats.connect(self._url)
            async with Publisher(nc.jetstream(), mode=self._mode, window=self._window) as publisher:
                for event in self._events:
                    await publisher.publish(event, SUBJECT)
            assert (publisher.acknowledged, publisher.duplicates) == (self._messages, 0)
            await nc.close()

        began = time.process_time()
        asyncio.run(run())
        return time.process_time() - began

    def options(self) -> dict[str, str]:
        return {"url": self._url, "contentMode": str(self._mode), "maxPending": str(self._window)}

    def write_alone(self) -> float:
        writer = NatsWriter(Target.from_options(self.options(), self._schema))
        began = time.process_time()
        written: Any = writer.write(iter(self._batches))
        assert (written.messages, written.duplicates) == (self._messages, 0)
        return time.process_time() - began

    def write(self, partitions: int) -> float:
        self._frames[partitions].write.format("nats").mode("append").options(**self.options()).save()
        return float("nan")


async def purge(url: str, expected: int) -> None:
    """Purge the stream, which must have the number of messages that were published."""
    nc = await nats.connect(url)
    state = (await nc.jetstream().stream_info("BENCH")).state
    assert state.messages == expected, f"{state.messages} messages are stored, not {expected}"
    await nc.jetstream().purge_stream("BENCH")
    await nc.close()
    await asyncio.sleep(0.3)  # longer than the duplicate window


async def make_stream(url: str, storage: str) -> None:
    nc = await nats.connect(url)
    await nc.jetstream().add_stream(name="BENCH", subjects=[SUBJECT], duplicate_window=0.2, storage=storage)
    await nc.close()


def measured(url: str, run: Callable[[], float], messages: int) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of a run on an empty stream."""
    began = time.perf_counter()
    cpu = run()
    seconds = time.perf_counter() - began
    asyncio.run(purge(url, messages))
    return seconds, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--window", type=int, default=500)
    parser.add_argument("--structured", action="store_true")
    parser.add_argument("--storage", choices=["file", "memory"], default="file")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()

    spark = local_spark()
    with NatsServer(jetstream=True) as server:
        asyncio.run(make_stream(server.url, arguments.storage))
        variants = Bench(spark, server.url, arguments).variants()
        for run in variants.values():
            measured(server.url, run, arguments.messages)
        results = []
        for number in track(range(arguments.rounds), "rounds", console=Console(stderr=True)):
            order = list(variants) if number % 2 == 0 else list(reversed(variants))
            results.append({name: measured(server.url, variants[name], arguments.messages) for name in order})
    spark.stop()
    show(results, arguments)


def show(results: list[dict[str, tuple[float, float]]], arguments: argparse.Namespace) -> None:
    rows = []
    count = arguments.messages
    for name in (PUBLISHER, *(name for name in sorted(results[0]) if name != PUBLISHER)):
        rate = median(count / round_[name][0] for round_ in results)
        ratios = [round_[PUBLISHER][0] / round_[name][0] for round_ in results]
        cpu = median(round_[name][1] for round_ in results) / count * 1e6
        cpu_ratio = median(round_[PUBLISHER][1] / round_[name][1] for round_ in results)
        has_cpu = cpu == cpu
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        costs = [f"{cpu:.1f}", f"{cpu_ratio:.2f}"] if has_cpu else ["-", "-"]
        rows.append([name, f"{rate:,.0f}", f"{median(ratios):.2f}", spread, *costs])
    titles = ["events with", "events/s", "against the Publisher", "range", "CPU µs/event", "Publisher's CPU time"]
    what = f"{count:,} events, window {arguments.window:,}, {arguments.storage} stream, {len(results)} rounds"
    table.show(titles, rows, what, markdown=arguments.markdown)


if __name__ == "__main__":
    main()
