"""
Hypothesis strategies for the codec: valid events of all forms, and invalid events and messages.

Valid text is biased towards characters that encoders handle wrongly. tests/conftest.py sets the hypothesis profile;
``HYPOTHESIS_PROFILE=thorough`` runs twenty times as many examples.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st

from ce_nats import CeNatsError, DecodeError, EncodeError, ErrorCode, NatsMessage, Timestamp, to_nats_message
from ce_nats.codec import _fast_path

CORE = ("specversion", "id", "source", "type", "subject", "datacontenttype", "dataschema", "time")


@dataclass
class Event:
    """Minimal event class without validation."""

    attributes: Any
    data: Any = None

    def get_attributes(self) -> Any:
        return self.attributes

    def get_data(self) -> Any:
        return self.data


def plain_event(data: Any = None, /, **attributes: Any) -> Event:
    """Return a valid event with attributes added or replaced; a value of ``...`` omits the attribute."""
    merged = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", **attributes}
    return Event({name: value for name, value in merged.items() if value is not ...}, data)


def binary_message(payload: bytes = b"", /, **headers: str) -> NatsMessage:
    """Return a valid message in binary mode; keywords are attribute names, and ``...`` omits the attribute."""
    merged = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", **headers}
    return NatsMessage("s", payload, {f"ce-{name}": value for name, value in merged.items() if value is not ...})


def structured_message(payload: bytes) -> NatsMessage:
    return NatsMessage("s", payload, {"Content-Type": "application/cloudevents+json"})


def refused(fault: type[CeNatsError], code: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> CeNatsError:
    """Call a function that must raise an error of this class and code, and return the error."""
    with pytest.raises(fault) as caught:
        call(*args, **kwargs)
    assert caught.value.code is ErrorCode(code), caught.value
    return caught.value


def attempt(fault: type[CeNatsError], call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Call a function; return (result, None), or (None, error) for an error of this class. Raise other errors."""
    try:
        return call(*args, **kwargs), None
    except fault as error:
        return None, error


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Disable the fast path, so that the full codec does all the work."""
    with pytest.MonkeyPatch.context() as patch:
        for function in ("block_decoder", "encode_block", "encode_headers", "encode_event", "decode"):
            patch.setattr(_fast_path, function, lambda *_: None)
        yield


def exact(value: Any) -> Any:
    """Return a form for comparison that distinguishes 1 and True, 0.0 and -0.0, and Timestamps with different text."""
    if isinstance(value, dict):
        return {"dict": [(exact(name), exact(item)) for name, item in value.items()]}
    if isinstance(value, list):
        return [exact(item) for item in value]
    return type(value).__name__, repr(value)


def outcome(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return all that a caller can observe of a call, in a form that can be compared."""
    try:
        result = call(*args, **kwargs)
    except (EncodeError, DecodeError) as error:
        return type(error), error.code, error.attribute, error.header, str(error), error.requirement
    if isinstance(result, NatsMessage):
        return result, [*map(type, [*result.headers, *result.headers.values(), result.subject, result.data])]
    return exact(result.get_attributes()), exact(result.get_data()), result.has_data, result.is_json


# --- Text -----------------------------------------------------------------------------------------------------------

NONCHARACTERS = "".join(map(chr, range(0xFDD0, 0xFDF0))) + "".join(
    chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF)
)
_TRAPS = [
    *("%", "%%", "%4", "%41", "%C3%BC", "%c3%bc", "%zz", "%00", "%0D%0A", "%25", "%uD83D"),
    *('"', '""', '\\"', "\\", "\\\\", "\\x41", "\\u0041", '"a b"', "'"),
    *(" ", "  ", "\u00a0", "\u2003", "\u3000", "\u2028", "\u2029", "\u200b"),
    *("\u00ad", "\u200d", "\ufeff", "\u202e", "e\u0301", "\u1100\u1161", "👩\u200d💻", "\ufffd"),
    *("ü", "€", "😀", "\U00010000", "\U0010fffd", "\u0100", "\u0378", "K", "ß"),
    *("+", "&#65;", ":", ";", "|", ",", "=", "~", "!", "true", "null", "1", "ce-", "NATS/1.0"),
]
_legal_characters = st.characters(exclude_categories=["Cc", "Cs"], exclude_characters=NONCHARACTERS)


