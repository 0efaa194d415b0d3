"""
Binary mode: one printable header per attribute, the data as payload.
"""

import json
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ce_nats import DecodeError, Dialect, EncodeError, NatsMessage, from_nats_message, to_nats_message
from ce_nats.codec import media_type
from ce_nats.wire.nats import decode_header_block, encode_header_block
from tests.support.strategies import (
    Event,
    any_events,
    attempt,
    binary_message,
    canonical_text,
    events,
    exact,
    expected_attributes,
    extension_types,
    hostile_headers,
    hostile_payloads,
    legal_text,
    plain_event,
    refused,
)
from tests.support.tables import each

# --- Encoding -------------------------------------------------------------------------------------------------------


@given(events())
def test_events_round_trip(event: Event) -> None:
    """All attributes in order, with their declared types, and the data."""
    decoded = from_nats_message(to_nats_message(event), extension_types=extension_types(event))
    assert exact(decoded.get_attributes()) == exact(expected_attributes(event))
    assert exact(decoded.get_data()) == exact(event.data)


@given(events())
def test_headers_are_encoded_canonical_strings(event: Event) -> None:
    """One header each, lower case, printable ASCII; urllib decodes it to the canonical string."""
    headers = to_nats_message(event).headers.items()
    expected = expected_attributes(event)
    assert [name for name, _ in headers] == [f"ce-{name}" for name in expected]
    for (_, text), (name, value) in zip(headers, expected.items()):
        assert all("!" <= one <= "~" and one != '"' for one in text)
        assert unquote(text, errors="strict") == canonical_text(name, value)


@given(events())
def test_payload_is_the_data(event: Event) -> None:
    """Bytes verbatim, text in its charset, other values as JSON; empty without data."""
    payload = to_nats_message(event).data
    content_type = expected_attributes(event).get("datacontenttype")
    if event.data is None:
        assert payload == b""
    elif isinstance(event.data, bytes):
        assert payload == event.data
    elif media_type.parse(content_type).kind is media_type.DataKind.JSON:
        assert exact(json.loads(payload)) == exact(event.data)
    else:
        charset = content_type.partition("arset=")[2].strip('"') or "utf-8"
        assert payload == event.data.encode(charset)


@given(events())
def test_headers_round_trip_through_a_header_block(event: Event) -> None:
    message = to_nats_message(event)
    assert decode_header_block(encode_header_block(message.headers)).headers == message.headers


@given(any_events())
def test_any_event_is_encoded_or_rejected(event: Event) -> None:
    """An encoded event can be decoded."""
    message, error = attempt(EncodeError, to_nats_message, event)
    if error is None:
        assert from_nats_message(message, parse_data=False).get_attributes()["id"] == event.attributes["id"]


@each(
    ("attributes", "header"),
    [
        ({"x": b""}, ("ce-x", "")),
        ({"subject": "e\u0301 \u00ad"}, ("ce-subject", "e%CC%81%20%C2%AD")),
        ({"datacontenttype": "text/plain; x=€"}, ("ce-datacontenttype", "text/plain;%20x=%E2%82%AC")),
        ({"time": "2016-12-31t23:59:60.123456789z"}, ("ce-time", "2016-12-31T23:59:60.123456789Z")),
    ],
)
def test_escaping_is_minimal(attributes: dict[str, Any], header: tuple[str, str]) -> None:
    """Only the characters that the binding requires are escaped; values are never quoted."""
    assert header in to_nats_message(plain_event(**attributes)).headers.items()


# --- Decoding -------------------------------------------------------------------------------------------------------


@given(hostile_headers, hostile_payloads, st.sampled_from(Dialect), st.booleans())
def test_any_message_is_decoded_or_rejected(headers: Any, payload: bytes, dialect: Dialect, parse_data: bool) -> None:
    message = NatsMessage(data=payload)
    message.headers = headers
    attempt(DecodeError, from_nats_message, message, mode="binary", dialect=dialect, parse_data=parse_data)


