"""
Compare ways to decode captured messages to columns in Spark: ``explode_cloudevents`` with each engine, ``from_nats`` as
a struct and in SQL, reading alone, and the codec in Python row by row. With mapInArrow the result has only the event;
the other variants keep the columns of the message.

The messages are those of messages.py, in a Parquet file. Every query ends in the ``noop`` sink and runs on one core.
The figure is the CPU time of all processes of Spark together, including compilation and garbage collection. Each round
runs every query once; the first round is a warm-up and is not counted. Ratios are computed within a round; the median
over all rounds is shown. Also measured, first, is the time to build the columns and to collect one row, in a new
session and a second time. Needs ``/proc``.

``python -m benchmarks.spark_columns [--rounds N] [--messages N] [--only PART ...] [--markdown]``
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from rich.console import Console
from rich.progress import track

from benchmarks import table
from benchmarks.messages import messages
from ce_nats import DecodeError, Headers, NatsMessage, from_nats_message
from ce_nats.arrow._decode import ATTRIBUTES
from ce_nats.codec.attributes import canonical
from ce_nats.spark import cesql, explode_cloudevents, from_nats
from ce_nats.spark.columns._schema import FLAT

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
ARROW_FLAT = to_arrow_schema(FLAT, timezone="UTC")
READ, EXPLODED = "reading", "explode_cloudevents"
TYPE = "com.example.reading.taken.v1"  # all events of messages.py
HAS_PYTHON_ENGINE = find_spec("ce_nats.spark.columns._python_engine") is not None


def write(path: Path, count: int) -> None:
    with pq.ParquetWriter(path, pa.schema([("headers", HEADERS), ("data", pa.binary())])) as writer:
        batch: list[dict[str, Any]] = []
        for number, (pairs, data) in enumerate(messages(count), 1):
            batch.append({"headers": [{"key": name, "value": value} for name, value in pairs], "data": data})
            if len(batch) == 20_000 or number == count:
                writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=writer.schema))
                batch = []


def decode(pairs: list[tuple[str, str]], data: bytes) -> tuple[Any, ...]:
    """Decode a message to a row of ``FLAT`` with the codec."""
    try:
        event = from_nats_message(NatsMessage("", data, Headers(pairs)), parse_data=False)
    except DecodeError as error:
        return (*(None for _ in FLAT.fields[:-1]), str(error.code))
    attributes = dict(event.get_attributes())
    core = [attributes.pop(name, None) for name in ATTRIBUTES]
    extensions = {name: canonical(value) for name, value in attributes.items()}
    mode = "structured" if pairs[0][0] == "Content-Type" else "binary"
    return (*core, extensions, event.get_data(), mode, None)


def with_rows(headers: list[Any], data: bytearray) -> tuple[Any, ...]:
    values = decode([(header.key, header.value) for header in headers], bytes(data))
    time = values[ATTRIBUTES.index("time")]
    plain = time and datetime.fromtimestamp(time.timestamp())  # pyspark does not accept subclasses of datetime
    return tuple(plain if name == "time" else value for name, value in zip(FLAT.fieldNames(), values))


def with_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        messages = zip(batch["headers"].to_pylist(), batch["data"].to_pylist(), strict=True)
        rows = (decode([(header["key"], header["value"]) for header in headers], data) for headers, data in messages)
        columns = zip(zip(*rows, strict=True), ARROW_FLAT.types, strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(*column) for column in columns], schema=ARROW_FLAT)


def variants(frame: DataFrame) -> dict[str, DataFrame]:
    event = from_nats("headers", "data")
    frame.createOrReplaceTempView("messages")
    others = {}
    if HAS_PYTHON_ENGINE:
        others["explode_cloudevents, Python engine"] = explode_cloudevents(frame, engine="python")
    return {
        READ: frame,
        EXPLODED: explode_cloudevents(frame),
        "explode_cloudevents, ce_error is null": explode_cloudevents(frame).where("ce_error IS NULL AND ce_type > ''"),
        "explode_cloudevents, one type, two columns": explode_cloudevents(frame)
        .where(F.col("ce_type") == TYPE)
        .select("ce_id", "ce_source"),
        "explode_cloudevents, cesql() of one type, two columns": explode_cloudevents(frame)
        .where(cesql(f"type = '{TYPE}'"))
        .select("ce_id", "ce_source"),
        "from_nats, one type, two fields": frame.select(event.alias("event"))
        .where(F.col("event.attributes.type") == TYPE)
        .select("event.attributes.id", "event.attributes.source"),
        "from_nats": frame.select("headers", "data", event.alias("event")),
        "from_nats in SQL": frame.sparkSession.sql(
            "SELECT headers, data, ce_nats.from_nats(headers, data) AS event FROM messages"
        ),
        **others,
        "Python UDF, row by row": frame.withColumn("event", F.udf(with_rows, FLAT, useArrow=False)("headers", "data")),
        "mapInArrow, row by row": frame.mapInArrow(with_batches, FLAT),
    }


def first_row(spark: SparkSession) -> list[tuple[str, ...]]:
    """Return the seconds to build the columns and to collect one row, the first time and again."""
    (pairs, data), *_ = messages(1)
    schema = "headers array<struct<key string, value string>>, data binary"
    frame = spark.createDataFrame([(pairs, bytearray(data))], schema)
    frame.collect()
    rows = []
    for name in ("first time", "again"):
        moments = [(time.perf_counter(), cpu_seconds())]
        events = explode_cloudevents(frame)
        moments.append((time.perf_counter(), cpu_seconds()))
        events.collect()
        moments.append((time.perf_counter(), cpu_seconds()))
        spans = [b - a for before, after in pairwise(moments) for a, b in zip(before, after)]
        rows.append((name, *(f"{span:.2f}" for span in spans)))
    return rows


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its descendants, including those that have exited."""
    children: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has exited meanwhile
        children[int(fields[1])].append((int(path.parent.name), sum(map(int, fields[11:15]))))
    ticks, waiting = 0, [os.getpid()]
    while waiting:
        for process, used in children[waiting.pop()]:
            ticks += used
            waiting.append(process)
    return ticks / os.sysconf("SC_CLK_TCK")


