"""
Measure time, rate and memory of reading a million messages from JetStream with Spark, and writing events to Parquet.

The messages of messages.py (a block of 100,000, repeated, to limit the time of generating them) are stored in a stream
with file storage, and read with two partitions: by the source alone (with the ``noop`` sink), by the source and
``explode_cloudevents``, and by both to Parquet, as a batch query and as a streaming query that ends at the end of the
stream (``availableNow``). The rows written are counted. Memory is the resident memory of the JVM, and of all Python
processes of Spark together, sampled ten times per second; it needs /proc. With ``--heap``, the JVM runs a full garbage
collection every two seconds, and the largest heap after a collection is shown for the first and the last fifth of the
time: equal values mean that nothing leaks. This makes the run slower.

``python -m benchmarks.million [--messages N] [--only WAY ...] [--heap] [--markdown]``
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from nats.aio.client import Client
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from rich.console import Console
from rich.progress import track

from benchmarks import table
from ce_nats import Headers, NatsMessage
from ce_nats.aio.publishing._bulk import BulkPublisher
from ce_nats.spark import explode_cloudevents
from ce_nats.spark.connector._connection import Connection
from ce_nats.spark.connector._source import register
from ce_nats.testing import NatsServer

from .messages import messages

STREAM = "MILLION"
_BLOCK = 100_000
_GROUP = 2_000
_SAMPLE_SECONDS = 0.1
_COLLECT_SECONDS = 2.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


# --- The stream ------------------------------------------------------------------------------------------------------


async def fill(connection: Connection, count: int) -> None:
    nc = Client()
    await connection.connect(nc)
    await nc.jetstream().add_stream(name=STREAM, subjects=["readings.*"])
    groups = -(-count // _GROUP)
    async with BulkPublisher(connection.connect, acknowledged=False, window=_GROUP) as publisher:
        source = _numbered(count)
        for _ in track(range(groups), "publishing", console=Console(stderr=True)):
            await publisher.publish(list(islice(source, _GROUP)))
    for _ in range(6_000):
        if (await nc.jetstream().stream_info(STREAM)).state.messages == count:
            break
        await asyncio.sleep(0.01)
    else:
        raise RuntimeError(f"the stream must have {count} messages within a minute")
    await nc.close()


def _numbered(count: int) -> Iterator[NatsMessage]:
    block = list(messages(min(count, _BLOCK)))
    for number in range(count):
        pairs, data = block[number % len(block)]
        kept = [(name, f"m-{number}" if name == "Nats-Msg-Id" else value) for name, value in pairs]
        yield NatsMessage(f"readings.{number % 1000}", data, Headers(kept))


# --- Memory ----------------------------------------------------------------------------------------------------------


@dataclass
class Memory:
    """
    Peak memory of a run.

    Attributes:
        jvm: Resident bytes of the JVM.
        workers: Resident bytes of all Python processes of Spark together.
        largest: Resident bytes of the largest Python process.
        heap: Largest heap after a collection, in megabytes, in the first and in the last fifth of the time.
    """

    jvm: int = 0
    workers: int = 0
    largest: int = 0
    heap: tuple[int, int] = (0, 0)


class Watch:
    """
    Samples the memory of the child processes, as a context manager.

    Args:
        collecting: Whether to run garbage collections in the JVM.
    """

    def __init__(self, *, collecting: bool) -> None:
        self.most = Memory()
        self._collecting = collecting
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        collected = time.monotonic()
        while not self._stopping.wait(_SAMPLE_SECONDS):
            pid, jvm, workers = _resident()
            if self._collecting and time.monotonic() > collected + _COLLECT_SECONDS:
                subprocess.run(["jcmd", str(pid), "GC.run"], stdout=subprocess.DEVNULL, check=True)
                collected = time.monotonic()
            self.most.jvm = max(self.most.jvm, jvm)
            self.most.workers = max(self.most.workers, sum(workers))
            self.most.largest = max(self.most.largest, *workers, 0)


def _resident() -> tuple[int, int, list[int]]:
    """Return process id and resident bytes of the JVM, and resident bytes of each Python process below this one."""
    processes = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text("utf-8", "replace")
        except OSError:
            continue  # the process has exited meanwhile
        # proc(5): pid, the name in brackets, state, parent; field 24 is the number of resident pages.
        front, _, rest = text.rpartition(")")
        fields = rest.split()
        processes[int(path.parent.name)] = (int(fields[1]), int(fields[21]) * _PAGE, front.partition("(")[2])
    below = {os.getpid()}
    while len(found := below | {pid for pid, (parent, _, _) in processes.items() if parent in below}) > len(below):
        below = found
    below -= {os.getpid()}
    size, jvm = max(
        ((size, pid) for pid in below for _, size, name in [processes[pid]] if name == "java"), default=(0, 0)
    )
    return jvm, size, [size for pid in below for _, size, name in [processes[pid]] if name.startswith("python")]


class Heap:
    """The JVM's log of garbage collections: time, and heap after the collection."""

    _LINE = re.compile(r"^\[([^]]+)\].* Pause Full .* [0-9]+M->([0-9]+)M\(", re.MULTILINE)

    def __init__(self, log: Path) -> None:
        self._log = log
        self.option = f"-Xlog:gc:file={log}:time"

    def most_left(self, start: float, end: float) -> int:
        """Return the largest heap after a collection between two times, in megabytes; 0 without a collection."""
        found = self._LINE.findall(self._log.read_text("utf-8"))
        times = [(datetime.strptime(time, "%Y-%m-%dT%H:%M:%S.%f%z").timestamp(), int(left)) for time, left in found]
        return max((left for time, left in times if start <= time <= end), default=0)


