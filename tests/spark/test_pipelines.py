"""Spark Declarative Pipelines: the example, and definitions that Spark or ce_nats refuses."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import nats
import pyarrow.parquet as pq
import pyspark
import pytest
from cloudevents.core.v1.event import CloudEvent
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from ce_nats.aio import jetstream
from ce_nats.spark import deduplicate, explode_cloudevents, register
from ce_nats.spark.columns import _jvm_engine as jvm_engine
from ce_nats.testing import NatsServer
from tests.support.spark_rows import MESSAGES, ROWS

registry = pytest.importorskip("pyspark.pipelines.graph_element_registry", reason="pyspark 4.0 has no pipelines")

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "pipeline"
PIPELINES = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
CATALOG = "spark.sql.catalog.ce_nats"
CATALOG_CLASS = "io.cenats.spark.Catalog"


# --- The example ----------------------------------------------------------------------------------------------------


@pytest.mark.server
@pytest.mark.long
def test_the_example(tmp_path: Path) -> None:
    project = tmp_path / "pipeline"
    shutil.copytree(EXAMPLE, project)
    spec = project / "spark-pipeline.yml"
    storage = "file:///tmp/ce-nats-orders-pipeline"
    assert storage in spec.read_text()
    spec.write_text(spec.read_text().replace(storage, f"file://{tmp_path}/storage"))
    with NatsServer(jetstream=True) as server:
        asyncio.run(publish(server.url))
        output = run(project, server.url)
    assert "Run is COMPLETED" in output
    assert "decoded in Python workers" not in output

    def rows(table: str, *columns: str) -> list[tuple[object, ...]]:
        found = pq.read_table(project / "spark-warehouse" / table, columns=list(columns))
        return sorted(tuple(row.values()) for row in found.to_pylist())

    assert rows("bronze", "sequence") == [(1,), (2,), (3,)]
    assert rows("events", "sequence", "ce_type", "ce_data") == [
        (1, "com.example.sold", b'{"total":12.5}'),
        (2, "com.example.sold", b'{"total":30}'),
    ]
    assert rows("rejects", "sequence", "data", "ce_error") == [(3, b"not an event", "not-a-cloudevent")]
    assert rows("totals", "type", "events", "total") == [("com.example.sold", 2, 42.5)]


async def publish(url: str) -> None:
    async with await nats.connect(url) as nc:
        js = nc.jetstream()
        await js.add_stream(name="ORDERS", subjects=["orders.>"])
        for total in (12.5, 30):
            attributes = {"id": uuid4().hex, "source": "/shop", "type": "com.example.sold"}
            await jetstream.publish(js, CloudEvent(attributes, {"total": total}), "orders.new")
        await js.publish("orders.new", b"not an event")


def run(project: Path, url: str) -> str:
    variables = {**os.environ, "NATS_URL": url, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [str(PIPELINES), "run"],
        cwd=project,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


# --- Definitions ----------------------------------------------------------------------------------------------------


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    session = spark.newSession()
    return session.createDataFrame(ROWS, MESSAGES)


@pytest.fixture
def pipeline(frame: DataFrame) -> Iterator[None]:
    """As in a file that ``spark-pipelines`` imports."""
    with registry.graph_element_registration_context(object()):
        yield


@pytest.mark.usefixtures("pipeline")
def test_without_the_catalog_columns_are_decoded_in_workers(frame: DataFrame) -> None:
    reason = f"in a pipeline, its spec file must have {CATALOG}: {CATALOG_CLASS} in configuration"
    with pytest.raises(RuntimeError, match=reason):
        explode_cloudevents(frame, engine="jvm")
    with pytest.warns(UserWarning, match=f"the JVM engine is not available .{reason}"):
        events = explode_cloudevents(frame)
    assert [row.ce_id for row in events.orderBy("sequence").collect()] == ["a", None, "b"]


@pytest.mark.usefixtures("pipeline")
def test_with_the_catalog_spark_checks_columns(frame: DataFrame) -> None:
    jvm_engine._add(frame.sparkSession, str(jvm_engine.JAR))
    assert frame.sparkSession.conf.get(CATALOG) == CATALOG_CLASS
    events = explode_cloudevents(frame, mode="FAILFAST").where("sequence <> 2")
    assert [row.ce_id for row in events.orderBy("sequence").collect()] == ["a", "b"]
    with pytest.raises(AnalysisException, match="headers must be array<struct<key:string,value:string>>"):
        explode_cloudevents(frame, headers="sequence").collect()


@pytest.mark.usefixtures("pipeline")
def test_register_leaves_out_temporary_functions(frame: DataFrame) -> None:
    session = frame.sparkSession
    session.conf.set(CATALOG, CATALOG_CLASS)
    register(session)
    names = {row.function for row in session.sql("SHOW USER FUNCTIONS").collect()}
    assert not {"from_nats", "to_nats", "to_nats_structured"} & names


@pytest.mark.usefixtures("pipeline")
def test_deduplicate_names_the_alternative(frame: DataFrame) -> None:
    alternative = r'use withWatermark\(\) and dropDuplicatesWithinWatermark\(\["e.source", "e.id"\]\)'
    with pytest.raises(RuntimeError, match=alternative):
        deduplicate(frame, prefix="e.", within="1 hour")
