"""Spark with a wheel that was built without a JDK: the matrix runs this file with the installed wheel, on Java 17."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest
from cloudevents.core.v1.event import CloudEvent
from pyspark.sql import SparkSession

import ce_nats
from ce_nats import aio
from ce_nats.spark import explode_cloudevents, from_nats, register
from ce_nats.testing import NatsServer

SCHEMA = "headers array<struct<name: string, value: string>>, data binary"
HEADERS = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t")]
ROWS = [(HEADERS, bytearray(b"{}")), (HEADERS[:-1], None)]
FOUND = [("1", None), (None, "missing-attribute")]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    yield session
    session.stop()


def test_package_is_installed_without_a_jar() -> None:
    package = Path(ce_nats.__file__).parent
    assert package.is_relative_to(sys.prefix)
    assert not list(package.rglob("*.jar"))


def test_columns_are_decoded_in_python_workers_with_a_warning(spark: SparkSession) -> None:
    frame = spark.createDataFrame(ROWS, SCHEMA)
    with pytest.warns(UserWarning, match=r"JVM engine is not available \(.*the package was built without a JDK"):
        events = explode_cloudevents(frame)
    assert [(row.ce_id, row.ce_error) for row in events.collect()] == FOUND
    with pytest.warns(UserWarning, match="the package was built without a JDK"):
        events = frame.select(from_nats("headers", "data").alias("event"))
    rows = [row.event for row in events.collect()]
    assert [(row.attributes and row.attributes.id, row.error) for row in rows] == FOUND


def test_python_engine_does_not_warn(spark: SparkSession, recwarn: pytest.WarningsRecorder) -> None:
    events = explode_cloudevents(spark.createDataFrame(ROWS, SCHEMA), engine="python")
    assert [(row.ce_id, row.ce_error) for row in events.collect()] == FOUND
    assert not [warning for warning in recwarn if "JVM engine" in str(warning.message)]


def test_jvm_engine_is_an_error(spark: SparkSession) -> None:
    with pytest.raises(FileNotFoundError, match=r"ce-nats\.jar is missing: the package was built without a JDK"):
        explode_cloudevents(spark.createDataFrame(ROWS, SCHEMA), engine="jvm")


def test_sink_and_source(spark: SparkSession) -> None:
    with pytest.warns(UserWarning, match="the package was built without a JDK"):
        register(spark)
    with NatsServer(jetstream=True) as server:
        asyncio.run(add_stream(server.url))
        options = {"url": server.url, "stream": "S"}
        row = [("s", HEADERS, bytearray(b"{}"))]
        frame = spark.createDataFrame(row, f"subject string, {SCHEMA}")
        frame.write.format("nats").option("url", server.url).mode("append").save()
        messages = spark.read.format("nats").options(**options).load()
        assert [(message.subject, bytes(message.data)) for message in messages.collect()] == [
            ("s", b"{}"),
            ("s", b"{}"),
        ]


async def add_stream(url: str) -> None:
    connection = await nats.connect(url)
    js = connection.jetstream()
    await js.add_stream(name="S", subjects=["s"])
    await aio.jetstream.publish(js, CloudEvent({"source": "/s", "type": "t"}, {}), "s")
    await connection.close()
