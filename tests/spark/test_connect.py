"""With Spark Connect, in which a session is a client of a server, columns are those of Spark Classic."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ce_nats.spark import cloudevent, deduplicate, explode_cloudevents, from_nats, register, to_nats
from ce_nats.spark._workers import check_workers
from ce_nats.spark.columns._arrow_functions import HAS_ARROW_FUNCTIONS
from tests.support.caching import available, python_environment
from tests.support.needs import limits
from tests.support.spark_rows import MESSAGES, ROWS

ROOT = Path(__file__).parents[2]
CLIENT = (
    *("pyspark-client~=4.2.0", "pandas>=2.2,<3", "cloudevents>=2.1,<3", "msgspec>=0.21", "nats-py>=2.16,<3"),
    "pytest>=8.3",
)


def results(spark: SparkSession, brief: bool = False) -> list[str]:
    """Return the rows of several queries, or of two with ``brief``."""
    frame = spark.createDataFrame(ROWS, MESSAGES)
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
    text = F.col("sequence").cast("string")
    made = cloudevent(id=text, source=F.lit("/s"), type=F.lit("t"), data=F.struct("sequence"), extensions={"n": text})
    frames.append(frame.orderBy("sequence").select(made.alias("e")))
    frame.createOrReplaceTempView("messages")
    frames.append(spark.sql("SELECT sequence, ce_nats.from_nats(headers, data) AS e FROM messages ORDER BY sequence"))
    with TemporaryDirectory() as folder:
        if brief:
            frames = [frames[0], frames[-1]]
        else:
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


@pytest.fixture(scope="module")
def expected(spark: SparkSession) -> list[str]:
    return results(spark)


def test_spark_connect(spark: SparkSession, connect_url: str) -> None:
    assert run_client(sys.executable, connect_url, "1", "brief") == results(spark, brief=True)


@pytest.mark.long
def test_further_queries_with_spark_connect(connect_url: str, expected: list[str]) -> None:
    assert run_client(sys.executable, connect_url, "2") == [*expected, *expected]


@pytest.mark.long
def test_pyspark_client(connect_url: str, expected: list[str]) -> None:
    """This package has only Spark Connect, without a SparkContext."""
    if limits is None:
        pytest.skip("the server is older than the client, 4.2")
    python = available(lambda: python_environment("pyspark-client", CLIENT), "pyspark-client")
    (packages,) = python.parents[1].glob("lib/*/site-packages")
    assert list(packages.glob("pyspark_client-*.*-info"))
    assert not (packages / "py4j").exists()
    assert run_client(python, connect_url, "1") == expected


def run_client(python: str | Path, url: str, *arguments: str) -> list[str]:
    command = [str(python), "-m", "tests.spark.test_connect", url, *arguments]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    variables.pop("SPARK_HOME", None)
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


def main(url: str, sessions: str, brief: str = "") -> None:
    """Print the results of sessions, none of which has the jar at first."""
    for _ in range(int(sessions)):
        session = SparkSession.builder.remote(url).create()
        check_workers(session)  # no effect: the client cannot determine the server's workers
        register(session)
        print(*results(session, bool(brief)), sep="\n")
        session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
