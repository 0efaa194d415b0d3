"""The Python engine has the results of from_nats_message, in all query plans."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import IntegerType

from ce_nats import to_nats_message
from ce_nats.spark import explode_cloudevents, from_iggy, from_stan, to_nats
from ce_nats.spark.columns import _arrow_functions as arrow_functions
from ce_nats.spark.columns import _python_engine as python_engine
from ce_nats.spark.columns._schema import EVENT
from tests.support.damage import damaged, in_bytes
from tests.support.damage import in_python as expected
from tests.support.needs import needs_arrow_functions
from tests.support.spark_rows import MESSAGES, ROWS, SCHEMA, SPARK_TYPES, chosen, compare, groups_of, in_python, message
from tests.support.strategies import plain_event

ROOT = Path(__file__).parents[3]
# Cases that only the JVM engine decodes differently: values with two spellings.
SAME_IN_SPARK = {"typed-integer-negative-zero", "typed-binary-trailing-bits"}
# A warning of pyspark 4.0, which uses pandas where whole DataFrames are sent to workers.
pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")


@pytest.fixture(params=["functions", pytest.param("frames", marks=pytest.mark.long)])
def execution(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Tests run with functions over Arrow, and with whole DataFrames, as on pyspark 4.0."""
    if request.param == "frames":
        monkeypatch.setattr(python_engine, "HAS_ARROW_FUNCTIONS", False)
    elif not arrow_functions.HAS_ARROW_FUNCTIONS:
        pytest.skip("pyspark is older than 4.1")
    return str(request.param)


