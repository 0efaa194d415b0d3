"""Rows as frames: columns are encoded as the codec encodes each row, errors included."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ce_nats import ContentMode, EncodeError, SubjectTemplate
from ce_nats._instructions import MARKER, is_marker
from ce_nats._instructions import copied_headers as message_headers
from ce_nats.arrow import _frames
from ce_nats.arrow._copies import copied_headers
from ce_nats.arrow._encode import encode
from ce_nats.arrow._header_lines import encode_headers
from ce_nats.message import NatsMessage
from ce_nats.spark.connector._row_columns import RowColumns
from ce_nats.spark.connector._row_frames import RowEncoder, _check_event, _lines
from ce_nats.wire._frames import frames_of
from ce_nats.wire.nats import decode_frames, encode_header_block
from tests.support.strategies import refused
from tests.support.tables import each

MODES = list(ContentMode)
EVENT, MESSAGE = RowColumns(0, 1, None, None), RowColumns(0, None, 1, 2)

PLAIN = st.sampled_from(["a", "order-1", "/s", "https://example.com/a"])
ODD_TEXTS = (
    *("", " ", "a b", "Zürich 😀", "100%", "%41", 'say "a"', "a\\b", "a\\nb", "a|b", "|", '"', "\\", "\x00", "\x1f"),
    *("\n", "\x7f", "\ufffe"),
    *("{id}", "x" * 200),
)
ODD = st.sampled_from(ODD_TEXTS) | st.text(max_size=5)
# Most values are plain, so that rows are encoded as columns, and are not all errors.
TEXT = st.integers(0, 9).flatmap(lambda number: ODD if number == 0 else PLAIN)


def or_null(values: st.SearchStrategy[Any], often: int = 2) -> st.SearchStrategy[Any]:
    return st.integers(0, 9).flatmap(lambda number: st.none() if number < often else values)


INSTANT = st.sampled_from(
    [0, 1_577_934_245_500_000, 1_577_934_245_000_000, 1, -1, -(10**15), 10**17, 253402300799999999]
)
TIME = st.sampled_from(
    [
        *("2020-01-02T03:04:05Z", "2020-01-02T03:04:05.123456789+01:00", "2020-01-02t03:04:05z"),
        *("2020-01-02 03:04:05Z", "2020-02-30T00:00:00Z", "2016-12-31T23:59:60Z", "yesterday", ""),
    ]
)
CONTENT_TYPE = st.sampled_from(
    [
        *("application/json", "application/x+json", "application/json; charset=utf-16", "image/png", "json", ""),
        *("text/plain", "text/plain; charset=latin-1", 'text/plain; charset="utf-8"'),
    ]
)
DATA = st.sampled_from(
    ['{"a": 1.50}', "5", "null", " [1] ", "", "text", "no JSON", "[" * 200 + "]" * 200, '"ü"', "1e999"]
)
NAMES = st.sampled_from(["note", "x1", "subject", "n", "my_ext", "data", "id", ""])
TIMESTAMP = pa.timestamp("us", tz="UTC")
OCTETS = pa.binary()

# Fields of attributes, with their types and values. The four required ones come first in most cases.
REQUIRED = {
    "specversion": (pa.string(), st.integers(0, 19).map(lambda number: "0.3" if number == 0 else "1.0")),
    "id": (pa.string(), TEXT),
    "source": (pa.string(), TEXT),
    "type": (pa.string(), TEXT),
}
OPTIONAL = {
    "subject": (pa.string(), or_null(TEXT)),
    "time": (TIMESTAMP, or_null(INSTANT)),
    "time_text": (pa.string(), or_null(TIME, often=8)),
    "datacontenttype": (pa.string(), or_null(CONTENT_TYPE)),
    "dataschema": (pa.string(), or_null(st.sampled_from(["https://example.com", "urn:a b", "schema", ""]), often=6)),
    "n": (pa.int64(), or_null(st.sampled_from([0, 5, -1, 2**31 - 1, 2**31, -(2**31), 2**40]))),
    "small": (pa.int8(), or_null(st.integers(-128, 127))),
    "ok": (pa.bool_(), or_null(st.booleans())),
    "blob": (pa.binary(), or_null(st.binary(max_size=4))),
    "at": (TIMESTAMP, or_null(INSTANT)),
    "note": (pa.string(), or_null(TEXT)),
    "bad_name": (pa.string(), or_null(TEXT)),
}


def column(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind)


@st.composite
def event_arrays(draw: Any) -> pa.StructArray:
    count = draw(st.integers(1, 8))

    def drawn(values: st.SearchStrategy[Any]) -> list[Any]:
        return [draw(values) for _ in range(count)]

    chosen = draw(st.lists(st.sampled_from(sorted(OPTIONAL)), unique=True, max_size=6))
    if draw(st.integers(0, 9)) and "bad_name" in chosen:
        chosen.remove("bad_name")
    fields = {**REQUIRED, **{name: OPTIONAL[name] for name in chosen}}
    if draw(st.integers(0, 9)) == 0:
        fields = {name: fields[name] for name in draw(st.permutations(sorted(fields)))}
    columns = {name: column(drawn(values), kind) for name, (kind, values) in fields.items()}
    if "time" in columns and draw(st.booleans()):
        columns["time"] = column(drawn(or_null(TIME)), pa.string())
    parts = {"attributes": pa.StructArray.from_arrays(list(columns.values()), list(columns))}
    if draw(st.booleans()):
        entry = st.tuples(NAMES if draw(st.integers(0, 2)) == 0 else st.just("note2"), or_null(TEXT, often=1))
        maps = or_null(st.lists(entry, max_size=3, unique_by=lambda pair: pair[0]), often=1)
        parts["extensions"] = column(drawn(maps), pa.map_(pa.string(), pa.string()))
    if draw(st.booleans()):
        kind = draw(st.sampled_from([pa.string(), pa.binary()]))
        parts["data"] = column([v if v is None else v.encode() for v in drawn(or_null(DATA))], pa.binary()).cast(kind)
    if draw(st.booleans()):
        parts["data_text"] = column(drawn(or_null(DATA)), pa.string())
    if draw(st.booleans()):
        parts["is_json"] = column(drawn(or_null(st.booleans())), pa.bool_())
    if draw(st.integers(0, 4)) == 0:
        parts["error"] = column(drawn(or_null(st.just("invalid-utf8"), often=8)), pa.string())
    return pa.StructArray.from_arrays(list(parts.values()), list(parts))


def by_codec(encoder: RowEncoder, batch: pa.RecordBatch) -> list[Any]:
    """Return the lines and the payload of each row, or its error code."""
    found: list[Any] = []
    for row in range(batch.num_rows):
        try:
            (message,) = encoder._encode_singly(batch.slice(row, 1))
        except EncodeError as error:
            found.append(error.code)
        else:
            found.append((_lines(message), message.data))
    return found


def check(encoder: RowEncoder, batch: pa.RecordBatch) -> None:
    expected = by_codec(encoder, batch)
    codes = [outcome for outcome in expected if not isinstance(outcome, tuple)]
    if codes:
        with pytest.raises(EncodeError) as info:
            encoder.messages(batch)
        assert info.value.code == codes[0]
        batch = batch.filter(pa.array([isinstance(outcome, tuple) for outcome in expected]))
    _, lines, payloads = encoder.messages(batch)
    wanted = [outcome for outcome in expected if isinstance(outcome, tuple)]
    assert list(zip(lines.to_pylist(), payloads.to_pylist())) == wanted


@given(event_arrays(), st.sampled_from(MODES), st.booleans())
def test_events_are_encoded_as_by_the_codec(events: pa.StructArray, mode: ContentMode, dedup: bool) -> None:
    subjects = pa.array(["a.b"] * len(events))
    encoder = RowEncoder(EVENT, "", mode, dedup=dedup)
    batch = pa.RecordBatch.from_arrays([subjects, events], ["subject", "event"])
    check(encoder, batch)
    if len(events) > 2:
        check(encoder, batch.slice(1, len(events) - 2))


NAMES_OF_HEADERS = ("a", "A", "ce-id", "CE-Type", "Nats-Msg-Id", "Content-Type", "a b", "", "ü", "a:b")
VALUES_OF_HEADERS = (
    *("a", "", " a", "a\t", "ü", "a\nb", "a\rb", "a\0", "\0", "application/cloudevents+json", "x" * 300),
)
HEADER_NAME, HEADER_VALUE = st.sampled_from(NAMES_OF_HEADERS), st.sampled_from(VALUES_OF_HEADERS)
EVENT_PAIRS = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s|"), ("ce-type", "t")]
PAIRS = st.one_of(
    st.lists(st.tuples(st.just("a"), HEADER_VALUE), max_size=2),
    st.just(EVENT_PAIRS),
    st.lists(st.tuples(HEADER_NAME, HEADER_VALUE), max_size=3).map(lambda pairs: [*EVENT_PAIRS, *pairs]),
    st.lists(st.tuples(or_null(HEADER_NAME, often=1), or_null(HEADER_VALUE, often=1)), max_size=2),
)
PAYLOAD = st.sampled_from([None, b"", b"a", b"\xff", b'{"specversion":"1.0","id":"1","source":"/s","type":"t"}'])


def shape(pairs: Any, *, is_map: bool) -> Any:
    """Return headers for Arrow: a map has no NULL as a name, and each name once."""
    if pairs is None:
        return None
    entries = [tuple(None if part is None else part.encode() for part in pair) for pair in pairs]
    if is_map:
        return list({name: value for name, value in entries if name is not None}.items())
    return [{"key": name, "value": value} for name, value in entries]


@given(
    st.lists(st.tuples(or_null(PAIRS, often=1), PAYLOAD), min_size=1, max_size=6),
    st.sampled_from([pa.string(), pa.binary()]),
    st.booleans(),
    st.booleans(),
)
def test_messages_are_encoded_as_by_the_codec(
    rows: list[tuple[Any, Any]], kind: pa.DataType, is_map: bool, dedup: bool
) -> None:
    shaped = [shape(pairs, is_map=is_map) for pairs, _ in rows]
    pair = pa.struct([("key", pa.binary()), ("value", pa.binary())])
    headers = pa.array(shaped, pa.map_(pa.binary(), pa.binary()) if is_map else pa.list_(pair))
    headers = headers.cast(pa.map_(kind, kind) if is_map else pa.list_(pa.struct([("key", kind), ("value", kind)])))
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["a.b"] * len(rows)), headers, pa.array([data for _, data in rows], pa.binary())],
        ["subject", "headers", "data"],
    )
    check(RowEncoder(MESSAGE, "", ContentMode.BINARY, dedup=dedup), batch)


@each("mode", MODES)
def test_bytes_that_are_not_utf8_are_errors(mode: ContentMode) -> None:
    """Spark's strings may contain any bytes."""
    invalid = pa.array([b"\xff"]).view(pa.string())
    core = {name: pa.array([value]) for name, value in (("specversion", "1.0"), ("id", "1"), ("source", "/s"))}
    for attributes, data in (({**core, "type": invalid}, None), ({**core, "type": pa.array(["t"])}, invalid)):
        parts = {"attributes": pa.StructArray.from_arrays(list(attributes.values()), list(attributes))}
        parts |= {} if data is None else {"data": data}
        events = pa.StructArray.from_arrays(list(parts.values()), list(parts))
        batch = pa.RecordBatch.from_arrays([pa.array(["a"]), events], ["subject", "event"])
        check(RowEncoder(EVENT, "", mode, dedup=True), batch)
    batch = pa.RecordBatch.from_arrays([invalid, events], ["subject", "event"])
    with pytest.raises(EncodeError, match="invalid-subject: a subject must be UTF-8"):
        RowEncoder(EVENT, "", mode, dedup=True).messages(batch)