def legal_text(min_size: int = 0) -> st.SearchStrategy[str]:
    """Strings that are valid as attributes; ``min_size`` is 0 or 1."""
    pieces = st.one_of(st.sampled_from(_TRAPS), st.text(_legal_characters, min_size=1, max_size=4))
    return st.one_of(
        st.lists(pieces, min_size=min_size, max_size=8).map("".join),
        st.text(_legal_characters, min_size=min_size, max_size=20),
        st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=min_size, max_size=20),
    )


# Any str of Python, including control characters, noncharacters and unpaired surrogates.
any_text = st.one_of(
    st.text(st.characters(exclude_categories=[]), max_size=20),
    st.lists(
        st.one_of(
            st.sampled_from([*_TRAPS, "\r\n", "\n", "\r", "\0", "\x85", "\x7f", "\ud800", "\udfff", "\udbff\udfff"]),
            st.text(st.characters(exclude_categories=[]), max_size=3),
        ),
        max_size=8,
    ).map("".join),
)
illegal_characters = st.one_of(
    st.characters(categories=["Cc"]), st.characters(categories=["Cs"]), st.sampled_from(NONCHARACTERS)
)

attribute_names = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=20).filter(
    lambda name: name not in (*CORE, "data")
)

# --- Values ---------------------------------------------------------------------------------------------------------


class Moment(NamedTuple):
    """RFC 3339 text with its parts: local time truncated to microseconds, offset, digits of the fraction."""

    text: str
    local: datetime
    offset: timedelta
    fraction: str
    is_leap_second: bool


_offsets = st.one_of(st.just(0), st.integers(-1439, 1439)).map(lambda minutes: timedelta(minutes=minutes))


@st.composite
def moments(draw: st.DrawFn) -> Moment:
    """RFC 3339 texts with 0 to 30 digits of fraction, any offset, ``t`` and ``z`` in any case; some leap seconds."""
    offset = draw(_offsets)
    is_leap_second = draw(st.integers(0, 9)) == 0
    if is_leap_second:
        first_of_next = datetime(draw(st.integers(2, 9998)), draw(st.integers(1, 12)), 1)
        local = first_of_next - timedelta(seconds=1) + offset
    else:
        local = draw(st.datetimes(min_value=datetime(1, 1, 1))).replace(microsecond=0)
    fraction = draw(st.one_of(st.just(""), st.text("0123456789", min_size=1, max_size=30)))
    sign, minutes = ("-", -offset) if offset < timedelta(0) else ("+", offset)
    hours, rest = divmod(int(minutes.total_seconds()) // 60, 60)
    zones = [f"{sign}{hours:02}:{rest:02}", *(["Z", "z", "-00:00"] if not offset else [])]
    text = (
        f"{local.year:04}-{local.month:02}-{local.day:02}{draw(st.sampled_from('TTTt'))}{local.hour:02}"
        f":{local.minute:02}:{60 if is_leap_second else local.second:02}"
        f"{'.' + fraction if fraction else ''}{draw(st.sampled_from(zones))}"
    )
    microsecond = 999999 if is_leap_second else int(fraction[:6].ljust(6, "0"))
    return Moment(text, local.replace(microsecond=microsecond), offset, fraction, is_leap_second)


timestamp_texts = moments().map(lambda moment: moment.text)
aware_datetimes = st.builds(lambda at, offset: at.replace(tzinfo=timezone(offset)), st.datetimes(), _offsets)
times = st.one_of(timestamp_texts, aware_datetimes, timestamp_texts.map(Timestamp))
int32 = st.one_of(st.integers(-(2**31), 2**31 - 1), st.sampled_from([0, -1, 2**31 - 1, -(2**31)]))
attribute_values = st.one_of(
    legal_text(),
    st.booleans(),
    int32,
    st.binary(max_size=20),
    aware_datetimes,
    timestamp_texts.map(Timestamp),
)

_token = st.text("!#$%&'*+-.^_`|~0123456789abcxyzABCXYZ", min_size=1, max_size=8)
media_types = st.one_of(
    st.sampled_from(["application/json", "text/plain", "application/octet-stream", "image/svg+xml", "a/b+json"]),
    st.builds("{}/{}".format, _token, _token),
    st.builds("{}/{};{}".format, _token, _token, legal_text()),
)
uris = st.builds("{}:{}".format, st.sampled_from(["http", "urn", "a+b-c.d1", "X"]), legal_text())

# --- Data -----------------------------------------------------------------------------------------------------------

_json_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**80), 2**80),
        st.floats(allow_nan=False, allow_infinity=False),
        _json_text,
        legal_text(),
        st.sampled_from(["null", "", '"', "\0", "\ufffe", 2**53 + 1, 2**63, 2**64, -0.0, 1e22, 5e-324]),
    ),
    lambda values: st.one_of(st.lists(values, max_size=4), st.dictionaries(_json_text, values, max_size=4)),
    max_leaves=12,
)