def measured(run: Callable[[], object]) -> float:
    before = cpu_seconds()
    run()
    return cpu_seconds() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument(
        "--only", nargs="*", default=[], help="run explode_cloudevents, and variants whose names contain one of these"
    )
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown, for docs/speed.md")
    options = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "messages.parquet"
        write(path, options.messages)
        spark = (
            SparkSession.builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.memory", "3g")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )
        starts = first_row(spark)
        frames = variants(spark.read.parquet(str(path)))
        wanted = [READ, EXPLODED, *options.only] if options.only else [""]
        frames = {name: frame for name, frame in frames.items() if any(part in name for part in wanted)}
        rounds = []
        for _ in track(range(options.rounds + 1), console=Console(stderr=True)):
            results = {}
            for name, frame in frames.items():
                results[name] = measured(lambda: frame.write.format("noop").mode("overwrite").save())  # noqa: B023
            rounds.append(results)
        spark.stop()
    show(rounds[1:], options.messages, markdown=options.markdown)
    titles = ["explode_cloudevents of one row", "columns built, s", "CPU s", "collected, s", "CPU s"]
    table.show(titles, starts, "", markdown=options.markdown)


def show(rounds: list[dict[str, float]], count: int, *, markdown: bool) -> None:
    rows = [
        (
            name,
            f"{median(each[name] for each in rounds) / count * 1e6:.1f}",
            f"{median(each[name] / each[READ] for each in rounds):.1f}",
            f"{median(each[name] / each[EXPLODED] for each in rounds):.1f}",
        )
        for name in rounds[0]
    ]
    titles = ["variant", "CPU µs/message", "against reading", "against explode_cloudevents"]
    table.show(titles, rows, f"{count:,} messages, {len(rounds)} rounds", markdown=markdown)


if __name__ == "__main__":
    main()
