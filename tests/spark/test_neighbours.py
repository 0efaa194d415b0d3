"""The Iggy fixtures give the same in Spark as in Python; what a message of Iggy holds is what one of NATS would."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql.functions import col, lit

from ce_nats import DecodeError, ErrorCode, Timestamp, to_nats_message
from ce_nats.conformance import Case, load_cases
from ce_nats.conformance.cases import octets
from ce_nats.conformance.iggy import header_map
from ce_nats.spark import from_iggy, from_nats, neighbours
from ce_nats.spark.schema import ATTRIBUTES, EVENT
from ce_nats.wire.iggy import IggyMessage, Layout, encode_headers, from_iggy_message, to_iggy_message
from tests.strategies import plain_event

from .test_vectors import compare

SCHEMA = "id string, headers binary, data binary"


def flat(event: Column) -> list[Column]:
    """The columns that ``explode_cloudevents`` makes of an event struct."""
    core = [event["attributes"][name].alias(f"ce_{name}") for name in ATTRIBUTES]
    return [*core, *(event[name].alias(f"ce_{name}") for name in ("extensions", "data", "mode", "error"))]


def event_cases() -> list[Case]:
    cases = [case for case in load_cases(["iggy-events"]) if case.op == "wire.iggy.from_iggy_message"]
    return [case for case in cases if not {"mode", "extension_types"} & case.input.keys()]


def in_python(message: IggyMessage) -> Any:
    try:
        return from_iggy_message(message, parse_data=False)
    except DecodeError as error:
        return str(error.code)


@pytest.mark.parametrize("layout", Layout)
def test_event_fixtures(spark: SparkSession, layout: Layout) -> None:
    """Every event, and every error code."""
    wanted, rows = {}, []
    for case in event_cases():
        headers = header_map(case.input["entries"])
        if layout is Layout.SEED:  # which has no place for other keys, and no event needs them
            headers = {key: value for key, value in headers.items() if isinstance(key, str)}
        message = IggyMessage(octets(case.input["payload"]), headers)
        wanted[case.id] = in_python(message)
        rows.append((case.id, bytearray(encode_headers(headers, layout=layout)), bytearray(message.payload)))
    assert len(rows) > 40
    event = from_iggy(col("headers"), col("data"), layout=layout)
    found = spark.createDataFrame(rows, SCHEMA).select("id", event.alias("event")).select("id", *flat(col("event")))
    differences = {row["id"]: compare(wanted[row["id"]], row) for row in found.collect()}
    assert differences == dict.fromkeys(wanted, "")


def test_headers_that_are_none(spark: SparkSession) -> None:
    """Bytes that are no header map have the code that the fixtures want, and nothing else."""
    cases = [case for case in load_cases(["iggy-headers"]) if case.op == "wire.iggy.decode_headers"]
    cases = [case for case in cases if "layout" not in case.input and "error" in case.source]
    rows = [(case.id, bytearray(octets(case.input["block"])), bytearray(b"x")) for case in cases]
    assert len(rows) > 30
    events = spark.createDataFrame(rows, SCHEMA).select("id", from_iggy(col("headers"), col("data")).alias("event"))
    nothing = dict.fromkeys(EVENT.names)
    found = {row["id"]: row["event"].asDict() for row in events.collect()}
    assert found == {case.id: {**nothing, "error": case.source["error"]} for case in cases}


def test_the_same_struct_as_of_nats(spark: SparkSession) -> None:
    """One event, sent over both, has one form as a column."""
    event = plain_event(
        {"total": 12.5},
        time=Timestamp("2024-02-29T23:10:11.123456789+01:00"),
        subject="Euro € 😀 100%",
        sampled=True,
        rank=-5,
        digest=b"\0\xff",
        dataschema="https://example.com/",
    )
    iggy, nats = to_iggy_message(event), to_nats_message(event)
    row = (bytearray(encode_headers(iggy.headers)), bytearray(iggy.payload), nats.headers.items(), bytearray(nats.data))
    frame = spark.createDataFrame([row], "ih binary, id binary, nh array<struct<key string, value string>>, nd binary")
    columns = [from_iggy(col("ih"), col("id")), from_nats(col("nh"), col("nd"))]
    both = frame.select(*(column.alias(name) for column, name in zip(columns, ("iggy", "nats"), strict=True)))
    assert both.schema["iggy"].dataType == both.schema["nats"].dataType == EVENT
    found = both.collect()[0]
    assert found["iggy"]["error"] is None
    assert found["iggy"] == found["nats"]


def test_null_is_nothing(spark: SparkSession) -> None:
    """A message without headers, and one without a payload."""
    minimal = bytearray(encode_headers(to_iggy_message(plain_event(b"x")).headers))
    rows = [("none", None, None), ("headers", minimal, None)]
    events = spark.createDataFrame(rows, SCHEMA).select("id", from_iggy(col("headers"), col("data")).alias("event"))
    found = {row["id"]: row["event"] for row in events.collect()}
    assert found["none"]["error"] == "not-a-cloudevent"
    assert (found["headers"]["attributes"]["id"], found["headers"]["data"]) == ("1", None)


def test_another_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="typed"):
        from_iggy(lit(b""), lit(b""), layout="typed")


def test_outcomes_as_arrow() -> None:
    """What any decoder in Python gives makes the struct, a batch at a time."""
    message = to_iggy_message(plain_event(b64decode("AP8="), time="0001-01-01T00:00:00+01:00"))
    outcomes = [
        (from_iggy_message(message, parse_data=False), "binary"),
        DecodeError(ErrorCode.NOT_A_CLOUDEVENT, "nothing"),
    ]
    array = neighbours.event_array(outcomes)
    assert array.type == neighbours.ARROW_EVENT
    first, second = array.to_pylist()
    assert first["data"] == b"\0\xff"
    assert first["attributes"]["time"] is None  # a year that UTC does not have
    assert first["attributes"]["time_text"] == "0001-01-01T00:00:00+01:00"
    assert first["is_json"] is False
    assert second == {**dict.fromkeys(EVENT.names), "error": "not-a-cloudevent"}
    assert neighbours.event_array([]).equals(pa.array([], neighbours.ARROW_EVENT))
