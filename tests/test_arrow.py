"""explode_cloudevents over Arrow has the results of from_nats_message, row by row, for all kinds of rows."""

from __future__ import annotations

import runpy
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from ce_nats import ContentMode, DecodeError, EncodeError, ErrorCode, NatsMessage, from_nats_message, to_nats_message
from ce_nats.arrow import _decode as decode_module
from ce_nats.arrow import _explode as explode_module
from ce_nats.arrow import explode_capture, explode_cloudevents
from ce_nats.arrow._decode import Events, combine, decode
from ce_nats.arrow._headers import check_type
from ce_nats.arrow._headers import pairs as pairs_of
from ce_nats.conformance import load_cases
from ce_nats.conformance._cases import octets, text
from ce_nats.message import Headers
from ce_nats.wire.nats import encode_header_block
from tests.support.arrow_rows import CORE, LARGE, OCTETS, TEXTS, Pairs, Row, compare, expected, found, table
from tests.support.damage import damaged, has_only_utf8, in_bytes, with_strange_data
from tests.support.strategies import (
    attempt,
    hostile_payloads,
    mutated_messages,
    plain_event,
    refused,
    timestamp_texts,
    valid_messages,
)
from tests.support.tables import each

BASE = [("ce-specversion", "1.0"), ("ce-id", "a"), ("ce-source", "/s"), ("ce-type", "t")]
JSON_EVENT = b'{"specversion":"1.0","id":"b","source":"/s","type":"t","n":7,"data":[1, 2]}'
STRUCTURED = [("Content-Type", "application/cloudevents+json")]
KINDS = {
    "Boolean": "boolean",
    "Integer": "int",
    "String": "string",
    "Binary": "binary",
    "Timestamp": "timestamp",
}


def check(rows: Sequence[Row], given: pa.Table, extensions: dict[str, str] | None = None) -> Counter[str | None]:
    """Compare all rows with the codec, and return the number of rows by error code."""
    return Counter(one["ce_error"] for one in compare(rows, given, extensions))


def test_few_large_messages_are_decoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The codec would copy each payload, and parse JSON events a second time."""
    text = b'"' + b"x" * decode_module._MIN_BYTES + b'"'
    structured = b'{"specversion":"1.0","id":"b","source":"/s","type":"t","data":' + text + b"}"
    rows: list[Row] = [(BASE, text), (STRUCTURED, structured), (BASE, text), (STRUCTURED, structured)]
    wanted = [expected(row) for row in rows]
    monkeypatch.setattr(decode_module, "from_nats_message", None)
    assert found(explode_cloudevents(table(rows))) == wanted


@each("content_type", [None, "application/json", "text/plain", "a/b+json; charset=latin-1", "a", ""])
def test_data_of_json_events_depends_on_their_content_type(content_type: str | None) -> None:
    rows: list[Row] = []
    for data in ("", ',"data":1', ',"data":"x"', ',"data":{"a": "b"}', ',"data":null', ',"data_base64":"eA=="'):
        kind = "" if content_type is None else f',"datacontenttype":"{content_type}"'
        event = f'{{"specversion":"1.0","id":"b","source":"/s","type":"t"{kind}{data}}}'.encode()
        rows += [(STRUCTURED, event), (None, event.replace(b'"b"', b'"c"'))]
    check(rows, table(rows))
    check(rows, table(rows), {"n": "int"})


@each("count", [1, 2, 3])
def test_events_may_have_several_extensions(count: int) -> None:
    """In headers, and in JSON."""
    rows: list[Row] = []
    for row in range(4):
        texts = {f"x{index}": f"{row}-{index}" for index in range(count)}
        rows.append(([*BASE, *((f"ce-{name}", text) for name, text in texts.items())], b""))
        members = "".join(f',"{name}":"{text}"' for name, text in texts.items())
        rows.append((STRUCTURED, JSON_EVENT.replace(b',"n":7', members.encode())))
    check(rows, table(rows))


def test_data_is_not_parsed_if_types_are_declared() -> None:
    rows: list[Row] = [([*BASE, ("ce-n", "-0"), ("ce-datacontenttype", "application/json")], b"{")]
    check(rows, table(rows), {"n": "int"})


@pytest.mark.parametrize("minimum", [1, 20])
def test_errors_are_those_of_the_codec(monkeypatch: pytest.MonkeyPatch, minimum: int) -> None:
    """Also their texts and attributes."""
    monkeypatch.setattr(decode_module, "_MIN_ROWS", minimum)
    payloads = [*(b"", b" ", b"abc", b"[1]", b'{"a":1}', b'{"a":', b"\xff", JSON_EVENT[:-1]), b'{"id":5}', b"[" * 300]
    rows: list[Row] = [(headers, payload) for payload in payloads for headers in (None, STRUCTURED)]
    longer = [BASE[0], *((name, "abc") for name, _ in BASE[1:])]
    for changed in ("ce-specversion", "ce-id", "ce-source", "ce-type"):
        rows.append(([pair for pair in BASE if pair[0] != changed], b""))
        for other in ("", "%", "é ", "%0A", "%C0", "a\t"):
            rows += [([(name, other if name == changed else value) for name, value in longer], b"")]
    others = [("ce-time", "today"), ("ce-dataschema", "a"), ("Content-Type", "application/cloudevents-batch+json")]
    rows += [([*BASE, pair], b"") for pair in (*others, ("ce-datacontenttype", "a"), ("ce-A", "b"), ("ce-id", "a"))]
    given = table(rows)
    errors = decode(given["headers"].combine_chunks(), given["data"].combine_chunks()).errors
    for row, (headers, payload) in enumerate(rows):
        _, error = attempt(DecodeError, from_nats_message, NatsMessage("", payload or b"", headers or []))
        assert _details(errors.get(row)) == _details(error), rows[row]


def _details(error: Any) -> Any:
    return error and (str(error), error.attribute, error.header, error.requirement)


# --- Shared rows ----------------------------------------------------------------------------------------------------


def test_fixtures() -> None:
    """Every decode fixture that fits in a row, with its declared types."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for case in load_cases():
        if case.op != "from_nats_message" or "mode" in case.input or case.input.get("dialect", "spec") != "spec":
            continue
        pairs = [(text(name), text(value)) for name, value in case.input.get("headers") or []]
        if all(map(_is_text, sum(pairs, ()))):
            row = pairs, octets(case.input.get("data", {"text": ""}))
            groups[tuple(case.input.get("extension_types", {}).items())].append(row)
    assert sum(map(len, groups.values())) > 400
    for types, rows in groups.items():
        extensions = {name: KINDS[kind] for name, kind in types}
        for kind in (TEXTS, OCTETS):
            check(rows, table(rows, kind), extensions)