EVENT_CORE = (("specversion", "1.0"), ("source", "/s"), ("type", "t"))


def events_of(*rows: dict[str, Any]) -> pa.StructArray:
    attributes = pa.array([{**dict(EVENT_CORE), **row} for row in rows])
    return pa.StructArray.from_arrays([attributes], ["attributes"])


def test_frames_are_those_of_messages() -> None:
    """Also of an array that is a slice, and in pieces of several batches."""
    subjects = pa.array(["", "a.b", None, "ü"])
    events = events_of(*({"id": f"Zürich {number}"} for number in range(4)))
    batch = pa.RecordBatch.from_arrays([subjects, events], ["subject", "event"])
    encoder = RowEncoder(EVENT, SubjectTemplate("x.{id}.{type}"), ContentMode.BINARY, dedup=True)
    made = list(encoder.frames([batch, batch.slice(1, 2)], "_INBOX.x."))
    frames = [decode_frames(some.piece(0, len(some))) for some in made]
    wanted = ["x.Z%C3%BCrich%200.t", "a.b", "x.Z%C3%BCrich%202.t", "ü", "a.b", "x.Z%C3%BCrich%202.t"]
    assert [frame.subject for some in frames for frame in some] == wanted
    assert [frame.reply for some in frames for frame in some] == [f"_INBOX.x.{number}" for number in range(6)]
    assert [some.subject(1) for some in made] == wanted[1::4]
    messages = [NatsMessage(frame.subject or "", frame.payload, frame.headers) for frame in frames[0]]
    same = frames_of([(message, encode_header_block(message.headers)) for message in messages], 0, "_INBOX.x.")
    assert bytes(made[0].octets) == same.octets
    for name in ("bounds", "header_sizes", "sizes"):
        assert list(getattr(made[0], name)) == list(getattr(same, name))
    assert made[0].largest == same.largest


