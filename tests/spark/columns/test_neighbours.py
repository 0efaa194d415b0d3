"""The fixtures of Iggy and NATS Streaming have equal results in Spark and Python, in the structs of from_nats."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from typing import Any

import nats as nats_py
import pyarrow as pa
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql.functions import col, lit

from ce_nats import ContentMode, DecodeError, ErrorCode, NatsMessage, Timestamp, from_nats_message, to_nats_message
from ce_nats.arrow._decode import ATTRIBUTES
from ce_nats.conformance import Case, load_cases
from ce_nats.conformance._cases import octets
from ce_nats.conformance._iggy import header_map
from ce_nats.iggy import IggyMessage, Layout, encode_headers, from_iggy_message, to_iggy_message
from ce_nats.spark import explode_cloudevents, from_iggy, from_nats, from_stan, register
from ce_nats.spark.columns import _neighbours as neighbours
from ce_nats.spark.columns._schema import ARROW_EVENT, EVENT
from ce_nats.stan.wire import MsgProto
from ce_nats.testing import NatsServer
from tests.support.needs import needs_arrow_functions
from tests.support.strategies import plain_event

from ..test_vectors import compare

SCHEMA = "id string, headers binary, data binary"


def flat(event: Column) -> list[Column]:
    """Return the columns of ``explode_cloudevents`` for an event struct."""
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


@needs_arrow_functions
@pytest.mark.parametrize("layout", Layout)
def test_event_fixtures(spark: SparkSession, layout: Layout) -> None:
    """All cases of events, with their attributes and data or their error code."""
    wanted, rows = {}, []
    for case in event_cases():
        headers = header_map(case.input["entries"])
        if layout is Layout.STRING_KEYS:  # it cannot encode other keys, and events have none
            headers = {key: value for key, value in headers.items() if isinstance(key, str)}
        message = IggyMessage(octets(case.input["payload"]), headers)
        wanted[case.id] = in_python(message)
        rows.append((case.id, bytearray(encode_headers(headers, layout=layout)), bytearray(message.payload)))
    assert len(rows) > 40
    event = from_iggy(col("headers"), col("data"), layout=layout)
    found = spark.createDataFrame(rows, SCHEMA).select("id", event.alias("event")).select("id", *flat(col("event")))
    differences = {row["id"]: compare(wanted[row["id"]], row) for row in found.collect()}
    assert differences == dict.fromkeys(wanted, "")


@needs_arrow_functions
def test_malformed_header_maps(spark: SparkSession) -> None:
    """The struct has the error code of the fixture, and NULL in all other fields."""
    cases = [case for case in load_cases(["iggy-headers"]) if case.op == "wire.iggy.decode_headers"]
    cases = [case for case in cases if "layout" not in case.input and "error" in case.source]
    rows = [(case.id, bytearray(octets(case.input["block"])), bytearray(b"x")) for case in cases]
    assert len(rows) > 30
    events = spark.createDataFrame(rows, SCHEMA).select("id", from_iggy("headers", "data").alias("event"))
    nothing = dict.fromkeys(EVENT.names)
    found = {row["id"]: row["event"].asDict() for row in events.collect()}
    assert found == {case.id: {**nothing, "error": case.source["error"]} for case in cases}


@needs_arrow_functions
def test_iggy_and_nats_give_the_same_struct(spark: SparkSession) -> None:
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


@needs_arrow_functions
def test_null_headers_and_payload(spark: SparkSession) -> None:
    minimal = bytearray(encode_headers(to_iggy_message(plain_event(b"x")).headers))
    rows = [("none", None, None), ("headers", minimal, None)]
    events = spark.createDataFrame(rows, SCHEMA).select("id", from_iggy(col("headers"), col("data")).alias("event"))
    found = {row["id"]: row["event"] for row in events.collect()}
    assert found["none"]["error"] == "not-a-cloudevent"
    assert (found["headers"]["attributes"]["id"], found["headers"]["data"]) == ("1", None)


def test_invalid_layout() -> None:
    with pytest.raises(ValueError, match=r"^layout must be .*, got 'typed'$"):
        from_iggy(lit(b""), lit(b""), layout="typed")


def test_outcomes_as_arrow() -> None:
    """A batch of events and errors becomes an array of structs."""
    message = to_iggy_message(plain_event(b64decode("AP8="), time="0001-01-01T00:00:00+01:00"))
    outcomes = [
        (from_iggy_message(message, parse_data=False), ContentMode.BINARY),
        DecodeError(ErrorCode.NOT_A_CLOUDEVENT, "nothing"),
    ]
    array = neighbours.outcome_array(outcomes)
    assert array.type == ARROW_EVENT
    first, second = array.to_pylist()
    assert first["data"] == b"\0\xff"
    assert first["attributes"]["time"] is None  # before year 1 in UTC
    assert first["attributes"]["time_text"] == "0001-01-01T00:00:00+01:00"
    assert first["is_json"] is False
    assert second == {**dict.fromkeys(EVENT.names), "error": "not-a-cloudevent"}
    assert neighbours.outcome_array([]).equals(pa.array([], ARROW_EVENT))


# --- NATS Streaming ---------------------------------------------------------------------------------------------------

EVENT_BYTES = b'{"specversion":"1.0","id":"7","source":"/orders","type":"t","data":{"total": 12.50}}'


def streamed_in_python(message: bytes) -> Any:
    try:
        return from_nats_message(
            NatsMessage(data=MsgProto.decode(message).data), mode=ContentMode.STRUCTURED, parse_data=False
        )
    except DecodeError as error:
        return str(error.code)


def differences(spark: SparkSession, messages: dict[str, bytes]) -> dict[str, str]:
    frame = spark.createDataFrame([(name, bytearray(data)) for name, data in messages.items()], "id string, m binary")
    found = frame.select("id", from_stan(col("m")).alias("event")).select("id", *flat(col("event"))).collect()
    assert len(found) == len(messages)
    wrong = {row["id"]: compare(streamed_in_python(messages[row["id"]]), row) for row in found}
    return {name: difference for name, difference in wrong.items() if difference}


def structured_cases() -> list[Case]:
    cases = [case for case in load_cases(["structured-mode"]) if case.op == "from_nats_message"]
    return [case for case in cases if "data" in case.input and "extension_types" not in case.input]


@needs_arrow_functions
def test_events_of_stan(spark: SparkSession) -> None:
    """All payloads of the fixtures of structured mode, in messages of NATS Streaming."""
    messages = {
        case.id: MsgProto(sequence=9, subject="orders", data=octets(case.input["data"]), timestamp=1).encode()
        for case in structured_cases()
    }
    assert len(messages) > 100
    assert differences(spark, messages) == {}


@needs_arrow_functions
def test_messages_of_stan(spark: SparkSession) -> None:
    """Malformed messages have the error code of the fixture; the others have payloads that are not events."""
    cases = [case for case in load_cases(["stan-messages"]) if case.op == "wire.stan.decode"]
    cases = [case for case in cases if case.input["message"] == "MsgProto"]
    messages = {case.id: octets(case.input["data"]) for case in cases}
    assert sum("error" in case.source for case in cases) > 30
    assert differences(spark, messages) == {}
    rows = [(case.id, bytearray(messages[case.id])) for case in cases if "error" in case.source]
    events = spark.createDataFrame(rows, "id string, m binary").select("id", from_stan(col("m")).alias("event"))
    nothing = dict.fromkeys(EVENT.names)
    assert {row["id"]: row["event"].asDict() for row in events.collect()} == {
        case.id: {**nothing, "error": case.source["error"]} for case in cases if "error" in case.source
    }


@needs_arrow_functions
def test_stan_and_nats_give_the_same_struct(spark: SparkSession) -> None:
    row = (bytearray(MsgProto(1, "orders", data=EVENT_BYTES).encode()), bytearray(EVENT_BYTES))
    frame = spark.createDataFrame([row], "stan binary, nats binary")
    headers = lit(None).cast("array<struct<key string, value string>>")
    both = frame.select(from_stan(col("stan")).alias("stan"), from_nats(headers, col("nats")).alias("nats"))
    assert both.schema["stan"].dataType == both.schema["nats"].dataType == EVENT
    found = both.collect()[0]
    assert (found["stan"]["attributes"]["id"], found["stan"]["data"]) == ("7", b'{"total": 12.50}')
    assert found["stan"] == found["nats"]


@needs_arrow_functions
def test_null_is_an_empty_message(spark: SparkSession) -> None:
    events = spark.createDataFrame([(None,), (bytearray(),)], "m binary").select(from_stan(col("m"))["error"])
    assert [row[0] for row in events.collect()] == ["invalid-json"] * 2


@pytest.fixture
def migrated() -> Any:
    """A stream as created by the tool stan2js: messages have three headers, and no Content-Type."""
    payloads = [EVENT_BYTES, b"not an event"]

    async def fill(url: str) -> None:
        async with await nats_py.connect(url) as nc:
            js = nc.jetstream()
            await js.add_stream(name="ORDERS", subjects=["orders"])
            for number, payload in enumerate(payloads, 1):
                headers = {
                    "Nats-Streaming-Channel": "orders",
                    "Nats-Streaming-Sequence": str(number),
                    "Nats-Streaming-Timestamp": "2023-02-03T04:05:06.789+01:00",
                }
                await js.publish("orders", payload, headers=headers)

    with NatsServer(jetstream=True) as server:
        asyncio.run(fill(server.url))
        yield server.url


def test_a_stream_migrated_by_stan2js_is_decoded(spark: SparkSession, migrated: str) -> None:
    register(spark, functions=False)
    table = spark.read.format("nats").option("url", migrated).option("stream", "ORDERS").load()
    first, second = explode_cloudevents(table).orderBy("sequence").collect()
    assert (first["ce_error"], first["ce_id"], first["ce_data"]) == (None, "7", b'{"total": 12.50}')
    assert (second["ce_error"], second["ce_id"]) == ("not-a-cloudevent", None)
