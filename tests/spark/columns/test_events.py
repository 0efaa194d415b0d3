"""Parsing JSON data of events, and removing duplicate events."""

import os
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import VariantVal

from ce_nats import EncodeError, to_nats_message
from ce_nats.spark import deduplicate, explode_cloudevents, parse_data
from ce_nats.spark.columns._rows import event_of
from tests.support.spark_rows import ROWS as MESSAGES

ROWS = [
    ('{"n": 1, "s": "x"}', "application/json"),
    ('{"n": 2}', "application/vnd.acme+json; charset=utf-8"),
    ('{"n": 3}', None),
    ("<n>4</n>", "application/xml"),
    ('{"n": 5', "application/json"),
    (None, "application/json"),
    ("{'n': 6}", "application/json"),
]


def test_json_data_by_schema(spark: SparkSession) -> None:
    frame = spark.createDataFrame(ROWS, "data string, type string").select(F.col("data").cast("binary"), "type")
    rows = frame.select(parse_data("data", "type", "n int")["n"].alias("n")).collect()
    assert [row.n for row in rows] == [1, 2, 3, None, None, None, None]


def test_json_data_as_variant(spark: SparkSession) -> None:
    frame = spark.createDataFrame(ROWS[:6], "data string, type string").select(F.col("data").cast("binary"), "type")
    value = parse_data(F.col("data"), F.col("type"))
    rows = frame.select(F.to_json(value).alias("json")).collect()
    assert [row.json for row in rows] == ['{"n":1,"s":"x"}', '{"n":2}', '{"n":3}', None, None, None]


def test_malformed_data_may_fail_the_query(spark: SparkSession) -> None:
    frame = spark.createDataFrame(ROWS, "data string, type string").select(F.col("data").cast("binary"), "type")
    for schema in (None, "n int"):
        with pytest.raises(Exception, match=r"(?i)malformed"):
            frame.select(parse_data(F.col("data"), F.col("type"), schema, drop_malformed=False)).collect()


def test_maximum_nesting_of_data(spark: SparkSession) -> None:
    """Data nested too deep for the codec is malformed in columns, too."""
    nested = ["[" * depth + "1" + "]" * depth for depth in (128, 129, 2000)]
    texts = [*nested, '["' + "[" * 200 + '"]', "[" + "[]," * 300 + "[]]"]
    frame = spark.createDataFrame([(text, "a/json") for text in texts], "data string, type string")
    for schema in (None, "array<string>"):
        data = parse_data(F.col("data"), F.col("type"), schema)
        assert [row.read for row in frame.select(data.isNotNull().alias("read")).collect()] == [
            *(True, False, False),
            *(True, True),
        ]
        with pytest.raises(Exception, match=r"(?i)malformed"):
            frame.select(parse_data(F.col("data"), F.col("type"), schema, drop_malformed=False)).collect()


@pytest.mark.parametrize("depth", [128, 129, 230, 300, 900])
def test_maximum_nesting_of_a_variant_in_a_worker(depth: int) -> None:
    """Data that pyspark cannot convert in a worker has the same error as other data that is nested too deep."""
    text = "[" * depth + "1" + "]" * depth
    variant = VariantVal.parseJson(text)
    attributes = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
    row = {"attributes": attributes, "data": {"value": variant.value, "metadata": variant.metadata}}
    if depth == 128:
        assert to_nats_message(event_of(row)).data == text.encode()
    else:
        with pytest.raises(EncodeError, match="nested more than 128 levels deep") as caught:
            to_nats_message(event_of(row))
        assert caught.value.code == "invalid-data"


EVENTS = [
    ("a", "/s", None),
    ("a", "/s", None),
    ("a", "/t", None),
    ("b", "/s", None),
    (None, None, "invalid-utf8"),
    (None, None, "invalid-utf8"),
]