def test_rows_without_a_subject_have_that_of_the_option() -> None:
    events = events_of(*({"id": str(number)} for number in range(3)))
    without = RowEncoder(RowColumns(None, 0, None, None), "orders", ContentMode.BINARY, dedup=True)
    assert without.messages(pa.RecordBatch.from_arrays([events], ["event"]))[0].to_pylist() == ["orders"] * 3
    batch = pa.RecordBatch.from_arrays([pa.array(["", None, "a"]), events], ["subject", "event"])
    encoder = RowEncoder(EVENT, "orders", ContentMode.BINARY, dedup=True)
    assert encoder.messages(batch)[0].to_pylist() == ["orders", "orders", "a"]


NATS_NAMES = st.sampled_from(["a", "ce-id", "Nats-Msg-Id", "Nats-Rollup", "Nats-TTL", "Nats-Batch-Id", MARKER])


@given(st.lists(or_null(st.lists(st.tuples(NATS_NAMES, TEXT), max_size=4))), st.data(), st.booleans())
def test_copies_have_the_headers_of_a_replay(rows: list[Any], data: st.DataObject, keeps: bool) -> None:
    """Also in slices, in maps, and in binary."""
    text = data.draw(st.sampled_from([pa.string(), pa.binary()]))
    pairs = pa.list_(pa.struct([("key", text), ("value", text)]))
    kind = data.draw(st.sampled_from([pairs, pa.map_(text, text)]))
    start = data.draw(st.integers(0, len(rows)))
    given_rows = [None if row is None else [{"key": n, "value": v} for n, v in row] for row in rows]
    headers = pa.array(given_rows if kind == pairs else rows, kind).slice(start)
    copied = copied_headers(headers, keep_instructions=keeps)
    rows = rows[start:]
    expected = [None if row is None else message_headers(row, keep_instructions=keeps) for row in rows]
    found = copied.headers.to_pylist()
    assert [row if row is None else list(map(_texts, row)) for row in found] == expected
    are_markers = [is_marker(row or []) for row in rows]
    assert (copied.markers.to_pylist() if copied.markers is not None else [False] * len(rows)) == are_markers
    lost = [row != new and not marker for row, new, marker in zip(rows, expected, are_markers)]
    assert copied.stripped == sum(lost)


def _texts(pair: Any) -> tuple[str, ...]:
    values = pair.values() if isinstance(pair, dict) else pair
    return tuple(value.decode() if isinstance(value, bytes) else value for value in values)


