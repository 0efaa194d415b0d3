"""Events made from columns of any type, encoded by to_nats."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ce_nats import NatsMessage, Timestamp, from_nats_message
from ce_nats.spark import cloudevent, to_nats
from ce_nats.spark.columns._schema import check_event
from tests.support.needs import needs_arrow_functions

MODES = ("binary", "structured")
JSON, TEXT, OTHER = "application/json", "text/plain", "application/octet-stream"

# Data in SQL, datacontenttype, data as bytes of the payload in binary mode, datacontenttype of the event.
DATA = [
    ("'{\"a\": 1.50}'", None, b'{"a": 1.50}', JSON),
    ("'[1,  2]'", "application/x+json", b"[1,  2]", "application/x+json"),
    ("'a \"text\"'", TEXT, b'a "text"', TEXT),
    ("cast('{}' as string collate UTF8_LCASE)", None, b"{}", JSON),
    ("X'ff00'", None, b"\xff\x00", None),
    ("X'ff00'", OTHER, b"\xff\x00", OTHER),
    (
        "named_struct('a', 12.50BD, 'b', null, 'c', named_struct('d', date'2020-01-02'))",
        *(None, b'{"a":12.50,"c":{"d":"2020-01-02"}}', JSON),
    ),
    ("named_struct('a', 'ü]')", JSON, '{"a":"ü]"}'.encode(), JSON),
    ("array(array(1, null))", None, b"[[1,null]]", JSON),
    (
        "named_struct('at', timestamp'2020-01-02 03:04:05.123456Z', 'local', timestamp_ntz'2020-01-02 03:04:05')",
        *(None, b'{"at":"2020-01-02T03:04:05.123456Z","local":"2020-01-02T03:04:05.000000"}', JSON),
    ),
    ("map(1.5D, interval 1 day)", None, b'{"1.5":"INTERVAL \'1\' DAY"}', JSON),
    ("map('a', X'00')", None, b'{"a":"AA=="}', JSON),
    ("parse_json('{\"a\": [1.50, null]}')", None, b'{"a":[1.5,null]}', JSON),
    ("parse_json('null')", None, b"null", JSON),
    ("5L", None, b"5", JSON),
    ("true", None, b"true", JSON),
    ("named_struct('a', if(rand() < 0, 1, null))", None, b"{}", JSON),
    ("cast(null as struct<a:int>)", None, b"", None),
    ("cast(null as string)", None, b"", None),
    ("cast(null as binary)", None, b"", None),
    ("null", None, b"", None),
]


def event_of(**arguments: Any) -> Column:
    return cloudevent(**{"id": F.lit("1"), "source": F.lit("/s"), "type": F.lit("t"), **arguments})


def message_of(found: Any) -> NatsMessage:
    assert found["error"] is None, found
    return NatsMessage(headers=[tuple(pair) for pair in found["headers"]], data=bytes(found["data"]))


def encoded(spark: SparkSession, *events: Column, mode: str = "binary") -> list[Any]:
    frame = spark.range(1)
    columns = [to_nats(event, content_mode=mode).alias(f"m{number}") for number, event in enumerate(events)]
    return list(frame.select(*columns).first() or ())


@needs_arrow_functions
@pytest.mark.parametrize("mode", MODES)
def test_data_of_all_types(spark: SparkSession, mode: str) -> None:
    events = [event_of(data=F.expr(data), datacontenttype=F.lit(kind)) for data, kind, *_ in DATA]
    # All rows have one type, so they need one function.
    messages = (
        spark.range(1).select(F.explode(F.array(*events)).alias("event")).select(to_nats("event", content_mode=mode))
    )
    for (data, _, payload, kind), (found,) in zip(DATA, messages.collect(), strict=True):
        event = from_nats_message(message_of(found), parse_data=False)
        assert event.get_data() == (payload or None), data
        assert event.get_datacontenttype() == kind, data


@needs_arrow_functions
@pytest.mark.parametrize("mode", MODES)
def test_data_that_its_media_type_excludes(spark: SparkSession, mode: str) -> None:
    cases = [("named_struct('a', 1)", TEXT), ("5", OTHER), ("'no JSON'", None), ("'no JSON'", JSON)]
    events = [event_of(data=F.expr(data), datacontenttype=F.lit(kind)) for data, kind in cases]
    assert [found["error"] for found in encoded(spark, *events, mode=mode)] == ["invalid-data"] * len(cases)


# A number, a name of the number in the table, and the error of the event.
NUMBERS = [
    ("1.5D", "n", None),
    ("double('NaN')", "n", "invalid-data"),
    ("-float('Infinity')", "sum(n)", "invalid-data"),
    ("array(map('a', struct(struct(1, double('Infinity')), 1.0D)))", "n", "invalid-data"),
    ("map(double('NaN'), 12.50BD)", "n", None),
    ("cast(null as double)", "n", None),
    ("double('NaN')", "a:b", "invalid-data"),
    ("1.5D", "a,b", "invalid-data"),  # NaN may be the number, which has an ambiguous name
    ("cast(1 as decimal(10, 2))", "a`<b", None),
    ("struct(1 as text, 2 as n)", "n", None),
    ("5", "text", "invalid-data"),
]


@needs_arrow_functions
def test_numbers_and_names_that_json_does_not_have(spark: SparkSession) -> None:
    """Not only in literals. A string may be "NaN"."""
    for number, name, error in NUMBERS:
        columns = F.expr(number).alias(name), F.lit("NaN").alias("text"), F.lit(None).cast("int").alias("none")
        frame = spark.range(1).repartition(1).select(F.struct(*columns).alias("data"))
        found = frame.select(to_nats(event_of(data=F.col("data"))).alias("m")).collect()[0]["m"]
        assert found["error"] == error, (number, name)
        if error is None:
            assert json.loads(bytes(found["data"]))["text"] == "NaN"


@needs_arrow_functions
def test_attributes_and_extensions(spark: SparkSession) -> None:
    frame = spark.sql("""
        SELECT 'a b' AS id, '/s' AS source, 't' AS kind, '2020-01-02T03:04:05.123456789+01:00' AS at, 5 AS n,
            map('note', 'ü', 'none', NULL) AS notes, timestamp'2020-01-02 03:04:05Z' AS stored
    """)
    some = cloudevent(
        id="id",
        source=F.col("source"),
        type="kind",
        subject=F.lit("100%"),
        time="at",
        dataschema=F.lit("https://example.com/schema"),
        extensions={"n": "n", "ok": F.lit(True), "blob": F.lit(bytearray(b"\0")), "none": F.lit(None), "at": "stored"},
    )
    with_map = cloudevent(id="id", source="source", type="kind", time="stored", extensions="notes")
    (row,) = frame.select(
        to_nats(some, content_mode="structured").alias("some"),
        to_nats(with_map).alias("map"),
    ).collect()
    assert json.loads(bytes(row["some"]["data"])) == {
        "specversion": "1.0",
        "id": "a b",
        "source": "/s",
        "type": "t",
        "subject": "100%",
        "time": "2020-01-02T03:04:05.123456789+01:00",
        "dataschema": "https://example.com/schema",
        "n": 5,
        "ok": True,
        "blob": "AA==",
        "at": "2020-01-02T03:04:05Z",
    }
    event = from_nats_message(message_of(row["map"]))
    assert (event.time, event.extensions) == (Timestamp("2020-01-02T03:04:05Z"), {"note": "ü"})


@needs_arrow_functions
def test_a_null_attribute_is_not_sent(spark: SparkSession) -> None:
    missing = event_of(id=F.lit(None).cast("string"))
    bare, without_id = encoded(spark, event_of(), missing)
    names = [name for name, _ in message_of(bare).headers.items()]
    assert names == ["ce-specversion", "ce-id", "ce-source", "ce-type"]
    assert without_id["error"] == "missing-attribute"


def test_the_type_is_that_of_an_event(spark: SparkSession) -> None:
    """It does not depend on the type of the data, so that rows of several kinds can be united."""
    frame = spark.range(1)
    kinds = {
        frame.select(event_of(data=F.expr(data)).alias("event")).schema["event"].dataType.simpleString()
        for data in ("'a'", "X'00'", "named_struct('a', 1)", "parse_json('1')", "null")
    }
    assert len(kinds) == 1
    check_event(frame.select(event_of(data="id").alias("event")).schema["event"].dataType)
    check_event(frame.select(event_of().alias("event")).schema["event"].dataType)


@pytest.mark.parametrize(
    ("arguments", "error", "reason"),
    [
        (
            {"source": "/shop"},
            ValueError,
            r"^source must be .* name of a column, got '/shop'; a literal is F.lit\(",
        ),
        ({"datacontenttype": "text/plain"}, ValueError, r"^datacontenttype must be .* F.col\('text/plain'\)$"),
        ({"id": 5}, TypeError, r"^id must be a column or the name of a column, got 5; a literal is F.lit\(5\)$"),
        ({"id": None}, TypeError, "^id must be a column or the name of a column, got None"),
        ({"data": {"a": 1}}, TypeError, "^data must be a column or"),
        ({"extensions": ["a"]}, TypeError, "^extensions must be a column or"),
        ({"extensions": {"a": 1}}, TypeError, "^extension a must be a column or"),
        ({"extensions": {"my_ext": "a"}}, ValueError, "invalid-attribute-name.*my_ext"),
        (
            {"extensions": {"id": "a"}},
            ValueError,
            "must not have the name of an attribute of the specification",
        ),
        ({"extensions": {5: "a"}}, ValueError, "invalid-attribute-name"),
    ],
)
def test_invalid_arguments(spark: SparkSession, arguments: dict[str, Any], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        event_of(**arguments)