def test_random_messages() -> None:
    rows = damaged(1_000, 20261122)
    outcomes = check(rows, table(rows))
    assert len(outcomes) > 20
    assert outcomes[None] > 200


def test_random_json_data() -> None:
    rows = with_strange_data(1_500, 20261122)
    outcomes = check(rows, table(rows))
    assert min(outcomes[None], outcomes["invalid-json"]) > 150


def test_random_bytes_in_headers() -> None:
    """Headers may have any bytes; only headers that are used are checked."""
    rows = in_bytes(damaged(700, 20261123), 20261122)
    codes = [one["ce_error"] for one in compare(rows, table(rows, OCTETS))]
    assert min(codes.count(None), codes.count("invalid-utf8")) > 50
    # With bytes that are not UTF-8 in headers that are not used.
    assert sum(code is None and not has_only_utf8(row) for row, code in zip(rows, codes)) > 50


# --- Properties -----------------------------------------------------------------------------------------------------


def as_octets(pairs: Any) -> Pairs:
    return [tuple(part.encode("utf-8", "surrogatepass") for part in pair) for pair in pairs]


_values = st.one_of(
    st.none(),
    st.binary(max_size=4),
    st.sampled_from([b"", b" ", b"1.0", b"%41", b"%", b"\xc3\xbc", b'"a"']),
    timestamp_texts.map(lambda one: one.encode("utf-8", "surrogatepass")),
)


@st.composite
def _changed(draw: st.DrawFn, payload: bytes) -> bytes:
    """Replace a few bytes by others, which mostly leave the JSON valid."""
    others = [b"", b"\xc3\xbc", b"\x7f", b'"', b"\\u0041", b"\\u0000", b" ", b'","id":"2', b'":"", "x":"', b"1.0"]
    place = draw(st.integers(0, len(payload)))
    return payload[:place] + draw(st.sampled_from(others)) + payload[place + draw(st.integers(0, 2)) :]


@st.composite
def batches(draw: st.DrawFn) -> list[Row]:
    """Draw messages, of which several have the same header names, a changed order of names, or a NULL."""
    made: list[Row] = []
    for message in draw(st.lists(st.one_of(valid_messages(), mutated_messages()), max_size=4)):
        pairs = as_octets(message.headers.items() if isinstance(message.headers, Headers) else message.headers)
        made.append((pairs, message.data))
        for _ in range(draw(st.integers(0, 3))):
            other = list(pairs)
            if draw(st.booleans()):  # in JSON, the payload is changed
                made.append((pairs, draw(_changed(message.data))))
            for place in draw(st.sets(st.integers(0, len(pairs) - 1), max_size=2)) if pairs else ():
                name, value = other[place]
                other[place] = draw(st.sampled_from([(name, draw(_values))] * 9 + [(None, value)]))
            made.append((other, draw(st.one_of(st.none(), st.just(message.data), hostile_payloads))))
    made.extend((None, data) for data in draw(st.lists(st.one_of(st.none(), hostile_payloads), max_size=2)))
    return draw(st.permutations(made))


@given(batches(), st.data())
def test_random_batches(rows: list[Row], data: st.DataObject) -> None:
    """Offsets, chunks and batches do not change the result."""
    whole = table(rows, OCTETS)
    start = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(start, len(rows)))
    check(rows[start:end], whole.slice(start, end - start))
    check(rows * 2, pa.concat_tables([whole, whole]))


@given(st.lists(timestamp_texts, min_size=1, max_size=5), st.sampled_from(["string", "timestamp"]))
def test_times(texts: list[str], kind: str) -> None:
    rows = [([*BASE, ("ce-time", one), ("ce-x", one)], b"") for one in texts if _is_text(one)]
    check(rows, table(rows), {"x": kind})