def test_frames_without_headers() -> None:
    data = pa.array([b"x", b"", b"yz"])
    headers = pa.array([[], [{"key": "a", "value": "b"}], None])
    batch = pa.RecordBatch.from_arrays([pa.array(["a", "b", "c"]), headers, data], ["subject", "headers", "data"])
    (frames,) = RowEncoder(MESSAGE, "", ContentMode.BINARY, dedup=False).frames([batch], "r.")
    assert bytes(frames.octets) == (
        b"PUB a r.0 1\r\nx\r\n" + b"HPUB b r.1 18 18\r\nNATS/1.0\r\na: b\r\n\r\n\r\n" + b"PUB c r.2 2\r\nyz\r\n"
    )
    assert frames.largest == (18, 18, 4)


@each(
    ("attributes", "code"),
    [
        ({"id": ""}, "empty-attribute"),
        ({"id": "a", "region": None}, "missing-attribute"),
        ({"id": "a"}, "missing-attribute"),
    ],
)
def test_subject_of_a_template_is_an_error(attributes: dict[str, Any], code: str) -> None:
    encoder = RowEncoder(EVENT, SubjectTemplate("x.{region}"), ContentMode.BINARY, dedup=True)
    batch = pa.RecordBatch.from_arrays([pa.array([None], pa.string()), events_of(attributes)], ["subject", "event"])
    with pytest.raises(EncodeError, match=code):
        encoder.messages(batch)


def test_templates_may_use_any_attribute() -> None:
    events = events_of({"id": "a", "n": 5, "time": datetime(2020, 1, 2, tzinfo=timezone.utc)})
    batch = pa.RecordBatch.from_arrays([pa.array([None], pa.string()), events], ["subject", "event"])
    encoder = RowEncoder(EVENT, SubjectTemplate("x.{n}.{time}"), ContentMode.BINARY, dedup=True)
    assert encoder.messages(batch)[0].to_pylist() == ["x.5.2020-01-02T00%3A00%3A00Z"]


def test_time_of_a_template_is_the_exact_text() -> None:
    """As the time of the event: the column time_text has precedence over time."""
    events = events_of({"id": "a", "time": "2020-01-02T03:04:05Z", "time_text": "2020-01-02T03:04:05.000Z"})
    batch = pa.RecordBatch.from_arrays([pa.array([None], pa.string()), events], ["subject", "event"])
    encoder = RowEncoder(EVENT, SubjectTemplate("x.{time}"), ContentMode.BINARY, dedup=True)
    assert encoder.messages(batch)[0].to_pylist() == ["x.2020-01-02T03%3A04%3A05%2E000Z"]


@each("mode", MODES)
@each("data", [pa.array(['{"a":1}', None]), pa.array([b"x", b""])])
def test_large_types(mode: ContentMode, data: pa.Array) -> None:
    """With spark.sql.execution.arrow.useLargeVarTypes."""
    text, octets = pa.large_string(), pa.large_binary()
    core = {
        name: pa.array([value] * 2, text) for name, value in (("specversion", "1.0"), ("id", "1"), ("source", "/s"))
    }
    attributes = {**core, "type": pa.array(["t", "a b"], text), "blob": pa.array([b"x"] * 2, octets)}
    parts = {
        "attributes": pa.StructArray.from_arrays(list(attributes.values()), list(attributes)),
        "extensions": pa.array([[("k", "v")]] * 2, pa.map_(text, text)),
        "data": data.cast(text if pa.types.is_string(data.type) else octets),
    }
    events = pa.StructArray.from_arrays(list(parts.values()), list(parts))
    assert encode(events, mode, dedup=True).odd == set()
    batch = pa.RecordBatch.from_arrays([pa.array(["a.b"] * 2, text), events], ["subject", "event"])
    check(RowEncoder(EVENT, "", mode, dedup=True), batch)


@each("mode", MODES)
@each("charset", ["utf-8", "us-ascii", "latin-1"])
def test_only_structured_mode_encodes_text_outside_its_charset(charset: str, mode: ContentMode) -> None:
    attributes = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
    attributes["datacontenttype"] = f"text/plain; charset={charset}"
    events = pa.array([{"attributes": attributes, "data_text": text} for text in ("a", "€")])
    batch = pa.RecordBatch.from_arrays([pa.array(["a"] * 2), events], ["subject", "event"])
    encoder = RowEncoder(EVENT, "", mode, dedup=True)
    check(encoder, batch)
    is_code = [not isinstance(outcome, tuple) for outcome in by_codec(encoder, batch)]
    assert is_code == [False, mode is ContentMode.BINARY and charset != "utf-8"]


def test_large_batches_are_divided() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"x" * 2**20] * 20 + [b""] * 5_000)], ["data"])
    pieces = list(_frames.pieces(batch))
    assert sum(piece.num_rows for piece in pieces) == batch.num_rows
    assert max(piece.num_rows for piece in pieces) == 2_000
    assert max(piece.nbytes for piece in pieces) < 2**23


OFFSETS = pa.RecordBatch.from_arrays([pa.array([b"", b""])], ["data"]).nbytes


