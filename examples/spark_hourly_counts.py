"""
Count the events of a JetStream stream by hour and type, with separate tables for late events and invalid messages.

    pip install 'ce-nats[spark]'
    python examples/spark_hourly_counts.py --stream ORDERS --to counts [--once]

An event is counted in the hour of its ``time``, or without a time in the hour in which it was stored. Three tables:

counts/hourly   hour, type, count: one row for each micro-batch that changed the count. Counts only grow, so the maximum
                is the count, also if a micro-batch was run twice.
counts/late     Events that were stored more than an hour after their time, or have a time in the future. Not counted.
counts/bad      Messages that are not events, as stored, with the error code.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from ce_nats.spark import explode_cloudevents, register

LATE = "timestamp - time > INTERVAL 60 MINUTES OR time - timestamp > INTERVAL 5 MINUTES"
# A counted event is at most 60 + 5 minutes older than those that were stored before it, so Spark drops none.
WATERMARK = "65 minutes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--stream", required=True)
    parser.add_argument("--to", type=Path, required=True, help="directory of the tables and checkpoints")
    parser.add_argument("--once", action="store_true", help="stop at the end of the stream")
    arguments = parser.parse_args()

    os.environ["PYSPARK_PYTHON"] = sys.executable  # workers need a Python with ce_nats
    builder = SparkSession.builder.master("local[2]").appName("hourly counts")
    spark = builder.config("spark.sql.shuffle.partitions", 2).config("spark.ui.enabled", False).getOrCreate()
    register(spark)

    queries = start(spark, arguments.stream, arguments.to, once=arguments.once)
    if arguments.once:
        for query in queries:
            query.awaitTermination()
        report(spark, arguments.to)
    else:
        spark.streams.awaitAnyTermination()


def start(spark: SparkSession, stream: str, directory: Path, *, once: bool) -> list[StreamingQuery]:
    url = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
    source = spark.readStream.format("nats").options(url=url, stream=stream, startingOffsets="earliest")
    events = explode_cloudevents(source.load()).withColumn("time", F.coalesce("ce_time", "timestamp"))
    is_event = F.col("ce_error").isNull()
    is_late = F.expr(LATE)

    hour = F.window("time", "1 hour").start.alias("hour")
    on_time = events.where(is_event & ~is_late).withWatermark("time", WATERMARK)
    tables = {
        "hourly": on_time.groupBy(hour, F.col("ce_type").alias("type")).count(),
        "late": events.where(is_event & is_late),
        "bad": events.where(~is_event).select("stream", "sequence", "subject", "headers", "data", "ce_error"),
    }
    return [write(table, directory / name, once=once) for name, table in tables.items()]


def write(table: DataFrame, path: Path, *, once: bool) -> StreamingQuery:
    def append(batch: DataFrame, number: int) -> None:
        # One directory per micro-batch: a micro-batch that is run twice replaces its first result.
        batch.write.mode("overwrite").parquet(f"{path}/batch={number}")

    writer = table.writeStream.outputMode("update").foreachBatch(append)
    writer = writer.option("checkpointLocation", f"{path}-checkpoint")
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="1 minute")).start()


def report(spark: SparkSession, directory: Path) -> None:
    hourly = spark.read.parquet(str(directory / "hourly"))
    hourly.groupBy("hour", "type").agg(F.max("count").alias("count")).orderBy("hour", "type").show(truncate=False)
    for name in ("late", "bad"):
        print(spark.read.parquet(str(directory / name)).count(), name)


if __name__ == "__main__":
    main()
