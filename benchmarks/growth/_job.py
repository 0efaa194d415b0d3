"""
A job on messages, in a separate process: ``python -m benchmarks.growth._job KIND URL-OR-FOLDER``.

It reads lines of a number and a folder, processes this number of messages, and prints the CPU seconds of all its
processes so far, by kind, when the output in the folder is complete.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pyarrow.parquet as pq

from benchmarks.growth._spark import session
from benchmarks.processes import cpu_seconds
from ce_nats.arrow import explode_capture

STREAM = "GROWTH"

Run: TypeAlias = Callable[[int, Path], None]


def stream(url: str) -> Run:
    """Return a function that reads the first messages of a stream with Spark, and writes their columns to Parquet."""
    from ce_nats.spark import explode_cloudevents, register

    spark = session("local[2]")
    register(spark, functions=False)

    def run(count: int, output: Path) -> None:
        reader = spark.read.format("nats").option("url", url).option("stream", STREAM)
        explode_cloudevents(reader.option("endingOffsets", str(count)).load()).write.parquet(str(output))

    return run


def capture(folder: str) -> Run:
    """Return a function that reads a capture with Spark, and writes its columns to Parquet."""
    from ce_nats.spark import explode_cloudevents

    spark = session("local[2]")

    def run(count: int, output: Path) -> None:
        explode_cloudevents(spark.read.parquet(f"{folder}/{count}")).write.parquet(str(output))

    return run


def arrow(folder: str) -> Run:
    """Return a function that reads a capture, and writes its columns to Parquet, in one process without Spark."""

    def run(count: int, output: Path) -> None:
        batches = explode_capture(f"{folder}/{count}")
        output.mkdir()
        with pq.ParquetWriter(output / "part.parquet", batches.schema) as writer:
            for batch in batches:
                writer.write_batch(batch)

    return run


JOBS: dict[str, Callable[[str], Run]] = {"arrow": arrow, "stream": stream, "capture": capture}


def main() -> None:
    kind, given = sys.argv[1:]
    run = JOBS[kind](given)
    for line in sys.stdin:
        count, output = line.split()
        run(int(count), Path(output))
        print(json.dumps(cpu_seconds(os.getpid())), flush=True)


if __name__ == "__main__":
    main()
