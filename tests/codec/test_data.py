"""
Event data: Python values to payload bytes and back, by media type.
"""

import inspect
import json
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ce_nats import DecodeError, EncodeError, NatsMessage, from_nats_message, to_nats_message
from ce_nats.codec.data import JsonText, decode, decode_json, encode, encode_json
from ce_nats.codec.event import NotDelivered
from tests.support.strategies import (
    any_text,
    attempt,
    binary_types,
    exact,
    hostile_payloads,
    json_types,
    json_values,
    media_types,
    objects,
    plain_event,
    refused,
    text_types,
)
from tests.support.tables import each

Pair = namedtuple("Pair", "a b")


class Level(IntEnum):
    LOW = 1


class Colour(str, Enum):
    RED = "red"


class Metres(float):
    """A subclass of float."""


class Text(str):
    """A subclass of str."""


# --- JSON -----------------------------------------------------------------------------------------------------------


@given(json_values)
def test_json_round_trip(value: Any) -> None:
    """The decoded value is equal, with our decoder and with the standard library."""
    text = encode_json(value)
    assert exact(decode_json(text)) == exact(value)
    assert exact(json.loads(text)) == exact(value)


@given(json_values)
def test_json_is_compact_utf8(value: Any) -> None:
    """No white space between tokens, and no unnecessary escapes."""
    # Numbers can have several representations of the same length.
    without_floats = json.loads(json.dumps(value), parse_float=lambda text: 0)
    reference = json.dumps(without_floats, ensure_ascii=False, separators=(",", ":"))
    assert encode_json(without_floats) == reference.encode()


@given(json_values, json_types)
def test_json_media_types_are_equivalent(value: Any, content_type: str) -> None:
    """Data has the same encoding with every JSON media type and without one, and decodes to the same value."""
    text = encode(value, content_type)
    assert text == encode(value, None)
    assert exact(decode(text, content_type)) == exact(value)


@given(hostile_payloads)
@example(b'{"a":"\\udc00"}')
@example(b"\xef\xbb\xbf1")
@example(b"{}\0")
@example(b"[\xed\xa0\x80]")
def test_json_is_strict(payload: bytes) -> None:
    """Accepted text is JSON of the same value for the standard library; other text has one of two codes."""
    value, error = attempt(DecodeError, decode_json, payload)
    if error is not None:
        assert error.code in {"invalid-json", "invalid-utf8"}
        assert error.attribute == "data"
        assert (error.code == "invalid-utf8") == (payload.decode("utf-8", "ignore").encode() != payload)
    else:
        assert exact(json.loads(payload, parse_constant=_no_constant)) == exact(value)


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@each(
    ("value", "text"),
    [
        ([1, 2, None, True], b"[1,2,null,true]"),
        ((1, (2,)), b"[1,[2]]"),
        (Pair(1, 2), b"[1,2]"),
        (OrderedDict(b=1, a=2), b'{"b":1,"a":2}'),
        ({"null": "null", "n": None}, b'{"null":"null","n":null}'),
        (Level.LOW, b"1"),
        (Colour.RED, b'"red"'),
        ({"a": Colour.RED}, b'{"a":"red"}'),
        (2**70, b"1180591620717411303424"),
        ({"a": -(2**70)}, b'{"a":-1180591620717411303424}'),
        (1.0, b"1.0"),
        (1e16, b"1e16"),
        ([1e16], b"[1e16]"),
        ({"a": 1e16}, b'{"a":1e16}'),
        ("é😀\u2028\x7f", '"é😀\u2028\x7f"'.encode()),
        ("\0\ufffe", '"\\u0000\ufffe"'.encode()),
    ],
)
def test_json_examples(value: Any, text: bytes) -> None:
    """A str is a JSON string, never JSON text; tuples are arrays; integers have no limit."""
    assert encode_json(value) == text


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(value, id=repr(value).partition(" at 0x")[0][:40].encode("ascii", "replace").decode())
        for value in [
            float("nan"),
            float("inf"),
            {"a": float("nan")},
            {"a": [float("-inf")]},
            (float("nan"),),
            {"a": (1, float("inf"))},
            Metres("nan"),
            [Metres("-inf")],
            [float("nan"), None],
            {1: "a"},
            {None: 1},
            {True: 1},
            {"a": {1.5: 1}},
            {Level.LOW: 1},
            {"a": b"x"},
            [bytearray(b"x")],
            {"a": datetime(2020, 1, 1, tzinfo=timezone.utc)},
            {"a": date(2020, 1, 1)},
            {1, 2},
            {"a": frozenset()},
            {"a": Decimal("1.5")},
            [UUID(int=1)],
            NotDelivered(1),
            object(),
            {"a": "\ud800"},
            {"\udfff": 1},
            "\ude00\ud83d",
            1j,
            range(3),
            lambda: 1,
        ]
    ],
)
def test_values_outside_of_json_are_rejected(value: Any) -> None:
    """No value is silently converted to a string, a null or a list, at any depth."""
    assert refused(EncodeError, "invalid-data", encode_json, value).attribute == "data"
    refused(EncodeError, "invalid-data", encode_json, {"deep": [{"a": value}]})