class Content(NamedTuple):
    """Event data with a suitable datacontenttype (None: no datacontenttype)."""

    data: Any
    type: str | None


json_types = st.sampled_from(
    [*("application/json", "APPLICATION/JSON", "text/json", "a/b+JSON"), "application/json ; charset=UTF-8"]
)
binary_types = st.sampled_from(["application/octet-stream", "image/png", "application/xmlish", "x/jsonp"])
text_types = st.sampled_from(["text/plain", "Text/HTML; charset=utf-8", "application/xml", "image/svg+xml", "text/x;"])
contents = st.one_of(
    st.builds(Content, st.none(), st.one_of(st.none(), media_types)),
    st.builds(Content, json_values.filter(lambda value: value is not None), st.one_of(st.none(), json_types)),
    st.builds(Content, _json_text.filter(bool), text_types),
    st.builds(Content, st.text("aé\x80ÿ", min_size=1), st.just('text/plain; charset="iso-8859-1"')),
    st.builds(Content, _json_text.filter(bool), st.just("text/plain;Charset=UTF-16")),
    st.builds(Content, st.binary(min_size=1, max_size=40), st.one_of(st.none(), binary_types)),
)


@st.composite
def events(draw: st.DrawFn) -> Event:
    """Valid events with data that both modes can carry, attributes in any order, of every type."""
    content = draw(contents)
    attributes = {"specversion": "1.0"} | {name: draw(legal_text(1)) for name in ("id", "source", "type")}
    if content.type is not None:
        attributes["datacontenttype"] = content.type
    optional = {"subject": legal_text(1), "dataschema": uris, "time": times}
    for name in draw(st.sets(st.sampled_from(sorted(optional)))):
        attributes[name] = draw(optional[name])
    attributes |= draw(st.dictionaries(attribute_names, attribute_values, max_size=4))
    order = draw(st.permutations(list(attributes)))
    return Event({name: attributes[name] for name in order}, content.data)


def extension_types(event: Event) -> dict[str, type]:
    """Return the declared types with which both modes decode to the same Python values."""
    kinds = (bool, int, bytes, datetime)
    return {
        name: next((kind for kind in kinds if isinstance(value, kind)), str)
        for name, value in event.attributes.items()
        if name not in CORE
    }


def canonical_text(name: str, value: Any) -> str:
    """Return the canonical string of an attribute, computed without the codec."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Timestamp):
        return str(value)
    if isinstance(value, datetime):
        text = value.isoformat()
        return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text
    return str(value).upper() if name == "time" else str(value)


def expected_attributes(event: Event) -> dict[str, Any]:
    """Return the attributes that decoding must return for an event if the types of its extensions are declared."""
    expected = {
        name: Timestamp(canonical_text(name, value)) if name == "time" or isinstance(value, datetime) else value
        for name, value in event.attributes.items()
    }
    if event.data is not None and not isinstance(event.data, bytes):
        expected.setdefault("datacontenttype", "application/json")
    return expected


# --- Invalid events and messages ------------------------------------------------------------------------------------


class Colour(str, Enum):
    RED = "red"


class Rude:
    """An object whose ``repr`` raises. It is not in ``objects``, because hypothesis needs the ``repr`` of examples."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


# Python objects of any type, most of which are invalid as attribute, header or payload.
objects: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    any_text,
    st.binary(max_size=10),
    st.datetimes(),
    aware_datetimes,
    st.recursive(
        st.one_of(any_text, st.integers(), st.floats(), st.binary(max_size=3)),
        lambda items: st.one_of(
            st.lists(items, max_size=3),
            st.lists(items, max_size=3).map(tuple),
            st.dictionaries(st.one_of(any_text, st.integers()), items, max_size=3),
        ),
        max_leaves=5,
    ),
    st.builds(
        lambda make: make(),
        st.sampled_from(
            [
                *(object, set, frozenset, lambda: Colour.RED, lambda: Decimal(1), lambda: date(2020, 1, 1)),
                *(lambda: 1j, lambda: bytearray(b"a"), lambda: memoryview(b"a"), lambda: range(3), lambda: Event),
                *(lambda: Timestamp("2020-01-01T00:00:00Z"), lambda: iter("ab")),
            ]
        ),
    ),
)


