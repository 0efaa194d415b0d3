"""
Faults of the bindings of the cloudevents package (2.2.0), which ce_nats must not have.

All events are of the package's class, as in programs of users; it accepts more than CloudEvents allows.
"""

import json
from datetime import datetime, timedelta, timezone
from typing import Any

from cloudevents.core.v1.event import CloudEvent

from ce_nats import DecodeError, EncodeError, NatsMessage, from_nats_message, to_nats_message
from tests.support.strategies import binary_message, refused, structured_message
from tests.support.tables import each

MODES = ["binary", "structured"]
BASE = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}


def event(data: Any = None, **attributes: Any) -> CloudEvent:
    return CloudEvent({**BASE, "time": datetime(2020, 1, 2, tzinfo=timezone.utc), **attributes}, data)


def header(name: str, **attributes: Any) -> str:
    return to_nats_message(event(**attributes)).headers.get(f"ce-{name}")


def members(data: Any = None, **attributes: Any) -> Any:
    return json.loads(to_nats_message(event(data, **attributes), mode="structured").data)


def envelope(**more: Any) -> NatsMessage:
    return structured_message(json.dumps({**BASE, **more}).encode())


# --- Header values --------------------------------------------------------------------------------------------------


@each("value", ["%C0%A0", "%FF", "%ED%A0%80"])
def test_bytes_that_are_not_utf8_are_rejected(value: str) -> None:
    """Not replaced by U+FFFD."""
    refused(DecodeError, "invalid-utf8", from_nats_message, binary_message(subject=value))


@each("value", ["100%", "%zz", "%4"])
def test_malformed_escapes_are_rejected(value: str) -> None:
    """Not accepted as text."""
    refused(DecodeError, "invalid-percent-escape", from_nats_message, binary_message(subject=value))


def test_quoted_strings_are_unescaped() -> None:
    """First quotes, then percent-escapes."""
    assert from_nats_message(binary_message(subject='"a \\"b\\" %20"')).get_subject() == 'a "b"  '


def test_only_necessary_characters_are_escaped() -> None:
    """A source stays readable."""
    assert header("source", source="/a/b:c?d=e,f") == "/a/b:c?d=e,f"


def test_media_type_is_escaped_like_any_value() -> None:
    """No unescaped non-ASCII characters in a header."""
    assert header("datacontenttype", datacontenttype="text/plain; x=€") == "text/plain;%20x=%E2%82%AC"


# --- Types ----------------------------------------------------------------------------------------------------------


def test_booleans_are_lower_case() -> None:
    """``true`` and ``false``, not Python's names, and JSON booleans in JSON."""
    assert (header("flag", flag=True), header("flag", flag=False)) == ("true", "false")
    assert members(flag=True)["flag"] is True


def test_bytes_are_base64() -> None:
    """Not their ``repr``."""
    assert header("x", x=b"\0\1\xff") == "AAH/"
    assert members(x=b"\0\1\xff")["x"] == "AAH/"


@each(
    ("value", "code"),
    [(1.5, "invalid-attribute-type"), ({"a": 1}, "invalid-attribute-type"), (2**40, "integer-out-of-range")],
)
@each("mode", MODES)
def test_values_outside_of_the_type_system_are_rejected(value: Any, code: str, mode: str) -> None:
    """Floats, dicts, and integers of more than 32 bits."""
    refused(EncodeError, code, to_nats_message, event(x=value), mode=mode)


@each("name", ["foo\n", "Foo", "a_b", "naïve"])
def test_names_are_checked_completely(name: str) -> None:
    """A line break after the last letter would begin a second header."""
    unchecked = event()
    unchecked.get_attributes()[name] = "x"  # type: ignore[index]
    refused(EncodeError, "invalid-attribute-name", to_nats_message, unchecked)


def test_uris_are_checked() -> None:
    """dataschema must be absolute; source may be any text without control characters."""
    refused(EncodeError, "invalid-uri", to_nats_message, event(dataschema="rel"))
    refused(EncodeError, "invalid-character", to_nats_message, event(source="not a uri \n"))
    assert header("source", source="not a uri") == "not%20a%20uri"


# --- No invented attributes -----------------------------------------------------------------------------------------


@each("name", ["id", "source", "type", "specversion"])
def test_missing_attribute_is_not_invented(name: str) -> None:
    """A new id for every delivery would defeat deduplication. Neither decoding nor encoding creates one."""
    error = refused(DecodeError, "missing-attribute", from_nats_message, binary_message(**{name: ...}))
    assert error.attribute == name
    refused(DecodeError, "missing-attribute", from_nats_message, envelope(**{name: None}))
    incomplete = event()
    del incomplete.get_attributes()[name]  # type: ignore[attr-defined]
    refused(EncodeError, "missing-attribute", to_nats_message, incomplete)


