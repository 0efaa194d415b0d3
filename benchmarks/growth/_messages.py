"""Jobs on 1,000 to 10,000,000 messages."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import pyarrow.compute as pc
import pyarrow.parquet as pq
from nats.aio.client import Client
from rich.console import Console
from rich.progress import track

from benchmarks.growth._curve import Curve, Point
from benchmarks.growth._job import JOBS, STREAM
from benchmarks.messages import messages
from benchmarks.processes import Memory, own_cpu_seconds
from benchmarks.spark_columns import write
from ce_nats import Headers, NatsMessage
from ce_nats.aio.publishing._bulk import BulkPublisher
from ce_nats.spark.connector._connection import Connection
from ce_nats.testing import NatsServer
from ce_nats.wire._frames import frames_of
from ce_nats.wire.nats import encode_header_block

COUNTS = (1_000, 10_000, 100_000, 1_000_000, 3_000_000, 10_000_000)
NAMES = {
    "arrow": "capture to Parquet, Arrow",
    "stream": "stream to Parquet, Spark",
    "capture": "capture to Parquet, Spark",
}
# Messages that differ; larger numbers repeat them, to limit the time of generating them.
_BLOCK = 100_000
_GROUP = 500
# Jobs with fewer messages run several times.
_LONG = 1_000_000


async def create_stream(url: str) -> None:
    nc = Client()
    await Connection((url,)).connect(nc)
    await nc.jetstream().add_stream(name=STREAM, subjects=["readings.*"])
    await nc.close()


async def fill(url: str, block: Sequence[tuple[NatsMessage, bytes]], start: int, end: int) -> None:
    """Publish the messages with the numbers from ``start`` to below ``end``, which repeat a block."""
    async with BulkPublisher(Connection((url,)).connect, window=4 * _GROUP) as publisher:
        for first in track(range(start, end, _GROUP), "publishing", console=Console(stderr=True)):
            place = first % len(block)
            group = block[place : place + min(_GROUP, end - first)]
            await publisher.send(frames_of(group, publisher.next_number, await publisher.reply_prefix()))
        stored = await publisher.drain()
    if stored.messages != end - start:
        raise RuntimeError(f"{end - start} messages must be stored, got {stored.messages}")


def encoded(count: int) -> Iterator[tuple[NatsMessage, bytes]]:
    """Yield messages and their header blocks, without Nats-Msg-Id, because the stream has them repeatedly."""
    for number, (pairs, data) in enumerate(messages(count)):
        headers = Headers([pair for pair in pairs if pair[0] != "Nats-Msg-Id"])
        yield NatsMessage(f"readings.{number % 1000}", data, headers), encode_header_block(headers)


def write_captures(directory: Path, counts: Sequence[int]) -> None:
    """Write a capture of each number of messages. Large ones are links to one file, to limit the space on disk."""
    directory.mkdir()
    block = directory / "block.parquet"
    if max(counts) >= _BLOCK:
        write(block, _BLOCK)
    for count in counts:
        path = directory / str(count)
        path.mkdir()
        if count < _BLOCK:
            write(path / "part-000000.parquet", count)
        for part in range(count // _BLOCK):
            os.link(block, path / f"part-{part:06}.parquet")


class Job:
    """
    A job in a new process, as a context manager.

    Args:
        kind: One of JOBS.
        given: URL of the server, or folder of the captures.
        directory: Folder for output and log.
        server: Process id of the server.
    """

    def __init__(self, kind: str, given: str, directory: Path, server: int) -> None:
        self._kind = kind
        self._command = [sys.executable, "-m", "benchmarks.growth._job", kind, given]
        self._output, self._log = directory / "output", directory / f"{kind}.log"
        self._server = server
        self._before = {"jvm": 0.0, "python": 0.0}

    def __enter__(self) -> Job:
        self._started = time.perf_counter()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._memory = Memory(self._process.pid).__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._memory.__exit__()
        with self._process:  # closes its standard input, which ends it
            pass

    def run(self, count: int) -> Point:
        """Process messages, check the output, and return the cost; that of the first run includes the start."""
        server = own_cpu_seconds(self._server)
        self._memory.peak()
        started = self._started or time.perf_counter()
        self._started = 0.0
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{count} {self._output}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        wall = time.perf_counter() - started
        if not line:
            raise RuntimeError(f"the job {self._kind} of {count} messages failed:\n{self._log.read_text()[-4000:]}")
        after = json.loads(line)
        parts = {kind: seconds - self._before[kind] for kind, seconds in after.items()}
        self._before = after
        if self._kind == "stream":
            parts["server"] = own_cpu_seconds(self._server) - server
        check(self._output, count, has_sequences=self._kind == "stream")
        shutil.rmtree(self._output)
        return Point(count, sum(parts.values()), wall, self._memory.peak(), parts)


def check(output: Path, count: int, *, has_sequences: bool) -> None:
    """Raise RuntimeError unless the output has the number of rows and, of a stream, each sequence once."""
    files = [path for path in sorted(output.glob("*.parquet")) if path.stat().st_size]
    rows = sum(pq.read_metadata(path).num_rows for path in files)
    if rows != count:
        raise RuntimeError(f"{count} rows must be written, got {rows}")
    if has_sequences:
        sequences = pq.read_table(output, columns=["sequence"])["sequence"]
        found = pc.count_distinct(sequences).as_py(), pc.min(sequences).as_py(), pc.max(sequences).as_py()
        if found != (count, 1, count):
            raise RuntimeError(f"each sequence from 1 to {count} must be written once, got {found}")


def measure(largest: int, rounds: int) -> Iterator[list[Curve]]:
    """Yield the curves of all kinds of jobs after each measured number, up to the largest one."""
    counts = [count for count in COUNTS if count < largest] + [largest]
    curves: dict[str, Curve] = {}
    with tempfile.TemporaryDirectory() as name, NatsServer(jetstream=True) as server:
        captures = Path(name) / "captures"
        write_captures(captures, counts)
        block = list(encoded(min(largest, _BLOCK)))
        asyncio.run(create_stream(server.url))
        stored = 0
        (process,) = server._processes
        for kind in JOBS:
            with Job(kind, server.url if kind == "stream" else str(captures), Path(name), process.pid) as job:
                points: list[Point] = []
                for count in counts:
                    if kind == "stream":
                        asyncio.run(fill(server.url, block, stored, count))
                        stored = count
                    start = curves[kind].start if points else job.run(count)
                    times = rounds if count < _LONG else 1
                    points.append(_median([job.run(count) for _ in range(times)]))
                    curves[kind] = Curve(NAMES[kind], list(points), start)
                    print(NAMES[kind], points[-1], file=sys.stderr)
                    yield list(curves.values())


def _median(points: Sequence[Point]) -> Point:
    parts = {kind: median(point.parts[kind] for point in points) for kind in points[0].parts}
    return Point(
        points[0].n,
        median(point.cpu for point in points),
        median(point.wall for point in points),
        max(point.memory for point in points),
        parts,
    )
