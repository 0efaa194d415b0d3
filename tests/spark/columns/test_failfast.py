"""FAILFAST fails at an invalid message, whichever columns a query uses, with both engines; the error identifies it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import SparkRuntimeException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ce_nats.spark import deduplicate, explode_cloudevents, parse_data
from ce_nats.spark.columns import _arrow_functions as arrow_functions
from ce_nats.spark.columns import _python_engine as python_engine
from tests.support.spark_rows import MESSAGES, ROWS

ERROR = "the message is not a valid CloudEvent: invalid-utf8 stream=ORDERS sequence=2 subject=orders.north"
# A warning of pyspark 4.0, which uses pandas where whole DataFrames are sent to workers.
pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")


@pytest.fixture(params=["jvm", *(pytest.param(name, marks=pytest.mark.long) for name in ("python", "python-frames"))])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each engine, and the Python engine with whole DataFrames, as on pyspark 4.0."""
    if request.param == "python-frames":
        monkeypatch.setattr(python_engine, "HAS_ARROW_FUNCTIONS", False)
    elif request.param == "python" and not arrow_functions.HAS_ARROW_FUNCTIONS:
        pytest.skip("pyspark is older than 4.1")
    return str(request.param).partition("-")[0]


@pytest.fixture(scope="module")
def path(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Messages in a file, from which Spark reads only the columns that a query needs; the second one is invalid."""
    path = str(tmp_path_factory.mktemp("failfast") / "messages")
    messages = spark.createDataFrame(ROWS, MESSAGES).coalesce(1)
    messages.withColumns({"stream": F.lit("ORDERS"), "subject": F.lit("orders.north")}).write.parquet(path)
    return path


def write_two_columns(events: DataFrame, folder: Path) -> None:
    events.select("sequence", "ce_type").write.parquet(str(folder / "out"))


QUERIES: dict[str, Callable[[DataFrame, Path], Any]] = {
    "all columns": lambda events, _: events.collect(),
    "a column of the event": lambda events, _: events.select("ce_id").collect(),
    "a column of the message": lambda events, _: events.select("sequence").collect(),
    "count": lambda events, _: events.count(),
    "count of a column": lambda events, _: events.select(F.count("ce_id")).collect(),
    "a filter": lambda events, _: events.where("ce_id = 'a'").collect(),
    "a filter, then count": lambda events, _: events.where("ce_id = 'a'").count(),
    "a filter on the error": lambda events, _: events.where("ce_error IS NULL").select("ce_id").collect(),
    "write of two columns": write_two_columns,
    "groupBy": lambda events, _: events.groupBy("ce_type").count().collect(),
    "groupBy of a column of the message": lambda events, _: events.groupBy("subject").count().collect(),
    "distinct": lambda events, _: events.select("stream").distinct().collect(),
    "deduplicate": lambda events, _: deduplicate(events).select("ce_id").collect(),
    "a join": lambda events, _: events.join(events.select("ce_id"), "ce_id").count(),
    "parse_data": lambda events, _: events.select(
        parse_data("ce_data", "ce_datacontenttype", "array<int>").alias("data")
    ).collect(),
}


# The others decode all columns of the event, or are optimized like one of these.
FEW = ("count", "a column of the message", "a filter on the error", "write of two columns", "distinct", "deduplicate")


@pytest.mark.parametrize(
    "query", [pytest.param(name, marks=[] if name in FEW else [pytest.mark.long]) for name in QUERIES]
)
def test_a_query_fails(spark: SparkSession, path: str, engine: str, tmp_path: Path, query: str) -> None:
    events = explode_cloudevents(spark.read.parquet(path), mode="FAILFAST", engine=engine)
    with pytest.raises(SparkRuntimeException, match=f"{ERROR}( |$)"):
        QUERIES[query](events, tmp_path)


def test_sql_over_events_fails(spark: SparkSession, path: str, engine: str) -> None:
    events = explode_cloudevents(spark.read.parquet(path), mode="FAILFAST", engine=engine)
    events.createOrReplaceTempView("failfast_events")
    with pytest.raises(SparkRuntimeException, match=ERROR):
        spark.sql("SELECT count(*) FROM failfast_events WHERE ce_type = 't'").collect()


@pytest.mark.parametrize("columns", [["ce_id"], ["sequence"]])
def test_a_streaming_query_fails(
    spark: SparkSession, path: str, engine: str, tmp_path: Path, columns: list[str]
) -> None:
    stream = spark.readStream.schema(spark.read.parquet(path).schema).parquet(path)
    events = explode_cloudevents(stream, mode="FAILFAST", engine=engine).select(*columns)
    writer = events.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "state"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
    with pytest.raises(StreamingQueryException, match=ERROR):
        query.awaitTermination()


def test_a_function_for_each_batch_fails(spark: SparkSession, path: str, engine: str, tmp_path: Path) -> None:
    stream = spark.readStream.schema(spark.read.parquet(path).schema).parquet(path)
    found = []

    def count(batch: DataFrame, _: int) -> None:
        found.append(explode_cloudevents(batch, mode="FAILFAST", engine=engine).count())

    writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "state"))
    query = writer.foreachBatch(count).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match=ERROR):
        query.awaitTermination()
    assert found == []


def test_valid_messages_have_the_columns_of_permissive(spark: SparkSession, path: str, engine: str) -> None:
    valid = spark.read.parquet(path).where("sequence <> 2")
    options = {"extensions": {"n": "int"}, "prefix": "x.y_", "engine": engine}
    found, wanted = (explode_cloudevents(valid, mode=mode, **options) for mode in ("FAILFAST", "PERMISSIVE"))
    assert found.schema == wanted.schema
    assert found.orderBy("sequence").collect() == wanted.orderBy("sequence").collect()


def test_messages_that_are_not_decoded_do_not_fail(spark: SparkSession, path: str, engine: str) -> None:
    """Spark applies conditions on columns of the message first, and stops reading after a limit."""
    events = explode_cloudevents(spark.read.parquet(path), mode="FAILFAST", engine=engine)
    assert events.where("sequence <> 2").count() == 2
    if engine == "jvm":  # Python decodes whole batches
        assert [row.ce_id for row in events.limit(1).collect()] == ["a"]


def test_messages_without_a_known_identity(spark: SparkSession, path: str, engine: str) -> None:
    """Columns that are missing, ambiguous or NULL are omitted from the error or empty."""
    messages = spark.read.parquet(path)
    cases = {
        ("headers", "data"): "invalid-utf8",
        ("headers", "data", "cast(null as string) subject"): "invalid-utf8 subject=",
        ("headers", "data", "struct(sequence) subject"): r"invalid-utf8 subject=\{2\}",
    }
    if python_engine.HAS_ARROW_FUNCTIONS:  # pyspark cannot send two columns of one name to workers
        cases["headers", "data", "subject", "sequence", "1 SEQUENCE"] = "invalid-utf8 subject=orders.north"
    for columns, wanted in cases.items():
        events = explode_cloudevents(messages.selectExpr(*columns), mode="FAILFAST", engine=engine)
        with pytest.raises(SparkRuntimeException, match=f"CloudEvent: {wanted}( SQLSTATE|$)"):
            events.count()


def test_the_plan_decodes_once_in_generated_code(
    spark: SparkSession, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = spark.read.parquet(path)
    events = explode_cloudevents(messages, mode="FAILFAST", engine="jvm").where("ce_id > 'A' AND ce_type = 't'")
    events.select("ce_id", "ce_time").explain()
    plan = capsys.readouterr().out
    assert plan.count(".invoke(") == 1, plan
    assert re.search(r"\*\(1\) Generate inline", plan), plan
    explode_cloudevents(messages, engine="jvm").explain()
    assert "raise_error" not in capsys.readouterr().out