def _is_text(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


@each(
    "time",
    [
        *("0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "0001-01-01T23:59:59.999999Z"),
        *("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-01:00", "2024-02-30T00:00:00Z", "2024-02-29T00:00:00Z"),
        *("2016-12-31T23:59:60Z", "2016-12-30T23:59:60Z", "2020-01-01t00:00:00.123456789z", "2020-01-01 00:00:00Z"),
        *("2020-01-01T00:00:00.1+23:59", "2020-01-01T00:00:00.12345-23:59", "2020-01-01T24:00:00Z", "2020-01-01", ""),
        *("2020-01-01T00:00:00-00:00", "2020-01-01T00:00:00Z\n", "1900-02-29T00:00:00Z", "1582-10-10T00:00:00Z"),
    ],
)
def test_unusual_times_among_common_ones(time: str) -> None:
    common = [([*BASE, ("ce-time", f"2024-05-0{day}T01:02:03.5+02:00")], b"") for day in (1, 2)]
    for rows in ([common[0], ([*BASE, ("ce-time", time)], b""), common[1]], [([*BASE, ("ce-time", time)], b"")]):
        check(rows, table(rows))


# --- Types of columns -----------------------------------------------------------------------------------------------

ROWS: list[Row] = [
    ([*BASE, ("ce-n", "5"), ("ce-subject", "%C3%BC \u20ac")], b"x"),
    (None, None),
    ([], b""),
    ([*BASE, ("ce-id", "twice")], b"x"),
    (STRUCTURED, JSON_EVENT),
    ([("content-type", "application/cloudevents-batch+json")], b"[]"),
    ([("CE-Id", "a"), *BASE[:1], *BASE[2:]], b""),
    (None, JSON_EVENT),
    ([("ce-id", "100%")], b"x"),
    (BASE, None),
]


def to_list(kind: pa.DataType) -> Callable[[Sequence[Row]], pa.Array]:
    return lambda rows: table(rows, kind)["headers"].combine_chunks()


def to_map(rows: Sequence[Row]) -> pa.Array:
    return pa.array([pairs for pairs, _ in rows], pa.map_(pa.string(), pa.string()))


def to_map_of_lists(rows: Sequence[Row]) -> pa.Array:
    made: list[Any] = []
    for pairs, _ in rows:
        values: dict[str, list[str]] = {}
        for name, value in pairs or ():
            values.setdefault(name, []).append(value)
        made.append(None if pairs is None else [*values.items(), ("none", [])])
    return pa.array(made, pa.map_(pa.large_string(), pa.list_(pa.string())))


def to_blocks(rows: Sequence[Row]) -> pa.Array:
    return pa.array([None if pairs is None else encode_header_block(pairs) for pairs, _ in rows], pa.binary())


class Wrapped(pa.ExtensionType):  # type: ignore[misc]
    """A type of another program, with the values of its storage."""

    def __init__(self, storage: pa.DataType) -> None:
        super().__init__(storage, "tests.wrapped")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Wrapped:
        return cls(storage)


def wrapped(array: pa.Array) -> pa.Array:
    return pa.ExtensionArray.from_storage(Wrapped(array.type), array)


def cast_to(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    return lambda array: array.cast(kind)


def categories(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """Return the function for a dictionary of values of a type; Polars has views in it."""

    def encode(array: pa.Array) -> pa.Array:
        encoded = array.dictionary_encode()
        return pa.DictionaryArray.from_arrays(encoded.indices, encoded.dictionary.cast(kind))

    return encode


# Layouts of text, as functions of an array of strings.
LAYOUTS: list[Callable[[pa.Array], pa.Array]] = [
    *map(cast_to, (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())),
    *(cast_to(getattr(pa, name)()) for name in ("binary_view", "string_view") if hasattr(pa, name)),
    *map(categories, (pa.string(), pa.binary())),
    *(categories(getattr(pa, name)()) for name in ("string_view",) if hasattr(pa, name)),
    pc.run_end_encode,
    wrapped,
    lambda array: wrapped(pc.run_end_encode(array)),
    *(cast_to(getattr(pa, name)()) for name in ("json_",) if hasattr(pa, name)),
]


def to_layout(convert: Callable[[pa.Array], pa.Array]) -> Callable[[Sequence[Row]], pa.Array]:
    def make(rows: Sequence[Row]) -> pa.Array:
        texts = table(rows)["headers"].combine_chunks()
        pairs = pa.StructArray.from_arrays(list(map(convert, texts.values.flatten())), names=["k", "v"])
        return pa.ListArray.from_arrays(texts.offsets, pairs, mask=texts.is_null())

    return make


def to_list_view(name: str, kind: pa.DataType) -> Callable[[Sequence[Row]], pa.Array]:
    """Return the function for lists in the order of their values, of the class with this name."""

    def make(rows: Sequence[Row]) -> pa.Array:
        lists = to_layout(cast_to(pa.string()))(rows)
        starts, ends = (offsets.cast(kind) for offsets in (lists.offsets[:-1], lists.offsets[1:]))
        return getattr(pa, name).from_arrays(starts, pc.subtract(ends, starts), lists.values, mask=lists.is_null())

    return make


HEADERS = [to_list(TEXTS), to_list(OCTETS), to_list(LARGE), to_map, to_map_of_lists, to_blocks]
HEADERS += map(to_layout, LAYOUTS)
HEADERS += [
    to_list_view(name, kind)
    for name, kind in (("ListViewArray", pa.int32()), ("LargeListViewArray", pa.int64()))
    if hasattr(pa, name)
]
HEADERS += [lambda rows: wrapped(to_map(rows))]


@each(("make", "convert"), [*product(HEADERS, LAYOUTS[:1]), *product(HEADERS[:1], LAYOUTS[1:])])
def test_types_of_columns(make: Callable[[Sequence[Row]], pa.Array], convert: Callable[[pa.Array], pa.Array]) -> None:
    rows = ROWS * 2
    wanted = [(pairs and [(str(name), value) for name, value in pairs], data) for pairs, data in rows]
    data = convert(pa.array([None if data is None else data.decode() for _, data in rows], pa.string()))
    if make is to_map_of_lists:  # a name occurs once
        wanted[3] = wanted[13] = [*BASE[:2], BASE[1], *BASE[2:]], b"x"
    given = pa.table({"headers": make(rows), "data": data})
    check(wanted, given)
    check(wanted[3:9], given.slice(3, 6))
    (batch,) = given.slice(7).combine_chunks().to_batches()
    assert found(explode_cloudevents(batch)) == [expected(row) for row in wanted[7:]]


@each("size", [4, 5])
def test_columns_of_a_fixed_size(size: int) -> None:
    """Payloads of two bytes, and as many headers in each row, or as many values of each header."""
    given = [*BASE, ("ce-n", "1")][:size]
    rows: list[Row] = [(given, b"ab"), (None, None), (given, b"cd")]
    data = pa.array([data for _, data in rows], pa.binary(2))
    lists = to_layout(cast_to(pa.string()))(rows)
    check(rows, pa.table({"headers": lists.cast(pa.list_(lists.type.value_type, size)), "data": data}))
    values = [None if pairs is None else [(name, [value]) for name, value in pairs] for pairs, _ in rows]
    maps = pa.array(values, pa.map_(pa.string(), pa.list_(pa.string(), 1)))
    check(rows, pa.table({"headers": maps, "data": data}))


@each(
    ("headers", "code"),
    [
        (pa.array([[("a", None)]], pa.map_(pa.string(), pa.string())), "invalid-header-value"),
        (pa.array([[("a", None)]], pa.map_(pa.string(), pa.list_(pa.string()))), "invalid-header-value"),
        (pa.array([[("a", ["x", None])]], pa.map_(pa.string(), pa.list_(pa.string()))), "invalid-header-value"),
        (pa.array([[None]], TEXTS), "invalid-header-name"),
        (pa.array([[{"key": None, "value": None}]], TEXTS), "invalid-header-name"),
        (
            pa.array([[{"key": "a", "value": None}, {"key": None, "value": "b"}]], TEXTS),
            "invalid-header-value",
        ),
        (pa.array([[{"key": b"\xff", "value": b""}]], OCTETS), "not-a-cloudevent"),
        (pa.array([[{"key": b"ce-\xff", "value": b""}]], OCTETS), "invalid-attribute-name"),
        (pa.array([[{"key": b"ce-id", "value": b"\xff"}]], OCTETS), "invalid-utf8"),
        (pa.array([[{"key": b"\xff", "value": None}]], OCTETS), "invalid-header-value"),
        (pa.array([[{"key": b"ce-id", "value": b"\xff"}]], OCTETS).cast(TEXTS, safe=False), "invalid-utf8"),
        (pa.array([b"NATS/1.0\r\nce-id:\xff\r\n\r\n"]), "invalid-utf8"),
        (pa.array([b"NATS/2.0\r\n\r\n"]), "invalid-header-version"),
        (pa.array([b"x"]), "invalid-header-block"),
        (pa.array([b""]), "not-a-cloudevent"),
        (pa.array([b"NATS/1.0 503\r\n\r\n"]), "not-a-cloudevent"),
        (pa.nulls(1), "not-a-cloudevent"),
    ],
)
def test_invalid_headers_are_errors_of_their_rows(headers: pa.Array, code: str) -> None:
    """Only the invalid row has the code."""
    given = pa.table({"headers": headers, "data": [b""]})
    exploded = explode_cloudevents(given)
    assert [code] == exploded["ce_error"].to_pylist()
    good = table([(BASE, b"")]).column("headers").combine_chunks()
    if headers.type == TEXTS:
        both = pa.table({"headers": pa.concat_arrays([good, headers, good]), "data": pa.nulls(3)})
        assert explode_cloudevents(both)["ce_error"].to_pylist() == [None, code, None]


def in_octets(*rows: list[tuple[bytes | None, bytes | None]] | None) -> pa.Array:
    shaped = [row if row is None else [{"key": name, "value": value} for name, value in row] for row in rows]
    return pa.array(shaped, OCTETS)


def test_only_rows_with_other_bytes_than_utf8_are_escaped() -> None:
    """Not those with errors: their pairs are undefined."""
    found = pairs_of(
        in_octets([(b"a", b"b")], [(b"a", b"\xff"), (b"b", b"")], None, [(b"\xff", None)], [(b"\xfe", b"c")])
    )
    assert found.escaped == {1: [("a", "\udcff"), ("b", "")], 4: [("\udcfe", "c")]}
    assert {row: (str(error.code), error.header) for row, error in found.errors.items()} == {
        3: ("invalid-header-value", "\udcff")
    }
    assert [found.of(row) for row in (0, 1, 2, 4)] == [[("a", "b")], found.escaped[1], [], found.escaped[4]]


def test_errors_of_headers_name_the_first_null() -> None:
    found = pairs_of(in_octets([(b"a", b"b")], [(b"c", None), (None, b"d")], [], [(b"e", b"f"), (None, None)]))
    assert {row: (str(error), error.header) for row, error in found.errors.items()} == {
        1: ("invalid-header-value: the value of header 'c' must be a str, got None", "c"),
        3: ("invalid-header-name: a header name must be a str, got None", None),
    }


def test_null_lists_have_no_headers() -> None:
    """Elements in the range of a NULL list are ignored."""
    flat = table([(BASE, b""), (BASE, b"")])["headers"].combine_chunks()
    headers = pa.ListArray.from_arrays(flat.offsets, flat.values, mask=pa.array([True, False]))
    exploded = explode_cloudevents(pa.table({"headers": headers, "data": pa.nulls(2, pa.binary())}))
    assert exploded["ce_error"].to_pylist() == ["not-a-cloudevent", None]
    flat = table([([(None, None)], b""), (BASE, b"")])["headers"].combine_chunks()
    headers = pa.ListArray.from_arrays(flat.offsets, flat.values, mask=pa.array([True, False]))
    exploded = explode_cloudevents(pa.table({"headers": headers, "data": pa.nulls(2, pa.binary())}))
    assert exploded["ce_error"].to_pylist() == ["not-a-cloudevent", None]


@each("kind", [TEXTS, OCTETS, LARGE, pa.binary(), pa.map_(pa.string(), pa.string()), pa.null()])
def test_empty_batches_have_columns(kind: pa.DataType) -> None:
    decoded = decode(pa.array([], kind), pa.array([], pa.binary()), {"n": int})
    assert {name: len(column) for name, column in decoded.columns.items()} == dict.fromkeys(decode_module.TYPES, 0)
    assert (decoded.typed["n"], decoded.errors) == (pa.array([], pa.int32()), {})


@each("kind", [TEXTS, OCTETS, LARGE, pa.binary(), pa.map_(pa.string(), pa.string()), pa.null()])
def test_empty_tables_have_columns(kind: pa.DataType) -> None:
    schema = pa.schema([("headers", kind), ("data", pa.binary())])
    for empty in (pa.table({"headers": pa.array([], kind), "data": pa.array([], pa.binary())}), schema.empty_table()):
        exploded = explode_cloudevents(empty, extensions={"n": "int"})
        assert (exploded.num_rows, exploded.column_names[-2:]) == (0, ["ce_error", "ce_n"])
    batch = explode_cloudevents(pa.RecordBatch.from_pylist([], schema))
    assert (type(batch), batch.num_rows) == (pa.RecordBatch, 0)


# --- The function ---------------------------------------------------------------------------------------------------


def test_columns_and_their_types() -> None:
    given = table(ROWS).append_column("sequence", pa.array(range(len(ROWS)))).replace_schema_metadata({"a": "b"})
    kinds = {"n": "INT", "b": "boolean", "x": "Binary", "at": "timestamp", "s": "string"}
    schema = explode_cloudevents(given, extensions=kinds, prefix="").schema
    assert schema.metadata == {b"a": b"b"}
    assert schema.names[3:] == [*CORE, "extensions", "data", "mode", "error", *kinds]
    types = {name: schema.types[place] for place, name in enumerate(schema.names) if place > 2}
    moment = pa.timestamp("us", tz="UTC")
    others = {"time": moment, "at": moment, "data": pa.binary(), "x": pa.binary(), "n": pa.int32(), "b": pa.bool_()}
    others["extensions"] = pa.map_(pa.string(), pa.string())
    assert types == {name: others.get(name, pa.string()) for name in types}


def test_other_formats_than_json_are_unsupported() -> None:
    """Columns support only JSON, whatever the codec supports: both Spark engines and Arrow have equal results."""
    message = to_nats_message(plain_event(), mode="structured", format="protobuf")
    for count in (1, 30):
        given = table([(message.headers.items(), message.data), *ROWS[:1]] * count)
        assert set(explode_cloudevents(given)["ce_error"].to_pylist()[::2]) == {"unsupported-format"}


def test_typed_extensions() -> None:
    values = {"n": ["5", "-0", "x", "2147483648"], "b": ["true", "1", "false", ""], "x": ["AB==", "AAE=", "?", ""]}
    values["at"] = ["2020-01-01t00:00:00z", "0001-01-01T00:00:00+01:00", "today", "2020-01-01T00:00:00.5+01:00"]
    kinds = {"n": "int", "b": "boolean", "x": "binary", "at": "timestamp", "missing": "int"}
    rows: list[Row] = []
    for name, texts in values.items():
        for one in texts:
            rows.append(([*BASE, (f"ce-{name}", one)], b""))
            rows.append(([], f'{{"specversion":"1.0","id":"1","source":"/s","type":"t","{name}":"{one}"}}'.encode()))
    rows.append(([], JSON_EVENT.replace(b"7", b"-0")))
    rows.append(([], JSON_EVENT.replace(b"7", b"true")))
    outcomes = check(rows, table(rows), kinds)
    assert outcomes[None] > 10
    assert {"invalid-integer", "integer-out-of-range", "invalid-boolean", "invalid-base64"} < outcomes.keys()


def test_dropmalformed() -> None:
    exploded = explode_cloudevents(table(ROWS), mode="DROPMALFORMED")
    assert exploded["ce_id"].to_pylist() == ["a", "b", "a", "b", "a"]


def test_failfast_has_the_number_of_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explode_module, "_ROWS", 100)
    given = table(ROWS[4:5] * 120 + ROWS).append_column("sequence", pa.array(range(1, 120 + len(ROWS) + 1)))
    given = given.append_column("stream", pa.repeat("S", len(given)))
    error = refused(DecodeError, "not-a-cloudevent", explode_cloudevents, given, mode="FAILFAST")
    assert "(row 121, stream S, sequence 122)" in str(error)
    assert explode_cloudevents(given.slice(0, 121), mode="FAILFAST").num_rows == 121
    bad = refused(DecodeError, "invalid-percent-escape", explode_cloudevents, table(ROWS[8:]), mode="FAILFAST")
    assert (bad.attribute, bad.header) == ("id", "ce-id")


def test_readers_are_decoded_batch_by_batch() -> None:
    """Batches are decoded when they are read, and errors are those of the codec."""
    given = table(ROWS)
    taken = []

    def batches_of() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            taken.append(number)
            yield from given.to_batches()

    reader = explode_cloudevents(pa.RecordBatchReader.from_batches(given.schema, batches_of()), prefix="x_")
    assert isinstance(reader, pa.RecordBatchReader)
    assert taken == []
    assert reader.read_next_batch()["x_error"].to_pylist() == [expected(row)["ce_error"] for row in ROWS]
    assert taken == [0]
    assert reader.read_all().num_rows == 2 * len(ROWS)
    source = pa.RecordBatchReader.from_batches(given.schema, given.to_batches() * 2)
    refused(DecodeError, "not-a-cloudevent", explode_cloudevents(source, mode="FAILFAST").read_all)


def test_record_batches_stay_record_batches() -> None:
    """Of any size, and if all rows are removed."""
    batch = table(ROWS[:2] * 5_001).combine_chunks().to_batches()[0]
    exploded = explode_cloudevents(batch)
    assert type(exploded) is pa.RecordBatch
    assert exploded["ce_id"].to_pylist() == ["a", None] * 5_001
    (invalid,) = table(ROWS[1:3]).to_batches()
    for rows in (invalid, invalid.slice(0, 0)):
        dropped = explode_cloudevents(rows, mode="DROPMALFORMED")
        assert (type(dropped), dropped.num_rows) == (pa.RecordBatch, 0)
        assert dropped.schema == exploded.schema


def test_columns_of_null_have_no_events() -> None:
    """They need no bytes, and are not split."""
    exploded = explode_cloudevents(pa.table({"headers": pa.nulls(3), "data": pa.nulls(3)}))
    assert [batch["ce_error"].to_pylist() for batch in exploded.to_batches()] == [["not-a-cloudevent"] * 3]


def test_batches_are_split_at_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    given = table(ROWS[:1] * 10_001)
    assert [len(batch) for batch in explode_cloudevents(given).to_batches()] == [10_000, 1]
    monkeypatch.setattr(explode_module, "_BYTES", 128 * 2**10)
    rows: list[Row] = [(BASE, bytes(2**10))] * 300
    batches = explode_cloudevents(table(rows, TEXTS, pa.large_binary())).to_batches()
    assert [len(batch) for batch in batches] == [118, 118, 64]  # of less than 128 KiB
    monkeypatch.setattr(explode_module, "_BYTES", 1)  # each row is larger
    assert [len(batch) for batch in explode_cloudevents(given.slice(0, 3)).to_batches()] == [1] * 3


@each(
    ("columns", "where"),
    [
        ({"sequence": pa.array([5])}, "row 0, sequence 5"),
        ({"subject": pa.array(["orders"]), "stream": pa.array(["S"])}, "row 0, stream S, subject orders"),
        ({"subject": pa.array([b"\xff"]).view(pa.string())}, "row 0, subject ?"),
        ({"subject": pa.array(["x" * 60])}, f"row 0, subject {'x' * 60}"),
        ({"subject": pa.array(["x" * 61])}, f"row 0, subject {'x' * 60}..."),
        ({"number": pa.array([1])}, "row 0"),
    ],
)
def test_failfast_identifies_the_message(columns: dict[str, pa.Array], where: str) -> None:
    given = table(ROWS[8:9])
    for name, column in columns.items():
        given = given.add_column(0, name, column)
    error = refused(DecodeError, "invalid-percent-escape", explode_cloudevents, given, mode="FAILFAST")
    original = refused(
        DecodeError, "invalid-percent-escape", from_nats_message, NatsMessage("", b"x", ROWS[8][0] or [])
    )
    assert error.message == f"{original.message} ({where})"
    assert _details(error)[1:] == _details(original)[1:]


def test_arrow_streams_are_accepted() -> None:
    class Frame:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return table(ROWS).to_reader().__arrow_c_stream__(requested_schema)

    if not hasattr(pa.RecordBatchReader, "from_stream"):
        pytest.skip("this pyarrow does not support streams")
    assert found(explode_cloudevents(Frame()).read_all()) == [expected(row) for row in ROWS]


SHAPES = (
    "must be list<struct<key: string, value: string>>, map<string, string>, map<string, list<string>> or "
    "binary (a raw header block), with string or binary, got "
)
MODES = "mode must be PERMISSIVE or DROPMALFORMED or FAILFAST, got "
KINDS_TEXT = "the type of an extension must be string or int or boolean or binary or timestamp, got "


@each(
    ("wrong", "error", "text"),
    [
        (
            {"headers": "nothing"},
            ValueError,
            "messages must have one column 'nothing', got columns headers, data, number, text, triples",
        ),
        (
            {"data": "nothing"},
            ValueError,
            "messages must have one column 'nothing', got columns headers, data, number, text, triples",
        ),
        (
            {"headers": "data", "data": "headers"},
            TypeError,
            "column 'headers' must be binary or string, got list<item: struct<key: string, value: string>>; cast it to "
            "one of these",
        ),
        ({"data": "number"}, TypeError, "column 'number' must be binary or string, got int64; cast it to one of these"),
        ({"headers": "number"}, TypeError, f"column 'number' {SHAPES}int64; cast it to one of these"),
        ({"headers": "text"}, TypeError, f"column 'text' {SHAPES}string; cast it to one of these"),
        (
            {"headers": "triples"},
            TypeError,
            f"column 'triples' {SHAPES}list<item: struct<a: string, b: string, c: string>>; cast it to one of these",
        ),
        ({"mode": "strict"}, ValueError, f"{MODES}'strict'"),
        ({"mode": None}, ValueError, f"{MODES}None"),
        ({"extensions": {"n": "float"}}, ValueError, f"{KINDS_TEXT}'float'"),
        ({"extensions": {"n": int}}, ValueError, f"{KINDS_TEXT}<class 'int'>"),
        ({"extensions": ["n"]}, TypeError, "extensions must be a mapping of names to types, got ['n']"),
        ({"extensions": []}, TypeError, "extensions must be a mapping of names to types, got []"),
    ],
)
def test_invalid_arguments_are_rejected(wrong: dict[str, Any], error: type[Exception], text: str) -> None:
    triples = pa.list_(pa.struct([(name, pa.string()) for name in "abc"]))
    given = table(ROWS[:1]).append_column("number", pa.array([1])).append_column("text", pa.array(["x"]))
    given = given.append_column("triples", pa.array([[]], triples))
    with pytest.raises(error) as info:
        explode_cloudevents(given, **wrong)
    assert str(info.value) == text


PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])


@each(
    ("kind", "is_valid"),
    [
        *((kind, True) for kind in (pa.null(), pa.binary(), pa.large_binary(), pa.list_(PAIR), pa.large_list(PAIR))),
        (pa.map_(pa.string(), pa.binary()), True),
        (pa.map_(pa.string(), pa.list_(pa.string())), True),
        (pa.dictionary(pa.int32(), pa.binary()), True),
        *((kind, False) for kind in (pa.string(), pa.large_string(), pa.int64(), PAIR, pa.list_(pa.string()))),
        *((opaque(pa.binary(), "bits", "another"), False) for opaque in [getattr(pa, "opaque", None)] if opaque),
        (Wrapped(pa.map_(pa.string(), Wrapped(pa.binary()))), True),
        (pa.list_(Wrapped(PAIR), 2), True),
        (pa.dictionary(pa.int32(), pa.string()), False),
        *((getattr(pa, name)(), name == "binary_view") for name in ("binary_view", "string_view") if hasattr(pa, name)),
        (pa.map_(pa.int32(), pa.string()), False),
        (pa.map_(pa.string(), pa.int32()), False),
        (pa.map_(pa.string(), pa.list_(pa.int32())), False),
        (pa.map_(pa.int32(), pa.list_(pa.string())), False),
        *((pa.list_(pa.struct([*PAIR][:count])), False) for count in (0, 1)),
        (pa.list_(pa.struct([*PAIR, ("more", pa.string())])), False),
        (pa.list_(pa.struct([("key", pa.int32()), ("value", pa.string())])), False),
        (pa.list_(pa.struct([("key", pa.string()), ("value", pa.int32())])), False),
    ],
)
def test_types_of_headers_are_checked(kind: pa.DataType, is_valid: bool) -> None:
    if is_valid:
        check_type(kind)
    else:
        with pytest.raises(TypeError, match="column 'headers' must be "):
            check_type(kind)


def test_modes_are_case_insensitive() -> None:
    given = table(ROWS[:1])
    assert explode_cloudevents(given, mode="dropMalformed") == explode_cloudevents(given, mode="DROPMALFORMED")


@each("name", ["Ext", "a-b", "", "id", "time", "data", 5])
def test_invalid_names_of_extensions_are_rejected(name: Any) -> None:
    refused(EncodeError, "invalid-attribute-name", explode_cloudevents, table(ROWS[:1]), extensions={name: "int"})


@each("nothing", [None, [], {"headers": []}, "orders.parquet"])
def test_other_objects_than_arrow_are_rejected(nothing: Any) -> None:
    with pytest.raises(TypeError, match="messages must be a table, batch or stream of Arrow"):
        explode_cloudevents(nothing)


# --- Captures -------------------------------------------------------------------------------------------------------


def test_capture(tmp_path: Path) -> None:
    """A file, and a directory of them."""
    directory = tmp_path / "orders.parquet"
    directory.mkdir()
    for number in range(3):
        parquet.write_table(table(ROWS), directory / f"part-{number:06}.parquet")
    (directory / ".part-000003.parquet.1.partial").write_bytes(b"half")
    assert found(explode_capture(directory).read_all()) == [expected(row) for row in ROWS] * 3
    one = explode_capture(directory / "part-000001.parquet", extensions={"n": "int"}, prefix="", mode="DROPMALFORMED")
    assert one.read_all()["n"].to_pylist() == [5, 7, None, 7, None]


def test_other_files_than_captures_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("no Parquet")
    refused(DecodeError, "invalid-message", explode_capture, tmp_path / "x.parquet")
    (tmp_path / "empty").mkdir()
    refused(DecodeError, "invalid-message", explode_capture, tmp_path / "empty")
    with pytest.raises(FileNotFoundError):
        explode_capture(tmp_path / "nothing.parquet")
    parquet.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    refused(DecodeError, "invalid-message", explode_capture, tmp_path / "a.parquet")
    parts = tmp_path / "parts"
    parts.mkdir()
    parquet.write_table(table(ROWS), parts / "part-000000.parquet")
    parquet.write_table(table(ROWS, OCTETS), parts / "part-000001.parquet")
    error = refused(DecodeError, "invalid-message", explode_capture(parts).read_all)
    assert error.message.endswith("part-000001.parquet must have the columns of the first file of the capture")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"mode": "strict"}, ValueError),
        ({"extensions": {"n": "float"}}, ValueError),
        ({"extensions": ["n"]}, TypeError),
        ({"extensions": {"N": "int"}}, EncodeError),
    ],
    ids=str,
)
def test_invalid_arguments_are_rejected_before_a_capture_is_read(
    wrong: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error):
        explode_capture(tmp_path / "nothing.parquet", **wrong)


