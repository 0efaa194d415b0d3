"""
A Spark session with a directory of Delta or Iceberg tables.

In production, tables have names in a catalog: change ``_place`` and the settings of the session.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ce_nats.spark import register

SPARK = ".".join(pyspark.__version__.split(".")[:2])  # the packages are made for one minor version
DELTA = {
    "spark.jars.packages": f"io.delta:delta-spark_{SPARK}_2.13:4.4.0",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",  # for small tables; the default is 50
}
ICEBERG = {
    "spark.jars.packages": f"org.apache.iceberg:iceberg-spark-runtime-{SPARK}_2.13:1.12.0",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
}


class Lake:
    """
    Tables in one format, by names such as ``silver.events``.

    Args:
        table_format: ``delta`` or ``iceberg``.
        warehouse: Directory of the tables and checkpoints.
        continuous: Whether streaming queries wait for further rows, instead of stopping when they have read all.
    """

    def __init__(self, table_format: str, warehouse: Path, *, continuous: bool = False) -> None:
        self._format = table_format
        self._warehouse = warehouse.resolve()
        self._trigger = {"processingTime": "10 seconds"} if continuous else {"availableNow": True}
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers need a Python with ce_nats
        settings: dict[str, Any] = {
            **(DELTA if table_format == "delta" else ICEBERG),
            "spark.sql.catalog.lake.warehouse": str(self._warehouse),
            "spark.sql.shuffle.partitions": "2",
        }
        self.spark = SparkSession.builder.appName("lakehouse").config(map=settings).getOrCreate()
        register(self.spark)

    def read(self, table: str) -> DataFrame:
        return self.spark.read.format(self._format).load(self._place(table))

    def read_stream(self, table: str) -> DataFrame:
        """Return the rows of a table as a stream: first those that it has, then those that are appended."""
        return self.spark.readStream.format(self._format).load(self._place(table))

    def prepare(self, rows: DataFrame, table: str) -> DataFrame:
        """
        Create a table for rows, or add the columns that it does not have yet.

        Returns:
            The rows with their columns in the order of the table, which streaming writes to Iceberg require.
        """
        columns = {field.name: f"`{field.name}` {field.dataType.simpleString()}" for field in rows.schema}
        all_columns = ", ".join(columns.values())
        self.spark.sql(f"CREATE TABLE IF NOT EXISTS {self._name(table)} ({all_columns}) USING {self._format}")
        stored = self.read(table).columns
        added = [name for name in columns if name not in stored]
        for name in added:
            self.spark.sql(f"ALTER TABLE {self._name(table)} ADD COLUMN {columns[name]}")
        return rows.select([name for name in (*stored, *added) if name in columns])

    def append(self, rows: DataFrame, table: str) -> None:
        rows.write.format(self._format).mode("append").save(self._place(table))

    def append_stream(self, rows: DataFrame, table: str) -> StreamingQuery:
        """
        Append a stream to a table.

        Delta and Iceberg store the number of the micro-batch with its rows, so a micro-batch that Spark runs again
        after a crash is not appended twice.
        """
        rows = self.prepare(rows, table)
        return self._start(table, rows.writeStream.format(self._format).option("path", self._place(table)))

    def upsert_stream(self, rows: DataFrame, table: str, keys: Sequence[str]) -> StreamingQuery:
        """Write the changed rows of a streaming aggregation over those with the same keys."""
        rows = self.prepare(rows, table)
        same_keys = " AND ".join(f"stored.{key} <=> changed.{key}" for key in keys)

        def merge(batch: DataFrame, number: int) -> None:
            batch.createOrReplaceTempView("changed")
            batch.sparkSession.sql(
                f"MERGE INTO {self._name(table)} AS stored USING changed ON {same_keys} "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )

        return self._start(table, rows.writeStream.outputMode("update").foreachBatch(merge))

    def _start(self, table: str, writer: DataStreamWriter) -> StreamingQuery:
        checkpoint = self._warehouse / "checkpoints" / table
        if not any(path.name.isdigit() for path in checkpoint.glob("offsets/*")):
            # Spark refuses the checkpoint of a query that was killed while it planned its first micro-batch.
            shutil.rmtree(checkpoint, ignore_errors=True)
        writer = writer.queryName(table).option("checkpointLocation", str(checkpoint))
        return writer.trigger(**self._trigger).start()

    def _place(self, table: str) -> str:
        layer, name = table.split(".")
        return f"{self._warehouse}/{layer}/{name}" if self._format == "delta" else f"lake.{layer}.{name}"

    def _name(self, table: str) -> str:
        """Return the name of a table in SQL."""
        return f"delta.`{self._place(table)}`" if self._format == "delta" else self._place(table)


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--format", choices=("delta", "iceberg"), required=True)
    parser.add_argument("--warehouse", type=Path, required=True, help="directory of the tables and checkpoints")
    return parser
