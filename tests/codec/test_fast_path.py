"""
The fast path for common events: it is taken, it agrees with the careful code, and it remembers little.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from enum import Enum
from itertools import product
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ce_nats import (
    DecodeError,
    Dialect,
    EncodeError,
    Headers,
    NatsMessage,
    Timestamp,
    from_nats_message,
    to_nats_message,
)
from ce_nats.codec import fast_path, memory, mode
from ce_nats.codec.attributes import canonical
from ce_nats.codec.fast_path import Shapes
from ce_nats.codec.memory import Memory, NamesMemory
from tests.support.strategies import (
    Event,
    any_events,
    binary_message,
    events,
    exact,
    hostile_messages,
    plain_event,
    structured_message,
    valid_messages,
    without_fast_path,
)

MODES = ["binary", "structured"]
ALL_NAMES = [value for value in (*vars(fast_path).values(), mode._sorted) if isinstance(value, NamesMemory)]
ALL_SHAPES = [value for value in ALL_NAMES if isinstance(value, Shapes)]
ALL_MEMORIES = [value for value in {**vars(fast_path), **fast_path._SCOPE}.values() if isinstance(value, Memory)]


@pytest.fixture(autouse=True)
def at_first_sight() -> Iterator[None]:
    """Names need not be seen before they have a function; and what a test leaves behind is no other test's."""
    with pytest.MonkeyPatch.context() as patch:
        for shapes in ALL_SHAPES:
            shapes.clear()
            patch.setattr(shapes, "sightings", 1)
        yield
    for shapes in ALL_SHAPES:
        shapes.clear()


