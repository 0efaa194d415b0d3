"""
The job that kill.py kills: it copies one stream to Parquet and to another stream.

Both queries are in one process, so that a kill ends both. Rows are decoded to events after the last run, not in the
job: decoding has no state that a kill could damage, and would make each start of the job slower. Started by kill.py.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ce_nats.spark.connector._source import register

# Names of the queries, and of their checkpoint directories.
EVENTS = "events"
COPY = "copy"
# Environment variable with the password of the user "job".
PASSWORD = "CE_NATS_KILL_PASSWORD"
# Messages in a batch. Small batches, so that kills happen during a batch.
_PER_BATCH = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--url", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--drain", action="store_true", help="exit at the end of the stream")
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
        # The job is too short for the optimising compiler to pay off.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        # Plans and settings, in Spark's event log, are searched for the password.
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    return SparkSession.builder.master("local[2]").config(map=options).getOrCreate()


def copies(rows: DataFrame) -> DataFrame:
    """Return messages for the other stream, without the ``Nats-Msg-Id`` of the first: the sink sets its own."""
    return rows.select(
        F.regexp_replace("subject", "^in", "out").alias("subject"),
        F.filter("headers", lambda header: header["key"] != "Nats-Msg-Id").alias("headers"),
        "data",
    )


if __name__ == "__main__":
    main()