# --- The variants ----------------------------------------------------------------------------------------------------


def discard(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def run_query(rows: DataFrame, directory: Path) -> None:
    writer = rows.writeStream.format("parquet").option("path", str(directory / "streamed"))
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


def variants(spark: SparkSession, url: str, directory: Path) -> dict[str, Callable[[], None]]:
    options: dict[str, Any] = {"url": url, "stream": STREAM, "minPartitions": 2}
    table = spark.read.format("nats").options(**options).load()
    query = spark.readStream.format("nats").options(**options, startingOffsets="earliest").load()
    return {
        "source": lambda: discard(table),
        "explode": lambda: discard(explode_cloudevents(table)),
        "parquet": lambda: explode_cloudevents(table).write.parquet(str(directory / "written")),
        "query": lambda: run_query(explode_cloudevents(query), directory),
    }


DESCRIPTIONS = {
    "source": "source",
    "explode": "source, explode",
    "parquet": "source, explode, Parquet",
    "query": "the same, streaming query",
}


def check(spark: SparkSession, directory: Path, count: int) -> None:
    """Check the number of rows in Parquet, and that each sequence occurs once."""
    for path in (directory / "written", directory / "streamed"):
        if not path.exists():
            continue
        rows = spark.read.parquet(str(path))
        found = rows.agg(F.count("*"), F.count_distinct("sequence"), F.max("sequence"), F.count("ce_error")).first()
        assert found is not None
        if tuple(found)[:3] != (count, count, count):
            sys.exit(
                f"{path.name}: rows, sequences, last sequence and errors are {tuple(found)}, and {count} were sent"
            )
        print(f"{path.name}: {found[0]:,} rows, each sequence once, {found[3]:,} malformed", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--only", nargs="+", choices=DESCRIPTIONS, default=list(DESCRIPTIONS))
    parser.add_argument("--heap", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    results: dict[str, tuple[float, Memory]] = {}
    with tempfile.TemporaryDirectory() as name, NatsServer(jetstream=True) as server:
        heap = Heap(Path(name) / "gc.log")
        builder = builder.config("spark.log.level", "ERROR").config("spark.driver.memory", "2g")
        spark = builder.config("spark.driver.extraJavaOptions", heap.option).getOrCreate()
        register(spark)
        asyncio.run(fill(Connection((server.url,)), arguments.messages))
        known = variants(spark, server.url, Path(name))
        for variant in arguments.only:
            with Watch(collecting=arguments.heap) as watch:
                started = time.time()
                known[variant]()
                ended = time.time()
            fifth = (ended - started) / 5
            watch.most.heap = heap.most_left(started, started + fifth), heap.most_left(ended - fifth, ended)
            results[variant] = ended - started, watch.most
            print(f"{DESCRIPTIONS[variant]}: {results[variant][0]:.1f} s", file=sys.stderr)
        check(spark, Path(name), arguments.messages)
        spark.stop()
    show(results, arguments.messages, heap=arguments.heap, markdown=arguments.markdown)


def show(results: dict[str, tuple[float, Memory]], count: int, *, heap: bool, markdown: bool) -> None:
    rows = []
    for variant, (seconds, most) in results.items():
        sizes = [f"{size / 2**20:,.0f}" for size in (most.jvm, most.workers, most.largest)]
        rows.append(
            [
                DESCRIPTIONS[variant],
                f"{seconds:.1f}",
                f"{count / seconds:,.0f}",
                *sizes,
                *(map(str, most.heap) if heap else ()),
            ]
        )
    titles = ["variant", "seconds", "messages/s", "JVM, MB", "Python, MB", "largest worker, MB"]
    if heap:
        titles += ["heap, first fifth, MB", "heap, last fifth, MB"]
    table.show(titles, rows, f"{count:,} messages, 2 partitions", markdown=markdown)


if __name__ == "__main__":
    main()