def outcome(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """All that a caller can see of a call, as something to compare."""
    try:
        result = call(*args, **kwargs)
    except (EncodeError, DecodeError) as error:
        return type(error), error.code, error.attribute, error.header, str(error), error.requirement
    if isinstance(result, NatsMessage):
        return result, [*map(type, [*result.headers, *result.headers.values(), result.subject, result.data])]
    return exact(result.get_attributes()), exact(result.get_data()), result.has_data, result.is_json


def same(call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """The outcome is the same with and without the fast path, at the second time, too, when values are remembered."""
    fast = outcome(call, *args, **kwargs)
    assert outcome(call, *args, **kwargs) == fast
    with without_fast_path():
        assert outcome(call, *args, **kwargs) == fast


# --- It agrees with the careful code --------------------------------------------------------------------------------


@given(st.one_of(events(), any_events()), st.sampled_from(MODES))
def test_encoding_agrees(event: Event, mode: str) -> None:
    """Same message or same error."""
    same(to_nats_message, event, mode=mode)


UNTYPED = {"x": None, "count": None, "flag": None, "blob": None, "at": None}
TYPES = {"x": int, "count": int, "flag": bool, "blob": bytes, "at": datetime, "comexampleextension1": str}


@given(
    hostile_messages,
    st.sampled_from([None, *MODES]),
    st.sampled_from(Dialect),
    st.booleans(),
    st.sampled_from([None, TYPES, UNTYPED]),
)
def test_decoding_agrees(message: Any, mode: Any, dialect: Dialect, parse_data: bool, types: Any) -> None:
    """Same event or same error."""
    same(from_nats_message, message, mode=mode, dialect=dialect, parse_data=parse_data, extension_types=types)


@given(valid_messages(), st.booleans())
def test_decoding_valid_messages_agrees(message: NatsMessage, parse_data: bool) -> None:
    """The common case, where the fast path has most to say."""
    same(from_nats_message, message, parse_data=parse_data)


COMMON = {
    "specversion": "1.0",
    "id": "a b",
    "source": "/ü",
    "type": "t",
    "time": "2020-01-01T00:00:00.5Z",
    "datacontenttype": "application/json",
    "dataschema": "https://example.com/s",
    "x": "%",
    "y": "plain",
}
DATA = {"n": 1, "items": [{"a": "é"}, None]}


class Text(str):
    """A string of another class."""


class Member(str, Enum):
    ONE = "1.0"
    UTC = "2020-01-01T00:00:00Z"


ODD_TEXTS = [
    "",
    " ",
    " a",
    "a ",
    "\t",
    "a\tb",
    "\n",
    "=\n",
    "\r\n",
    "\0",
    "\x1f",
    "\x7f",
    "\x80",
    "\xa0",
    "é",
    "€",
    "😀",
    "\ufdd0",
    "\uffff",
    "\ud83d\ude00",
    "\ud83d",
    "\ude00",
    "\u2028",
    "\u0378",
    '"',
    '"a"',
    '"a b"',
    '"a',
    'a"b"c',
    "\\",
    "a\\b",
    '\\"',
    "%",
    "%%",
    "%4",
    "%41",
    "%zz",
    "%C3%A9",
    "%c3%a9",
    "%C3",
    "%C0%A0",
    "%ED%A0%80",
    "%00",
    "%7F",
    "%20a%20",
    "=",
    "=41",
    "%3D",
    "=%41",
    "%41=",
    "%=41",
    "1.0",
    "%31.0",
    "1.0 ",
    "0.3",
    "text/plain",
    "text/plain; charset=latin1",
    "application/json; charset=utf-16",
    "image/png",
    "no type",
    "a:b",
    "/relative",
    "2020-01-01T00:00:00Z",
    "2020-01-01t00:00:00z",
    "2020-01-01T00:00:00.123456789+02:00",
    "2020-01-01T00:00:00.120Z",
    "2020-01-01T00:00:00-00:00",
    "2020-01-01T00:00:00+00:00",
    "2020-01-01T00:00:00+23:59",
    "2020-01-01T00:00:00+24:00",
    "2020-01-01T00:00:00",
    "2020-01-01",
    "20200101T000000Z",
    "2020-W01-1T00:00:00Z",
    "2020-01-01 00:00:00Z",
    "2016-12-31T23:59:60Z",
    "2020-02-30T00:00:00Z",
    "0000-01-01T00:00:00Z",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999Z",
    "2020-01-01T24:00:00Z",
    "2020-01-01T00:00:00,5Z",
    "2020-01-01T00:00:00.1234567Z",
    "true",
    "42",
    "x" * 300,
    "é" * 300,
    "%41" * 300,
]
ODD_VALUES = [
    *ODD_TEXTS,
    None,
    True,
    0,
    5,
    -(2**31),
    2**31,
    1.5,
    b"",
    b"x",
    [],
    {},
    Text("a"),
    Text("1.0"),
    Member.ONE,
    Member.UTC,
    object,
    datetime(2020, 1, 1),
    datetime(2020, 1, 1, tzinfo=timezone.utc),
    datetime(5, 1, 1, 1, 1, 1, 1, timezone.utc),
    datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=2))),
    datetime(2020, 1, 1, tzinfo=timezone(timedelta(seconds=1))),
    datetime(2020, 1, 1, tzinfo=timezone(timedelta(0))),
    Timestamp("2020-01-01T00:00:00.123456789+02:00"),
    Timestamp("2020-01-01T00:00:00Z").replace(tzinfo=None),
    Timestamp("2016-12-31T23:59:60Z"),
]


@pytest.mark.parametrize("name", COMMON)
@pytest.mark.parametrize("mode", MODES)
def test_events_with_an_odd_value(name: str, mode: str) -> None:
    """Each attribute of a common event with each value that could be mistaken for a common one."""
    for value in ODD_VALUES:
        same(to_nats_message, Event({**COMMON, name: value}, DATA), mode=mode)


