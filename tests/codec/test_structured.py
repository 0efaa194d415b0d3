"""
Structured mode: the whole event as one JSON object.
"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ce_nats import ContentMode, DecodeError, EncodeError, NatsMessage, from_nats_message, to_nats_message
from ce_nats.codec import structured
from tests.support.strategies import (
    Event,
    any_events,
    attempt,
    canonical_text,
    events,
    exact,
    expected_attributes,
    extension_types,
    hostile_payloads,
    json_values,
    legal_text,
    mutated_messages,
    plain_event,
    refused,
    structured_message,
)
from tests.support.tables import each

STRUCTURED = ContentMode.STRUCTURED
START = '{"specversion":"1.0","id":"1","source":"/s","type":"t"'


def decode(members: str = "", **options: Any) -> Any:
    """Decode a minimal event with additional members: ``decode('"x":1')``."""
    text = f"{START},{members}}}" if members else START + "}"
    return from_nats_message(structured_message(text.encode("utf-8", "surrogatepass")), **options)


def encode(event: Any) -> Any:
    return json.loads(to_nats_message(event, mode=STRUCTURED).data)


# --- Encoding -------------------------------------------------------------------------------------------------------


@given(events())
def test_events_round_trip(event: Event) -> None:
    """All attributes in order and with their types, and the data."""
    decoded = from_nats_message(to_nats_message(event, mode=STRUCTURED), extension_types=extension_types(event))
    assert exact(decoded.get_attributes()) == exact(expected_attributes(event))
    assert exact(decoded.get_data()) == exact(event.data)


@given(events())
def test_members_are_attributes_and_data(event: Event) -> None:
    """Booleans and integers as in JSON, all others as canonical strings; then the data."""
    message = to_nats_message(event, mode=STRUCTURED)
    members = json.loads(message.data)
    expected: dict[str, Any] = {
        name: value if isinstance(value, (bool, int)) else canonical_text(name, value)
        for name, value in expected_attributes(event).items()
    }
    if isinstance(event.data, bytes):
        expected["data_base64"] = canonical_text("", event.data)
    elif event.data is not None:
        expected["data"] = event.data
    assert exact(members) == exact(expected)
    assert message.headers.items() == [("Content-Type", "application/cloudevents+json")]


@given(any_events())
def test_any_event_is_encoded_or_rejected(event: Event) -> None:
    """An encoded event can be decoded."""
    message, error = attempt(EncodeError, to_nats_message, event, mode=STRUCTURED)
    if error is None:
        json.loads(message.data, parse_constant=lambda name: pytest.fail(name))
        assert from_nats_message(message, parse_data=False).get_attributes()["id"] == event.attributes["id"]


@each(
    ("event", "members"),
    [
        (plain_event({"a": 1}), {"datacontenttype": "application/json", "data": {"a": 1}}),
        (plain_event("a"), {"datacontenttype": "application/json", "data": "a"}),
        (plain_event(b"a"), {"data_base64": "YQ=="}),
        (plain_event(b""), {"data_base64": ""}),
        (plain_event("a", datacontenttype="application/octet-stream"), {"data": "a"}),
        (plain_event(bytearray(b"a")), {"data_base64": "YQ=="}),
        (plain_event(memoryview(b"a")), {"data_base64": "YQ=="}),
        (plain_event(), {}),
    ],
)
def test_data_member(event: Event, members: dict[str, Any]) -> None:
    """JSON values are never a string of JSON; bytes are always in data_base64."""
    encoded = encode(event)
    assert {name: encoded[name] for name in encoded if name in members} == members
    assert {"data", "data_base64"} & set(encoded) == {"data", "data_base64"} & set(members)


@each("content_type", ["text/plain", "a/b", "text/plain; charset=utf-16"])
def test_text_that_is_not_unicode_is_not_encoded(content_type: str) -> None:
    event = plain_event("\ud800", datacontenttype=content_type)
    assert refused(EncodeError, "invalid-data", to_nats_message, event, mode=STRUCTURED).attribute == "data"


@given(legal_text(1))
def test_text_is_not_escaped(text: str) -> None:
    """Only the characters that JSON requires to be escaped."""
    expected = json.dumps(text, ensure_ascii=False).encode()
    assert b'"x":' + expected in to_nats_message(plain_event(x=text), mode=STRUCTURED).data


# --- Decoding -------------------------------------------------------------------------------------------------------


@given(hostile_payloads, st.booleans(), st.booleans())
def test_any_payload_is_decoded_or_rejected(payload: bytes, has_header: bool, parse_data: bool) -> None:
    """With and without a CloudEvents header."""
    message = structured_message(payload) if has_header else NatsMessage(data=payload)
    attempt(DecodeError, from_nats_message, message, parse_data=parse_data)
    attempt(DecodeError, from_nats_message, message, mode=STRUCTURED, extension_types={"x": int})


@given(mutated_messages())
def test_damaged_events_are_decoded_or_rejected(message: Any) -> None:
    """Valid events with a few changed bytes."""
    attempt(DecodeError, from_nats_message, message, mode=STRUCTURED)


_members = st.lists(
    st.tuples(
        st.sampled_from(["specversion", "id", "source", "type", "x", "data", "data_base64", "datacontenttype"]),
        st.sampled_from(["1.0", "1", 'a"b', "AA==", "text/plain", None, 1, {"id": '"'}, [], ""]),
    ),
    max_size=7,
)


@given(_members, st.randoms(use_true_random=False))
def test_repeated_members_are_always_found(members: list[tuple[str, Any]], random: Any) -> None:
    """With any escapes in names, and any quotes in values; members that occur once are accepted."""
    text = ",".join(f"{_spelt(name, random)}: {json.dumps(value)}" for name, value in members)
    _, error = attempt(DecodeError, from_nats_message, structured_message(f"{{{text}}}".encode()))
    names = [name for name, _ in members]
    assert (error is not None and error.code == "duplicate-attribute") == (len(set(names)) < len(names))


def _spelt(name: str, random: Any) -> str:
    """Return a name as a JSON string, with some characters escaped."""
    return '"' + "".join(one if random.random() < 0.8 else f"\\u{ord(one):04x}" for one in name) + '"'


@each(
    "members",
    [
        '"id":null',
        '"x":null,"x":null',
        '"data":{"a":"\\""},"d\\u0061ta":1',
        '"data":"\\"\\"\\"","data":""',
        '"data":"","data":"\\"\\"\\""',
        '"data_base64":"AA==","data_base64":null',
        '"BAD":1,"BAD":1',
        '"x":{},"x":"a"',
    ],
)
def test_repeated_member_is_reported_first(members: str) -> None:
    """Before other errors of the repeated members."""
    refused(DecodeError, "duplicate-attribute", decode, members)


@each(
    ("members", "data"),
    [
        ('"data":{"id":"x","data":"y"}', {"id": "x", "data": "y"}),
        ('"x":"\\"\\"\\"\\"","data":"\\""', '"'),
        ('"d\\u0061ta":"\\u0022"', '"'),
        ('"data" : [ "\\"" , 1 ] ', ['"', 1]),
    ],
)
def test_similar_members_are_not_repeated(members: str, data: Any) -> None:
    """Names inside of data, quotes in values, escapes and white space."""
    assert decode(members).get_data() == data


@given(json_values, st.booleans())
def test_unparsed_data_is_verbatim(value: Any, is_last: bool) -> None:
    """White space included."""
    text = json.dumps(value, indent=1)
    members = f'"data": {text}' + ("" if is_last else ' ,"x":"y"')
    assert decode(members, parse_data=False).get_data() == text.encode()


@each(
    ("members", "parsed", "unparsed"),
    [
        ('"data":"a","datacontenttype":"text/plain"', "a", b"a"),
        ('"data":"é","datacontenttype":"text/plain; charset=iso-8859-1"', "é", b"\xe9"),
        ('"data":"é","datacontenttype":"a/b"', "é".encode(), "é".encode()),
        ('"data_base64":"eyJhIjoxfQ==","datacontenttype":"a/json"', {"a": 1}, b'{"a":1}'),
        ('"data_base64":"6Q==","datacontenttype":"text/x;charset=latin1"', "é", b"\xe9"),
        ('"data_base64":"/w==","datacontenttype":"a/b"', b"\xff", b"\xff"),
        ('"data_base64":""', b"", b""),
        ('"data_base64":"","datacontenttype":"text/plain"', "", b""),
        ('"data_base64":"","datacontenttype":"a/json"', None, b""),
        ('"data":"a"', "a", b'"a"'),
        ('"data": false ,"x":"y"', False, b"false"),
    ],
)
def test_type_of_data(members: str, parsed: Any, unparsed: Any) -> None:
    """One Python type for a media type, from either member; bytes if data is not parsed."""
    for parse_data, value in ((True, parsed), (False, unparsed)):
        unaided = structured.decode(f"{START},{members}}}".encode(), parse_data=parse_data)
        for event in (decode(members, parse_data=parse_data), unaided):
            assert exact(event.get_data()) == exact(value)
            assert event.has_data == (value is not None)


@each(
    ("members", "code"),
    [
        ('"data":NaN', "invalid-json"),
        ('"data":"\\ud800"', "invalid-json"),
        ('"x":"a\\nb"', "invalid-character"),
        ('"x":"\\uffff"', "invalid-character"),
        ('"X":null', "invalid-attribute-name"),
        ('"x_y":"a"', "invalid-attribute-name"),
    ],
)
def test_invalid_members_are_rejected(members: str, code: str) -> None:
    """With a code for each error of a member or of the data."""
    refused(DecodeError, code, decode, members)


def test_error_of_base64_names_the_member() -> None:
    error = refused(DecodeError, "invalid-base64", decode, '"data_base64":"A"')
    assert (error.attribute, error.message) == ("data_base64", "'data_base64' must be padded base64, got 'A'")


@each(
    ("content_type", "code"),
    [
        ("text/plain; charset=iso-8859-1", "invalid-data"),
        ("a/xml; charset=us-ascii", "invalid-data"),
        ("a/b; charset=iso-8859-1", "invalid-data"),
        ("text/plain; charset=none", "unsupported-charset"),
    ],
)
def test_unparsed_text_outside_its_charset_stays_text(content_type: str, code: str) -> None:
    """Its bytes do not exist."""
    event = decode(f'"data":"€","datacontenttype":"{content_type}"', parse_data=False)
    assert event.get_data() == "€"
    assert event.data_error is not None
    assert (event.data_error.code, event.data_error.attribute) == (code, "data")


@pytest.mark.parametrize("name", ["data_text", "json.loads"])
def test_recursion_limit_is_reported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each decoder needs a different part of the interpreter's stack."""

    def fail(*_: Any, **options: Any) -> None:
        raise RecursionError

    monkeypatch.setattr(f"ce_nats.codec.structured.{name}", fail)
    error = refused(DecodeError, "invalid-json", decode, r'"x":"\\\"","data":[1]')
    assert error.message.startswith("the payload is nested deeper than")


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"", "invalid-json"),
        (b"\xef\xbb\xbf", "invalid-json"),
        (b"\xef\xbb\xbf\xef\xbb\xbf{}", "invalid-json"),
        (b"{", "invalid-json"),
        (b"{}x", "invalid-json"),
        (b'{"a":1,}', "invalid-json"),
        (b'{"a":"\n"}', "invalid-json"),
        (b'{"id":"\xff"}', "invalid-utf8"),
        (b"[" + START.encode() + b"}]", "not-an-object"),
        pytest.param(b"[" * 1000 + b"]" * 1000, "invalid-json", id="1000 levels"),
        (b"{}", "missing-attribute"),
    ],
)
def test_payload_must_be_one_json_object(payload: bytes, code: str) -> None:
    """Strict JSON in UTF-8."""
    error = refused(DecodeError, code, from_nats_message, structured_message(payload))
    if code in {"invalid-json", "invalid-utf8", "not-an-object"}:
        assert error.message.startswith("the payload ")
    if code in {"invalid-json", "invalid-utf8", "not-an-object"} or payload == b"{}":
        refused(DecodeError, "not-a-cloudevent", from_nats_message, NatsMessage(data=payload))


