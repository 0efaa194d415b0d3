"""Rows that cannot be encoded, in files, with a real server and a real Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructType

from ce_nats import DeliveryError
from ce_nats.spark import cloudevent
from ce_nats.spark.connector._source import NatsDataSource, register
from ce_nats.testing import NatsServer

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
MAX_PAYLOAD = 1_000


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer(jetstream=True, config=f"max_payload: {MAX_PAYLOAD}") as running:
        yield running


@pytest.fixture(autouse=True)
def stream(spark: SparkSession, server: NatsServer) -> None:
    async def renew() -> None:
        nc = await nats.connect(server.url)
        js = nc.jetstream()
        if await js.streams_info():
            await js.delete_stream("OUT")
        await js.add_stream(name="OUT", subjects=["out.>"], duplicate_window=3600)
        await nc.close()

    register(spark)
    asyncio.run(renew())


def test_good_rows_are_stored_and_bad_ones_are_files(spark: SparkSession, server: NatsServer, tmp_path: Path) -> None:
    """Files have all columns of a row, its error code and its text. They are kept by later writes."""
    bad = {7: ("empty-attribute", "/s", "out.a"), 500: ("invalid-subject", "/s", "out..a")}
    bad |= {
        501: ("payload-too-large", "/" + "s" * MAX_PAYLOAD, "out.a"),
        3999: ("invalid-character", "/\x01", "out.a"),
    }
    ids = F.when(F.col("id") == 7, "").otherwise(F.col("id").cast("string"))
    source, subject = F.lit("/s"), F.lit("out.a")
    for number, (_, its_source, its_subject) in bad.items():
        source = F.when(F.col("id") == number, its_source).otherwise(source)
        subject = F.when(F.col("id") == number, its_subject).otherwise(subject)
    event = cloudevent(id=ids, source=source, type=F.lit("t"))
    frame = spark.range(0, 4000, 1, 2).select(
        F.col("id").alias("row number"), subject.alias("subject"), event.alias("event")
    )
    folder = tmp_path / "bad rows"
    writer = frame.write.format("nats").mode("append").options(url=server.url, badRowsPath=str(folder))
    writer.save()
    messages = spark.read.format("nats").options(url=server.url, stream="OUT").load()
    assert messages.count() == 4000 - len(bad)
    found = spark.read.parquet(str(folder)).orderBy("row.`row number`").collect()
    assert [(row["row"]["row number"], row["error"], row["row"]["subject"]) for row in found] == [
        (number, code, its_subject) for number, (code, _, its_subject) in bad.items()
    ]
    assert found[0]["message"].startswith("empty-attribute: ")
    assert found[2]["row"]["event"]["attributes"]["source"] == bad[501][1]
    writer.save()
    assert spark.read.parquet(str(folder)).count() == 2 * len(bad)
    assert spark.read.format("nats").options(url=server.url, stream="OUT").load().count() == 4000 - len(bad)


SCHEMA = StructType().add("subject", StringType()).add("data", StringType())


def write(server: NatsServer, folder: str, *batches: dict[str, list[str]]) -> Any:
    writer = NatsDataSource({"url": server.url, "badRowsPath": folder}).writer(SCHEMA, overwrite=False)
    written = [writer.write(iter([pa.record_batch(batch) for batch in batches])) for _ in range(2)]
    writer.commit(written[1:])
    return written[-1]


def test_a_repeated_task_replaces_its_file(
    server: NatsServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    many = {"subject": ["out..a"] * 1_001, "data": ["x"] * 1_001}
    for folder in str(tmp_path), tmp_path.as_uri():
        written = write(server, folder, {"subject": ["out.a"], "data": ["x"]}, many)
        assert (written.messages, written.rejected) == (1, 1_001)
        (file,) = tmp_path.iterdir()
        assert pa.parquet.read_table(file)["error"].to_pylist() == ["invalid-subject"] * 1_001
        file.unlink()
    reason = f"1001 rows could not be encoded, and were written to {tmp_path}; the first one: invalid-subject: "
    assert reason in caplog.text


@pytest.mark.parametrize("given", ["dbfs:/bad", "s3://key:secret@bucket/bad"])
def test_folders_that_cannot_be_written_are_refused(given: str) -> None:
    with pytest.raises(ValueError, match="option badRowsPath must") as info:
        NatsDataSource({"url": "localhost", "badRowsPath": given}).writer(SCHEMA, overwrite=False)
    assert "secret" not in str(info.value)


def test_a_failed_task_leaves_no_file(server: NatsServer, tmp_path: Path) -> None:
    many = {"subject": ["out..a"] * 1_001, "data": ["x"] * 1_001}
    with pytest.raises(DeliveryError, match="no stream listens"):
        write(server, str(tmp_path), many, {"subject": ["nowhere"], "data": ["x"]})
    assert [*tmp_path.iterdir()] == []