ODD_DATA = [
    None,
    True,
    0,
    1.5,
    float("nan"),
    float("inf"),
    10**30,
    "",
    "text",
    '"',
    "\ud800",
    "é",
    b"",
    b"bytes",
    bytearray(b"a"),
    memoryview(b"a"),
    [],
    {},
    [[]],
    {"a": None},
    {"a": "null"},
    {"a": "{"},
    {1: 1},
    {None: 1},
    {"a": {1}},
    {"a": b""},
    {"a": datetime(2020, 1, 1)},
    {"a": float("nan")},
    (1, 2),
    {"a": (1,)},
    Text("a"),
    {Text("a"): 1},
    {"a": Member.ONE},
    {"a": Text("1")},
    OrderedDict(a=1),
    {"a": [float("inf")]},
]
CONTENT_TYPES = [
    "application/json",
    "application/x+json; charset=latin1",
    "text/plain",
    "text/plain; charset=latin1",
    "text/x; charset=hex",
    "application/xml",
    "image/png",
    "nonsense",
]


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
@pytest.mark.parametrize("mode", MODES)
def test_events_with_odd_data(content_type: str, mode: str) -> None:
    for data in ODD_DATA:
        same(to_nats_message, Event({**COMMON, "datacontenttype": content_type}, data), mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_events_without_a_content_type(mode: str) -> None:
    for data in ODD_DATA:
        same(to_nats_message, plain_event(data), mode=mode)


@pytest.mark.parametrize("name", COMMON)
def test_headers_with_an_odd_value(name: str) -> None:
    """As of events; and with each name in another case, another time, or with a Content-Type before it."""
    for value, parse_data in product([*ODD_VALUES, ["a"], ["a", "b"]], (True, False)):
        for as_headers in (dict, lambda pairs: Headers(pairs.items())):
            headers = {f"ce-{key}": text for key, text in ENCODED.items()} | {f"ce-{name}": value}
            try:
                message = NatsLike(as_headers(headers), b'{"a": [1]}')
            except DecodeError:
                continue
            same(from_nats_message, message, parse_data=parse_data, extension_types=TYPES)
    for headers in (
        {f"CE-{key}": text for key, text in ENCODED.items()},
        {f"ce-{key}": text for key, text in ENCODED.items()} | {f"CE-{name}": ENCODED[name]},
        {f"ce-{key}": text for key, text in ENCODED.items() if key != name},
        *(
            {"Content-Type": kind} | {f"ce-{key}": text for key, text in ENCODED.items()}
            for kind in CONTENT_TYPE_HEADERS
        ),
    ):
        same(from_nats_message, NatsLike(headers, b"1"))


CONTENT_TYPE_HEADERS = [
    "application/json",
    "application/cloudevents",
    "Application/CloudEvents+JSON; charset=UTF-8",
    "application/cloudevents+json; charset=latin1",
    "application/cloudevents-batch+json",
    "application/cloudevents+avro",
    "",
]
ENCODED = {
    "specversion": "1.0",
    "id": "a%20b",
    "source": "/%C3%BC",
    "type": "t",
    "time": "2020-01-01T00:00:00.5Z",
    "datacontenttype": "application/json",
    "dataschema": "https://example.com/s",
    "x": "42",
    "y": "plain",
}


class NatsLike:
    """A message of another library."""

    def __init__(self, headers: Any, data: Any) -> None:
        self.headers = headers
        self.data = data


@pytest.mark.parametrize(
    "headers",
    [
        None,
        {},
        Headers(),
        MappingProxyType({}),
        [],
        [("Content-Type", "application/cloudevents+json")],
        *({"Content-Type": kind} for kind in CONTENT_TYPE_HEADERS),
        {"content-type": "application/cloudevents", "Nats-Msg-Id": "1"},
        [("Content-Type", "application/cloudevents")] * 2,
        {"Content-Type": 1},
    ],
)
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b"null",
        None,
        5,
        bytearray(b'{"id":"1"}'),
        json.dumps(COMMON).encode(),
        json.dumps({**COMMON, "data": DATA}).encode() + b"\n",
    ],
)
def test_headers_and_payloads(headers: Any, payload: Any) -> None:
    same(from_nats_message, NatsLike(headers, payload))
    same(from_nats_message, NatsLike(headers, payload), parse_data=False)


EVENT = '{"specversion":"1.0","id":"ü","source":"/s","type":"t","x":1,"data":{"a":["b"],"c":null}}'.encode()
INSERTED = [
    b"",
    b'"',
    b"\\",
    b"}",
    b"{",
    b",",
    b":",
    b" ",
    b"\n",
    b"\x7f",
    b"\0",
    b"\xff",
    b"1",
    b"\\u0000",
    b'\\"',
    b'"id":"2",',
    b'"data":1,',
    b',"data":',
]