@each(
    ("sizes", "rows"),
    [
        ([], []),
        ([2**22 + 1], [1]),
        ([2**21, 2**21 - OFFSETS], [2]),
        ([2**21, 2**21 - OFFSETS + 1], [1, 1]),
        ([2**22, 1, 2, 3], [1, 1, 2]),
    ],
)
def test_batches_are_divided_if_they_are_larger_than_the_limit(sizes: list[int], rows: list[int]) -> None:
    """The offsets of values count, too; a single row is not divided."""
    batch = pa.RecordBatch.from_arrays([pa.array([bytes(size) for size in sizes], OCTETS)], ["data"])
    pieces = list(_frames.pieces(batch))
    assert [piece.num_rows for piece in pieces] == rows
    assert [len(value) for piece in pieces for value in piece["data"].to_pylist()] == sizes


@each("count", [1, 9, 10, 11])
def test_largest_frame_has_the_largest_number(count: int) -> None:
    messages = [NatsMessage("a.b", b"x" * number) for number in range(count)]
    same = frames_of([(message, b"") for message in messages], 0, "_INBOX.x.")
    data = pa.array([message.data for message in messages])
    batch = pa.RecordBatch.from_arrays([pa.array(["a.b"] * count), data], ["subject", "data"])
    encoder = RowEncoder(RowColumns(0, None, None, 1), "", ContentMode.BINARY, dedup=False)
    (frames,) = encoder.frames([batch], "_INBOX.x.")
    assert (bytes(frames.octets), frames.largest) == (same.octets, same.largest)
    for name in ("bounds", "header_sizes", "sizes"):
        assert list(getattr(frames, name)) == list(getattr(same, name))


def test_maps_with_attributes_are_those_of_events() -> None:
    event = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
    _check_event(NatsMessage("a", b"", event))
    _check_event(NatsMessage("a", b"", {"x": "é"}))
    _check_event(NatsMessage("a", b"not parsed", {**event, "ce-datacontenttype": "application/json"}))
    for changed, code in (
        ({"ce-subject": "%C0%A0"}, "invalid-utf8"),
        ({"CE-X": "a", "ce-id": ""}, "empty-attribute"),
        ({"ce-x": "é"}, "invalid-header-value"),
    ):
        with pytest.raises(EncodeError, match=r"of an event|percent-encoded") as info:
            _check_event(NatsMessage("a", b"", {**event, **changed}))
        assert info.value.code == code


def maps(keys: list[str], values: list[str | None], offsets: list[int], valid: list[bool]) -> pa.Array:
    """Return extensions, in which NULL may have entries and names may be duplicated: Arrow allows both."""
    kind = pa.map_(pa.string(), pa.string())
    entries = pa.StructArray.from_arrays([pa.array(keys), pa.array(values)], fields=[kind.key_field, kind.item_field])
    buffers = [pa.array(valid).buffers()[1], pa.array(offsets, pa.int32()).buffers()[1]]
    return pa.Array.from_buffers(kind, len(valid), buffers, children=[entries])


@each("mode", MODES)
@each(
    "extensions",
    [
        maps(["k", "k", "l"], ["1", "2", "3"], [0, 2, 3], [True, True]),
        maps(["k", "k", "l"], ["1", "2", "3"], [0, 1, 3], [False, True]),
        maps(["k", "l", "k"], ["1", None, "3"], [0, 1, 3], [True, True]),
    ],
)
def test_unusual_extensions_are_encoded_as_by_the_codec(extensions: pa.Array, mode: ContentMode) -> None:
    events = events_of({"id": "a"}, {"id": "b"})
    events = pa.StructArray.from_arrays([events.field("attributes"), extensions], ["attributes", "extensions"])
    batch = pa.RecordBatch.from_arrays([pa.array(["a"] * 2), events], ["subject", "event"])
    check(RowEncoder(EVENT, "", mode, dedup=True), batch)


@each("mode", MODES)
def test_bytes_are_json_if_the_flag_is_true(mode: ContentMode) -> None:
    """Not if it is NULL: they get no datacontenttype."""
    parts = {
        "attributes": events_of(*({"id": str(number)} for number in range(4))).field("attributes"),
        "data": pa.array([b"1", b"2", b"3", None]),
        "is_json": pa.array([True, False, None, True]),
    }
    events = pa.StructArray.from_arrays(list(parts.values()), list(parts))
    batch = pa.RecordBatch.from_arrays([pa.array(["a"] * 4), events], ["subject", "event"])
    encoder = RowEncoder(EVENT, "", mode, dedup=False)
    check(encoder, batch)
    _, lines, payloads = encoder.messages(batch)
    texts = [f"{line}{payload.decode()}" for line, payload in zip(lines.to_pylist(), payloads.to_pylist())]
    assert ["application/json" in text for text in texts] == [True, False, False, False]


@each("dedup", [True, False])
def test_messages_without_headers_or_data(dedup: bool) -> None:
    """A row needs one of both columns."""
    pairs = [[{"key": name, "value": value} for name, value in EVENT_PAIRS]]
    for name, column, columns in (
        ("data", pa.array([b'{"specversion":"1.0","id":"1","source":"/s","type":"t"}']), RowColumns(0, None, None, 1)),
        ("headers", pa.array(pairs), RowColumns(0, None, 1, None)),
    ):
        encoder = RowEncoder(columns, "", ContentMode.BINARY, dedup=dedup)
        batch = pa.RecordBatch.from_arrays([pa.array(["a"]), column], ["subject", name])
        check(encoder, batch)
        assert ("Nats-Msg-Id" in encoder.messages(batch)[1][0].as_py()) is dedup


