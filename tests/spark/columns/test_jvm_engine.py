"""The JVM engine: sources, sessions and threads, and the number of calls for each row."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyspark
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import ce_nats
from ce_nats import ErrorCode
from ce_nats.spark import explode_cloudevents, from_nats
from ce_nats.spark.columns import _jvm_engine as jvm_engine
from ce_nats.spark.columns._jvm_engine import JAR
from hatch_build import SOURCES, build_jar
from tests.support.spark_rows import MESSAGES, ROWS

PACKAGE = Path(ce_nats.__file__).parent
FOUND = [(1, "a", None), (2, None, "invalid-utf8"), (3, "b", None)]

# Codes that a captured message cannot have: those of sending, frames, other protocols, and expectations of a program.
NOT_OF_MESSAGES = {
    *("INVALID_MESSAGE", "INVALID_TRACE_CONTEXT", "INVALID_PROTOBUF", "RESERVED_HEADER", "INVALID_SUBJECT"),
    "FORBIDDEN_SUBJECT",
    *("DATA_MISMATCH", "EVENT_EXPIRED", "UNSUPPORTED_DATAREF", "DIGEST_MISMATCH", "DATA_TOO_LARGE"),
    *("INVALID_FRAME", "TRUNCATED_FRAME", "UNKNOWN_HEADER_KIND", "UNEXPECTED_HEADER_LAYOUT"),
    *("PAYLOAD_TOO_LARGE", "HEADERS_TOO_LARGE", "HEADERS_NOT_SUPPORTED", "INVALID_OPTION", "INVALID_BATCH"),
    *(code.name for code in list(ErrorCode)[list(ErrorCode).index(ErrorCode.CONNECTION_FAILED) :]),
}


def outcome(frame: DataFrame) -> list[tuple[Any, ...]]:
    rows = explode_cloudevents(frame).orderBy("sequence").collect()
    return [(row.sequence, row.ce_id, row.ce_error) for row in rows]


# --- The sources ----------------------------------------------------------------------------------------------------


def test_error_codes_are_those_of_python() -> None:
    source = (JAR.parent / "ErrorCode.java").read_text(encoding="utf-8")
    in_java = dict(re.findall(r'^    ([A-Z0-9_]+)\("([a-z0-9-]+)"\)', source, re.MULTILINE))
    assert in_java == {code.name: code.value for code in ErrorCode if code.name not in NOT_OF_MESSAGES}


@pytest.mark.long
def test_sources_agree_with_spark(tmp_path: Path) -> None:
    """Sources compiled against jvm/stubs have the same classes as those compiled against Spark's jars."""
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    sources = sorted(map(str, JAR.parent.glob("*.java")))
    options = ["-Xlint:all,-path,-classfile", "-proc:none", "--release", "17"]
    stubs = ["-implicit:none", "-sourcepath", str(JAR.parent / "stubs")]
    for name, path in {"spark": ["-cp", str(jars)], "stubs": stubs}.items():
        subprocess.run(["javac", *options, *path, "-d", tmp_path / name, *sources], check=True)
    classes = {path.relative_to(tmp_path / "stubs") for path in (tmp_path / "stubs").rglob("*.class")}
    assert len(classes) > 20
    for name in classes:
        assert (tmp_path / "stubs" / name).read_bytes() == (tmp_path / "spark" / name).read_bytes(), name


# --- The plan -------------------------------------------------------------------------------------------------------


def physical_plan(frame: DataFrame, capsys: pytest.CaptureFixture[str]) -> str:
    frame.explain()
    return capsys.readouterr().out