def test_json_text_is_written_verbatim() -> None:
    text = ' {"a": 12.50, "a": 1e2}\n'
    event = plain_event(JsonText(text), datacontenttype="application/json")
    assert to_nats_message(event).data == text.encode()
    structured = to_nats_message(event, mode="structured").data
    assert b',"data":' + text.encode() + b"}" in structured
    assert from_nats_message(NatsMessage(data=structured)).get_data() == {"a": 100}


@each("mode", ["binary", "structured"])
@each("text", ["", "text", '{"a":1', "NaN", '"\ud800"', "\udcff", "[" * 129 + "]" * 129])
def test_invalid_json_text_is_rejected(text: str, mode: Any) -> None:
    for content_type in ({"datacontenttype": "application/json"}, {}):
        event = plain_event(JsonText(text), **content_type)
        refused(EncodeError, "invalid-data", to_nats_message, event, mode=mode)


# Values, and their values after encoding and decoding.
LEAVES: list[tuple[Any, Any]] = [
    *((value, value) for value in (None, True, False, "", "null", "é", 0, -1, 2**70, {}, [], {"a": None})),
    *((value, value) for value in (0.0, -0.0, 1.5, -123456.75, 5e-324, 0.1)),
    (Metres(2.5), 2.5),
    (Metres(-0.0), -0.0),
    (Text("a"), "a"),
    (Level.LOW, 1),
    (Colour.RED, "red"),
    ((), []),
    ((1.5,), [1.5]),
    ({Text("a"): Metres(1)}, {"a": 1.0}),
    (OrderedDict(a=1.5), {"a": 1.5}),
]
# Containers. The first are encoded by msgspec in one call, the others value by value.
CONTAINERS: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
    (lambda value: value, lambda value: value),
    (lambda value: [value], lambda value: [value]),
    (lambda value: {"a": value}, lambda value: {"a": value}),
    (lambda value: (value,), lambda value: [value]),
    (lambda value: {"a": (value, value)}, lambda value: {"a": [value, value]}),
    (lambda value: [2**70, value], lambda value: [2**70, value]),
    (lambda value: {"a": 2**70, "b": {"c": [value]}}, lambda value: {"a": 2**70, "b": {"c": [value]}}),
    (lambda value: Pair(value, ({"a": value},)), lambda value: [value, [{"a": value}]]),
]


@each("place", range(len(CONTAINERS)))
@each(("value", "plain"), LEAVES)
def test_values_are_not_changed_in_any_container(value: Any, plain: Any, place: int) -> None:
    """Both ways of encoding a container are checked."""
    made, expected = CONTAINERS[place]
    text = encode_json(made(value))
    assert exact(json.loads(text)) == exact(expected(plain))
    assert text == json.dumps(expected(plain), ensure_ascii=False, separators=(",", ":")).encode()


@each(
    ("value", "text"),
    [
        (float("nan"), "contains nan"),
        ({"a": (1, Metres("-inf"))}, "contains -inf"),
        ({1: 1}, "has the key 1, which is not a string"),
        ([b"x"], "contains bytes b'x'"),
        (10**5000, "contains a surrogate or an integer of thousands of digits"),
        ((1, "\ud800"), "contains a surrogate or an integer of thousands of digits"),
    ],
)
def test_errors_name_what_json_cannot_represent(value: Any, text: str) -> None:
    error = refused(EncodeError, "invalid-data", encode_json, value)
    assert error.message == f"the data cannot be JSON: it {text}"
    assert error.requirement == "JF-3.1.1-10"