@each("mode", MODES)
@each("name", ["id", "note", "extension"])
@each("text", ODD_TEXTS)
def test_unusual_texts_are_encoded_as_by_the_codec(text: str, name: str, mode: ContentMode) -> None:
    parts = {"attributes": events_of(*({"id": "1", **({} if name == "extension" else {name: text})} for _ in "ab"))}
    parts["attributes"] = parts["attributes"].field("attributes")
    if name == "extension":
        parts["extensions"] = maps(["note", "note"], [text, "plain"], [0, 1, 2], [True, True])
    events = pa.StructArray.from_arrays(list(parts.values()), list(parts))
    batch = pa.RecordBatch.from_arrays([pa.array(["a"] * 2), events], ["subject", "event"])
    encoder = RowEncoder(EVENT, "", mode, dedup=True)
    check(encoder, batch)
    check(encoder, batch.slice(0, 1))


@each(
    ("subject", "codes"),
    [
        ("orders", (None, None)),
        ("a b", ("invalid-subject", "invalid-subject")),
        ("a.*", ("invalid-subject", "invalid-subject")),
        ("$JS.API.STREAM.PURGE.S", ("forbidden-subject", "forbidden-subject")),
        ("$KV.bucket.key", (None, None)),
        ("hub.API.STREAM.PURGE.S", (None, None)),
        ("a.{b}", (None, "invalid-subject")),
    ],
)
def test_subjects_of_rows_are_checked(subject: str, codes: tuple[str | None, str | None]) -> None:
    """The senders of captured messages choose their subjects, which may have braces; an event may mean a template."""
    subjects = pa.array(["orders", subject])
    message = pa.RecordBatch.from_arrays([subjects, pa.nulls(2), pa.array([b""] * 2)], ["subject", "headers", "data"])
    event = pa.RecordBatch.from_arrays([subjects, events_of({"id": "1"}, {"id": "2"})], ["subject", "event"])
    for columns, batch, code in ((MESSAGE, message, codes[0]), (EVENT, event, codes[1])):
        encoder = RowEncoder(columns, "", ContentMode.BINARY, dedup=False)
        if code is None:
            assert encoder.messages(batch)[0].to_pylist() == ["orders", subject]
        else:
            with pytest.raises(EncodeError) as info:
                encoder.messages(batch)
            assert info.value.code == code


@each(
    ("name", "value", "code", "text"),
    [
        (None, b"a", "invalid-header-name", "the name of a header must be a string or UTF-8 in a BINARY, got NULL"),
        (b"\xff", b"a", "invalid-header-name", r"the name of a header .* got b'\\xff'"),
        (b"a", None, "invalid-header-value", "the value of a header .* got NULL"),
        (b"a", b"\xff", "invalid-header-value", r"the value of a header .* got b'\\xff'"),
    ],
)
def test_headers_must_be_text(name: bytes | None, value: bytes | None, code: str, text: str) -> None:
    headers = pa.array([[{"key": name, "value": value}]], pa.list_(pa.struct([("key", OCTETS), ("value", OCTETS)])))
    batch = pa.RecordBatch.from_arrays([pa.array(["a"]), headers, pa.array([b""])], ["subject", "headers", "data"])
    with pytest.raises(EncodeError, match=text) as info:
        RowEncoder(MESSAGE, "", ContentMode.BINARY, dedup=False).messages(batch)
    assert info.value.code == code


@each(
    ("name", "value", "code"),
    [
        ("a b", "c", "invalid-header-name"),
        ("a\r\nb", "c", "invalid-header-name"),
        ("", "c", "invalid-header-name"),
        ("a", "b\r\nc: d", "invalid-header-value"),
        ("a", " b", "invalid-header-value"),
    ],
)
def test_headers_must_be_legal_in_a_header_line(name: str, value: str, code: str) -> None:
    headers = pa.array([[{"key": "x", "value": "y"}, {"key": name, "value": value}]])
    batch = pa.RecordBatch.from_arrays([pa.array(["a"]), headers, pa.array([b""])], ["subject", "headers", "data"])
    refused(EncodeError, code, RowEncoder(MESSAGE, "", ContentMode.BINARY, dedup=False).messages, batch)


def test_messages_whose_data_is_not_json_have_a_deduplication_id() -> None:
    """Data is not parsed, neither for columns nor for single rows."""
    pairs = [
        {"key": name, "value": value} for name, value in (*EVENT_PAIRS, ("ce-datacontenttype", "application/json"))
    ]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["a"]), pa.array([pairs]), pa.array([b"not parsed"])], ["subject", "headers", "data"]
    )
    encoder = RowEncoder(MESSAGE, "", ContentMode.BINARY, dedup=True)
    check(encoder, batch)
    assert "Nats-Msg-Id" in encoder.messages(batch)[1][0].as_py()


@each("is_map", [True, False])
def test_only_maps_with_attributes_must_be_those_of_events(is_map: bool) -> None:
    """A list is sent unchanged."""
    pairs = [[("ce-id", "1"), ("a", "b")]]
    kind = (
        pa.map_(pa.string(), pa.string()) if is_map else pa.list_(pa.struct([("key", "string"), ("value", "string")]))
    )
    headers = pa.array(pairs if is_map else [[{"key": key, "value": value} for key, value in pairs[0]]], kind)
    batch = pa.RecordBatch.from_arrays([pa.array(["a"]), headers, pa.array([b""])], ["subject", "headers", "data"])
    encoder = RowEncoder(MESSAGE, "", ContentMode.BINARY, dedup=False)
    if is_map:
        with pytest.raises(EncodeError, match="a map with ce- headers must be that of an event"):
            encoder.messages(batch)
    else:
        assert encoder.messages(batch)[1].to_pylist() == ["ce-id: 1\r\na: b\r\n"]


