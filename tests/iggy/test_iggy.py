"""
Iggy: headers, messages and JSON round-trip, and all other input raises errors of the package.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ce_nats import ContentMode, DecodeError, EncodeError, from_nats_message, iggy, to_nats_message
from ce_nats.codec._nesting import MAX_LEVELS
from ce_nats.iggy import HeaderKind, HeaderValue, IggyMessage, Layout
from tests.support.strategies import Event, attempt, events, expected_attributes, extension_types, plain_event, refused
from tests.support.tables import each

INTEGERS = [kind for kind in HeaderKind if "int" in kind.label]


def _numbers(kind: HeaderKind) -> st.SearchStrategy[int]:
    bits = int(kind.label.rpartition("int")[2])
    low, high = (0, 2**bits - 1) if kind.label.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return st.integers(low, high)


texts = st.text(min_size=1).filter(lambda text: len(text.encode()) <= 255)
natives = st.one_of(
    st.tuples(st.just(HeaderKind.RAW), st.binary(min_size=1, max_size=255)),
    st.tuples(st.just(HeaderKind.STRING), texts),
    st.tuples(st.just(HeaderKind.BOOL), st.booleans()),
    *(st.tuples(st.just(kind), _numbers(kind)) for kind in INTEGERS),
    st.tuples(st.just(HeaderKind.FLOAT32), st.floats(width=32)),
    st.tuples(st.just(HeaderKind.FLOAT64), st.floats()),
)
values = natives.map(lambda pair: HeaderValue.of(*pair))
string_key_maps = st.dictionaries(texts, values, max_size=6)
other_keys = values.filter(lambda value: value.kind is not HeaderKind.STRING)
typed_maps = st.dictionaries(st.one_of(texts, other_keys), values, max_size=6)
numbers = st.integers(0, 2**64 - 1)


def messages(maps: st.SearchStrategy[Any] = string_key_maps, polled: bool = False) -> st.SearchStrategy[IggyMessage]:
    position = {"offset": numbers, "timestamp": numbers} if polled else {}
    return st.builds(IggyMessage, st.binary(), maps, st.integers(0, 2**128 - 1), **position)


# --- Values ---------------------------------------------------------------------------------------------------------


@given(natives)
def test_values_round_trip(native: tuple[HeaderKind, Any]) -> None:
    """NaN included."""
    kind, value = native
    found = HeaderValue.of(kind, value).python
    assert type(found) is type(value)
    assert found == value or (math.isnan(found) and math.isnan(value))


@given(st.sampled_from(HeaderKind), st.binary(max_size=300))
def test_any_bytes_are_a_value_or_rejected(kind: HeaderKind, octets: bytes) -> None:
    """The bytes of every value can be decoded as its kind."""
    value, error = attempt(EncodeError, HeaderValue, kind, octets)
    if error is None:
        assert value.value == octets
        again, unequal = attempt(EncodeError, HeaderValue.of, kind, value.python)
        assert unequal is None
        assert again == value or math.isnan(value.python)


@each("bits", [0x7FC00001, 0xFF800001, 0x7FFFFFFF])
def test_bits_of_a_nan_are_kept(bits: int) -> None:
    value = HeaderValue(HeaderKind.FLOAT32, struct.pack("<I", bits))
    assert math.isnan(value.python)
    assert iggy.decode_headers(iggy.encode_headers({"k": value})) == {"k": value}


def test_equality_compares_kind_and_bytes() -> None:
    """0.0 is not -0.0, and a value is not equal to one of another kind."""
    assert HeaderValue.of(HeaderKind.FLOAT64, 0.0) != HeaderValue.of(HeaderKind.FLOAT64, -0.0)
    assert HeaderValue.of(HeaderKind.INT8, 1) != HeaderValue.of(HeaderKind.UINT8, 1)


@each(
    ("kind", "value"),
    [
        (HeaderKind.RAW, "text"),
        (HeaderKind.STRING, b"bytes"),
        (HeaderKind.BOOL, 1),
        (HeaderKind.INT8, True),
        (HeaderKind.INT8, 1.0),
        (HeaderKind.FLOAT64, True),
        (HeaderKind.FLOAT64, "1"),
        (HeaderKind.FLOAT64, 2**53 + 1),
        (HeaderKind.FLOAT64, 10**400),
        (HeaderKind.FLOAT32, 2**24 + 1),
        (HeaderKind.UINT8, None),
    ],
)
def test_values_of_another_type_are_rejected(kind: HeaderKind, value: Any) -> None:
    """Values are not silently converted."""
    refused(EncodeError, "invalid-header-value", HeaderValue.of, kind, value)


@each(("kind", "largest"), [(HeaderKind.FLOAT32, 2**24), (HeaderKind.FLOAT64, -(2**53))])
def test_integers_are_accepted_for_floats(kind: HeaderKind, largest: int) -> None:
    """If the float is the same number."""
    for number in (0, 1, largest, 2**100):
        value = HeaderValue.of(kind, number)
        assert value == HeaderValue.of(kind, float(number))
        assert (value.python, type(value.python)) == (number, float)


@given(values)
def test_repr_can_be_evaluated(value: HeaderValue) -> None:
    """Except for a NaN."""
    if value.python != value.python:
        assert "nan" in repr(value)
    else:
        assert eval(repr(value), {**vars(iggy), "inf": math.inf}) == value
    assert repr(HeaderValue.of(HeaderKind.INT32, -7)) == "HeaderValue.of(HeaderKind.INT32, -7)"


@each("kind", [0, 16, "string", None, 2.5])
def test_unknown_kinds_are_rejected(kind: Any) -> None:
    refused(EncodeError, "unknown-header-kind", HeaderValue, kind, b"x")
    refused(EncodeError, "unknown-header-kind", HeaderValue.of, kind, b"x")


def test_value_must_be_bytes() -> None:
    refused(EncodeError, "invalid-header-value", HeaderValue, HeaderKind.RAW, "x")
    assert HeaderValue.of(HeaderKind.RAW, bytearray(b"x")).value == b"x"


# --- Headers --------------------------------------------------------------------------------------------------------


@given(string_key_maps)
def test_maps_round_trip(headers: dict[str, HeaderValue]) -> None:
    """In order, with the case of the keys."""
    found = iggy.decode_headers(iggy.encode_headers(headers))
    assert list(found.items()) == list(headers.items())


@given(typed_maps)
def test_maps_with_typed_keys_round_trip(headers: Any) -> None:
    found = iggy.decode_headers(iggy.encode_headers(headers, layout=Layout.TYPED_KEYS), layout=Layout.TYPED_KEYS)
    assert list(found.items()) == list(headers.items())


@given(st.sampled_from(Layout), st.data())
def test_other_layout_is_detected(layout: Layout, data: st.DataObject) -> None:
    """No map is valid in both layouts, and the error names the layout unless the first key is invalid."""
    headers: Any = data.draw((string_key_maps if layout is Layout.STRING_KEYS else typed_maps).filter(bool))
    assume(layout is Layout.TYPED_KEYS or not next(iter(headers)).startswith("\0"))
    (other,) = set(Layout) - {layout}
    encoded = iggy.encode_headers(headers, layout=layout)
    error = refused(DecodeError, "unexpected-header-layout", iggy.decode_headers, encoded, layout=other)
    assert ("0.7 or later" in error.message) == (layout is Layout.TYPED_KEYS)


@given(st.binary(max_size=60), st.sampled_from(Layout))
def test_any_bytes_are_headers_or_rejected(octets: bytes, layout: Layout) -> None:
    """Decoded headers are encoded as the same bytes."""
    headers, error = attempt(DecodeError, iggy.decode_headers, octets, layout=layout)
    if error is None:
        assert iggy.encode_headers(headers, layout=layout) == octets


@given(st.sampled_from(Layout), st.data())
def test_damaged_headers_are_different_or_rejected(layout: Layout, data: st.DataObject) -> None:
    """A changed byte never decodes to the same headers; missing bytes are an error."""
    headers = data.draw((string_key_maps if layout is Layout.STRING_KEYS else typed_maps).filter(bool))
    encoded = iggy.encode_headers(headers, layout=layout)
    place = data.draw(st.integers(0, len(encoded) - 1))
    changed = bytearray(encoded)
    changed[place] ^= data.draw(st.integers(1, 255))
    found, _ = attempt(DecodeError, iggy.decode_headers, bytes(changed), layout=layout)
    assert found != headers
    cut, _ = attempt(DecodeError, iggy.decode_headers, encoded[:place], layout=layout)
    assert cut != headers


def test_limit_of_100_000_bytes() -> None:
    """400 entries of 250 bytes fit, and no further byte; decoding accepts more, as older servers do."""
    value = HeaderValue.of(HeaderKind.RAW, b"v" * 238)
    headers = {f"{number:03}": value for number in range(400)}
    encoded = iggy.encode_headers(headers)
    assert len(encoded) == iggy.MAX_HEADERS
    more = headers | {"000": HeaderValue.of(HeaderKind.RAW, b"v" * 239)}
    error = refused(EncodeError, "headers-too-large", iggy.encode_headers, more)
    assert error.requirement == "IG-01"
    refused(EncodeError, "headers-too-large", iggy.as_fields, IggyMessage(b"x", more))
    further = iggy.encode_headers({"more": value})
    assert len(iggy.decode_headers(encoded + further)) == 401


def test_errors_name_the_key() -> None:
    """If it is known."""
    encoded = iggy.encode_headers({"trace": HeaderValue.of(HeaderKind.BOOL, True)})
    error = refused(DecodeError, "invalid-header-value", iggy.decode_headers, encoded[:-1] + b"\2")
    assert (error.header, error.requirement) == ("trace", "IG-03")


@each("headers", [None, [], [("k", "v")], "k", 5])
def test_headers_must_be_a_mapping(headers: Any) -> None:
    refused(EncodeError, "invalid-header-block", iggy.encode_headers, headers)


@each("key", [b"k", 5, None, ("k",)])
def test_keys_must_be_strings_or_values(key: Any) -> None:
    value = HeaderValue.of(HeaderKind.BOOL, True)
    refused(EncodeError, "invalid-header-name", iggy.encode_headers, {key: value}, layout=Layout.TYPED_KEYS)


@each("value", [b"v", "v", None, True])
def test_values_must_have_a_kind(value: Any) -> None:
    """A kind is never guessed."""
    refused(EncodeError, "invalid-header-value", iggy.encode_headers, {"k": value})


@each("what", ["text", None, 5, ["k"]])
def test_encoded_headers_must_be_bytes(what: Any) -> None:
    refused(DecodeError, "invalid-message", iggy.decode_headers, what)
    refused(DecodeError, "invalid-message", iggy.decode_messages, what)


@each("kind", HeaderKind)
def test_empty_typed_key_is_not_taken_for_the_other_layout(kind: HeaderKind) -> None:
    block = bytes([kind]) + bytes(4) + b"\2\1\0\0\0v"
    error = refused(DecodeError, "invalid-header-name", iggy.decode_headers, block, layout=Layout.TYPED_KEYS)
    assert "1 to 255 bytes, got 0" in str(error)


def test_error_for_typed_keys_names_the_layout_to_use() -> None:
    headers = {HeaderValue.of(HeaderKind.INT32, 1): HeaderValue.of(HeaderKind.BOOL, True)}
    for write in (iggy.encode_message, iggy.encode_json):
        error = refused(EncodeError, "invalid-header-name", write, IggyMessage(b"x", headers))
        assert "layout=Layout.TYPED_KEYS in encode_headers() and encode_json()" in str(error)
    assert iggy.encode_headers(headers, layout=Layout.TYPED_KEYS)
    assert iggy.encode_json(IggyMessage(b"x", headers), layout=Layout.TYPED_KEYS)


def test_unknown_layouts_are_rejected() -> None:
    for call, source, layout in (
        (iggy.encode_headers, {}, "0.7"),
        (iggy.decode_headers, b"", None),
        (iggy.decode_json, b'{"payload":""}', ""),
    ):
        with pytest.raises(ValueError, match=r"^layout must be "):
            call(source, layout=layout)
    assert iggy.encode_headers({}, layout="typed-keys") == b""


# --- Messages and JSON ----------------------------------------------------------------------------------------------


@given(st.booleans(), st.data())
def test_messages_round_trip(polled: bool, data: st.DataObject) -> None:
    """Several in sequence, in both forms."""
    sent = data.draw(st.lists(messages(polled=polled), max_size=3))
    octets = b"".join(iggy.encode_message(message, polled=polled) for message in sent)
    assert iggy.decode_messages(octets, polled=polled) == sent


@given(st.binary(max_size=120), st.booleans())
def test_any_bytes_are_messages_or_rejected(octets: bytes, polled: bool) -> None:
    found, error = attempt(DecodeError, iggy.decode_messages, octets, polled=polled)
    if error is None:
        assert b"".join(iggy.encode_message(message, polled=polled) for message in found) == octets


@given(messages(polled=True))
def test_polled_messages_can_be_encoded_for_sending(message: IggyMessage) -> None:
    """Without offset and timestamp, with their id."""
    [polled] = iggy.decode_messages(iggy.encode_message(message, polled=True), polled=True)
    [sent] = iggy.decode_messages(iggy.encode_message(polled))
    assert sent == replace(message, offset=None, timestamp=None)


@given(messages(polled=True), st.data())
def test_truncated_messages_are_rejected(message: IggyMessage, data: st.DataObject) -> None:
    octets = iggy.encode_message(message, polled=True)
    cut = octets[: data.draw(st.integers(1, len(octets) - 1))]
    _, error = attempt(DecodeError, iggy.decode_messages, cut, polled=True)
    assert error is not None


@given(st.sampled_from(Layout), st.booleans(), st.data())
def test_json_round_trip(layout: Layout, polled: bool, data: st.DataObject) -> None:
    """As text, and as an object of another JSON parser."""
    message = data.draw(messages(string_key_maps if layout is Layout.STRING_KEYS else typed_maps, polled))
    text = iggy.encode_json(message, layout=layout)
    assert iggy.decode_json(text, layout=layout) == message
    assert iggy.as_message(json.loads(text), layout=layout) == message


_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["id", "payload", "headers", "user_headers", "header", "key", "kind", "value", "k"]),
            inner,
            max_size=5,
        ),
    ),
)


@given(_json, st.sampled_from(Layout))
def test_any_object_is_a_message_or_rejected(fields: Any, layout: Layout) -> None:
    attempt(DecodeError, iggy.as_message, fields, layout=layout)
    if isinstance(fields, dict):
        attempt(DecodeError, iggy.as_message, {**fields, "payload": "eA=="}, layout=layout)


@given(st.one_of(st.binary(), st.text()))
def test_any_text_is_a_message_or_rejected(text: bytes | str) -> None:
    attempt(DecodeError, iggy.decode_json, text)


@each("depth", [2, 500, 1000, 5000])
def test_deep_json(depth: int) -> None:
    """The limit of nesting in ignored members does not depend on the interpreter."""
    text = '{"id":1,"payload":"","unknown":' + "[" * depth + "]" * depth + "}"
    for form in (text, text.encode()):
        if depth < MAX_LEVELS:
            assert iggy.decode_json(form).id == 1
        else:
            error = refused(DecodeError, "invalid-json", iggy.decode_json, form)
            assert error.message == "the message is not JSON: it is nested more than 128 levels deep"


@each("text", [b"[" * 100_000, b'{"id":' + b"9" * 5000 + b',"payload":""}'])
def test_other_json_is_rejected(text: bytes) -> None:
    refused(DecodeError, "invalid-json", iggy.decode_json, text)


def test_keys_of_other_kinds_are_rejected_in_string_keys_json() -> None:
    message = IggyMessage(b"x", {HeaderValue.of(HeaderKind.UINT8, 1): HeaderValue.of(HeaderKind.BOOL, True)})
    refused(EncodeError, "invalid-header-name", iggy.encode_json, message)
    refused(EncodeError, "invalid-header-name", iggy.encode_message, message)


@each("number", [-1, 2**128, 1.5, "1", None, True])
def test_ids_must_be_numbers(number: Any) -> None:
    refused(EncodeError, "invalid-frame", iggy.encode_message, IggyMessage(b"x", id=number))
    refused(EncodeError, "invalid-frame", iggy.encode_json, IggyMessage(b"x", id=number))


def test_payload_must_be_bytes() -> None:
    for encode in (iggy.encode_message, iggy.encode_json):
        refused(EncodeError, "invalid-message", encode, IggyMessage("x"))


# --- Events ---------------------------------------------------------------------------------------------------------


def _fits(event: Event) -> bool:
    """Whether an event can be encoded in binary mode, computed from the rules and not by the encoder."""
    texts = expected_attributes(event).values()
    sizes = [
        len(value) if isinstance(value, bytes) else len(str(value).encode())
        for value in (*event.attributes.values(), *texts)
        if value is not None and not isinstance(value, bool | int)
    ]
    return all(0 < size <= 255 for size in sizes) and bool(to_nats_message(event).data)


@given(events())
def test_binary_events_round_trip(event: Event) -> None:
    """With declared types, as on NATS; others are rejected with the name of the attribute and advice."""
    message, error = attempt(EncodeError, iggy.to_iggy_message, event)
    if error is not None:
        assert error.code in ("invalid-header-value", "invalid-data")
        assert error.attribute in event.attributes or error.attribute == "data"
        assert "structured mode" in error.message
        assert not _fits(event)
        return
    types = extension_types(event)
    received = iggy.from_iggy_message(message, extension_types=types)
    assert received == from_nats_message(to_nats_message(event), extension_types=types)
    assert iggy.to_iggy_message(received) == message


@given(events())
def test_structured_events_round_trip(event: Event) -> None:
    """With any attributes and data: the payload is the same as on NATS."""
    message = iggy.to_iggy_message(event, mode=ContentMode.STRUCTURED)
    other = to_nats_message(event, mode=ContentMode.STRUCTURED)
    assert message.payload == other.data
    assert iggy.from_iggy_message(message) == from_nats_message(other)


_event_keys = st.one_of(
    st.sampled_from(["ce-id", "CE-ID", "ce-source", "ce-type", "ce-specversion", "ce-time", "ce-", "content-type"]),
    texts,
)


@given(st.dictionaries(_event_keys, values, max_size=6), st.binary(max_size=20))
def test_any_message_is_an_event_or_rejected(headers: dict[str, HeaderValue], payload: bytes) -> None:
    attempt(DecodeError, iggy.from_iggy_message, IggyMessage(payload, headers))
    complete = {**iggy.to_iggy_message(plain_event(b"x")).headers, **headers}
    attempt(DecodeError, iggy.from_iggy_message, IggyMessage(payload, complete))


def test_error_has_attribute_header_size_and_advice() -> None:
    error = refused(EncodeError, "invalid-header-value", iggy.to_iggy_message, plain_event(b"x", source="/" * 300))
    assert (error.attribute, error.header, error.requirement) == ("source", "ce-source", "A-73")
    assert "300 bytes" in error.message
    assert "structured mode" in error.message
    message = iggy.to_iggy_message(plain_event(b"x"))
    wrong = replace(message, headers={**message.headers, "Ce-Id": HeaderValue.of(HeaderKind.INT8, 1)})
    other = {key: value for key, value in wrong.headers.items() if key != "ce-id"}
    found = refused(DecodeError, "invalid-attribute-type", iggy.from_iggy_message, replace(wrong, headers=other))
    assert (found.attribute, found.header) == ("id", "Ce-Id")


def test_key_of_kind_string_equals_its_text() -> None:
    """The event is the same with either form of a key, and no key hides another."""
    message = iggy.to_iggy_message(plain_event(b"x"))
    spelled = {HeaderValue.of(HeaderKind.STRING, key): value for key, value in message.headers.items()}
    assert iggy.from_iggy_message(replace(message, headers=spelled)) == iggy.from_iggy_message(message)
    twice = replace(message, headers={**message.headers, **spelled})
    refused(DecodeError, "duplicate-header", iggy.from_iggy_message, twice)


@each(
    "message",
    [None, b"x", IggyMessage(b"x", None), IggyMessage(b"x", {"ce-id": "1"}), IggyMessage(b"x", [])],
)
def test_other_objects_are_not_messages(message: Any) -> None:
    refused(DecodeError, "invalid-message", iggy.from_iggy_message, message)
    refused(DecodeError, "invalid-message", iggy.from_iggy_message, message, mode=ContentMode.STRUCTURED)
    refused(DecodeError, "invalid-message", iggy.detect_mode, message)


def test_invalid_arguments_are_rejected() -> None:
    message = iggy.to_iggy_message(plain_event(b"x"))
    refused(EncodeError, "invalid-message", iggy.to_iggy_message, object())
    with pytest.raises(ValueError, match=r"^mode must be "):
        iggy.to_iggy_message(plain_event(b"x"), mode="auto")
    with pytest.raises(ValueError, match=r"^mode must be "):
        iggy.from_iggy_message(message, mode="auto")
    with pytest.raises(TypeError, match=r"^extension_types must be "):
        iggy.from_iggy_message(message, extension_types=["rank"])
    refused(DecodeError, "invalid-message", iggy.from_iggy_message, IggyMessage(None, message.headers))


def test_event_is_not_modified() -> None:
    """Not even to add the implied content type."""
    event = plain_event({"a": 1}, rank=1)
    before = dict(event.attributes)
    iggy.to_iggy_message(event)
    assert event.attributes == before