def nested(levels: int, container: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = container(value)
    return value


def test_data_deeper_than_the_recursion_limit_is_rejected() -> None:
    """The caller's own calls count, too."""

    def encode_at(depth: int) -> None:
        if depth:
            encode_at(depth - 1)
        else:
            encode_json(nested(120, lambda value: (value,)))

    depth = sys.getrecursionlimit() - len(inspect.stack(0)) - 80
    error = refused(EncodeError, "invalid-data", encode_at, depth)
    assert error.message == "the data cannot be JSON: it is nested deeper than the interpreter's recursion limit allows"


def test_shared_value_is_not_a_cycle() -> None:
    """A list that occurs twice is encoded twice."""
    shared = [1]
    assert encode_json([shared, shared, {"a": shared}]) == b'[[1],[1],{"a":[1]}]'


# --- Text and bytes -------------------------------------------------------------------------------------------------


@given(any_text, text_types)
def test_text_round_trip(text: str, content_type: str) -> None:
    """Text is UTF-8 unless its type has another charset; unpaired surrogates are rejected."""
    if any("\ud800" <= one <= "\udfff" for one in text):
        refused(EncodeError, "invalid-data", encode, text, content_type)
    else:
        assert encode(text, content_type) == text.encode()
        assert decode(encode(text, content_type), content_type) == text


@given(st.binary(), st.one_of(st.none(), media_types))
def test_bytes_are_encoded_verbatim(payload: bytes, content_type: str | None) -> None:
    """For every content type and every bytes-like class."""
    for held in (payload, bytearray(payload), memoryview(payload)):
        encoded = encode(held, content_type)
        assert encoded == payload
        assert type(encoded) is bytes


@given(st.binary(), st.one_of(st.none(), binary_types))
def test_bytes_stay_bytes(payload: bytes, content_type: str | None) -> None:
    """Without a content type, or with one that is neither JSON nor text, even if the bytes are UTF-8."""
    assert decode(payload, content_type) == payload
    assert type(decode(payload, content_type)) is bytes


@given(st.binary(min_size=1, max_size=30), media_types)
def test_any_bytes_are_decoded_or_rejected(payload: bytes, content_type: str) -> None:
    """With one of four codes."""
    _, error = attempt(DecodeError, decode, payload, content_type)
    if error is not None:
        assert error.code in {"invalid-json", "invalid-utf8", "invalid-data", "unsupported-charset"}
        assert error.attribute == "data"


@given(objects, st.one_of(st.none(), media_types))
def test_any_object_is_encoded_or_rejected(value: Any, content_type: str | None) -> None:
    """With one of two codes."""
    payload, error = attempt(EncodeError, encode, value, content_type)
    assert type(payload) is bytes if error is None else error.code in {"invalid-data", "unsupported-charset"}


@each("content_type", ["text/plain", "application/xml", "application/octet-stream"])
@each("value", [{"a": 1}, [1], 1, True, None, 1.5, object()])
def test_other_content_types_need_text_or_bytes(value: Any, content_type: str) -> None:
    """A dict is not sent as its repr."""
    error = refused(EncodeError, "invalid-data", encode, value, content_type)
    assert (error.attribute, error.requirement) == ("data", "JF-3.1.1-11")


@each(
    ("text", "content_type", "payload"),
    [
        ("é", "text/plain; charset=iso-8859-1", b"\xe9"),
        ("€", "text/plain; charset=windows-1252", b"\x80"),
        ("a", "text/plain; charset=utf-16be", b"\0a"),
        ("é", 'text/plain; CharSet="UTF-8"', b"\xc3\xa9"),
        ("é", "application/octet-stream", b"\xc3\xa9"),
    ],
)
def test_charset_parameter(text: str, content_type: str, payload: bytes) -> None:
    """Used in encoding, and in decoding of text."""
    assert encode(text, content_type) == payload
    assert decode(payload, content_type) == (text if content_type.startswith("text/") else payload)


def test_charset_errors() -> None:
    """Text outside of a charset, bytes that are invalid in it, an unknown charset, JSON in another charset."""
    refused(EncodeError, "invalid-data", encode, "€", "text/plain; charset=iso-8859-1")
    refused(DecodeError, "invalid-data", decode, b"\xff", "text/plain")
    refused(DecodeError, "invalid-data", decode, b"\x80", "text/plain; charset=us-ascii")
    for charset in ("klingon", "hex", "unicode_escape", "undefined", "\ud800"):
        given = f"text/plain; charset={charset}"
        assert refused(EncodeError, "unsupported-charset", encode, "a", given).attribute == "data"
        assert refused(DecodeError, "unsupported-charset", decode, b"a", given).attribute == "data"
    refused(EncodeError, "unsupported-charset", encode, {}, "application/json; charset=utf-16")
    refused(DecodeError, "unsupported-charset", decode, b"{}", "application/json; charset=utf-16")


@each(
    ("text", "message", "requirement"),
    [
        (b"{", "the data is not valid JSON: Input data was truncated", "NB-3-05"),
        (b"[" * 257, "the data is nested more than 128 levels deep", "RF-8259-05"),
        (b"[" * 257 + b"\xff", "the data is not valid UTF-8", "RF-8259-01"),
        (b'"\xff"', "the data is not valid UTF-8", "RF-8259-01"),
    ],
)
def test_errors_of_json_name_the_attribute(text: bytes, message: str, requirement: str | None) -> None:
    error = refused(DecodeError, "invalid-utf8" if b"\xff" in text else "invalid-json", decode_json, text)
    assert (error.message, error.attribute, error.requirement) == (message, "data", requirement)
