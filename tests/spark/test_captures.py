"""Tables that Spark wrote are captures, too: they can be read, decoded and replayed without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ce_nats import Timestamp
from ce_nats.capture import ParquetParts, read_capture
from ce_nats.message import StoredMessage


@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"])
def test_a_table_of_messages_is_a_capture(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    time = Timestamp("2026-01-02T03:04:05.123Z")
    messages = [
        StoredMessage("orders.ü", "", [("ce-id", "1"), ("Tag", "b"), ("Tag", "")], b"\0\xff", "ORDERS", 1, time),
        StoredMessage("orders", "", [], b"", "ORDERS", 2, time),
    ]
    with ParquetParts(tmp_path / "capture") as file:
        file.write(messages)
    spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
    try:
        table = spark.read.parquet(str(tmp_path / "capture"))
        table.where("sequence > 0").coalesce(1).write.parquet(str(tmp_path / "table"))
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    assert list(read_capture(tmp_path / "table")) == messages