@pytest.mark.usefixtures("execution")
def test_decode_fixtures(spark: SparkSession) -> None:
    wrong = []
    for types, cases in groups_of(chosen()):
        rows = [(case.id, *message(case)) for case in cases]
        given = spark.createDataFrame([(name, pairs, bytearray(data)) for name, pairs, data in rows], SCHEMA)
        declared = {name: SPARK_TYPES[wanted] for name, wanted in types.items()}
        exploded = explode_cloudevents(given.coalesce(1), extensions=declared, engine="python")
        assert exploded.schema == explode_cloudevents(given, extensions=declared).schema
        found = {row["id"]: row for row in exploded.collect()}
        for case, (_, pairs, payload) in zip(cases, rows, strict=True):
            difference = compare(in_python(case, pairs, payload), found[case.id])
            if bool(difference) != (case.id in SAME_IN_SPARK):
                wrong.append(f"{case.id}: {difference or 'no longer different'}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.long
@pytest.mark.parametrize("text", ["string", "binary"])
def test_random_messages(spark: SparkSession, text: str) -> None:
    messages: list[Any] = damaged(2_000, 20261122)
    if text == "binary":
        messages = in_bytes(messages, 20261122)
    rows = [(place, headers, bytearray(data)) for place, (headers, data) in enumerate(messages)]
    given = spark.createDataFrame(rows, f"id int, headers array<struct<key {text}, value {text}>>, data binary")
    found = explode_cloudevents(given.repartition(2), engine="python").collect()
    assert len(found) == len(messages)
    differences = [(compare(expected(messages[row.id]), row), messages[row.id]) for row in found]
    assert [one for one in differences if one[0]] == []


def test_other_formats_than_json_are_unsupported(spark: SparkSession) -> None:
    """Columns support only JSON, whatever the codec supports: both engines have the same error."""
    sent = to_nats_message(plain_event(), mode="structured", format="protobuf")
    given = spark.createDataFrame([("1", sent.headers.items(), bytearray(sent.data))], SCHEMA)
    for engine in ("jvm", "python"):
        assert explode_cloudevents(given, engine=engine).first()["ce_error"] == "unsupported-format"


@needs_arrow_functions
def test_the_struct_is_that_of_from_nats(spark: SparkSession) -> None:
    rows = [(case.id, *message(case)) for case in chosen()]
    given = spark.createDataFrame([(name, pairs, bytearray(data)) for name, pairs, data in rows], SCHEMA).coalesce(1)
    event = python_engine.from_nats(F.col("headers"), F.col("data"), {"n": IntegerType()})
    events = given.select("id", event.alias("event"), "headers", "data")
    assert events.schema["event"].dataType == EVENT
    wanted = explode_cloudevents(given, extensions={"n": "int"}, engine="python").collect()
    for row, flat in zip(events.collect(), wanted, strict=True):
        event = row["event"]
        attributes = event["attributes"] or defaultdict(type(None))
        assert event["error"] == flat["ce_error"]
        assert (event["attributes"] is None) == (event["mode"] is None)
        names = ("id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "specversion")
        assert [attributes[name] for name in names] == [flat[f"ce_{name}"] for name in names]
        others = ("extensions", "data", "mode")
        assert [event[name] for name in others] == [flat[f"ce_{name}"] for name in others]


@pytest.mark.usefixtures("execution")
def test_modes(frame: DataFrame) -> None:
    exploded = explode_cloudevents(frame, extensions={"n": "int"}, prefix="x_", engine="python")
    assert exploded.columns[:3] == ["sequence", "headers", "data"]
    rows = exploded.orderBy("sequence").collect()
    assert [(row.x_id, row.x_mode, row.x_error, row.x_n) for row in rows] == [
        ("a", "binary", None, 5),
        (None, None, "invalid-utf8", None),
        ("b", "structured", None, 7),
    ]
    assert [bytes(row.data) for row in rows] == [bytes(data) for _, _, data in ROWS]
    dropped = explode_cloudevents(frame, mode="DROPMALFORMED", engine="python").orderBy("sequence")
    assert [row.ce_id for row in dropped.collect()] == ["a", "b"]
    with pytest.raises(Exception, match="invalid-utf8 sequence=2"):
        explode_cloudevents(frame, mode="FAILFAST", engine="python").collect()
    assert explode_cloudevents(frame.where("sequence <> 2"), mode="FAILFAST", engine="python").count() == 2


BLOCK = "NATS/1.0\\r\\nce-specversion: 1.0\\r\\nce-id: a\\r\\nce-source: /s\\r\\nce-type: t\\r\\n\\r\\n"


HEADERS = {
    "map": "map('ce-specversion', '1.0', 'ce-id', 'a', 'ce-source', '/s', 'ce-type', 't')",
    "lists": "map('ce-specversion', array('1.0'), 'ce-id', array('a'), 'ce-source', array('/s'), 'ce-type',"
    " array('t'))",
    "block": f"cast('{BLOCK}' as binary)",
    "octets": "transform(array('ce-specversion=1.0', 'ce-id=a', 'ce-source=/s', 'ce-type=t'), one ->"
    " named_struct('a', cast(split(one, '=')[0] as binary), 'b', cast(split(one, '=')[1] as binary)))",
}


@pytest.mark.usefixtures("execution")
@pytest.mark.parametrize("large", ["false", pytest.param("true", marks=pytest.mark.long)])
def test_types_of_headers(spark: SparkSession, large: str) -> None:
    columns = [f"if(id = 0, {headers}, null) {name}" for name, headers in HEADERS.items()]
    events = spark.range(0, 2, 1, 1).selectExpr("id", "if(id = 0, 'x', null) payload", *columns)
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", large)
    try:
        for name in HEADERS:
            events = explode_cloudevents(events, headers=name, data="payload", prefix=f"{name}_", engine="python")
        good, bad = (row.asDict() for row in events.orderBy("id").collect())
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    fields = "id", "extensions", "data", "error"
    assert [[good[f"{name}_{field}"] for field in fields] for name in HEADERS] == [["a", {}, b"x", None]] * len(HEADERS)
    assert [bad[f"{name}_error"] for name in HEADERS] == ["not-a-cloudevent"] * len(HEADERS)


@pytest.mark.usefixtures("execution")
def test_text_that_is_not_utf8(spark: SparkSession) -> None:
    """A STRING of Spark may have any bytes."""
    pairs = "array(named_struct('key', 'ce-id', 'value', cast(X'61ff' as string)))"
    given = spark.sql(f"select {pairs} headers, X'' data")
    assert [row.ce_error for row in explode_cloudevents(given, engine="python").collect()] == ["invalid-utf8"]


@needs_arrow_functions
def test_conditions_do_not_decode_again(frame: DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    exploded = explode_cloudevents(frame, engine="python").where("ce_error IS NULL AND ce_type = 't'")
    exploded.select("ce_id", "ce_time", "ce_data").explain()
    plan = capsys.readouterr().out
    assert plan.count("ArrowEvalPython [") == 1


@pytest.mark.usefixtures("execution")
def test_streaming(spark: SparkSession, frame: DataFrame, tmp_path: Path) -> None:
    frame.coalesce(1).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "in"))
    writer = explode_cloudevents(stream, engine="python").writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "state")).start(str(tmp_path / "out"))
    query.awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("sequence").collect()
    assert [(row.ce_id, row.ce_error) for row in rows] == [("a", None), (None, "invalid-utf8"), ("b", None)]


def test_error_with_an_old_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function over Arrow has an error with the version that it needs."""
    monkeypatch.setattr(arrow_functions, "HAS_ARROW_FUNCTIONS", False)
    calls: list[Callable[[], object]] = [
        lambda: python_engine.from_nats(None, None, {}),
        lambda: to_nats(None),
        lambda: from_iggy(None, None),
        lambda: from_stan(None),
    ]
    for call in calls:
        with pytest.raises(ImportError, match=r"needs pyspark 4\.1 or later .*, got "):
            call()


def results(spark: SparkSession) -> list[str]:
    frame = spark.createDataFrame(ROWS, MESSAGES)
    frames = [
        explode_cloudevents(frame, extensions={"n": "int"}, engine="python"),
        frame.select(python_engine.from_nats(F.col("headers"), F.col("data"), {}).alias("event"), "sequence"),
    ]
    return [json.dumps([row.asDict(True) for row in one.orderBy("sequence").collect()], default=str) for one in frames]


@pytest.mark.long
@needs_arrow_functions
def test_spark_connect(spark: SparkSession) -> None:
    command = [sys.executable, "-m", "tests.spark.columns.test_python_engine"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-2:] == results(spark)


if __name__ == "__main__":
    session = SparkSession.builder.remote("local[2]").getOrCreate()
    print(*results(session), sep="\n")
    session.stop()
