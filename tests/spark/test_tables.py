"""What happens to decoded events, with values that any sender may choose, in tables and in Python."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from ce_nats.spark import deduplicate, explode_cloudevents

HEADERS = "headers array<struct<key string, value string>>, data binary"


def events_of_types(spark: SparkSession, *types: str) -> DataFrame:
    rows = [
        ([("ce-specversion", "1.0"), ("ce-id", kind), ("ce-source", "/"), ("ce-type", kind)], b"") for kind in types
    ]
    return explode_cloudevents(spark.createDataFrame(rows, HEADERS).coalesce(1))


def test_distinct_refuses_a_map_and_deduplicate_does_not(spark: SparkSession) -> None:
    events = events_of_types(spark, "a", "b", "a")
    with pytest.raises(AnalysisException, match="MAP"):
        events.distinct().count()
    assert events.drop("ce_extensions").distinct().count() == 2
    assert deduplicate(events).count() == 2


@pytest.mark.parametrize(
    ("types", "problem"),
    [(["x" * 300], "Mkdirs failed to create"), (["__HIVE_DEFAULT_PARTITION__", ""], "File already exists")],
    ids=["long", "reserved"],
)
def test_a_type_can_fail_the_write_of_partitions(
    spark: SparkSession, tmp_path: Path, types: list[str], problem: str
) -> None:
    """An empty type is an error of the message, so its row has no type."""
    with pytest.raises(Exception, match=problem):
        events_of_types(spark, *types).write.partitionBy("ce_type").parquet(str(tmp_path / "events"))


def test_partitions_change_types(spark: SparkSession, tmp_path: Path) -> None:
    read = {"01": 1, "__HIVE_DEFAULT_PARTITION__": None, "..": "..", "a/../b": "a/../b"}
    for number, kind in enumerate(read):
        path = str(tmp_path / str(number))
        events_of_types(spark, kind).write.partitionBy("ce_type").parquet(path)
        assert [row.ce_type for row in spark.read.parquet(path).collect()] == [read[kind]]


@pytest.mark.parametrize("year", [1, 9999])
def test_times_at_the_ends_of_the_calendar(spark: SparkSession, year: int) -> None:
    """PySpark converts rows to local times, for which Python has no datetime in some zones."""
    at = datetime(year, 1 if year == 1 else 12, 1 if year == 1 else 31, tzinfo=timezone.utc)
    headers = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/"), ("ce-type", "t")]
    headers.append(("ce-time", at.isoformat()))
    events = explode_cloudevents(spark.createDataFrame([(headers, b"")], HEADERS)).select("ce_time")
    assert events.toArrow().to_pylist() == [{"ce_time": at}]
    if year == 1:
        with pytest.raises(ValueError, match="year 0 is out of range"):
            events.collect()