@st.composite
def any_events(draw: st.DrawFn) -> Event:
    """Events with arbitrary attributes and data, most of which differ from a valid event in one or two places."""
    event = draw(events())
    names = st.one_of(
        st.sampled_from([*CORE, "data", Colour.RED]), attribute_names, any_text, objects.filter(_is_hashable)
    )
    attributes = event.attributes | draw(st.dictionaries(names, objects, max_size=2))
    for name in draw(st.sets(st.sampled_from(CORE), max_size=1)):
        attributes.pop(name, None)
    return Event(attributes, draw(st.one_of(st.just(event.data), objects)))


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


@st.composite
def valid_messages(draw: st.DrawFn) -> NatsMessage:
    return to_nats_message(draw(events()), "s", mode=draw(st.sampled_from(["binary", "structured"])))


_header_names = st.one_of(
    st.sampled_from([*CORE, "data", "x"]).flatmap(
        lambda name: st.sampled_from([f"ce-{name}", f"CE-{name.upper()}", f"Ce-{name}", f"ce_{name}", name])
    ),
    st.sampled_from(["Content-Type", "content-type", "Status", "KV-Operation", "Nats-Msg-Id", "ce-", "ce-my_ext"]),
    any_text,
    any_text.map("ce-".__add__),
)
_header_values = st.one_of(
    any_text,
    st.sampled_from(["application/cloudevents+json", "application/cloudevents-batch+json", "application/json", "1.0"]),
    timestamp_texts,
    media_types,
)
_pairs = st.lists(st.tuples(_header_names, _header_values), max_size=6)
hostile_headers: st.SearchStrategy[Any] = st.one_of(
    _pairs,
    _pairs.map(dict),
    _pairs.map(lambda pairs: {name: [value, value] for name, value in pairs}),
    st.lists(st.tuples(st.one_of(_header_names, objects), st.one_of(_header_values, objects)), max_size=4),
    objects,
)
hostile_payloads: st.SearchStrategy[bytes] = st.one_of(
    st.binary(max_size=40),
    json_values.map(lambda value: repr(value).encode("utf-8", "surrogatepass")),
    st.lists(
        st.sampled_from(
            [
                *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"null", b"true", b"1", b"-", b"1e999", b"NaN"),
                b" ",
                *(b'"specversion":"1.0",', b'"id":"1",', b'"source":"/s",', b'"type":"t"', b'"data":', b'"data":{}'),
                *(b'"data_base64":"AA=="', b'"data_base64":', b'"time":', b"\xef\xbb\xbf", b"\xff", b'"\\ud800"'),
                *(b'"i\\u0064":"2",', b'"data":"\\"",', b'"x":1.5,', b'"x":[],', b'"X":1,', b"\0", b"\n"),
            ]
        ),
        max_size=12,
    ).map(b"".join),
)


@st.composite
def mutated_messages(draw: st.DrawFn) -> SimpleNamespace:
    """Valid messages with a few changes: headers removed, repeated or renamed; bytes removed, repeated or replaced."""
    message = draw(valid_messages())
    pairs, payload = message.headers.items(), message.data
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(pairs)))
        name, value = pairs[place] if place < len(pairs) else (draw(_header_names), draw(_header_values))
        cut = draw(st.integers(0, len(value)))
        pairs[place : place + 1] = draw(
            st.sampled_from(
                [
                    *([], [(name, value)] * 2, [(name.upper(), value)], [(name, value[:cut])], [(name, "")]),
                    [(name, value[:cut] + draw(any_text) + value[cut:])],
                ]
            )
        )
    if draw(st.booleans()):
        start = draw(st.integers(0, len(payload)))
        end = draw(st.integers(start, len(payload)))
        payload = payload[:start] + draw(hostile_payloads) * draw(st.integers(0, 1)) + payload[end:]
    return SimpleNamespace(headers=pairs, data=payload)


# Not one_of(), which flattens the alternatives, so that each kind of object would be as frequent as all messages.
hostile_messages: st.SearchStrategy[Any] = st.sampled_from(
    [
        *[mutated_messages()] * 6,
        *[st.builds(SimpleNamespace, headers=hostile_headers, data=hostile_payloads)] * 3,
        *[st.builds(SimpleNamespace, headers=st.none(), data=hostile_payloads)] * 3,
        st.builds(SimpleNamespace, headers=_pairs, data=objects),
        objects,
    ]
).flatmap(lambda messages: messages)
