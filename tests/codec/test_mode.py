"""
Mode detection: the mode, the reason, and messages that are not events.

tests/test_fixtures.py runs the vectors of spec-fixtures/mode-detection.json.
"""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ce_nats import ContentMode, DecodeError, ErrorCode, NatsMessage, detect_mode, from_nats_message
from ce_nats.codec.mode import inspect, is_cloudevents_type, scan
from ce_nats.message import UnreadableHeaders
from tests.support.strategies import any_text, attempt, hostile_messages, refused, valid_messages
from tests.support.tables import each

BINARY, STRUCTURED = ContentMode.BINARY, ContentMode.STRUCTURED


def message(headers: Any, data: Any = b"{}") -> Any:
    return SimpleNamespace(headers=headers, data=data)


@each(
    ("headers", "expected", "reason"),
    [
        (None, STRUCTURED, "no header"),
        ({"ce": "1"}, STRUCTURED, "no header"),
        ({"Content-Type": "application/cloudeventsx"}, STRUCTURED, "no header"),
        ({"Content-Type": "application/cloudevents-batc"}, STRUCTURED, "no header"),
        ({"Content-Type": "application/cloudevents+json"}, STRUCTURED, "Content-Type"),
        ({"Content-Type": "\tapplication/cloudevents\t;x=y"}, STRUCTURED, "Content-Type"),
        ({"content-type": 'application/cloudevents+json; charset="UTF8"'}, STRUCTURED, "Content-Type"),
        ({"ce-id": "1"}, BINARY, "'ce-'"),
        ({"Ce-": ""}, BINARY, "'ce-'"),
        ([("a", "1"), ("a", "2"), ("cE-x", "3")], BINARY, "'ce-'"),
        ({"ce-id": ["1", "2"]}, BINARY, "'ce-'"),
    ],
)
def test_mode_and_reason(headers: Any, expected: ContentMode, reason: str) -> None:
    """The first rule that matches decides."""
    assert detect_mode(message(headers)) is expected
    found = inspect(message(headers))
    assert reason in found.reason
    assert found.has_cloudevents_header is (reason != "no header")


@each(
    ("headers", "code"),
    [
        ({"Content-Type": "\tapplication/cloudevents; charset=utf-16"}, "unsupported-charset"),
        ({"Content-Type": ["application/cloudevents", "application/cloudevents"]}, "duplicate-header"),
        ({"Content-Type": 5}, "invalid-header-value"),
        ({5: "a"}, "invalid-header-name"),
        ({"ce-id": None}, "invalid-header-value"),
        (5, "invalid-header-block"),
        ("ce-id", "invalid-header-block"),
        ([("a",)], "invalid-header-block"),
    ],
)
def test_invalid_content_types_are_rejected(headers: Any, code: str) -> None:
    """Batches, other formats, other charsets, duplicates, and headers that are not text."""
    refused(DecodeError, code, detect_mode, message(headers))


@each(
    ("headers", "reason"),
    [
        (None, "empty"),
        ({"Status": "503"}, "status message"),
        ({"KV-Operation": "DEL"}, "delete marker"),
        ({"Nats-Marker-Reason": "MaxAge"}, "delete marker"),
        ({"Nats-Msg-Size": "55"}, "headers only"),
        ({"Nats-Msg-Id": "1"}, "empty"),
    ],
)
@each("data", [b"", None])
def test_empty_messages_are_not_events(headers: Any, data: Any, reason: str) -> None:
    """Empty payload without CloudEvents headers: the error names the kind of message."""
    assert reason in str(refused(DecodeError, "not-a-cloudevent", detect_mode, message(headers, data)))


@each("call", [detect_mode, from_nats_message])
def test_message_with_a_status_is_a_status_message(call: Any) -> None:
    """The status is an attribute of messages that were decoded from frames, not a header."""
    for status, reason in ((503, "a status message"), (None, "an empty message")):
        one = SimpleNamespace(headers={}, data=b"", status=status)
        assert reason in refused(DecodeError, "not-a-cloudevent", call, one).message


@each("data", [b"", b"{}"])
@each("call", [detect_mode, from_nats_message])
def test_unreadable_headers_raise_their_error(call: Any, data: bytes) -> None:
    error = DecodeError(ErrorCode.INVALID_HEADER_BLOCK, "a header line must have a colon")
    headers = UnreadableHeaders(error, {"ce-id": "1"})
    assert refused(DecodeError, "invalid-header-block", call, message(headers, data)) is error


@each("what", [None, 5, b"", "", object(), SimpleNamespace(data=b""), SimpleNamespace(headers={})])
def test_message_must_have_data_and_headers(what: Any) -> None:
    refused(DecodeError, "invalid-message", detect_mode, what)


def test_only_ascii_letters_are_case_insensitive() -> None:
    """Unicode rules would match other letters, and header names are ASCII."""
    assert detect_mode(message({"\u0421\u0415-id": "1"})) is STRUCTURED  # Cyrillic
    assert scan({"ce-\u212a": "1"})[1].attributes == ("\u212a",)  # Kelvin sign
    assert scan([("content-type\u017f", "a"), ("ce-x", "1")])[0] == []


def test_modes_are_printed_as_their_names() -> None:
    assert [*map(str, ContentMode)] == ["binary", "structured"]


def test_payload_is_not_examined() -> None:
    assert detect_mode(message({"Content-Type": "application/cloudevents"}, b"\xff")) is STRUCTURED
    assert detect_mode(message({"ce-id": "1"}, b'{"specversion":"1.0"}')) is BINARY


def test_ce_headers_are_in_wire_order() -> None:
    """Names as received, attributes in lower case, repeats included."""
    found = inspect(message([("CE-B", "1"), ("x", "2"), ("ce-a", "3"), ("ce-b", "4"), ("Content-Type", "a/b")])).headers
    assert found.attributes == ("b", "a", "b")
    assert found.names == ("CE-B", "ce-a", "ce-b")
    assert list(found.values) == ["1", "3", "4"]


@given(valid_messages(), st.dictionaries(any_text.map("X-".__add__), any_text, max_size=3), st.randoms())
def test_other_headers_have_no_effect(valid: NatsMessage, others: dict[str, str], random: Any) -> None:
    """Neither have the case and the order of names."""
    pairs = [(random.choice([str.upper, str.title, str.lower])(name), value) for name, value in valid.headers.items()]
    pairs += others.items()
    random.shuffle(pairs)
    assert detect_mode(message(pairs, valid.data)) is detect_mode(valid)


@given(hostile_messages)
def test_any_message_has_a_mode_or_is_rejected(hostile: Any) -> None:
    found, error = attempt(DecodeError, detect_mode, hostile)
    assert (found in ContentMode) if error is None else error.code


@each("value", ["application/cloudevents", "application/CLOUDEVENTS+json;x", "application/cloudevents-batch"])
def test_media_types_of_events(value: str) -> None:
    """A binary message must not have them as its Content-Type."""
    assert is_cloudevents_type(value)
    assert not is_cloudevents_type("application/json")
