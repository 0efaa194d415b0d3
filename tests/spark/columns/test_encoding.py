"""to_nats returns the message of to_nats_message, or its error code: fixtures, random events, round trips."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from ce_nats import DecodeError, EncodeError, NatsMessage, Timestamp, from_nats_message, to_nats_message
from ce_nats.arrow._decode import ATTRIBUTES
from ce_nats.codec import media_type
from ce_nats.codec._nesting import MAX_LEVELS
from ce_nats.codec.attributes import canonical
from ce_nats.codec.data import JsonText
from ce_nats.codec.media_type import DataKind
from ce_nats.conformance import Case, load_cases
from ce_nats.conformance._cases import octets, text
from ce_nats.spark import from_nats, register, to_nats
from ce_nats.spark.columns._schema import EVENT
from tests.support.needs import needs_arrow_functions
from tests.support.spark_rows import SCHEMA, chosen, message
from tests.support.strategies import attempt

MODES = ("binary", "structured")
TYPES = {"Boolean": BooleanType(), "Integer": LongType(), "Binary": BinaryType(), "Timestamp": TimestampType()}
TEXTS = MapType(StringType(), StringType())
# A Python dict would lose its order in a map column.
PAIRS = ArrayType(StructType([StructField("name", StringType()), StructField("text", StringType())]))

# Cases that a row cannot hold, with reasons.
_STRING = "an attribute of the specification is a STRING column"
_NO_TYPE = "a column of this type is an error before any row is encoded, see test_invalid_event_types"
_SURROGATE = "a STRING column cannot hold a surrogate"
NOT_IN_A_ROW = {
    "encode-float-extension": _NO_TYPE,
    "encode-whole-float-extension": _NO_TYPE,
    "encode-array-extension": _NO_TYPE,
    "encode-object-extension": _NO_TYPE,
    "native-float-to-be-sent": _NO_TYPE,
    "native-array-to-be-sent": _NO_TYPE,
    "native-object-to-be-sent": _NO_TYPE,
    "encode-numeric-id": _STRING,
    "encode-object-id": _STRING,
    "encode-boolean-source": _STRING,
    "encode-numeric-specversion": _STRING,
    "encode-numeric-time": _STRING,
    "encode-array-subject": _STRING,
    "native-id-to-be-sent": _STRING,
    "native-source-to-be-sent": _STRING,
    "native-specversion-to-be-sent": _STRING,
    "native-type-to-be-sent": _STRING,
    "native-subject-to-be-sent": _STRING,
    "native-datacontenttype-to-be-sent": _STRING,
    "native-time-to-be-sent": _STRING,
    "encode-lone-surrogate": _SURROGATE,
    "encode-data-lone-surrogate-text": _SURROGATE,
    "encode-data-lone-surrogate-json": _SURROGATE,
    "character-lone-surrogate-to-be-sent": _SURROGATE,
    "write-lone-surrogate-in-data": _SURROGATE,
    "write-lone-surrogate-in-text": _SURROGATE,
    "integer-of-64-bits-to-be-sent": "BIGINT has 64 bits with the sign",
}


class Event(NamedTuple):
    """The event that to_nats_message gets for a row."""

    attributes: Mapping[str, Any]
    data: Any
    has_data: bool
    is_json: bool = False

    def get_attributes(self) -> Mapping[str, Any]:
        return self.attributes

    def get_data(self) -> Any:
        return self.data


def in_python(event: Any, mode: str) -> Any:
    """Headers and data, or an error code."""
    try:
        made = to_nats_message(event, mode=mode)
    except EncodeError as error:
        return str(error.code)
    return made.headers.items(), made.data


def in_spark(row: Row) -> Any:
    if row["error"] is not None:
        assert row["headers"] is None
        assert row["data"] is None
        return row["error"]
    return [tuple(header) for header in row["headers"]], bytes(row["data"])


def same(wanted: Any, found: Any, *, as_json: bool) -> bool:
    if isinstance(wanted, str) or isinstance(found, str):
        return bool(wanted == found)
    return bool(wanted[0] == found[0] and (wanted[1] == found[1] or (as_json and _json(*wanted) == _json(*found))))


def _json(headers: Any, payload: bytes) -> Any:
    return json.loads(payload) if payload else None


# --- Fixtures -------------------------------------------------------------------------------------------------------


class Held(NamedTuple):
    """A case as a row: typed extensions become fields of ``attributes``, others entries of the map."""

    case: Case
    mode: str
    core: dict[str, str]
    typed: dict[str, tuple[DataType, Any]]
    extensions: dict[str, str | None]
    kind: DataType
    data: Any

    def row(self, types: Mapping[str, DataType]) -> tuple[Any, ...]:
        core = [self.core.get(name) if name != "time" else None for name in ATTRIBUTES]
        typed = [self.typed[name][1] if name in self.typed else None for name in types]
        data = json.dumps(self.data) if isinstance(self.kind, VariantType) else self.data
        return self.case.id, (*core, self.core.get("time"), *typed), list(self.extensions.items()), data

    def event(self, types: Mapping[str, DataType]) -> Event:
        """The event, with attributes in the order of the row."""
        core = {name: self.core[name] for name in ATTRIBUTES if name in self.core}
        typed = {name: self.typed[name][1] for name in types if name in self.typed}
        data = bytes(self.data) if isinstance(self.data, bytearray) else self.data
        has_data = "absent" not in self.case.input["event"]["data"]
        return Event({**core, **typed, **self.extensions}, data, has_data)


class Group(NamedTuple):
    """Cases that fit in one event type."""

    mode: str
    kind: DataType
    types: dict[str, DataType]
    cases: list[Held]

    def takes(self, one: Held) -> bool:
        fits = all(self.types.get(name, kind) == kind for name, (kind, _) in one.typed.items())
        return (self.mode, self.kind) == (one.mode, one.kind) and fits


def held(case: Case) -> Held:
    core, typed, extensions = {}, {}, {}
    for name, tagged in case.input["event"]["attributes"].items():
        value = tagged["native"] if "native" in tagged else text(tagged["value"])
        kind = TYPES.get(tagged.get("type", "Integer" if isinstance(value, int) else "String"))
        if name in ATTRIBUTES:
            core |= {} if value is None else {name: value}
        elif kind is None:
            extensions[name] = value
        else:
            typed[name] = (kind, _typed(kind, value))
    kind, data = _data(case.input["event"]["data"], core.get("datacontenttype"))
    return Held(case, case.input.get("mode", "binary"), core, typed, extensions, kind, data)


def _typed(kind: DataType, value: Any) -> Any:
    if isinstance(kind, BooleanType):
        return value == "true"
    if isinstance(kind, BinaryType):
        return octets({"base64": value})
    if isinstance(kind, TimestampType):
        at = Timestamp(value)
        return datetime(*at.timetuple()[:6], at.microsecond, at.tzinfo).astimezone(timezone.utc)
    return int(value)


def _is_json(content_type: str | None) -> bool:
    """Return whether a STRING with this datacontenttype is JSON text."""
    kind = media_type.parse(content_type) if content_type is not None else None
    return content_type is None or (kind is not None and kind.kind is DataKind.JSON)


def _data(spelling: Any, content_type: str | None) -> tuple[DataType, Any]:
    if "absent" in spelling:
        return BinaryType(), None
    if "json" in spelling:
        return VariantType(), spelling["json"]
    if "text" in spelling:
        # A JSON string is a VARIANT, because a STRING is JSON text.
        return VariantType() if _is_json(content_type) else StringType(), text(spelling["text"])
    return BinaryType(), bytearray(octets(spelling))


def cases_in_rows() -> list[Held]:
    """All encode cases, except those with other arguments of to_nats_message and those that a row cannot hold."""
    cases = [case for case in load_cases() if case.op == "to_nats_message" and case.input.keys() <= {"event", "mode"}]
    known = {case.id for case in cases}
    assert NOT_IN_A_ROW.keys() <= known
    return [held(case) for case in cases if case.id not in NOT_IN_A_ROW]


def groups_of(cases: list[Held]) -> list[Group]:
    """Cases in few groups, because Spark plans a query for each."""
    groups: list[Group] = []
    for one in cases:
        group = next((group for group in groups if group.takes(one)), None)
        if group is None:
            group = Group(one.mode, one.kind, {}, [])
            groups.append(group)
        group.types.update({name: kind for name, (kind, _) in one.typed.items()})
        group.cases.append(one)
    return groups


def messages_of(spark: SparkSession, group: Group) -> DataFrame:
    typed = [StructField(name, kind) for name, kind in group.types.items()]
    attributes = StructField("attributes", StructType([*EVENT["attributes"].dataType.fields, *typed]))
    is_variant = isinstance(group.kind, VariantType)
    given = StructType([StructField("id", StringType()), attributes, StructField("pairs", PAIRS)])
    given = given.add("data", StringType() if is_variant else group.kind)
    frame = spark.createDataFrame([one.row(group.types) for one in group.cases], given)
    data = F.parse_json("data").alias("data") if is_variant else F.col("data")
    event = F.struct("attributes", F.map_from_entries("pairs").alias("extensions"), data)
    shape = StructType([attributes, StructField("extensions", TEXTS), StructField("data", group.kind)])
    return frame.select("id", to_nats(event, content_mode=group.mode, event_type=shape).alias("message"))


@needs_arrow_functions
def test_encode_fixtures(spark: SparkSession) -> None:
    groups = groups_of(cases_in_rows())
    assert sum(len(group.cases) for group in groups) > 170
    wrong = []
    for group in groups:
        found = {row["id"]: in_spark(row["message"]) for row in messages_of(spark, group).collect()}
        for one in group.cases:
            wanted = in_python(one.event(group.types), one.mode)
            as_json = one.mode == "structured" or isinstance(one.kind, VariantType)
            if not same(wanted, found[one.case.id], as_json=as_json):
                wrong.append(f"{one.case.id}: {wanted} is {found[one.case.id]} in Spark")
    assert not wrong, "\n".join(wrong)


# --- Random events --------------------------------------------------------------------------------------------------

CODES = (
    "none",
    "missing-attribute",
    "empty-attribute",
    "invalid-attribute-name",
    "invalid-character",
    "unsupported-specversion",
    "invalid-media-type",
    "invalid-timestamp",
    "invalid-uri",
    "invalid-data",
    "unsupported-charset",
)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
GIVEN = (
    "n int, attributes struct<specversion string, id string, source string, type string, subject string,"
    " datacontenttype string, dataschema string, time_text string>, micros long,"
    " pairs array<struct<name string, text string>>, is_json boolean, binary binary, string string, json string"
)
CHARACTERS = [
    *"aZ09-._~!#$&'()*+,/:;<=>?@[]^`{|}",
    *' "%\\',
    *("%41", "%zz", "\\u001F", '\\"', "ü", "ß", "é", "€", "\u2028", "\ufffd", "\ufeff", "\u0378", "😀", "\U0010fffd"),
]
ILLEGAL = ["\0", "\x0b", "\x1f", "\r\n", "\x7f", "\x85", "\ufdd0", "\uffff", "\U0001fffe", "\U0010ffff"]
CONTENT_TYPES = [
    *("application/json", "a/b+JSON", "application/json; charset=utf-8", "text/json;charset=latin-1"),
    *("text/plain", "text/plain; charset=us-ascii", 'a/b;CHARSET="iso-8859-1"', "text/x;", "text/plain;charset=utf-16"),
    *("text/plain;charset=utf8", "text/plain;charset=klingon", "image/png", "application/xml"),
]
TIMES = [
    *("2020-01-02T03:04:05Z", "2020-01-02t03:04:05.123456789z", "2016-12-31T23:59:60+00:00"),
    "0001-01-01T00:00:00-23:59",
    *("2020-02-30T00:00:00Z", "2016-12-30T23:59:60Z", "2020-01-02 03:04:05Z", "2020-01-02T03:04:05"),
    "0000-01-01T00:00:00Z",
]
JSON_VALUES = [None, True, 0, -1.5, 2**63, 1e22, "", "ü\x1f\x7f\\", [], [1, [None]], {"b": {"a": "\u2028"}, "a": 0.1}]


class Drawn(NamedTuple):
    """A random event, valid in about half of all cases."""

    core: dict[str, str]
    time_text: str | None
    micros: int | None
    extensions: dict[str, str | None]
    is_json: bool | None
    data: dict[str, Any]

    def event(self, kind: str) -> Event:
        attributes: dict[str, Any] = {name: self.core[name] for name in ATTRIBUTES if name in self.core}
        if self.time_text is not None or self.micros is not None:
            time = self.time_text if self.micros is None or self.time_text is not None else _at(self.micros)
            after = [name for name in ("datacontenttype", "dataschema") if name in attributes]
            attributes["time"] = time
            attributes |= {name: attributes.pop(name) for name in after}
        value = self.data[kind]
        if kind == "json":
            return Event({**attributes, **self.extensions}, json.loads(value or "null"), value is not None)
        all_attributes = {**attributes, **self.extensions}
        if kind == "string" and value is not None and _is_json(all_attributes.get("datacontenttype")):
            value = JsonText(value)
        return Event({**attributes, **self.extensions}, value, value is not None, bool(self.is_json))


def _at(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def draw(random: Random) -> Drawn:
    def words(minimum: int = 1) -> str:
        found = "".join(
            random.choices(CHARACTERS[:34] if random.random() < 0.5 else CHARACTERS, k=random.randint(minimum, 9))
        )
        return found + random.choice(ILLEGAL) if random.random() < 0.01 else found

    def maybe(value: Any, likely: float = 0.5) -> Any:
        return value if random.random() < likely else None

    core = {
        "specversion": maybe(random.choice(["1.0"] * 40 + ["1.1", "", "1.0 "]), 0.98),
        "id": maybe(words(random.random() > 0.02), 0.98),
        "source": maybe(words(random.random() > 0.02), 0.98),
        "type": maybe(words(random.random() > 0.02), 0.98),
        "subject": maybe(words(random.random() > 0.02)),
        "datacontenttype": maybe(random.choice([*CONTENT_TYPES * 3, "", "json", "text/ü", "text/plain\n"]), 0.7),
        "dataschema": maybe(random.choice(["urn:x", "HTTP://a b", "a+1.-:ü", "/rel", "", ":x"] + ["x:"] * 12), 0.3),
    }
    names = [random.choice(["ext", "a1", "0", "sequence", "x" * 30]) for _ in range(random.randint(0, 3))]
    names += [random.choice(["Ext", "a-b", "", "data", "ü", "x\n"])] if random.random() < 0.04 else []
    free = [name for name in (*core, "time") if core.get(name) is None and name != "time"]
    names += random.sample(free, 1) if free and random.random() < 0.05 else []
    extensions = {name: maybe(words(0), 0.98) for name in names}
    micros = random.choice([random.randint(-62_135_596_800_000_000, 253_402_300_799_999_999), -1, 0, 10**15])
    return Drawn(
        {name: text for name, text in core.items() if text is not None},
        maybe(random.choice(TIMES[: random.choice([4, 4, 9])]), 0.3),
        maybe(micros, 0.5),
        extensions,
        maybe(random.random() < 0.5),
        {
            "binary": maybe(random.randbytes(random.randint(0, 70)), 0.8),
            "string": maybe(random.choice([words(0) + random.choice(["", *ILLEGAL]), *_json_texts(random)]), 0.8),
            "json": maybe(json.dumps(random.choice(JSON_VALUES)), 0.8),
        },
    )


def _json_texts(random: Random) -> list[str]:
    """Return a JSON text in two styles, which may be truncated."""
    value = random.choice(JSON_VALUES)
    texts = [json.dumps(value, ensure_ascii=False), json.dumps(value, indent=1) + "\n"]
    return [text[: -random.randint(1, 2)] if random.random() < 0.1 else text for text in texts]


def drawn_frame(spark: SparkSession, drawn: list[Drawn]) -> tuple[DataFrame, dict[str, DataType]]:
    """One event column for each kind of data."""
    core = ("specversion", "id", "source", "type", "subject", "datacontenttype", "dataschema")
    rows = [
        (
            number,
            (*(one.core.get(name) for name in core), one.time_text),
            one.micros,
            list(one.extensions.items()),
            one.is_json,
            one.data["binary"],
            one.data["string"],
            one.data["json"],
        )
        for number, one in enumerate(drawn)
    ]
    frame = spark.createDataFrame(rows, GIVEN)
    fields = {name: F.col("attributes")[name] for name in (*core, "time_text")} | {"time": F.timestamp_micros("micros")}
    attributes = F.struct(*(fields[name].alias(name) for name in EVENT["attributes"].dataType.names))
    data = {"binary": F.col("binary"), "string": F.col("string"), "json": F.parse_json("json")}
    events = {
        kind: F.struct(
            attributes.alias("attributes"),
            F.map_from_entries("pairs").alias("extensions"),
            value.alias("data"),
            *([F.col("is_json")] if kind == "binary" else []),
        ).alias(kind)
        for kind, value in data.items()
    }
    frame = frame.select("n", *events.values())
    return frame, {kind: frame.schema[kind].dataType for kind in events}


@needs_arrow_functions
def test_random_events(spark: SparkSession) -> None:
    """Thousands of events, each in both modes and with its data as bytes, text and JSON."""
    random = Random(20_240_607)
    drawn = [draw(random) for _ in range(1_000)]
    frame, types = drawn_frame(spark, drawn)
    wanted = [(mode, kind) for mode in MODES for kind in types]
    encoded = (
        to_nats(F.col(kind), content_mode=mode, event_type=types[kind]).alias(mode + kind) for mode, kind in wanted
    )
    messages = frame.select("n", *encoded)
    codes: Counter[str] = Counter()
    for row in messages.collect():
        for mode, kind in wanted:
            event, found = drawn[row["n"]].event(kind), in_spark(row[mode + kind])
            made = in_python(event, mode)
            assert same(made, found, as_json=mode == "structured" or kind == "json"), (mode, event, made, found)
            if kind == "string" and not isinstance(made, str):
                assert made == found  # equal bytes
            codes[made if isinstance(made, str) else "none"] += 1
    assert codes["none"] > 2_000
    assert set(codes) == set(CODES)


# --- Round trips ----------------------------------------------------------------------------------------------------


@needs_arrow_functions
def test_decoded_events_are_encoded_as_python_does(spark: SparkSession) -> None:
    """The decode fixtures are decoded by from_nats, encoded by to_nats, and decoded again."""
    given = [(case.id, *message(case)) for case in chosen()]
    frame = spark.createDataFrame([(name, pairs, bytearray(data)) for name, pairs, data in given], SCHEMA)
    frame = frame.select("id", from_nats(F.col("headers"), F.col("data")).alias("event"))
    frame = frame.select("id", "event", *(to_nats(F.col("event"), content_mode=mode).alias(mode) for mode in MODES))
    again = (from_nats(F.col(mode)["headers"], F.col(mode)["data"]).alias(f"{mode}_again") for mode in MODES)
    found = {row["id"]: row for row in frame.select("*", *again).collect()}
    for name, pairs, payload in given:
        row = found[name]
        event, error = attempt(
            DecodeError, from_nats_message, SimpleNamespace(headers=pairs, data=payload), parse_data=False
        )
        if error is not None:
            assert {row[mode]["error"] for mode in MODES} == {str(error.code)}, name
            continue
        if event.has_data and not isinstance(event.get_data(), bytes):
            assert {row[mode]["error"] for mode in MODES} == {str(event.data_error.code)}, name
            continue
        attributes = event.get_attributes()
        # Only JSON events have typed extensions, and a row does not keep the types.
        texts = {key: value if key in ATTRIBUTES else canonical(value) for key, value in attributes.items()}
        texts = {key: texts[key] for key in sorted(texts, key=lambda key: _place(key))}
        for mode in MODES:
            wanted = in_python(Event(texts, event.get_data(), event.has_data, event.is_json), mode)
            assert in_spark(row[mode]) == wanted, (name, mode)
            back = row[f"{mode}_again"]
            assert back["attributes"] == _typed_row(row["event"]["attributes"], back), (name, mode)
            assert back["extensions"] == row["event"]["extensions"], (name, mode)
            assert (back["data"] or None) == (row["event"]["data"] or None), (
                name,
                mode,
            )  # empty is absent


def _place(name: str) -> int:
    return ATTRIBUTES.index(name) if name in ATTRIBUTES else len(ATTRIBUTES)


def _typed_row(attributes: Row, back: Row) -> Row:
    """The attributes of an event; encoding adds the datacontenttype if it is missing and the data is JSON."""
    values = attributes.asDict()
    if values["datacontenttype"] is None:
        values["datacontenttype"] = back["attributes"]["datacontenttype"]
        assert values["datacontenttype"] in (None, "application/json")
    return Row(**values)


# --- JSON text --------------------------------------------------------------------------------------------------------

JSON_TEXTS = [
    '{"total":12.50,"n":12345678901234567890.12345678901234567890}',
    *('"text"', "null", "true", "1e2", ' [1, {"a": null}]\n', '"\\u00e9\\ud83d\\ude00 \U0001f600"', '{"a":1,"a":2}'),
    "[]",
    "[" * MAX_LEVELS + "]" * MAX_LEVELS,
]
NOT_JSON = [
    *("", " ", "text", '{"a":1', "{'a':1}", '{"a":NaN}', "1e999", "[1] x", "01", '"\\ud800"', '"\t"', "\ufeff1", "1,2"),
    "[" * (MAX_LEVELS + 1) + "]" * (MAX_LEVELS + 1),
    '1}, "id": "2", "data": {"a": 1',
]
NAMED_CORE = "'specversion', '1.0', 'id', '1', 'source', '/s', 'type', 't'"
JSON_TYPES = [None, "application/json", "text/JSON; charset=utf-8", "application/vnd.acme+json"]


def text_events(spark: SparkSession, texts: list[str]) -> tuple[DataFrame, DataType]:
    """A row for each text and media type, with an event that has the text as STRING data."""
    rows = [(number, text, kind) for number, text in enumerate(texts) for kind in JSON_TYPES]
    frame = spark.createDataFrame(rows, "n int, text string, type string")
    attributes = F.expr(f"named_struct('datacontenttype', type, {NAMED_CORE})")
    event = F.struct(attributes.alias("attributes"), F.col("text").alias("data"))
    frame = frame.withColumn("event", event)
    return frame, frame.schema["event"].dataType


@needs_arrow_functions
def test_json_text_is_sent_verbatim(spark: SparkSession) -> None:
    """It is decoded to its value in both modes; without a datacontenttype, application/json is added."""
    frame, kind = text_events(spark, JSON_TEXTS)
    messages = frame.select("*", *(to_nats("event", content_mode=mode, event_type=kind).alias(mode) for mode in MODES))
    again = [from_nats(F.col(mode)["headers"], F.col(mode)["data"]).alias(f"{mode}_again") for mode in MODES]
    rows = messages.select("*", *again).collect()
    assert len(rows) == len(JSON_TEXTS) * len(JSON_TYPES)
    for row in rows:
        wanted = row["text"].encode()
        assert row["binary"]["data"] == wanted
        assert b',"data":' + wanted + b"}" in row["structured"]["data"]
        for mode in MODES:
            headers, data = in_spark(row[mode])
            event = from_nats_message(NatsMessage(data=data, headers=headers))
            assert event.get_data() == json.loads(row["text"])
            assert event.get_datacontenttype() == (row["type"] or "application/json")
            found = row[f"{mode}_again"]
            assert found["data"].strip() == wanted.strip()  # white space around a member of an object is not part of it


@needs_arrow_functions
@pytest.mark.parametrize("mode", MODES)
def test_text_that_is_not_json_is_an_error(spark: SparkSession, mode: str) -> None:
    frame, kind = text_events(spark, NOT_JSON)
    rows = frame.select("text", "type", to_nats("event", content_mode=mode, event_type=kind).alias("message")).collect()
    assert len(rows) == len(NOT_JSON) * len(JSON_TYPES)
    assert [row for row in rows if in_spark(row["message"]) != "invalid-data"] == []


@needs_arrow_functions
@pytest.mark.parametrize("mode", MODES)
def test_strings_of_json_and_text(spark: SparkSession, mode: str) -> None:
    """Structs by to_json(), strings as VARIANT, JSON text as BINARY, and text that is not JSON by its media type."""
    json_type, text_type = f"{CORE}, 'application/json' datacontenttype", f"{CORE}, 'text/plain' datacontenttype"
    cases: list[tuple[str, str, Any]] = [
        (json_type, "to_json(named_struct('total', 12.50BD))", {"total": 12.5}),
        (json_type, "to_json(map('a', array(1, null)))", {"a": [1, None]}),
        (json_type, "to_json(parse_json('[1.50]'))", [1.5]),
        (json_type, "cast('a \"b\"' as variant)", 'a "b"'),
        (json_type, "cast('{}' as variant)", "{}"),
        (json_type, "cast('{\"a\": 1.50}' as binary)", {"a": 1.5}),
        (text_type, "'{}'", "{}"),
        (text_type, "'text'", "text"),
    ]
    messages = made(spark, *(struct(attributes, f", 'data', {data}") for attributes, data, _ in cases), mode=mode)
    found = [from_nats_message(NatsMessage(data=payload, headers=headers)).get_data() for headers, payload in messages]
    assert found == [wanted for *_, wanted in cases]


@needs_arrow_functions
@pytest.mark.parametrize(("function", "place"), [("to_nats", b"%s"), ("to_nats_structured", b',"data":%s}')])
def test_json_text_in_sql(spark: SparkSession, function: str, place: bytes) -> None:
    register(spark)
    event = struct(CORE, ", 'data', to_json(named_struct('total', 12.50BD))")
    (row,) = spark.sql(f"SELECT {function}({event}) AS message").collect()
    assert place % b'{"total":12.50}' in row["message"]["data"]
    event = struct(CORE, ", 'data', 'text'")
    (row,) = spark.sql(f"SELECT {function}({event}).error").collect()
    assert row[0] == "invalid-data"


@needs_arrow_functions
@pytest.mark.parametrize("mode", MODES)
def test_data_of_decoded_events_as_string(spark: SparkSession, mode: str) -> None:
    """JSON of any captured event can be sent as STRING: in structured mode it is data instead of data_base64."""
    given = [([*JSON_EVENT_HEADERS], b'{"n": 1.50}'), ([], STRUCTURED_EVENT % b'{"n": 1.50}')]
    frame = spark.createDataFrame([(pairs, bytearray(data)) for pairs, data in given], SCHEMA.partition(", ")[2])
    event = from_nats("headers", "data")
    frame = frame.select(event.alias("event")).select(
        F.col("event").withField("data", F.col("event.data").cast("string")).alias("event")
    )
    kind = frame.schema["event"].dataType
    for row in frame.select(to_nats("event", content_mode=mode, event_type=kind).alias("message")).collect():
        headers, payload = in_spark(row["message"])
        assert (payload if mode == "binary" else payload.partition(b',"data":')[2]).startswith(b'{"n": 1.50}')
        assert from_nats_message(NatsMessage(data=payload, headers=headers)).get_data() == {"n": 1.5}


JSON_EVENT_HEADERS = [
    *(("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t")),
    ("ce-datacontenttype", "application/json"),
]
STRUCTURED_EVENT = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":%s}'

# --- Single rows ----------------------------------------------------------------------------------------------------

CORE = "'1.0' specversion, '1' id, '/s' source, 't' type"


def made(spark: SparkSession, *events: str, mode: str = "binary") -> list[Any]:
    """Return the messages, or error codes, of events written in SQL."""
    frame = spark.sql(f"select {', '.join(f'{event} e{place}' for place, event in enumerate(events))}")
    (row,) = frame.select(
        [to_nats(field.name, content_mode=mode, event_type=field.dataType) for field in frame.schema]
    ).collect()
    return [in_spark(message) for message in row]


def struct(attributes: str, rest: str = "") -> str:
    return f"named_struct('attributes', (select struct({attributes})){rest})"


ERRORS = [
    (struct(CORE, ", 'error', 'invalid-utf8'"), "invalid-utf8"),
    (struct(CORE, ", 'error', cast(null as string), 'mode', 'binary'"), None),
    (f"if(rand() < 0, {struct(CORE)}, null)", "invalid-message"),
    (struct(f"{CORE}, '2' x", ", 'extensions', map('x', '3')"), "duplicate-attribute"),
    (struct(f"{CORE}, 's' subject", ", 'extensions', map('a', 'b', 'subject', 's')"), "duplicate-attribute"),
    (struct(f"{CORE}, cast(null as int) x", ", 'extensions', map('x', '3')"), None),
    (struct(f"{CORE}, 2147483648 x"), "integer-out-of-range"),
    (struct(f"{CORE}, timestamp_seconds(300000000000) time"), "invalid-timestamp"),
    (struct(f"{CORE}, timestamp_seconds(300000000000) x"), "invalid-timestamp"),
    (struct(f"{CORE}, cast(X'61ff' as string) subject"), "invalid-character"),
    (struct(CORE, ", 'data', cast(X'61ff' as string)"), "invalid-data"),
    (struct(f"{CORE}, 'text/plain' datacontenttype", ", 'data', cast(X'61ff' as string)"), "invalid-data"),
    (struct("'1.0' specversion"), "missing-attribute"),
    (struct(f"{CORE}, 1Y my_ext"), "invalid-attribute-name"),
]


@needs_arrow_functions
@pytest.mark.parametrize("mode", MODES)
def test_errors(spark: SparkSession, mode: str) -> None:
    events = [event for event, _ in ERRORS]
    found = made(spark, *events, mode=mode)
    codes = [message if isinstance(message, str) else None for message in found]
    assert list(zip(events, codes)) == ERRORS


@needs_arrow_functions
def test_typed_extensions_and_times(spark: SparkSession) -> None:
    time, at = "timestamp'1960-02-29 12:00:00.00125Z'", "timestamp'2020-01-01 00:00:00Z'"
    fields = f"{CORE}, {time} time, true b, -5S n, X'fbff' x, {at} at"
    typed = {"time": "1960-02-29T12:00:00.001250Z", "b": True, "n": -5, "x": "+/8=", "at": "2020-01-01T00:00:00Z"}
    ((headers, payload),) = made(spark, struct(fields), mode="structured")
    assert headers == [("Content-Type", "application/cloudevents+json")]
    assert list(json.loads(payload).items())[4:] == list(typed.items())
    ((headers, payload),) = made(spark, struct(fields))
    assert [value for _, value in headers[4:]] == ["1960-02-29T12:00:00.001250Z", "true", "-5", "+/8=", typed["at"]]
    assert payload == b""


@needs_arrow_functions
def test_base64_is_in_one_line(spark: SparkSession) -> None:
    fold = "spark.sql.legacy.chunkBase64String.enabled"
    spark.conf.set(fold, "true")
    try:
        ((_, payload),) = made(spark, struct(CORE, ", 'data', cast(repeat('a', 100) as binary)"), mode="structured")
    finally:
        spark.conf.unset(fold)
    assert from_nats_message(SimpleNamespace(headers=None, data=payload)).get_data() == b"a" * 100


EXPECTED = (
    "^an event must be struct<attributes:struct<specversion:string,id:string,.*>,extensions:map<string,string>,"
    "data:binary,is_json:boolean,error:string>, got "
)


@pytest.mark.parametrize(
    ("event_type", "reason"),
    [
        ("string", EXPECTED + "string"),
        ("struct<data:binary>", EXPECTED + "struct<data:binary>"),
        ("struct<attributes:map<string,string>>", EXPECTED + "struct<attributes:map<string,string>>"),
        ("struct<attributes:struct<id:int>>", "attribute id must be string, got int"),
        ("struct<attributes:struct<time:timestamp_ntz>>", "attribute time must be timestamp or string, got"),
        ("struct<attributes:struct<x:double>>", "attribute x must be .*, got double"),
        ("struct<attributes:struct<x:array<string>>>", "attribute x must be .*, got array"),
        (
            "struct<attributes:struct<id:string>,extensions:map<string,int>>",
            "values of extensions .*, got int",
        ),
        ("struct<attributes:struct<id:string>,extensions:string>", "extensions of an event must be map, got string"),
        ("struct<attributes:struct<id:string>,data:struct<a:int>>", "data of an event must be binary or string or"),
        ("struct<attributes:struct<id:string>,error:int>", "error of an event must be string, got int"),
    ],
)
def test_invalid_event_types(spark: SparkSession, event_type: str, reason: str) -> None:
    kind = spark.createDataFrame([], f"event {event_type}").schema["event"].dataType
    with pytest.raises(TypeError, match=reason):
        to_nats(F.col("event"), event_type=kind)


def test_invalid_mode(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match=r"^content_mode must be 'binary' or 'structured', got 'batch'$"):
        to_nats(F.col("event"), content_mode="batch")
