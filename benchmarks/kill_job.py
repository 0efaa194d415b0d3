"""
The job that kill.py kills: one stream into Parquet, and into another stream.

Both queries are in one process, so that a kill meets both. Events are made of the rows when all is over: that has no
state which a kill could harm, and each start of the job would pay for it. Not to be run by hand.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ce_nats.spark.connector.source import register

# A query each, with its checkpoint.
EVENTS = "events"
COPY = "copy"
# Environment variable with the password of the user "job".
PASSWORD = "CE_NATS_KILL_PASSWORD"
# Server, worker and driver have to go away in the middle of something, so batches are many.
_PER_BATCH = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--url", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--drain", action="store_true", help="end where the stream ends")
    arguments = parser.parse_args()

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session(arguments.directory)
    register(spark)
    server = {"url": arguments.url, "user": "job", "password": os.environ[PASSWORD]}
    source = spark.readStream.format("nats").options(**server, stream="IN", startingOffsets="earliest", minPartitions=2)
    rows = (source if arguments.drain else source.option("maxMessagesPerTrigger", _PER_BATCH)).load()
    copy = copies(rows).writeStream.format("nats").options(**server, maxPending=100)
    events = rows.writeStream.format("parquet").option("path", str(arguments.directory / "rows"))
    queries = []
    for name, writer in ((COPY, copy), (EVENTS, events)):
        writer = writer.option("checkpointLocation", str(arguments.directory / name))
        queries.append((writer.trigger(availableNow=True) if arguments.drain else writer).start())
    if arguments.drain:
        for query in queries:
            query.awaitTermination()
    else:
        spark.streams.awaitAnyTermination()


def session(directory: Path) -> SparkSession:
    events = directory / "spark-events"
    events.mkdir(exist_ok=True)
    options: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.log.level": "WARN",
        "spark.driver.memory": "1g",
        # It does not live long enough for the better compiler to pay.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        # Plans and settings, as Spark keeps them for its history: nothing secret may be there.
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    return SparkSession.builder.master("local[2]").config(map=options).getOrCreate()


def copies(rows: DataFrame) -> DataFrame:
    """Messages for the other stream, without the ``Nats-Msg-Id`` that they came with: the sink makes its own."""
    return rows.select(
        F.regexp_replace("subject", "^in", "out").alias("subject"),
        F.filter("headers", lambda header: header["key"] != "Nats-Msg-Id").alias("headers"),
        "data",
    )


if __name__ == "__main__":
    main()