@pytest.mark.parametrize("parse_data", [True, False])
def test_json_events_with_odd_text(parse_data: bool) -> None:
    """At each place of a JSON event, before a byte or in its stead, text that could make it look like another one."""
    for place, inserted, length in product(range(len(EVENT) + 1), INSERTED, (0, 1)):
        payload = EVENT[:place] + inserted + EVENT[place + length :]
        same(from_nats_message, structured_message(payload), parse_data=parse_data)


@pytest.mark.parametrize("name", [*COMMON, "data", "data_base64", "new", "Data", ""])
def test_json_events_with_an_odd_member(name: str) -> None:
    """Each member with each value; the last, in its place, and twice."""
    values = [*filter(None, map(_json, ODD_VALUES)), "[[]]", "-0", "1e2", "1.0", "10000000000"]
    for value in values:
        others = {key: json.dumps(text) for key, text in COMMON.items()}
        for members in (
            {**others, name: value},
            {**others, "data": '{"a":1}', name: value},
            {name: value, **others, "data": "null"},
            {**others, "data_base64": '"YQ=="', name: value},
        ):
            payload = "{" + ",".join(f"{json.dumps(key)}:{text}" for key, text in members.items()) + "}"
            try:
                message = structured_message(payload.encode())
            except UnicodeEncodeError:
                continue
            same(from_nats_message, message, extension_types=TYPES)
            same(from_nats_message, message, extension_types=UNTYPED)
            same(from_nats_message, message, parse_data=False)


def _json(value: Any) -> str | None:
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError:
        return None


def test_deep_data() -> None:
    """Data nested up to the limit, and beyond it."""
    for levels in (127, 128, 129, 2000):
        data = b"[" * levels + b"1" + b"]" * levels
        same(
            from_nats_message,
            structured_message(b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":' + data + b"}"),
        )
        same(from_nats_message, binary_message(data, datacontenttype="application/json"))


def test_long_events() -> None:
    """What stands before the data, and data in base64, may be longer than what is looked at for it."""
    for length in (4000, 4080, 4096, 5000):
        text = "x" * length
        for member in ("id", "x", "data_base64"):
            for data in ("", ',"data":1'):
                members = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", member: text}
                same(
                    from_nats_message,
                    structured_message(json.dumps(members, separators=(",", ":"))[:-1].encode() + f"{data}}}".encode()),
                )


# --- It is taken ----------------------------------------------------------------------------------------------------


@contextmanager
def without_careful_code() -> Iterator[None]:
    """The fast path alone."""

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("the careful code was called")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("binary.encode", "binary.decode", "structured.encode", "structured.decode"):
            patch.setattr(f"ce_nats.codec.{name}", fail)
        yield


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("attributes", "data"),
    [
        ({}, DATA),
        ({"time": datetime(2020, 1, 1, tzinfo=timezone.utc)}, DATA),
        ({"time": Timestamp("2020-01-01T00:00:00+02:00")}, DATA),
        ({"x": 5, "y": True}, DATA),
        ({"datacontenttype": "text/plain"}, "text"),
        ({"datacontenttype": "image/png"}, b"bytes"),
        ({}, None),
    ],
)
def test_it_is_taken(attributes: dict[str, Any], data: Any, mode: str) -> None:
    """Common events of each kind never get to the careful code."""
    event = Event({**COMMON, **attributes}, data)
    with without_careful_code():
        message = to_nats_message(event, mode=mode, headers={"Nats-Msg-Id": "1"})
        decoded = from_nats_message(message)
        assert from_nats_message(NatsLike(dict(message.headers), message.data)) == decoded
    assert decoded.get_data() == data
    sent = {**COMMON, **attributes, "time": Timestamp(event.get_attributes()["time"])}
    assert {name: canonical(value) for name, value in decoded.get_attributes().items()} == {
        name: canonical(value) for name, value in sent.items()
    }


