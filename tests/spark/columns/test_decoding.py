"""Modes, typed extensions and types of headers of explode_cloudevents."""

from types import SimpleNamespace

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ce_nats import from_nats_message
from ce_nats.spark import explode_cloudevents, from_nats

BASE = [("ce-specversion", "1.0"), ("ce-source", "/s"), ("ce-type", "t")]
ROWS = [
    (1, [*BASE, ("ce-id", "a"), ("ce-n", "5")], bytearray(b"x")),
    (2, [*BASE, ("ce-id", "%C0%A0")], bytearray()),
    (3, [], bytearray(b'{"specversion":"1.0","id":"b","source":"/s","type":"t","n":7,"data":[1]}')),
]


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, "sequence long, headers array<struct<key string, value string>>, data binary")


def test_permissive_keeps_every_row(frame: DataFrame) -> None:
    rows = explode_cloudevents(frame, extensions={"n": "int"}).orderBy("sequence").collect()
    assert [(row.ce_id, row.ce_mode, row.ce_error, row.ce_n) for row in rows] == [
        ("a", "binary", None, 5),
        (None, None, "invalid-utf8", None),
        ("b", "structured", None, 7),
    ]
    assert [row.ce_data and bytes(row.ce_data) for row in rows] == [b"x", None, b"[1]"]
    assert rows[0].ce_extensions == {"n": "5"}


def test_dropmalformed_removes_bad_rows(frame: DataFrame) -> None:
    rows = explode_cloudevents(frame, mode="DROPMALFORMED", prefix="x_").orderBy("sequence").collect()
    assert [row.x_id for row in rows] == ["a", "b"]


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


def test_maps_of_headers(spark: SparkSession) -> None:
    for kind in ("map<string,string>", "map<string,array<string>>"):
        value = "'{}'" if kind == "map<string,string>" else "array('{}')"
        pairs = ", ".join(f"'{name}', {value.format(text)}" for name, text in ROWS[0][1])
        (row,) = explode_cloudevents(spark.sql(f"select map({pairs}) headers, 'x' data")).collect()
        assert (row.ce_id, row.ce_extensions, bytes(row.ce_data)) == ("a", {"n": "5"}, b"x")


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
    """Those that docs/guides/spark-columns.md lists; Python decodes each of these messages to an event."""
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