@given(st.binary(), st.sampled_from([None, "application/json", "text/plain", "a/b"]))
def test_data_is_the_payload_without_parsing(payload: bytes, content_type: str | None) -> None:
    """With parse_data=False the data is the bytes of the payload; an empty payload means no data."""
    headers = {} if content_type is None else {"datacontenttype": content_type}
    event = from_nats_message(binary_message(payload, **headers), parse_data=False)
    assert event.get_data() == (payload or None)
    assert event.has_data == bool(payload)


@each(
    ("name", "value", "code"),
    [
        ("my_ext", "1", "invalid-attribute-name"),
        ("", "1", "invalid-attribute-name"),
        ("data", "1", "invalid-attribute-name"),
        ("\u212a", "1", "invalid-attribute-name"),
        ("ID", "2", "duplicate-attribute"),
        ("subject", "", "empty-attribute"),
        ("subject", "100%", "invalid-percent-escape"),
        ("subject", "%C0%A0", "invalid-utf8"),
        ("subject", '"a', "unterminated-quote"),
        ("subject", "a%0D%0Ab", "invalid-character"),
        ("x", "%EF%BF%BE", "invalid-character"),
        ("time", "2023-12-31T23:59:54+00:00Z", "invalid-timestamp"),
        ("datacontenttype", "json", "invalid-media-type"),
        ("dataschema", "a/b", "invalid-uri"),
    ],
)
def test_errors_name_attribute_and_header(name: str, value: str, code: str) -> None:
    """The header with the spelling of the message."""
    message = binary_message()
    message.headers.append(f"cE-{name}", value)
    error = refused(DecodeError, code, from_nats_message, message)
    assert error.attribute == (name.lower() if name.isascii() else name)
    assert error.header == f"cE-{name}"


@given(legal_text())
def test_outer_white_space_is_removed(text: str) -> None:
    """Spaces and tabs around a value; those inside of quotes, or escaped, are part of the value."""
    escaped = to_nats_message(plain_event(x=text)).headers.get("ce-x")
    assert from_nats_message(binary_message(x=f" \t{escaped}\t ")).get_extension("x") == text


@given(legal_text(1))
def test_sdk_go_values_are_not_decoded(text: str) -> None:
    """sdk-go neither encodes nor quotes values; outer white space is removed."""
    trimmed = text.strip(" \t")
    event = from_nats_message(binary_message(x=text), dialect=Dialect.SDK_GO)
    assert event.get_extension("x") == trimmed


@each(
    ("content_type", "code"),
    [("json", "invalid-media-type"), ("a/b;\x85", "invalid-character"), ("", "empty-attribute")],
)
def test_invalid_sdk_go_content_types_are_rejected(content_type: str, code: str) -> None:
    message = binary_message(b"1")
    message.headers.append("content-type", content_type)
    error = refused(DecodeError, code, from_nats_message, message, dialect=Dialect.SDK_GO)
    assert error.attribute == "datacontenttype"


def test_dialects_can_be_strings() -> None:
    """An unknown dialect is an error; it is not treated as the specification."""
    message = binary_message(id="100%25")
    assert from_nats_message(message, dialect="sdk-go").get_id() == "100%25"
    assert from_nats_message(message, dialect="spec").get_id() == "100%"
    with pytest.raises(ValueError, match=r"^dialect must be 'spec' or 'sdk-go', got 'sdk-rust'$"):
        from_nats_message(message, dialect="sdk-rust")
    assert [*map(str, Dialect)] == ["spec", "sdk-go"]


def test_declared_extensions_are_converted() -> None:
    """Only declared extensions; core attributes and missing attributes have no effect."""
    message = binary_message(n="5", s="5", id="7")
    event = from_nats_message(message, extension_types={"n": int, "id": int, "other": bytes})
    assert (event.get_extension("n"), event.get_extension("s"), event.get_id()) == (5, "5", "7")
    error = refused(DecodeError, "invalid-boolean", from_nats_message, message, extension_types={"s": bool})
    assert (error.attribute, error.header) == ("s", "ce-s")