def test_it_is_taken_with_declared_types() -> None:
    with without_careful_code():
        event = from_nats_message(
            NatsLike({f"ce-{name}": text for name, text in ENCODED.items()}, b""), extension_types={"x": int}
        )
        assert event.get_attributes()["x"] == 42
        event = from_nats_message(structured_message(EVENT), extension_types={"x": int})
        assert event.get_attributes()["x"] == 1


@pytest.mark.parametrize("value", [5, True, "5"])
def test_extensions_of_no_declared_type_keep_their_type(value: Any) -> None:
    payload = json.dumps({"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "n": value}).encode()
    event = from_nats_message(structured_message(payload), extension_types={"n": None})
    assert exact(event.get_attributes()["n"]) == exact(value)


def test_names_of_extensions_are_not_constants() -> None:
    """Python 3.12 and later keep constants that look like names until the process ends."""
    names = ("ce-specversion", "ce-id", "ce-source", "ce-type", "ce-extension")
    values = ("1.0", "1", "/s", "t", "x")
    convert = fast_path._header_decoders[names]
    assert convert(values)["extension"] == "x"
    assert "'extension'" not in repr(convert.__code__.co_consts + convert.__code__.co_names)


def test_names_seen_but_a_few_times_have_no_function() -> None:
    shapes = Shapes(len)
    for _ in range(fast_path.FIRST_SIGHTINGS - 1):
        with pytest.raises(fast_path.Unusual):
            shapes["a", "b"]
    assert shapes["a", "b"] == 2


SOURCES = {
    fast_path.header_encoder_source: """\
def convert(attributes):
    v0, v1, v2, v3, v4 = attributes.values()
    if not (v0.__class__ is v1.__class__ is v2.__class__ is v3.__class__ is str):
        raise Unusual
    if not (v1 == "1.0"):
        raise Unusual
    if not (v0):
        raise Unusual
    if not is_literal(f"{v0}"):
        v0, = escape_all((v0,))
    v4 = to_builtins(v4) if v4.__class__ is datetime and v4.tzinfo is utc else time_text(v4)
    return [('ce-id', v0), ('ce-specversion', v1), ('ce-source', source_texts[v2]), \
('ce-type', type_texts[v3]), ('ce-time', v4)]""",
    fast_path.member_encoder_source: """\
def convert(attributes):
    v0, v1, v2, v3, v4 = attributes.values()
    if not (v0.__class__ is v1.__class__ is v2.__class__ is v3.__class__ is str):
        raise Unusual
    if not (v1 == "1.0"):
        raise Unusual
    if not (v0 and v1 and v2 and v3):
        raise Unusual
    v4 = to_builtins(v4) if v4.__class__ is datetime and v4.tzinfo is utc else time_text(v4)
    text = to_json({**attributes, "time": v4})
    if not (is_printable(text, (v0, v1, v2, v3))):
        raise Unusual
    return text""",
}


@pytest.mark.parametrize("source", SOURCES)
def test_source_text(source: Callable[[Any], str]) -> None:
    """What is made for a set of names reads like a function that somebody wrote for it."""
    assert source(("id", "specversion", "source", "type", "time")) == SOURCES[source]


def test_source_text_of_the_decoder() -> None:
    assert (
        fast_path.header_decoder_source(("Nats-Msg-Id", "ce-type", "ce-id", "CE-Source", "ce-specversion"))
        == """\
def convert(values):
    v0, v1, v2, v3, v4, = values
    if not (v0.__class__ is v1.__class__ is v2.__class__ is v3.__class__ is v4.__class__ is str):
        raise Unusual
    if not (v4 == "1.0"):
        raise Unusual
    if not (v2):
        raise Unusual
    if not is_literal(f"{v2}"):
        v2, = unescape_all((v2,))
    return {'type': type_values[v1], 'id': v2, 'source': source_values[v3], 'specversion': v4}"""
    )


# --- It remembers little --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        ("specversion", "id", "source"),
        ("specversion", "id", "source", "type", "X"),
        ("specversion", "id", "source", "type", "data"),
        ("specversion", "id", "source", "type", ""),
    ],
)
def test_names_that_no_event_has(names: Any) -> None:
    """They are remembered, too, and left to the careful code each time."""
    for _ in range(2):
        assert fast_path.encode_headers(dict.fromkeys(names, "1.0")) is None
        assert not fast_path._valid_names[names]