def test_a_message_is_decoded_once(frame: DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    """Also if a query selects several of its columns, and has conditions on them."""
    events = explode_cloudevents(frame, extensions={"n": "int"}).where("ce_error IS NULL AND ce_id > 'A' AND ce_n > 1")
    plan = physical_plan(events.select("ce_id", "ce_source", "ce_time", F.upper("ce_type")), capsys)
    assert plan.count(".invoke(") == 1, plan
    assert "Python" not in plan
    spark = frame.sparkSession
    frame.createOrReplaceTempView("messages")
    query = "SELECT e.error, e.mode FROM messages LATERAL VIEW inline(array(ce_nats.from_nats(headers, data))) e"
    plan = physical_plan(spark.sql(f"{query} WHERE e.error IS NULL AND e.mode = 'binary'"), capsys)
    assert plan.count(".invoke(") == 1, plan


def test_every_row_is_decoded_in_one_stage_of_generated_code(
    frame: DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = physical_plan(explode_cloudevents(frame).where("ce_error IS NULL"), capsys)
    assert re.search(r"\*\(1\) Generate inline", plan), plan


# --- SQL ------------------------------------------------------------------------------------------------------------


REPEATED = [
    "same message: true",
    "same message, other thread: false",
    "other payload: false",
    "other headers: false",
    "the message before: false",
    "no payload: false",
    "no headers: false",
    "values: true",
    "a field that was set to null: false",
    "a field that was not read: true",
    "the first field: true",
    "the last field: true",
    "a message without headers after one with: true",
    "a row that is sent to another process: true",
    "headers outside of the heap: true",
    "fields: true",
    "types of extensions: true",
    "event_columns of blocks: true",
    "event_columns of maps: true",
    "from_nats of blocks: true",
    "from_nats of maps: true",
    "name: true",
    "nullable: false",
    "equal: true",
    "equal with other types: false",
    "equal with another function: false",
    "equal with another object: false",
    "namespace in the canonical name: true",
    "array<struct<key:string,value:string>>, binary",
    "array<struct<key:string,value:string>>, binary",
    "binary, binary",
    "map<string,array<string>>, binary, struct<n:int>",
    "arguments must be headers and data, got 1 arguments",
    "headers must be array<struct<key:string,value:string>>, map<string,string>, map<string,array<string>> "
    "or binary (a raw header block), got int",
    "data must be BINARY or STRING, got int",
    "the types of extensions must be a struct, got int",
    "arguments must be headers and data, got 4 arguments",
    "a header must be a struct of two strings or binaries, got struct<a:string>",
    "the type of an extension must be string, int, boolean, binary or timestamp, got double",
    "ce_nats",
    "n.from_nats from_nats",
    "from_nats(headers, data): the CloudEvent in a NATS message",
    "n.event_columns event_columns",
    "event_columns(headers, data): the CloudEvent in a NATS message",
    "n.from_nats is unknown",
    "to_nats is unknown",
]


@pytest.mark.long
def test_repeated_calls_for_a_message_decode_it_once() -> None:
    """
    Spark calls the function for a condition and for the output of a query, with the same objects.

    The program also prints what Spark's planner reads.
    """
    jars = os.pathsep.join((str(Path(pyspark.__file__).parent / "jars" / "*"), str(JAR)))
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else "java"
    source = Path(__file__).with_name("Repeated.java")
    command = [java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", jars, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == REPEATED, done.stderr


def test_a_condition_on_the_struct(spark: SparkSession) -> None:
    frame = spark.createDataFrame(ROWS * 3, MESSAGES).repartition(1).sortWithinPartitions("sequence").cache()
    event = from_nats("headers", "data").alias("event")
    found = frame.select("sequence", event).where("event.error IS NULL AND event.attributes.id >= 'a'")
    rows = found.select("sequence", "event.attributes.id", "event.error").collect()
    assert [tuple(row) for row in rows] == [(1, "a", None)] * 3 + [(3, "b", None)] * 3
    frame.unpersist()


def test_sql_accepts_headers_of_every_type(spark: SparkSession) -> None:
    """One function name accepts headers of all types, and payloads of both types."""
    jvm_engine.load(spark)
    headers = {"ce-specversion": "1.0", "ce-id": "a", "ce-source": "/s", "ce-type": "t"}
    pairs = ", ".join(f"'{name}', '{value}'" for name, value in headers.items())
    lists = ", ".join(f"'{name}', array('{value}')" for name, value in headers.items())
    block = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    raw = f"X'{f'NATS/1.0{chr(13)}{chr(10)}{block}{chr(13)}{chr(10)}'.encode().hex()}'"
    structs = ", ".join(f"struct(X'{name.encode().hex()}', '{value}')" for name, value in headers.items())
    for given in (f"map({pairs})", f"map({lists})", raw, f"array({structs})"):
        for data in ("'x'", "X'78'"):
            (row,) = spark.sql(f"SELECT ce_nats.from_nats({given}, {data}) AS event").collect()
            assert (row.event.attributes.id, row.event.data, row.event.error) == ("a", b"x", None), given


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("5, X''", "headers must be array<struct<key:string,value:string>>"),
        ("array('a'), X''", "headers must be"),
        ("array(struct('a')), X''", "a header must be a struct of two strings or binaries"),
        ("map('a', 5), X''", "headers must be"),
        ("X'', 5", "data must be BINARY or STRING, got int"),
        ("X''", "arguments must be headers and data"),
        ("X'', X'', 5", "types of extensions must be a struct, got int"),
        ("X'', X'', CAST(NULL AS STRUCT<n: DOUBLE>)", "the type of an extension must be string, int"),
    ],
)
def test_arguments_of_invalid_types(spark: SparkSession, arguments: str, message: str) -> None:
    jvm_engine.load(spark)
    with pytest.raises(AnalysisException, match=re.escape(message)):
        spark.sql(f"SELECT ce_nats.from_nats({arguments})")


# --- Sessions and threads -------------------------------------------------------------------------------------------


class OldThread:
    """A thread that used the session before the test, and then waits for a function to run."""

    def __init__(self, spark: SparkSession) -> None:
        self._ready, self._go = threading.Event(), threading.Event()
        self._work: Callable[[], object] = list
        self._result: object = None
        self._thread = threading.Thread(target=self._run, args=[spark], daemon=True)
        self._thread.start()
        assert self._ready.wait(60)

    def _run(self, spark: SparkSession) -> None:
        spark.range(1).count()
        self._ready.set()
        self._go.wait()
        try:
            self._result = self._work()
        except Exception as error:
            self._result = error

    def run(self, work: Callable[[], object]) -> Any:
        self._work = work
        self._go.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self._result


def test_an_older_thread_decodes(spark: SparkSession) -> None:
    """ADD JAR sets the class loader only of the JVM thread that it runs in; other threads must find the functions."""
    session = spark.newSession()
    threads = [OldThread(session) for _ in range(3)]
    frame = session.createDataFrame(ROWS, MESSAGES)
    assert outcome(frame) == FOUND
    events = explode_cloudevents(frame)
    frame.createOrReplaceTempView("messages")
    assert threads[0].run(lambda: outcome(frame)) == FOUND
    assert threads[1].run(lambda: events.where("ce_error IS NULL").count()) == 2
    query = "SELECT count(*) n FROM messages WHERE ce_nats.from_nats(headers, data).error IS NULL"
    assert threads[2].run(lambda: session.sql(query).collect()[0].n) == 2


def test_the_first_decoding_in_an_older_thread(spark: SparkSession) -> None:
    session = spark.newSession()
    thread = OldThread(session)
    frame = session.createDataFrame(ROWS, MESSAGES)
    assert thread.run(lambda: outcome(frame)) == FOUND
    assert outcome(frame) == FOUND


def test_from_nats_uses_the_active_session(spark: SparkSession) -> None:
    session = spark.newSession()
    session.createDataFrame(ROWS, MESSAGES).createOrReplaceTempView("messages")
    frame = session.table("messages").orderBy("sequence")
    found = frame.select(from_nats("headers", F.col("data"), extensions={"n": "int"}).alias("event"))
    assert [row.event.error for row in found.collect()] == [None, "invalid-utf8", None]


def test_a_jar_in_a_folder_with_special_characters(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "it's a folder; 100%"
    folder.mkdir()
    shutil.copy(JAR, folder / "other.jar")  # another name, because Spark keeps the first jar of a name
    monkeypatch.setattr(jvm_engine, "JAR", folder / "other.jar")
    monkeypatch.setattr(jvm_engine, "_thread", jvm_engine._Thread())
    assert outcome(spark.newSession().createDataFrame(ROWS, MESSAGES)) == FOUND
    assert any(row[0].endswith("/other.jar") for row in spark.sql("LIST JARS").collect())


def test_the_error_without_a_jar(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm_engine, "JAR", tmp_path / JAR.name)
    frame = spark.newSession().createDataFrame(ROWS, MESSAGES)
    with pytest.raises(FileNotFoundError, match="without a JDK"):
        explode_cloudevents(frame, engine="jvm")


def test_the_jar_of_a_package_in_a_zip_file(tmp_path: Path) -> None:
    """As with ``--py-files``."""
    program = (
        "from ce_nats.spark.columns import _jvm_engine as engine; copy = engine._local_path(engine.JAR); "
        "assert engine._local_path(engine.JAR) == copy; print(engine.JAR, copy, copy.stat().st_size, sep='\\n'); "
        "engine._local_path(engine.JAR.with_name('other.jar'))"
    )
    archive = tmp_path / "package.zip"
    with ZipFile(archive, "w") as file:
        for path in (*PACKAGE.rglob("*.py"), JAR):
            file.write(path, path.relative_to(PACKAGE.parent))
    environment = {**os.environ, "PYTHONPATH": str(archive)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    packaged, copy, size = done.stdout.splitlines()
    assert packaged == str(archive / JAR.relative_to(PACKAGE.parent))
    assert Path(copy).name == JAR.name
    assert int(size) == JAR.stat().st_size
    assert not Path(copy).exists()  # removed with the process
    assert "other.jar is missing: the package was built without a JDK" in done.stderr


def test_invalid_engine(frame: DataFrame) -> None:
    with pytest.raises(ValueError, match="engine must be auto or jvm or python, got 'scala'"):
        explode_cloudevents(frame, engine="scala")


# --- Streams --------------------------------------------------------------------------------------------------------


def test_a_stream_is_exploded(frame: DataFrame, tmp_path: Path) -> None:
    """As a streaming DataFrame, and in foreachBatch."""
    spark = frame.sparkSession
    frame.coalesce(1).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(MESSAGES).parquet(str(tmp_path / "in"))
    writer = explode_cloudevents(stream).writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "state")).start(str(tmp_path / "out"))
    query.awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("sequence").collect()
    assert [(row.sequence, row.ce_id, row.ce_error) for row in rows] == FOUND

    def write(batch: DataFrame, _: int) -> None:
        explode_cloudevents(batch).write.mode("append").parquet(str(tmp_path / "batches"))

    query = stream.writeStream.foreachBatch(write).trigger(availableNow=True).start()
    query.awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "batches")).orderBy("sequence").collect()
    assert [(row.sequence, row.ce_id, row.ce_error) for row in rows] == FOUND