def test_payload_is_an_event_with_parsed_data_by_default() -> None:
    assert structured.decode(f'{START},"data":[1]}}'.encode()).get_data() == [1]
    refused(DecodeError, "missing-attribute", structured.decode, b"{}")


def test_one_byte_order_mark_is_ignored() -> None:
    """Windows programs write one; data stays verbatim."""
    message = structured_message(b"\xef\xbb\xbf" + START.encode() + b',"data": 1.50}')
    assert from_nats_message(message).get_data() == 1.5
    assert from_nats_message(message, parse_data=False).get_data() == b"1.50"


def test_first_error_is_that_of_the_first_member() -> None:
    """One error is raised, for the first invalid member; then for a missing one, then for the data."""
    assert refused(DecodeError, "invalid-attribute-type", decode, '"x":[],"y":99999999999').attribute == "x"
    assert refused(DecodeError, "integer-out-of-range", decode, '"y":99999999999,"x":[]').attribute == "y"
    late = b'{"data":1,"data_base64":"AA==","x":[]}'
    refused(DecodeError, "invalid-attribute-type", from_nats_message, structured_message(late))
    missing = b'{"id":"1","data":1,"datacontenttype":"text/plain"}'
    refused(DecodeError, "missing-attribute", from_nats_message, structured_message(missing))


def test_declared_extensions_are_converted() -> None:
    """Strings are converted to the declared type as in binary mode; JSON values must have it."""
    types = {"n": int, "b": bool, "raw": bytes, "s": str}
    event = decode('"n":"5","b":"true","raw":"AAH/","s":7,"t":7', extension_types=types)
    assert [event.get_extension(name) for name in ("n", "b", "raw", "s", "t")] == [5, True, b"\0\1\xff", "7", 7]
    refused(DecodeError, "invalid-boolean", decode, '"b":1', extension_types=types)
    refused(DecodeError, "invalid-base64", decode, '"raw":5', extension_types=types)