@each("dedup", [True, False])
@each("pair", [*((name, "a") for name in NAMES_OF_HEADERS), *(("a", value) for value in VALUES_OF_HEADERS)])
def test_each_header_is_encoded_as_by_the_codec(pair: tuple[str, str], dedup: bool) -> None:
    rows = pairs_of([*EVENT_PAIRS, pair], [pair], [], [pair])
    batch = pa.RecordBatch.from_arrays([pa.array(["a"] * 4), rows, pa.array([b""] * 4)], ["subject", "h", "d"])
    encoder = RowEncoder(MESSAGE, "", ContentMode.BINARY, dedup=dedup)
    check(encoder, batch)
    check(encoder, batch.slice(1, 2))


def pairs_of(*rows: list[tuple[str | None, str | None]] | None) -> pa.Array:
    pair = pa.struct([("key", pa.string()), ("value", pa.string())])
    shaped = [row if row is None else [{"key": name, "value": value} for name, value in row] for row in rows]
    return pa.array(shaped, pa.list_(pair))


@each("dedup", [True, False])
def test_only_rows_with_unusual_headers_are_left_to_the_codec(dedup: bool) -> None:
    """All others are encoded as columns."""
    usual = [None, [], [("a", "b"), ("a", "")], EVENT_PAIRS]
    unusual = [[("a b", "c")], [("a", "b"), (None, "c")], [("a", None)], [("a", " b")], [("a", "b\0")]]
    odd = set(range(4, 9))
    assert encode_headers(pairs_of(*usual, *unusual), None, 9, dedup=dedup).odd == odd
    maps = pa.array([None, [], [("a", "b")]], pa.map_(pa.string(), pa.string()))
    assert encode_headers(maps, None, 3, dedup=dedup).odd == {2}


@each("dedup", [True, False])
def test_entries_of_null_are_not_sent(dedup: bool) -> None:
    """Arrow allows entries in the range of a NULL list."""
    flat = pairs_of([*EVENT_PAIRS], [("a", "b")])
    headers = pa.ListArray.from_arrays(flat.offsets, flat.values, mask=pa.array([True, False]))
    batch = pa.RecordBatch.from_arrays([pa.array(["a"] * 2), headers, pa.nulls(2)], ["subject", "headers", "data"])
    encoder = RowEncoder(MESSAGE, "", ContentMode.BINARY, dedup=dedup)
    check(encoder, batch)
    assert encoder.messages(batch)[1].to_pylist() == ["", "a: b\r\n"]


@each("mode", MODES)
@each(
    "changed",
    [
        {"x": pa.array([1.5, 2.0])},
        {"x": pa.array([[1], []])},
        {"x": pa.array([18_000, None], pa.date32())},
        {"bad_name": pa.array(["a", "b"])},
        {"Name": pa.array(["a", None])},
        *({name: None} for name in ("specversion", "id", "source", "type")),
        *({name: pa.nulls(2)} for name in ("specversion", "id", "source", "type")),
        *({name: pa.array(["1.0", None])} for name in ("specversion", "id", "source", "type")),
        *({name: pa.array(["1.0", ""])} for name in ("id", "source", "type", "subject", "time_text")),
        *({name: pa.array([None, "a b/"])} for name in ("datacontenttype", "dataschema", "time")),
        {"n": pa.array([2**31 - 1, 2**31])},
        {"n": pa.array([-(2**31), -(2**31) - 1])},
        {"at": pa.array([None, 253402300800000000], TIMESTAMP)},
    ],
)
def test_invalid_attributes_are_errors_as_by_the_codec(changed: dict[str, pa.Array | None], mode: ContentMode) -> None:
    core = {name: pa.array([value] * 2) for name, value in (*EVENT_CORE, ("id", "1"))}
    columns = {name: column for name, column in {**core, **changed}.items() if column is not None}
    attributes = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    events = pa.StructArray.from_arrays([attributes], ["attributes"])
    batch = pa.RecordBatch.from_arrays([pa.array(["a"] * 2), events], ["subject", "event"])
    encoder = RowEncoder(EVENT, "", mode, dedup=True)
    check(encoder, batch)
    assert any(not isinstance(outcome, tuple) for outcome in by_codec(encoder, batch))


TIME_TEXT = "2020-01-02t03:04:05.123456789+01:00"
LATIN_1 = "text/plain; charset=latin-1"


def event_batch(attributes: dict[str, pa.Array], **parts: pa.Array) -> pa.RecordBatch:
    """Return three events with the required attributes, and others."""
    core = {name: pa.array([value] * 3) for name, value in (*EVENT_CORE, ("id", "1"))}
    columns = {**core, **attributes}
    fields = {"attributes": pa.StructArray.from_arrays(list(columns.values()), list(columns)), **parts}
    events = pa.StructArray.from_arrays(list(fields.values()), list(fields))
    return pa.RecordBatch.from_arrays([pa.array(["a"] * 3), events], ["subject", "event"])