def test_duplicate_events_are_removed_and_invalid_messages_kept(spark: SparkSession) -> None:
    frame = spark.createDataFrame(EVENTS, "ce_id string, ce_source string, ce_error string")
    rows = deduplicate(frame).collect()
    assert sorted((str(row.ce_id), str(row.ce_source)) for row in rows) == [
        ("None", "None"),
        ("None", "None"),
        ("a", "/s"),
        ("a", "/t"),
        ("b", "/s"),
    ]


NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
TIMED = [
    [("a", NOON), ("b", NOON), (None, NOON)],
    [("a", NOON), ("c", NOON + timedelta(hours=1)), (None, NOON - timedelta(days=1))],
    [("b", NOON + timedelta(hours=1)), ("c", NOON + timedelta(hours=1)), (None, NOON - timedelta(days=2))],
]


@pytest.fixture
def timed(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A stream with a micro-batch for each list in TIMED."""
    (tmp_path / "in").mkdir()
    for number, rows in enumerate(TIMED):
        columns = {"ce_id": [name for name, _ in rows], "ce_source": [name and "/s" for name, _ in rows]}
        times = pa.array([at for _, at in rows], pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({**columns, "timestamp": times}), tmp_path / "in" / f"{number}.parquet")
        os.utime(tmp_path / "in" / f"{number}.parquet", (number, number))
    schema = "ce_id string, ce_source string, timestamp timestamp"
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))


def written(frame: DataFrame, folder: Path) -> list[Row]:
    """Return the rows that a streaming query writes until it has read all input."""
    writer = frame.writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / "state")).start(str(folder / "out"))
    query.awaitTermination()
    return frame.sparkSession.read.parquet(str(folder / "out")).collect()


def test_late_rows_without_an_event_are_kept(timed: DataFrame, tmp_path: Path) -> None:
    """Spark drops rows that are older than the watermark. Names of columns may have special characters."""
    given = timed.toDF("x.y`id", "x.y`source", "stored.at")
    rows = written(deduplicate(given, prefix="x.y`", within="10 minutes", time="stored.at"), tmp_path)
    ids = sorted(row["x.y`id"] for row in rows if row["x.y`id"])
    times = [row["stored.at"].astimezone(timezone.utc) for row in rows if not row["x.y`id"]]
    assert ids == ["a", "b", "c"]
    assert sorted(times) == [NOON - timedelta(days=2), NOON - timedelta(days=1), NOON]


def test_the_watermark_can_be_used_after_deduplication(timed: DataFrame, tmp_path: Path) -> None:
    counts = deduplicate(timed, within="10 minutes").groupBy(F.window("timestamp", "30 minutes")).count()
    found = {row.window.start.astimezone(timezone.utc): row["count"] for row in written(counts, tmp_path)}
    assert found[NOON] == 3


def test_deduplication_with_special_characters_in_names(spark: SparkSession) -> None:
    table = spark.createDataFrame([("a", "/s"), ("a", "/s")], "id string, source string")
    assert deduplicate(table.toDF("x.y`id", "x.y`source"), prefix="x.y`").count() == 1


@pytest.mark.parametrize("engine", ["jvm", pytest.param("python", marks=pytest.mark.long)])
def test_deduplication_reads_and_decodes_its_input_once(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    rows = [*MESSAGES, *MESSAGES]
    schema = "sequence long, headers array<struct<key string, value string>>, data binary"
    spark.createDataFrame(rows, schema).write.parquet(str(tmp_path / "in"))
    unique = deduplicate(explode_cloudevents(spark.read.parquet(str(tmp_path / "in")), engine=engine))
    unique.explain()
    plan = capsys.readouterr().out
    assert plan.count("FileScan") == 1, plan
    assert len(re.findall(r"\.invoke\(" if engine == "jvm" else "ArrowEvalPython|MapInArrow", plan)) == 1, plan
    assert sorted(str(row.ce_id) for row in unique.collect()) == ["None", "None", "a", "b"]


def test_within_is_an_error_for_a_table(spark: SparkSession) -> None:
    frame = spark.createDataFrame(EVENTS, "ce_id string, ce_source string, ce_error string")
    with pytest.raises(ValueError, match="within must be given for a streaming DataFrame"):
        deduplicate(frame, within="10 minutes")