@pytest.mark.parametrize("names", [("a", 1), ("a", None), ("a", Text("b")), ("x" * 2000,), tuple(map(str, range(100)))])
def test_names_that_are_not_remembered(names: Any) -> None:
    shapes = Shapes(len)
    shapes.sightings = 1
    with pytest.raises(fast_path.Unusual):
        shapes[names]
    assert not shapes
    assert not shapes._seen


def test_what_is_remembered_is_bounded() -> None:
    """Names and values that a peer makes up do not fill the memory, in either direction or mode."""
    for number in range(3000):
        message = binary_message(
            b"1",
            **{f"x{number}": f"{chr(0x4E00 + number)}"},
            source=f"/{number}",
            type=f"t{number}",
            datacontenttype=f"application/x{number}+json",
            dataschema=f"s:{number}",
        )
        event = from_nats_message(message)
        from_nats_message(to_nats_message(event, f"subject.{number}", mode="structured"))
        to_nats_message(event, "s" * 1000)
    sizes = [
        len(known)
        for known in (*ALL_SHAPES, *ALL_MEMORIES, *(shapes._seen for shapes in ALL_SHAPES), fast_path._escapes)
    ]
    assert max(sizes) <= 1024
    assert max(len(text) for known in ALL_MEMORIES for text in known) <= memory.MAX_LENGTH
    assert max(map(len, ALL_NAMES)) <= memory.MAX_LISTS


def test_a_flood_of_names_has_ever_fewer_functions_made() -> None:
    made: list[Any] = []

    def make(names: Any) -> Any:
        made.append(names)
        return len

    shapes = Shapes(make)
    shapes.sightings = 2
    for number in range(4 * memory.MAX_LISTS):
        for _ in range(2):
            with suppress(fast_path.Unusual):
                shapes[str(number),]
    assert memory.MAX_LISTS <= len(made) <= memory.MAX_LISTS + 1
    assert shapes.sightings == 4


def test_names_are_compiled_early_again_after_a_flood() -> None:
    shapes = Shapes(lambda names: list)
    for number in range(16 * memory.MAX_LISTS):
        for _ in range(fast_path.FIRST_SIGHTINGS):
            with suppress(fast_path.Unusual):
                shapes[str(number),]
    assert shapes.sightings > fast_path.FIRST_SIGHTINGS
    for number in range(4 * fast_path.CALM):
        with pytest.raises(fast_path.Unusual):
            shapes["once", str(number)]
    assert shapes.sightings == fast_path.FIRST_SIGHTINGS


class Name(str, Enum):
    SPECVERSION = "specversion"
    ID = "id"
    SOURCE = "source"
    TYPE = "type"
    EXTENSION = "fromenum"


NAMED = Event(dict(zip(Name, ("1.0", "1", "/s", "t", "x"))))
PLAIN = plain_event(fromenum="x")


@pytest.mark.parametrize("first", [NAMED, PLAIN])
@pytest.mark.parametrize("mode", MODES)
def test_names_that_are_members_of_an_enum(first: Event, mode: str) -> None:
    """An attribute's name is the string that it is, whatever was remembered before."""
    for event in (first, NAMED, PLAIN):
        same(to_nats_message, event, mode=mode)
        names = from_nats_message(to_nats_message(event, mode=mode)).get_attributes()
        assert [(type(name), name) for name in names] == [(str, name.value) for name in Name]


def test_events_share_nothing() -> None:
    """Two events of one shape have nothing in common but their names."""
    first = from_nats_message(binary_message(b"1", x="a"))
    second = from_nats_message(binary_message(b"2", x="b"))
    assert first.get_attributes()["x"] == "a"
    assert first.get_attributes() is not second.get_attributes()
    third = from_nats_message(structured_message(b'{"specversion":"1.0","id":"1","source":"/s","type":"t","x":"c"}'))
    assert third.get_attributes()["x"] == "c"