def test_memory_does_not_grow_with_a_capture(tmp_path: Path) -> None:
    path = tmp_path / "orders.parquet"
    message = to_nats_message(plain_event(b"x" * 1_000, subject="s\u00e9"))
    rows = table([(message.headers.items(), message.data)] * 5_000)
    with parquet.ParquetWriter(path, rows.schema, compression="zstd") as writer:
        for _ in range(20):
            writer.write_table(rows, row_group_size=5_000)
    before = pa.total_allocated_bytes()
    peak = count = 0
    for batch in explode_capture(path):
        count += len(batch)
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert count == 100_000
    assert peak < 60 * 2**20  # 200 MB of payloads, here and in ce_data


def test_duckdb(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    parquet.write_table(table(ROWS), tmp_path / "orders.parquet")
    events = explode_capture(tmp_path / "orders.parquet")  # noqa: F841  # DuckDB finds it by its name
    query = "SELECT ce_mode, count(*), max(ce_extensions['n']) FROM events WHERE ce_error IS NULL GROUP BY 1 ORDER BY 1"
    assert duckdb.sql(query).fetchall() == [("binary", 3, "5"), ("structured", 2, "7")]


@each(
    ("headers", "data"),
    [
        ("headers", "data::JSON"),
        ("headers", "data::ENUM('{\"n\":1}', '{\"n\":2}')"),
        ("headers::STRUCT(key VARCHAR, value VARCHAR)[4]", "data::BLOB"),
        ("map_from_entries(headers)", "data"),
    ],
)
@each("settings", [[], ["arrow_lossless_conversion", "arrow_output_list_view", "produce_arrow_string_view"]])
def test_types_of_duckdb(headers: str, data: str, settings: list[str]) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    if not hasattr(pa, "string_view"):
        pytest.skip("this pyarrow cannot read views")
    rows: list[Row] = [(BASE, b'{"n":1}'), (BASE, b'{"n":2}')]
    connection = duckdb.connect()
    for setting in settings:
        connection.execute(f"SET {setting} = true")
    connection.register("given", pa.table({"headers": table(rows, TEXTS)["headers"], "data": ['{"n":1}', '{"n":2}']}))
    check(rows, connection.sql(f"SELECT {headers} AS headers, {data} AS data FROM given").to_arrow_table())


def test_types_of_polars() -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    if not hasattr(pa, "string_view"):
        pytest.skip("this pyarrow cannot read data of Polars")
    rows: list[Row] = [(BASE, b'{"n":1}'), (BASE, b'{"n":2}')]
    frame = polars.from_arrow(pa.table({"headers": table(rows, TEXTS)["headers"], "data": ['{"n":1}', '{"n":2}']}))
    for kind in (polars.Categorical, polars.Enum(frame["data"]), polars.Binary, polars.String):
        given = frame.with_columns(polars.col("data").cast(kind), polars.col("headers").list.to_array(4))
        events = explode_cloudevents(given).read_all()
        assert [*events["ce_data"].to_pylist()] == [data for _, data in rows]
        assert events["ce_id"].to_pylist() == ["a", "a"]


def test_polars() -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    if not hasattr(pa, "string_view"):
        pytest.skip("this pyarrow cannot read data of Polars")
    frame = polars.from_arrow(table(ROWS))
    events = polars.from_arrow(explode_cloudevents(frame).read_all())
    assert events["ce_id"].to_list() == [expected(row)["ce_id"] for row in ROWS]


def test_pandas() -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    frame = explode_cloudevents(table(ROWS)).to_pandas()
    assert frame["ce_time"].dtype.tz is not None
    assert frame["ce_id"].notna().sum() == 5


def test_rows_keep_their_order() -> None:
    """Rows decoded together and one by one are in the original order."""
    rows = [ROWS[place] for place in (0, 4, 8, 0, 7, 1, 4, 0, 3, 0)]
    given = table(rows)
    decoded = decode(given["headers"].combine_chunks(), given["data"].combine_chunks())
    assert decoded.columns["mode"].to_pylist() == [expected(row)["ce_mode"] for row in rows]
    assert sorted(decoded.errors) == [2, 5, 8]


def test_combined_rows_have_their_events_and_errors() -> None:
    error = DecodeError(ErrorCode.INVALID_JSON, "not JSON")
    events = Events({})
    message = NatsMessage("", b'{"a": 1}', {"ce-id": "1", "ce-source": "s", "ce-specversion": "1.0", "ce-type": "t"})
    events.add(1, from_nats_message(message, parse_data=False), ContentMode.BINARY)
    combined = combine(3, events, {0: error})
    assert combined.errors == {0: error}
    assert combined.typed == {}
    assert [value is not None for value in combined.columns["id"].to_pylist()] == [False, True, False]


def test_combined_rows_may_all_have_errors() -> None:
    errors = {row: DecodeError(ErrorCode.INVALID_JSON, "not JSON") for row in range(2)}
    combined = combine(2, Events({"n": int}), errors)
    assert {name: column.null_count for name, column in combined.columns.items()} == dict.fromkeys(combined.columns, 2)
    assert combined.errors == errors


def test_import_without_pyarrow_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"^ce_nats.arrow needs pyarrow: pip install 'ce-nats\[arrow\]'$"):
        runpy.run_path(str(Path(decode_module.__file__).with_name("__init__.py")))