def test_time_is_not_invented() -> None:
    """An event without a time stays without one, in both directions."""
    for message in (binary_message(), envelope()):
        decoded = from_nats_message(message)
        assert decoded.get_time() is None
        assert "ce-time" not in to_nats_message(decoded).headers
        assert b'"time"' not in to_nats_message(decoded, mode="structured").data


def test_attributes_of_the_caller_are_not_modified() -> None:
    """The dict is neither modified nor shared, so it can be reused."""
    template = dict(BASE)

    class Plain:
        def get_attributes(self) -> dict[str, str]:
            return template

        def get_data(self) -> dict[str, int]:
            return {"a": 1}

    first, second = (from_nats_message(to_nats_message(Plain())) for _ in range(2))
    assert template == BASE
    assert first == second
    assert first.get_attributes() is not second.get_attributes() is not template


def test_changes_after_construction_are_checked() -> None:
    """The whole event is checked when it is encoded."""
    changed = event()
    changed.get_attributes()["specversion"] = "9"  # type: ignore[index]
    refused(EncodeError, "unsupported-specversion", to_nats_message, changed)


# --- Time -----------------------------------------------------------------------------------------------------------


@each(
    "text",
    [
        "2020-01-01T00:00:00.123456789Z",
        "2016-12-31T23:59:60Z",
        "2020-01-01T00:00:00.000000006+02:00",
        "2020-01-01T00:00:00.10-00:00",
    ],
)
@each("mode", MODES)
def test_times_are_kept(text: str, mode: str) -> None:
    """With nanoseconds, leap seconds, offsets and trailing zeros."""
    for message in (binary_message(time=text), envelope(time=text)):
        again = from_nats_message(to_nats_message(from_nats_message(message), mode=mode))
        assert str(again.get_time()) == text


@each("text", ["2020-W01-1T00:00:00Z", "yesterday", "2020-01-01"])
def test_times_are_rfc_3339(text: str) -> None:
    """ISO 8601 accepts more. The error is a DecodeError, not a ValueError."""
    for message in (binary_message(time=text), envelope(time=text)):
        assert refused(DecodeError, "invalid-timestamp", from_nats_message, message).attribute == "time"


def test_offsets_with_seconds() -> None:
    """RFC 3339 has no such offsets, so the instant is encoded in UTC."""
    at = datetime(1900, 1, 1, tzinfo=timezone(timedelta(seconds=1172)))
    assert header("time", time=at) == "1899-12-31T23:40:28Z"


def test_naive_time_is_rejected() -> None:
    """Its instant is unknown."""
    unchecked = event()
    unchecked.get_attributes()["time"] = datetime(2020, 1, 1)  # type: ignore[index]
    refused(EncodeError, "invalid-attribute-type", to_nats_message, unchecked)


# --- JSON envelopes -------------------------------------------------------------------------------------------------


@each("name", ["time", "subject", "dataschema", "datacontenttype", "ext"])
def test_null_is_an_unset_attribute(name: str) -> None:
    """Neither a TypeError nor an attribute None."""
    assert name not in from_nats_message(envelope(**{name: None})).get_attributes()


def test_null_data_differs_from_absent_data() -> None:
    """It is kept when the event is encoded again."""
    null, absent = from_nats_message(envelope(data=None)), from_nats_message(envelope())
    assert (null.has_data, absent.has_data) == (True, False)
    assert b'"data":null' in to_nats_message(null, mode="structured").data
    assert b'"data":' not in to_nats_message(absent, mode="structured").data


@each("data", ["x", None, {}])
def test_data_and_data_base64_exclude_each_other(data: Any) -> None:
    """Also if data is null."""
    refused(DecodeError, "data-conflict", from_nats_message, envelope(data=data, data_base64="eA=="))


@each(("value", "code"), [("e!A==", "invalid-base64"), ("!!!!not base64", "invalid-base64"), (5, "invalid-data")])
def test_base64_is_strict(value: Any, code: str) -> None:
    """Invalid characters are not skipped; no TypeError or binascii.Error is raised."""
    refused(DecodeError, code, from_nats_message, envelope(data_base64=value))


@each(("payload", "code"), [(b'"str"', "not-an-object"), (b"[]", "not-an-object"), (b"\xff", "invalid-utf8")])
def test_payloads_that_are_not_objects(payload: bytes, code: str) -> None:
    """Each of them is a DecodeError."""
    refused(DecodeError, code, from_nats_message, structured_message(payload))


def test_byte_order_mark_is_skipped() -> None:
    """As RFC 8259 allows."""
    assert from_nats_message(structured_message(b"\xef\xbb\xbf" + json.dumps(BASE).encode())).get_id() == "1"


def test_batches_and_other_formats_have_specific_errors() -> None:
    """Avro is not parsed as JSON."""
    batch = NatsMessage("s", b"[]", {"content-type": "application/cloudevents-batch+json"})
    refused(DecodeError, "batch-not-supported", from_nats_message, batch)
    avro = NatsMessage("s", json.dumps(BASE).encode(), {"content-type": "application/cloudevents+avro"})
    refused(DecodeError, "unsupported-format", from_nats_message, avro)