def test_after_a_shuffle(frame: DataFrame) -> None:
    events = explode_cloudevents(frame.repartition(5, "sequence")).groupBy("ce_error").count()
    assert {row.ce_error: row["count"] for row in events.collect()} == {None: 2, "invalid-utf8": 1}


# --- Values ---------------------------------------------------------------------------------------------------------

BASE = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t")]
TYPED = {"n": "int", "b": "boolean", "raw": "binary", "at": "timestamp", "s": "string"}


def test_values_of_typed_extensions(spark: SparkSession) -> None:
    sent = [("n", "-2147483648"), ("b", "true"), ("raw", "AP8="), ("at", "2016-12-31T23:59:60Z"), ("s", "5")]
    members = '"n":-0,"b":false,"raw":"","at":"1970-01-01T01:00:00.5+01:00","s":5'
    document = f'{{"specversion":"1.0","id":"2","source":"/s","type":"t",{members}}}'
    rows = [
        (1, [*BASE, *((f"ce-{name}", value) for name, value in sent)], b""),
        (2, [], document.encode()),
        (3, BASE, b""),
        (4, [*BASE, ("ce-at", "9999-12-31T23:59:59-01:00")], b""),
        (5, [*BASE, ("ce-n", "2147483648")], b""),
        (6, [*BASE, ("ce-at", "0001-01-01T00:00:00Z")], b""),
    ]
    frame = spark.createDataFrame([(place, pairs, bytearray(data)) for place, pairs, data in rows], MESSAGES)
    events = explode_cloudevents(frame, extensions=TYPED).orderBy("sequence")
    found = events.select("ce_n", "ce_b", "ce_raw", F.unix_micros("ce_at"), "ce_s", "ce_error").collect()
    assert [tuple(row) for row in found] == [
        (-(2**31), True, b"\0\xff", 1_483_228_799_999_999, "5", None),
        (0, False, b"", 500_000, "5", None),
        (None, None, None, None, None, None),
        (None, None, None, None, None, None),
        (None, None, None, None, None, "integer-out-of-range"),
        (None, None, None, -62_135_596_800_000_000, None, None),
    ]
    kinds = [field.dataType.simpleString() for field in events.schema if field.name[3:] in TYPED]
    assert kinds == ["int", "boolean", "binary", "timestamp", "string"]


def test_columns_with_special_characters_in_their_names(spark: SparkSession) -> None:
    frame = spark.createDataFrame(ROWS, MESSAGES).toDF("a.b", "h`s", "da ta")
    rows = explode_cloudevents(frame, headers="h`s", data="da ta", prefix="x.y`").orderBy("`a.b`").collect()
    assert [row["x.y`id"] for row in rows] == ["a", None, "b"]
    failing = explode_cloudevents(frame, headers="h`s", data="da ta", prefix="x.y`", mode="FAILFAST")
    with pytest.raises(Exception, match="invalid-utf8"):
        failing.collect()


@pytest.mark.long
@pytest.mark.skipif("JAVA_HOME" in os.environ, reason="JAVA_HOME selects the JDK")
def test_builds_of_the_jar_are_reproducible(tmp_path: Path) -> None:
    assert build_jar()
    shutil.copytree(JAR.parent, tmp_path / SOURCES, ignore=shutil.ignore_patterns("*.jar"))
    assert build_jar(tmp_path)
    assert (tmp_path / SOURCES / JAR.name).read_bytes() == JAR.read_bytes()
