"""
Copy the stream to Parquet, with decoded columns, and to another stream, with two queries of Spark Structured Streaming.

At the end of the run the queries are restarted from their checkpoints, to process the rest of the stream.
"""

from __future__ import annotations

import os
import sys
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StreamingQuery

from benchmarks.kill import discard_if_refused
from ce_nats.spark import explode_cloudevents, register

from .journal import STREAM, Run, copy_prefix, rows_directory

_TRIGGER = "5 seconds"
_PER_BATCH = 20_000
_POLL_SECONDS = 0.5
# Of the queries, and their checkpoints.
_EVENTS, _COPY = "events", "copy"


def session() -> SparkSession:
    options: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.log.level": "WARN",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
        "spark.sql.shuffle.partitions": "1",
    }
    return SparkSession.builder.master("local[2]").config(map=options).getOrCreate()


def copies(rows: DataFrame, prefix: str) -> DataFrame:
    """Return messages for the other stream, without the ``Nats-Msg-Id`` of the first: the sink sets its own."""
    return rows.select(
        F.regexp_replace("subject", "^in", prefix).alias("subject"),
        F.filter("headers", lambda header: header["key"] != "Nats-Msg-Id").alias("headers"),
        "data",
    )


class Job:
    def __init__(self, run: Run, name: str) -> None:
        self._run, self._name = run, name
        self._directory = run.path(name)
        self._spark = session()
        register(self._spark)

    def start(self, *, until_end: bool) -> list[StreamingQuery]:
        """Start both queries, or process the rest of the stream with them."""
        server = {"url": ",".join(self._run.urls), "retryTimeout": "120"}
        source = self._spark.readStream.format("nats").options(**server, stream=STREAM, startingOffsets="earliest")
        rows = source.option("maxMessagesPerTrigger", _PER_BATCH).load()
        writers = {
            _EVENTS: explode_cloudevents(rows)
            .writeStream.format("parquet")
            .option("path", str(rows_directory(self._run, self._name))),
            _COPY: copies(rows, copy_prefix(self._name)).writeStream.format("nats").options(**server),
        }
        queries = []
        for query, writer in writers.items():
            checkpoint = self._directory / query
            discard_if_refused(checkpoint)
            writer = writer.option("checkpointLocation", str(checkpoint))
            trigger = writer.trigger(availableNow=True) if until_end else writer.trigger(processingTime=_TRIGGER)
            queries.append(trigger.start())
        return queries

    def work(self) -> None:
        queries = self.start(until_end=False)
        while not self._run.ends.exists():
            for query in queries:
                if (error := query.exception()) is not None:
                    raise error
            time.sleep(_POLL_SECONDS)
        for query in queries:
            query.stop()
        for query in self.start(until_end=True):
            query.awaitTermination()


def main(directory: str, name: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    run = Run.load(directory)
    run.path(name).mkdir(exist_ok=True)
    Job(run, name).work()


if __name__ == "__main__":
    main(*sys.argv[1:])