def test_content_type_takes_precedence_over_ce_headers() -> None:
    """The attributes of a structured event are in its payload."""
    message = envelope(id="inner")
    message.headers.append("ce-id", "outer")
    assert from_nats_message(message).get_id() == "inner"


def test_duplicates_are_rejected() -> None:
    """In headers, in any case, and in JSON, where two readers could decode two events."""
    twice = binary_message()
    twice.headers.append("CE-ID", "2")
    refused(DecodeError, "duplicate-attribute", from_nats_message, twice)
    text = json.dumps(BASE).encode()[:-1] + b',"id":"2"}'
    refused(DecodeError, "duplicate-attribute", from_nats_message, structured_message(text))


def test_headers_can_be_none() -> None:
    """As in nats-py's messages without headers."""
    refused(DecodeError, "not-a-cloudevent", from_nats_message, NatsMessage("s", b"{}", None))  # type: ignore[arg-type]


# --- Data -----------------------------------------------------------------------------------------------------------


@each("data", ['{"a":1}', "123", "hello", "null", ""])
def test_str_with_a_json_type_is_a_json_string(data: str) -> None:
    """In both modes, and decoded to the same string."""
    sent = event(data, datacontenttype="application/json")
    assert json.loads(to_nats_message(sent).data) == data
    assert members(data, datacontenttype="application/json")["data"] == data
    assert [from_nats_message(to_nats_message(sent, mode=mode)).get_data() for mode in MODES] == [data, data]


@each("content_type", ["application/octet-stream", "application/protobuf"])
@each("data", [b"hi", b"\x08\x01", b"\xff"])
def test_bytes_stay_bytes(content_type: str, data: bytes) -> None:
    """Valid UTF-8 or not."""
    decoded = from_nats_message(binary_message(data, datacontenttype=content_type))
    assert decoded.get_data() == data
    assert b'"data_base64"' in to_nats_message(decoded, mode="structured").data


@each("content_type", ["Application/JSON", "application/json ; charset=utf-8", "a/B+Json"])
def test_media_types_are_case_insensitive(content_type: str) -> None:
    """And may have parameters."""
    assert from_nats_message(binary_message(b'{"a":1}', datacontenttype=content_type)).get_data() == {"a": 1}


def test_invalid_json_is_an_error() -> None:
    """It is not returned as text."""
    message = binary_message(b"{bad", datacontenttype="application/json")
    refused(DecodeError, "invalid-json", from_nats_message, message)


@each("data", [[1, 2, None, True], (1, 2), True, 0, 1.5, {"a": {"b": []}}])
@each("content_type", [None, "application/json"])
def test_every_json_value_is_written_as_json(data: Any, content_type: str | None) -> None:
    """Also lists and scalars, in both modes."""
    attributes = {} if content_type is None else {"datacontenttype": content_type}
    expected = list(data) if isinstance(data, tuple) else data
    assert json.loads(to_nats_message(event(data, **attributes)).data) == expected
    assert members(data, **attributes)["data"] == expected
    assert header("datacontenttype", **attributes) == (content_type or "")


@each("mode", MODES)
def test_data_is_not_encoded_with_repr(mode: str) -> None:
    """A dict is not text."""
    refused(EncodeError, "invalid-data", to_nats_message, event({"a": 1}, datacontenttype="text/plain"), mode=mode)


@each("mode", MODES)
@each("data", [{"x": float("nan")}, [float("inf")], {1: 2}, {"at": datetime(2020, 1, 1)}, {"x": b"a"}])
def test_values_that_json_cannot_represent_are_rejected(data: Any, mode: str) -> None:
    """NaN, infinities, keys and values of other types."""
    assert refused(EncodeError, "invalid-data", to_nats_message, event(data), mode=mode).attribute == "data"


def test_content_type_of_data_is_sent_once() -> None:
    """As ce-datacontenttype of the binding, without a content-type header."""
    headers = to_nats_message(event({"a": 1}, datacontenttype="application/json")).headers
    assert headers.values("datacontenttype", ignore_case=True) == headers.values("content-type", ignore_case=True) == []
    assert headers.values("ce-datacontenttype") == ["application/json"]


def test_empty_bytes() -> None:
    """They are kept in JSON; binary mode does not distinguish them from absent data."""
    assert from_nats_message(to_nats_message(event(b""), mode="structured")).get_data() == b""
    assert from_nats_message(to_nats_message(event(b""))).get_data() is None


# --- Comparing ------------------------------------------------------------------------------------------------------


def test_decoded_events_have_equality_and_repr() -> None:
    """A failing test shows the difference."""
    first, second = from_nats_message(envelope(data=1)), from_nats_message(envelope(data=1))
    assert first == second
    assert "'id': '1'" in repr(first)