USUAL_ATTRIBUTES: dict[str, list[Any]] = {
    "id": ["a|b", "x" * 260, "Zürich 100%"],
    "source": ["/", "é", "/a|b"],
    "subject": ["é", None, 'a\\b "c"'],
    "datacontenttype": [None, "text/plain", "application/x+json"],
    "dataschema": [None, "https://example.com", None],
    "ok": [True, None, False],
    "blob": [b"x", b"", None],
    "note": ["", None, "a"],
}
USUAL_TYPES = {
    "time": pa.array([0, None, -1], TIMESTAMP),
    "n": pa.array([5, None, -(2**31)]),
    "small": pa.array([-128, None, 5], pa.int8()),
    "at": pa.array([None, 1_577_934_245_500_000, 1_577_934_245_000_000], TIMESTAMP),
    "time_text": pa.array([None, TIME_TEXT, TIME_TEXT]),
}


@each("dedup", [True, False])
@each("mode", MODES)
@each(
    "parts",
    [
        {},
        {"data": pa.array([b"1", None, b"\xff"])},
        {"data": pa.array(["1", "text", None])},
        {"data": pa.array(["no JSON", "text", None]), "data_text": pa.array([" 1", None, '{"a": 1.50}'])},
        {"data": pa.array([b"1", b"2", None]), "data_text": pa.array([None, "text", "[1]"])},
        {"data": pa.array([b"1", b"2", b"3"]), "is_json": pa.array([True, False, None])},
        {"data_text": pa.array([None, "text", "5"]), "is_json": pa.array([True, False, True])},
        {"extensions": maps(["k", "l", "m"], ["é", "", "1"], [0, 2, 2, 3], [True, False, True])},
        {"error": pa.nulls(3, pa.string())},
    ],
)
def test_usual_columns_are_encoded_together(parts: dict[str, pa.Array], mode: ContentMode, dedup: bool) -> None:
    """The codec encodes no row of them, also if some values are NULL or have to be escaped."""
    attributes = {name: pa.array(values) for name, values in USUAL_ATTRIBUTES.items()}
    batch = event_batch({**attributes, **USUAL_TYPES}, **parts)
    assert encode(batch["event"], mode, dedup=dedup).odd == set()
    encoder = RowEncoder(EVENT, "", mode, dedup=dedup)
    for some in (batch, batch.slice(1), batch.slice(1, 1)):
        check(encoder, some)


@each("mode", MODES)
@each(
    ("content_type", "parts"),
    [
        (None, {"data": pa.array(["1", "text", "2"])}),
        (None, {"data_text": pa.array([None, "text", "2"])}),
        ("text/plain", {"data_text": pa.array(["1", "no JSON", "{"])}),
        (LATIN_1, {"data_text": pa.array([None, "text", None])}),
        (LATIN_1, {"data": pa.array([b"1", None, b"2"])}),
        ("text/plain", {"data_text": pa.array([None, "text", "5"]), "is_json": pa.array([True, True, None])}),
        (None, {"error": pa.array([None, "invalid-utf8", "odd"])}),
        (None, {"extensions": pa.array([[("k", 5)], None, [("l", -1)]], pa.map_(pa.string(), pa.int32()))}),
        (None, {"extensions": pa.array([[("k", None)], None, []], pa.map_(pa.string(), pa.null()))}),
    ],
)
def test_other_columns_are_encoded_as_by_the_codec(
    content_type: str | None, parts: dict[str, pa.Array], mode: ContentMode
) -> None:
    batch = event_batch({"datacontenttype": pa.array([None, content_type, content_type], pa.string())}, **parts)
    encoder = RowEncoder(EVENT, "", mode, dedup=True)
    check(encoder, batch)
    check(encoder, batch.slice(1))


@each("mode", MODES)
@each(
    ("name", "text"),
    [("id", "2"), ("note", "a"), ("subject", ""), ("time", "today"), ("time", TIME_TEXT), ("data", "1"), ("my_x", "1")],
)
def test_names_of_extensions_in_a_map_are_checked(name: str, text: str, mode: ContentMode) -> None:
    """Also those that are attributes of the specification, or columns."""
    extensions = pa.array([[("k", "v")], [("k", "v"), (name, text)], None], pa.map_(pa.string(), pa.string()))
    batch = event_batch({"note": pa.array(["", "a", "b"])}, extensions=extensions)
    check(RowEncoder(EVENT, "", mode, dedup=True), batch)
    assert encode(batch["event"], mode, dedup=True).odd == {1}


@each("mode", MODES)
def test_events_that_are_null_are_errors(mode: ContentMode) -> None:
    batch = event_batch({})
    attributes = batch["event"].field("attributes")
    null = pa.StructArray.from_arrays([attributes], ["attributes"], mask=pa.array([False, True, False]))
    without = pa.StructArray.from_arrays([pa.nulls(3)], ["attributes"])
    for events in (null, without):
        null_events = pa.RecordBatch.from_arrays([batch["subject"], events], batch.schema.names)
        check(RowEncoder(EVENT, "", mode, dedup=True), null_events)


@each("mode", MODES)
def test_variants_are_encoded_as_by_the_codec(mode: ContentMode) -> None:
    """In Arrow, they are structs; here of the integer 5, and of an empty object."""
    kind = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
    values = [{"value": value, "metadata": b"\x01\x00\x00"} for value in (b"\x0c\x05", b"\x02\x00\x00")]
    batch = event_batch({}, data=pa.array([None, *values], kind))
    encoder = RowEncoder(EVENT, "", mode, dedup=True)
    check(encoder, batch)
    assert encode(batch["event"], mode, dedup=True).odd == {1, 2}
    if mode is ContentMode.BINARY:
        assert encoder.messages(batch)[2].to_pylist() == [b"", b"5", b"{}"]
