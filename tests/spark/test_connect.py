"""With Spark Connect, in which a session is a client of a server, columns are those of Spark Classic."""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ce_nats.spark import deduplicate, explode_cloudevents, from_nats, to_nats
from ce_nats.spark._workers import check_workers
from ce_nats.spark.columns._arrow_functions import HAS_ARROW_FUNCTIONS
from tests.support.spark_rows import ROWS

SCHEMA = "sequence long, headers array<struct<key string, value string>>, data binary"
ROOT = Path(__file__).parents[2]


def results(spark: SparkSession) -> list[str]:
    frame = spark.createDataFrame(ROWS, SCHEMA)
    event = from_nats(F.col("headers"), F.col("data"))
    frames = [
        explode_cloudevents(frame, extensions={"n": "int"}).orderBy("sequence"),
        deduplicate(explode_cloudevents(frame.union(frame), prefix="x."), prefix="x.").orderBy("sequence"),
    ]
    nested = frame.select("sequence", F.struct("headers", "data").alias("m"))
    frames.append(
        explode_cloudevents(nested, headers="m.headers", data="M.Data", mode="dropmalformed").orderBy("ce_id")
    )
    with suppress(ValueError):
        explode_cloudevents(frames[0])
        raise AssertionError("columns were added twice")
    if HAS_ARROW_FUNCTIONS:
        modes = ("binary", "structured")
        frames += [frame.orderBy("sequence").select(to_nats(event, content_mode=mode).alias("m")) for mode in modes]
    frame.createOrReplaceTempView("messages")
    frames.append(spark.sql("SELECT sequence, ce_nats.from_nats(headers, data) AS e FROM messages ORDER BY sequence"))
    with TemporaryDirectory() as folder:
        frames.append(deduplicated_stream(frame, Path(folder)).orderBy("sequence"))
        return [json.dumps([row.asDict(True) for row in frame.collect()], default=str) for frame in frames]


def deduplicated_stream(frame: DataFrame, folder: Path) -> DataFrame:
    """Return the rows that a streaming query writes, from messages that are all duplicated."""
    spark = frame.sparkSession
    stored = frame.union(frame).withColumn("timestamp", F.timestamp_seconds(F.lit(0)))
    stored.write.parquet(str(folder / "in"))
    events = explode_cloudevents(spark.readStream.schema(stored.schema).parquet(str(folder / "in")))
    writer = deduplicate(events, within="1 hour").writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / "state")).start(str(folder / "out"))
    assert query.awaitTermination(200)
    return spark.read.parquet(str(folder / "out"))


def test_spark_connect(spark: SparkSession, connect_url: str) -> None:
    command = [sys.executable, "-m", "tests.spark.test_connect", connect_url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    expected = results(spark)
    assert done.stdout.splitlines() == [*expected, *expected]


if __name__ == "__main__":
    session = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    check_workers(session)  # no effect: the client cannot determine the server's workers
    print(*results(session), sep="\n")
    other = SparkSession.builder.remote(sys.argv[1]).create()  # a new session, without the jar
    print(*results(other), sep="\n")
    other.stop()
    session.stop()
