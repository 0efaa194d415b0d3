"""
The job that kill.py kills: one stream into Parquet, as events, and into another stream, as it is.

Both queries are in one process, so that a kill meets both. Not to be run by hand.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from ce_nats.spark import explode_cloudevents
from ce_nats.spark.source import register

# A query each, with its checkpoint.
EVENTS = "events"
COPY = "copy"
# Server, worker and driver have to go away in the middle of something, so batches are many.
_PER_BATCH = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--url", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--drain", action="store_true", help="end where the stream ends")
    arguments = parser.parse_args()

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "1g").config("spark.log.level", "WARN")
    spark = builder.getOrCreate()
    register(spark)
    source = spark.readStream.format("nats").option("url", arguments.url).option("stream", "IN")
    source = source.option("startingOffsets", "earliest").option("partitions", 2)
    rows = source.option("maxMessagesPerTrigger", _PER_BATCH).load()
    queries = [
        start(copies(rows), COPY, arguments, format="nats", url=arguments.url, maxPending="100"),
        start(explode_cloudevents(rows), EVENTS, arguments, format="parquet", path=str(arguments.directory / "rows")),
    ]
    if arguments.drain:
        for query in queries:
            query.awaitTermination()
    else:
        spark.streams.awaitAnyTermination()


def copies(rows: DataFrame) -> DataFrame:
    """Messages for the other stream, without the ``Nats-Msg-Id`` that they came with: the sink makes its own."""
    return rows.select(
        F.regexp_replace("subject", "^in", "out").alias("subject"),
        F.filter("headers", lambda header: header["key"] != "Nats-Msg-Id").alias("headers"),
        "data",
    )


def start(rows: DataFrame, name: str, arguments: argparse.Namespace, **options: str) -> StreamingQuery:
    writer = rows.writeStream.options(**{key: value for key, value in options.items() if key != "format"})
    writer = writer.format(options["format"]).option("checkpointLocation", str(arguments.directory / name))
    return (writer.trigger(availableNow=True) if arguments.drain else writer).start()


if __name__ == "__main__":
    main()
