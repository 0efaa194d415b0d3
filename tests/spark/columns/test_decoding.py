"""Modes, typed extensions and types of headers of explode_cloudevents."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ce_nats import from_nats_message
from ce_nats.spark import explode_cloudevents, from_nats
from tests.support.spark_rows import BASE

MESSAGE = "headers array<struct<key string, value string>>, data binary"


@pytest.fixture(params=["jvm", pytest.param("python", marks=pytest.mark.long)])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("name", ["Ext", "a-b", "", "id", "time", "specversion", "data"])
def test_invalid_names_of_extensions_are_rejected(frame: DataFrame, name: str) -> None:
    for call in (lambda given: explode_cloudevents(frame, extensions=given), _decoded):
        with pytest.raises(ValueError, match=f"invalid-attribute-name: .*must .*got {name!r}|must not be {name!r}"):
            call({name: "int"})


def _decoded(extensions: dict[str, str]) -> Column:
    return from_nats("headers", "data", extensions=extensions)


@pytest.mark.parametrize("name", ["error", "mode", "extensions"])
def test_extensions_with_the_name_of_another_new_column(spark: SparkSession, name: str) -> None:
    """Their values are in the map. In the struct of from_nats there is no such column."""
    frame = spark.createDataFrame([([*BASE, ("ce-id", "a"), (f"ce-{name}", "7")], bytearray())], MESSAGE)
    with pytest.raises(ValueError, match=f"extensions must not have the name of another new column, got '{name}'"):
        explode_cloudevents(frame, extensions={name: "int"})
    (row,) = explode_cloudevents(frame).collect()
    assert row.ce_extensions == {name: "7"}
    (row,) = frame.select(from_nats("headers", "data", extensions={name: "int"}).alias("event")).collect()
    assert row.event.extensions == {name: "7"}


def test_existing_columns_are_not_added_again(frame: DataFrame, engine: str) -> None:
    events = explode_cloudevents(frame, engine=engine)
    with pytest.raises(
        ValueError, match=r"prefix must .*, got 'ce_': the DataFrame already has ce_specversion, ce_id, "
    ):
        explode_cloudevents(events, engine=engine)
    twice = explode_cloudevents(events, engine=engine, prefix="again_").orderBy("sequence").collect()
    assert [row.again_id for row in twice] == [row.ce_id for row in twice] == ["a", None, "b"]
    named = frame.withColumn("CE_N", F.lit(0))
    with pytest.raises(ValueError, match=r"prefix must .*, got 'ce_': the DataFrame already has ce_n$"):
        explode_cloudevents(named, extensions={"n": "int"}, engine=engine)
    with pytest.raises(ValueError, match=r"prefix must .*, got '': the DataFrame already has data$"):
        explode_cloudevents(frame, prefix="", engine=engine)
    frame.sparkSession.conf.set("spark.sql.caseSensitive", "true")
    try:
        rows = explode_cloudevents(named, extensions={"n": "int"}, engine=engine).orderBy("sequence").collect()
    finally:
        frame.sparkSession.conf.unset("spark.sql.caseSensitive")
    assert [(row["CE_N"], row["ce_n"]) for row in rows] == [(0, 5), (0, None), (0, 7)]


def test_columns_are_named_as_in_from_nats(frame: DataFrame, engine: str) -> None:
    nested = frame.select("sequence", F.struct("headers", "data").alias("m"))
    names: list[tuple[Column | str, Column | str]] = [
        ("m.headers", "m.data"),
        ("M.Headers", "m.DATA"),
        ("`m`.`headers`", "m.data"),
        (F.col("m.headers"), F.col("m")["data"].cast("string")),
    ]
    events = nested.select("*", *(from_nats(*pair).alias(f"event{place}") for place, pair in enumerate(names)))
    for place, (headers, data) in enumerate(names):
        events = explode_cloudevents(events, headers=headers, data=data, engine=engine, prefix=f"ce{place}_")
    rows = events.orderBy("sequence").collect()
    for place in range(len(names)):
        assert [row[f"ce{place}_id"] for row in rows] == ["a", None, "b"]
        assert [row[f"ce{place}_error"] for row in rows] == [None, "invalid-utf8", None]
        assert [row[f"event{place}"].error for row in rows] == [None, "invalid-utf8", None]


def test_a_column_with_a_dot_in_its_name(frame: DataFrame, engine: str) -> None:
    """A column with exactly the given name has precedence over the field of a struct."""
    both = frame.select("sequence", F.struct("data").alias("m"), F.col("headers").alias("m.headers"))
    rows = explode_cloudevents(both, headers="m.headers", data="M.data", engine=engine).orderBy("sequence").collect()
    assert [row.ce_id for row in rows] == ["a", None, "b"]


def test_the_error_has_the_missing_column(frame: DataFrame) -> None:
    with pytest.raises(AnalysisException, match=r"header.* cannot be resolved. Did you mean .*headers"):
        explode_cloudevents(frame, headers="header").collect()


def test_modes_are_case_insensitive(frame: DataFrame) -> None:
    assert explode_cloudevents(frame, mode="Permissive").count() == 3
    assert explode_cloudevents(frame, mode="dropMalformed").count() == 2
    with pytest.raises(Exception, match="not a valid CloudEvent: invalid-utf8"):
        explode_cloudevents(frame, mode="failfast").collect()


def test_permissive_keeps_every_row(frame: DataFrame) -> None:
    rows = explode_cloudevents(frame, extensions={"n": "int"}).orderBy("sequence").collect()
    assert [(row.ce_id, row.ce_mode, row.ce_error, row.ce_n) for row in rows] == [
        ("a", "binary", None, 5),
        (None, None, "invalid-utf8", None),
        ("b", "structured", None, 7),
    ]
    assert [row.ce_data and bytes(row.ce_data) for row in rows] == [b"x", None, b"[1]"]
    assert rows[0].ce_extensions == {"n": "5"}


def test_failfast_fails_with_code_and_sequence(frame: DataFrame) -> None:
    with pytest.raises(Exception, match="not a valid CloudEvent: invalid-utf8 sequence=2"):
        explode_cloudevents(frame, mode="FAILFAST").collect()
    good = frame.where("sequence <> 2")
    assert explode_cloudevents(good, mode="FAILFAST").count() == 2


def test_the_plan_has_no_python_worker(frame: DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    explode_cloudevents(frame).where("ce_error IS NULL").explain(True)
    plan = capsys.readouterr().out
    assert "ce_nats.event_columns" in plan
    assert "Python" not in plan


def test_long_texts_do_not_overflow_the_stack(spark: SparkSession) -> None:
    """Long texts that change between ASCII and other characters, in which patterns match many short runs."""
    text = "a\u00e9e1\U0001f600" * 200_000
    document = f'{{"specversion":"1.0","id":"a","source":"/s","type":"t","subject":"{text}","data":"{text}"}}'
    rows = [([], bytearray(document.encode())), ([], bytearray(document.encode()[:-2] + b"'\x00\"}"))]
    frame = spark.createDataFrame(rows, "headers array<struct<key string, value string>>, data binary")
    good, bad = explode_cloudevents(frame).collect()
    assert (good.ce_subject, bytes(good.ce_data).decode()) == (text, f'"{text}"')
    assert (bad.ce_id, bad.ce_error) == (None, "not-a-cloudevent")


def test_documented_differences_from_python(spark: SparkSession) -> None:
    """The differences in docs/guides/spark-columns.md; Python decodes each of these messages to an event."""
    envelope = '{"specversion":"1.0","id":"a","source":"/s","type":"t"%s}'
    japanese = envelope % ',"datacontenttype":"text/plain; charset=shift_jis","data":"\u3042"'
    late = [*BASE, ("ce-id", "a"), ("ce-time", "2016-12-31T23:59:60.123456789+00:00")]
    far = [*BASE, ("ce-id", "a"), ("ce-time", "9999-12-31T23:59:59-01:00")]
    rows = [([], japanese.encode()), (late, b""), (far, b"")]
    for headers, data in rows:
        assert from_nats_message(SimpleNamespace(headers=headers, data=data), parse_data=False).get_id() == "a"
    schema = "place int, headers array<struct<key string, value string>>, data binary"
    frame = spark.createDataFrame([(place, pairs, bytearray(data)) for place, (pairs, data) in enumerate(rows)], schema)
    event = F.col("event")
    time = F.to_utc_timestamp(event["attributes"]["time"], F.current_timezone())
    found = (
        frame.orderBy("place")
        .select(from_nats(F.col("headers"), F.col("data")).alias("event"))
        .select(
            event["error"].alias("error"),
            F.date_format(time, "HH:mm:ss.SSSSSS").alias("time"),
            event["attributes"]["time_text"].alias("text"),
        )
    )
    assert [tuple(row) for row in found.collect()] == [
        ("unsupported-charset", None, None),
        (None, "23:59:59.999999", "2016-12-31T23:59:60.123456789+00:00"),
        (None, None, "9999-12-31T23:59:59-01:00"),
    ]


def test_expired_events_can_be_excluded(spark: SparkSession, engine: str) -> None:
    """With the condition in docs/guides/expiry.md."""
    times = {"a": "2020-01-01T00:00:00Z", "b": "9999-01-01T00:00:00Z", "c": None}
    rows = [
        ([*BASE, ("ce-id", name), *([("ce-expirytime", time)] if time else [])], bytearray())
        for name, time in times.items()
    ]
    frame = spark.createDataFrame(rows, MESSAGE)
    events = explode_cloudevents(frame, extensions={"expirytime": "timestamp"}, engine=engine)
    lasting = events.where("ce_expirytime IS NULL OR ce_expirytime > current_timestamp()")
    assert sorted(row.ce_id for row in lasting.collect()) == ["b", "c"]


def test_parquet_of_duckdb(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    """With a payload of DuckDB's type JSON, which Arrow has as an extension type."""
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    pairs = [*BASE, ("ce-id", "1")]
    headers = ", ".join(f"{{'key': '{name}', 'value': '{value}'}}" for name, value in pairs)
    query = f"SELECT [{headers}] AS headers, '{{\"n\":1}}'::JSON AS data"
    duckdb.sql(f"COPY ({query}) TO '{tmp_path}/messages.parquet'")
    (row,) = explode_cloudevents(spark.read.parquet(f"{tmp_path}/messages.parquet"), engine=engine).collect()
    assert (row.ce_id, bytes(row.ce_data), row.ce_error) == ("1", b'{"n":1}', None)
