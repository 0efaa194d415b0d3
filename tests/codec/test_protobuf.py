"""
Properties of the Protobuf event format. The cases of single messages are in spec-fixtures/protobuf.json.
"""

import copy
import os
import pickle
import re
import subprocess
import sys
from datetime import datetime, timezone
from typing import Any

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor_pb2 import FileDescriptorProto, UninterpretedOption
from google.protobuf.struct_pb2 import Struct
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import example, given
from hypothesis import strategies as st

from ce_nats import (
    DecodeError,
    EncodeError,
    NatsMessage,
    Timestamp,
    detect_mode,
    from_nats_message,
    to_nats_message,
)
from ce_nats.codec.formats import find
from ce_nats.codec.protobuf import ProtobufData
from tests.support.strategies import (
    Event,
    any_events,
    attempt,
    canonical_text,
    events,
    exact,
    expected_attributes,
    extension_types,
    objects,
    plain_event,
    refused,
    times,
)
from tests.support.tables import each

TYPE = "application/cloudevents+protobuf"
DATA_TYPE = "application/protobuf"
REQUIRED = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
ORDER = Struct()
ORDER.update({"id": "7"})
ORDER_URL = "type.googleapis.com/google.protobuf.Struct"


def encode(event: Any) -> NatsMessage:
    return to_nats_message(event, "s", mode="structured", format="protobuf")


def decode(payload: bytes, **options: Any) -> Any:
    return from_nats_message(NatsMessage("s", payload, {"Content-Type": TYPE}), **options)


def utc_text(text: str) -> str | None:
    """Return the text of a time after a round trip, computed without the codec; None if it cannot be encoded."""
    match = re.fullmatch(r"(.{17})(..)(?:\.([0-9]+))?(Z|[+-].{5})", text)
    assert match is not None
    whole, second, fraction, offset = match.groups(default="")
    fraction = fraction.rstrip("0")
    if second == "60" or len(fraction) > 9:
        return None
    try:
        at = datetime.fromisoformat(whole + second + offset.replace("Z", "+00:00")).astimezone(timezone.utc)
    except OverflowError:
        return None
    return f"{at.replace(tzinfo=None).isoformat()}{'.' + fraction if fraction else ''}Z"


def times_of(event: Event) -> dict[str, str]:
    return {
        name: canonical_text(name, value)
        for name, value in event.attributes.items()
        if name == "time" or isinstance(value, datetime)
    }


# --- Whole events ---------------------------------------------------------------------------------------------------


def test_message() -> None:
    """PF-4-01: the media type; the payload was computed by hand."""
    message = encode(plain_event(b"\0", a=True))
    assert message.headers.items() == [("Content-Type", TYPE)]
    assert message.data == b"\n\x011\x12\x02/s\x1a\x031.0\x22\x01t*\x07\n\x01a\x12\x02\x08\x012\x01\0"
    assert str(detect_mode(message)) == "structured"


@given(events())
def test_events_round_trip(event: Event) -> None:
    """Attributes with their types, times in UTC, and data; an event is rejected only because of a time."""
    sent, error = attempt(EncodeError, encode, event)
    utc = {name: utc_text(text) for name, text in times_of(event).items()}
    if error is not None:
        assert (str(error.code), error.requirement) == ("invalid-timestamp", "A-95")
        assert utc[error.attribute] is None
        return
    wanted = expected_attributes(event) | {name: Timestamp(text) for name, text in utc.items() if text is not None}
    assert None not in utc.values()
    for types in (None, extension_types(event)):
        decoded = from_nats_message(sent, extension_types=types)
        assert exact(dict(sorted(decoded.get_attributes().items()))) == exact(dict(sorted(wanted.items())))
        assert exact(decoded.get_data()) == exact(event.data)
    assert encode(decoded) == sent


@given(events())
def test_data_equals_that_of_binary_mode(event: Event) -> None:
    """Unparsed data as bytes, and parsed data as a value."""
    event.attributes = {name: value for name, value in event.attributes.items() if name not in times_of(event)}
    for parse_data in (True, False):
        one = from_nats_message(encode(event), parse_data=parse_data)
        other = from_nats_message(to_nats_message(event), parse_data=parse_data)
        assert exact(one.get_data()) == exact(other.get_data())
        assert one.has_data == other.has_data


@given(any_events())
@example(Event({**REQUIRED, "datacontenttype": "text/plain; charset=iso-8859-1"}, "Ā"))
def test_any_event_is_encoded_or_rejected(event: Event) -> None:
    """Events that JSON rejects, and otherwise only because of times."""
    _, in_json = attempt(EncodeError, to_nats_message, event, mode="structured")
    _, error = attempt(EncodeError, encode, event)
    if in_json is not None:
        assert error.code is in_json.code
    elif error is not None:
        assert (str(error.code), error.requirement) == ("invalid-timestamp", "A-95")


@given(st.binary(max_size=60))
def test_any_payload_is_decoded_or_rejected(payload: bytes) -> None:
    refusal = attempt(DecodeError, decode, payload)[1]
    assert refusal is not None  # random bytes of this length are not an event
    assert refusal.requirement


@given(events(), st.data())
def test_damaged_payloads(event: Event, data: st.DataObject) -> None:
    """A payload with a few changed bytes is rejected, or is an event that round-trips."""
    event.attributes = {name: value for name, value in event.attributes.items() if name not in times_of(event)}
    payload = bytearray(encode(event).data)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload)))
        end = data.draw(st.integers(at, min(at + 3, len(payload))))
        payload[at:end] = data.draw(st.binary(max_size=3))
    decoded, _ = attempt(DecodeError, decode, bytes(payload), parse_data=False)
    if decoded is not None:
        again = from_nats_message(encode(decoded), parse_data=False)
        assert exact(again.get_attributes()) == exact(decoded.get_attributes())
        assert exact(again.get_data()) == exact(decoded.get_data())


@given(events(), st.integers(0, 40))
def test_truncated_payloads_are_rejected(event: Event, size: int) -> None:
    """As malformed, or because an attribute or its value is missing."""
    event.attributes = {name: value for name, value in event.attributes.items() if name not in times_of(event)}
    payload = encode(event).data
    decoded, error = attempt(DecodeError, decode, payload[: min(size, len(payload) - 1)])
    if error is not None:
        assert str(error.code) in {"invalid-protobuf", "missing-attribute", "invalid-utf8"}
    else:
        assert {name: event.attributes[name] for name in ("id", "source", "type")}.items() <= (
            decoded.get_attributes().items()
        )


def test_a_payload_that_was_not_delivered_is_not_an_event() -> None:
    message = NatsMessage("", b"", {"Content-Type": TYPE, "Nats-Msg-Size": "7"})
    refused(DecodeError, "not-a-cloudevent", from_nats_message, message)


def test_time_is_linear() -> None:
    """A megabyte of data, and ten thousand attributes."""
    assert decode(encode(plain_event(b"x" * 2**20)).data).get_data() == b"x" * 2**20
    many = {f"a{number}": number for number in range(10_000)}
    assert decode(encode(plain_event(**many)).data).get_attributes() == plain_event(**many).attributes


def test_generated_code_for_the_same_messages() -> None:
    """A program may define messages of the same name."""
    from google.protobuf import descriptor_pool

    other = FileDescriptorProto(name="cloudevents.proto", package="io.cloudevents.v1", syntax="proto3")
    other.message_type.add(name="CloudEvent").field.add(name="other", number=1, type=5, label=1)
    descriptor_pool.Default().AddSerializedFile(other.SerializeToString())
    assert decode(encode(plain_event()).data).get_attributes() == plain_event().attributes


def test_package_without_its_c_library() -> None:
    """It looks types up in the files that a file names, the C library in all files."""
    program = """
from google.protobuf.internal import api_implementation
from ce_nats import from_nats_message, to_nats_message
from ce_nats.codec.event import DecodedEvent
event = DecodedEvent({"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "x": True}, b"x")
assert api_implementation.Type() == "python"
assert from_nats_message(to_nats_message(event, mode="structured", format="protobuf")) == event
"""
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


# --- Times ----------------------------------------------------------------------------------------------------------


@given(times)
def test_times_are_kept_or_rejected(time: Any) -> None:
    """In UTC with all digits; a time is never changed."""
    wanted = utc_text(canonical_text("time", time))
    sent, error = attempt(EncodeError, encode, plain_event(time=time))
    if wanted is None:
        assert (str(error.code), error.attribute) == ("invalid-timestamp", "time")
    else:
        assert str(from_nats_message(sent).get_time()) == wanted


@each(("seconds", "nanos"), [(-62_135_596_801, 0), (253_402_300_800, 0), (0, -1), (0, 10**9), (2**63 - 1, 0)])
def test_timestamps_out_of_range_are_rejected(seconds: int, nanos: int) -> None:
    value = b"\x08" + varint(seconds) + b"\x10" + varint(nanos)
    payload = encode(plain_event()).data + _record(5, _record(1, b"a") + _record(2, _record(7, value)))
    error = refused(DecodeError, "invalid-timestamp", decode, payload)
    assert (error.attribute, error.requirement) == ("a", "PF-2.1-02")
    assert error.message.endswith(f"got {seconds} seconds and {nanos} nanoseconds")


@each("offset", ["Z", "+01:00", "-01:00"])
def test_more_digits_than_nanoseconds_are_rejected(offset: str) -> None:
    """Unless they are zeros."""
    for fraction, nanosecond in ((".1234567890", 123456789), (".12345678900", 123456789), (".5", 500_000_000), ("", 0)):
        message = encode(plain_event(time=Timestamp(f"2020-01-02T03:04:05{fraction}{offset}")))
        assert from_nats_message(message).get_time().nanosecond == nanosecond
    for fraction in (".1234567891", ".00000000001"):
        time = Timestamp(f"2020-01-02T03:04:05{fraction}{offset}")
        error = refused(EncodeError, "invalid-timestamp", encode, plain_event(time=time))
        assert (error.attribute, error.requirement) == ("time", "A-95")
        assert "which has at most nanoseconds" in error.message


@given(st.integers(-62_135_596_800, 253_402_300_799), st.integers(0, 999_999_999))
def test_every_timestamp_round_trips(seconds: int, nanos: int) -> None:
    """To the nanosecond."""
    from google.protobuf.timestamp_pb2 import Timestamp as TimestampMessage

    value = TimestampMessage(seconds=seconds, nanos=nanos)
    payload = encode(plain_event()).data + _record(5, _record(1, b"time") + _record(2, _record(7, value)))
    event = decode(payload)
    # The text of the protobuf package, whose fractions have 3, 6 or 9 digits.
    assert Timestamp(value.ToJsonString()) == event.get_time()
    assert event.get_time().nanosecond == nanos
    assert encode(event).data == payload


# A value of each type, as a record of the message that has one of them.
VALUES = {
    "ce_boolean": b"\x08\1",
    "ce_integer": b"\x10\1",
    "ce_string": b"\x1a\3a:b",
    "ce_bytes": b"\x22\1x",
    "ce_uri": b"\x2a\3a:b",
    "ce_uri_ref": b"\x32\3a:b",
    "ce_timestamp": b"\x3a\0",
}


@each("other", VALUES)
@each("one", VALUES)
def test_two_values_of_an_attribute_are_rejected(one: str, other: str) -> None:
    """A parser of Protobuf keeps the last."""
    start = encode(plain_event()).data
    assert "a" in decode(start + _record(5, _record(1, b"a") + _record(2, VALUES[one]))).get_attributes()
    twice = start + _record(5, _record(1, b"a") + _record(2, VALUES[one] + VALUES[other]))
    assert refused(DecodeError, "invalid-protobuf", decode, twice).requirement == "A-92"


@each("name", REQUIRED)
def test_required_attributes_are_not_in_the_map(name: str) -> None:
    payload = encode(plain_event()).data + _record(5, _record(1, name.encode()) + _record(2, VALUES["ce_string"]))
    error = refused(DecodeError, "invalid-attribute-name", decode, payload)
    assert (error.attribute, error.requirement) == (name, "PF-2.3-01")


def varint(value: int) -> bytes:
    value %= 2**64
    octets = []
    while value > 0x7F:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*octets, value])


@each("value", [-(2**31) - 1, 2**31, 2**32, 2**63, -(2**63)])
def test_larger_integers_are_rejected(value: int) -> None:
    """A parser of Protobuf drops the upper bits."""
    start = encode(plain_event()).data
    number, nanos = b"\x10" + varint(value), _record(7, b"\x10" + varint(value))
    payload = start + _record(5, _record(1, b"a") + _record(2, number))
    refused(DecodeError, "integer-out-of-range", decode, payload)
    payload = start + _record(5, _record(1, b"a") + _record(2, nanos))
    assert refused(DecodeError, "invalid-timestamp", decode, payload).requirement == "PF-2.1-02"


DATA = {"binary_data": b"\x32\1x", "text_data": b"\x3a\1x", "proto_data": b"\x42\3\x12\1x"}


@each("value", VALUES)
@each(
    ("name", "allowed"),
    [
        ("subject", {"ce_string"}),
        ("datacontenttype", {"ce_string"}),
        ("dataschema", {"ce_string", "ce_uri", "ce_uri_ref"}),
        ("time", {"ce_timestamp"}),
        ("x", VALUES),
    ],
)
def test_attributes_of_another_type_are_rejected(name: str, allowed: Any, value: str) -> None:
    payload = encode(plain_event()).data + _record(5, _record(1, name.encode()) + _record(2, VALUES[value]))
    if value in allowed:
        if name != "datacontenttype":  # the value is not a media type
            assert name in decode(payload).get_attributes()
    else:
        error = refused(DecodeError, "invalid-attribute-type", decode, payload)
        assert error.attribute == name
        assert f"must be {' or '.join(sorted(allowed))}, got {value}" in error.message


@each("other", DATA)
@each("one", DATA)
def test_two_data_fields_are_rejected(one: str, other: str) -> None:
    start = encode(plain_event()).data
    assert decode(start + DATA[one]).has_data
    assert refused(DecodeError, "data-conflict", decode, start + DATA[one] + DATA[other]).attribute == "data"


@each(
    ("records", "code", "message", "requirement"),
    [
        (b"\x48\1", "invalid-protobuf", "CloudEvent has no field 9 with wire type 0", "A-91"),
        (b"\x08\1", "invalid-protobuf", "CloudEvent has no field 1 with wire type 0", "A-91"),
        (b"\x2a\2\x1a\0", "invalid-protobuf", "AttributesEntry has no field 3 with wire type 2", "A-91"),
        (b"\x32\2x", "invalid-protobuf", "binary_data is truncated", "PF-4-02"),
        (b"\x32", "invalid-protobuf", "it is truncated", "PF-4-02"),
        (b"\x3a\1\xff", "invalid-utf8", "text_data is not valid UTF-8", "PF-4-03"),
        (b"\x2a\3\x0a\1\xff", "invalid-utf8", "key is not valid UTF-8", "PF-4-03"),
        (b"\x2a\6\x0a\1a\x0a\1b", "invalid-protobuf", "key is duplicated in AttributesEntry", "A-92"),
        (b"\x2a\7\x12\5\x1a\1x\x08\1", "invalid-protobuf", "attr is duplicated in CloudEventAttributeValue", "A-92"),
        (b"\x2a\2x", "invalid-protobuf", "attributes is truncated", "PF-4-02"),
        (b"\x42\2x", "invalid-protobuf", "proto_data is truncated", "PF-4-02"),
        (b"\x2a\2\x0a\1", "invalid-protobuf", "key is truncated", "PF-4-02"),
        (b"\x2a\2\x12\1", "invalid-protobuf", "value is truncated", "PF-4-02"),
        (b"\x2a\4\x12\2\x22\1", "invalid-protobuf", "ce_bytes is truncated", "PF-4-02"),
        (b"\x2a\4\x12\2\x2a\1", "invalid-protobuf", "ce_uri is truncated", "PF-4-02"),
        (b"\x2a\4\x12\2\x32\1", "invalid-protobuf", "ce_uri_ref is truncated", "PF-4-02"),
        (b"\x2a\4\x12\2\x3a\1", "invalid-protobuf", "ce_timestamp is truncated", "PF-4-02"),
        (b"\x2a\5\x12\3\x1a\1\xff", "invalid-utf8", "ce_string is not valid UTF-8", "PF-4-03"),
        (b"\x42\3\x0a\1\xff", "invalid-utf8", "type_url is not valid UTF-8", "PF-4-03"),
        (b"\x42\4\x0a\0\x0a\0", "invalid-protobuf", "type_url is duplicated in google.protobuf.Any", "A-92"),
        (b"\x42\4\x12\0\x12\0", "invalid-protobuf", "value is duplicated in google.protobuf.Any", "A-92"),
        (
            b"\x2a\x08\x12\6\x3a\4\x08\1\x08\1",
            "invalid-protobuf",
            "seconds is duplicated in google.protobuf.Timestamp",
            "A-92",
        ),
        (
            b"\x2a\x08\x12\6\x3a\4\x10\1\x10\1",
            "invalid-protobuf",
            "nanos is duplicated in google.protobuf.Timestamp",
            "A-92",
        ),
        (b"\x32\0\x32\0", "data-conflict", "the event must have one data field, got two", "A-92"),
    ],
)
def test_error_names_field_and_rule(records: bytes, code: str, message: str, requirement: str) -> None:
    error = refused(DecodeError, code, decode, encode(plain_event()).data + records)
    assert error.message.endswith(message)
    assert error.requirement == requirement


@each(("number", "name"), [(1, "id"), (2, "source"), (3, "specversion"), (4, "type")])
def test_repeated_required_attributes_are_rejected(number: int, name: str) -> None:
    payload = encode(plain_event()).data + _record(number, b"1.0")
    error = refused(DecodeError, "duplicate-attribute", decode, payload)
    assert (error.attribute, error.message) == (name, f"attribute '{name}' must occur once, got a second field")


def test_repeated_names_in_the_map_are_rejected() -> None:
    """A parser of Protobuf keeps the last."""
    entry = _record(5, _record(1, b"a") + _record(2, VALUES["ce_string"]))
    error = refused(DecodeError, "duplicate-attribute", decode, encode(plain_event()).data + entry + entry)
    assert (error.attribute, error.message) == ("a", "attribute 'a' must occur once in the map")


def test_payload_that_only_the_parser_rejects() -> None:
    """A tag of more than five bytes."""
    payload = encode(plain_event()).data + b"\xb2\x80\x80\x80\x80\0\1x"
    error = refused(DecodeError, "invalid-protobuf", decode, payload)
    assert error.message.startswith("the payload is not a CloudEvent: it is not a CloudEvent")
    assert error.requirement == "PF-4-02"


@each("name", ["A", "", "data"])
def test_illegal_names_are_rejected_before_values(name: str) -> None:
    payload = encode(plain_event()).data + _record(5, _record(1, name.encode()) + _record(2, b""))
    assert refused(DecodeError, "invalid-attribute-name", decode, payload).attribute == name


def test_attributes_without_a_value_are_rejected() -> None:
    payload = encode(plain_event()).data + _record(5, _record(1, b"a") + _record(2, b""))
    error = refused(DecodeError, "invalid-attribute-type", decode, payload)
    assert error.message == "attribute 'a' must be one of the seven types, got no value"
    assert (error.attribute, error.requirement) == ("a", "PF-2.1-01")


def _record(number: int, value: Any) -> bytes:
    octets = value if isinstance(value, bytes) else value.SerializeToString()
    assert len(octets) < 128
    return bytes([number << 3 | 2, len(octets)]) + octets


# --- Data that is a message -----------------------------------------------------------------------------------------


def test_message_as_data() -> None:
    """PF-3-05, PF-3-04: it is encoded in an Any, and missing attributes are set."""
    event = from_nats_message(encode(plain_event(ORDER)))
    assert event.get_attributes() == {
        **plain_event().attributes,
        "datacontenttype": DATA_TYPE,
        "dataschema": f"https://{ORDER_URL}",
    }
    data = event.get_data()
    assert data == ORDER.SerializeToString()
    assert (data.type_url, data.unpack(Struct)) == (ORDER_URL, ORDER)


def test_empty_message_of_an_unknown_type_is_encoded() -> None:
    assert encode(plain_event(ProtobufData(b""))).data.endswith(b"\x42\0")


def test_attributes_of_the_event_are_kept() -> None:
    own = {"datacontenttype": "application/x-protobuf", "dataschema": "https://example.com/order.proto"}
    event = from_nats_message(encode(plain_event(ORDER, **own)))
    assert event.get_attributes() == plain_event(**own).attributes
    assert event.get_data().type_url == ORDER_URL


def test_bytes_of_a_message_do_not_depend_on_the_order_of_its_map() -> None:
    names = [f"name{number}" for number in range(50)]
    one, other = Struct(), Struct()
    for name, reverse in zip(names, reversed(names)):
        one[name], other[reverse] = True, True
    assert ProtobufData.of(one) == ProtobufData.of(other)


def test_any_is_the_message_in_it() -> None:
    packed = AnyMessage()
    packed.Pack(ORDER, type_url_prefix="https://example.com/")
    event = from_nats_message(encode(plain_event(packed)))
    assert event.get_attributes()["dataschema"] == "https://example.com/google.protobuf.Struct"
    assert event.get_data().type_url == "https://example.com/google.protobuf.Struct"
    assert event.get_data().unpack(Struct) == ORDER
    assert "dataschema" not in from_nats_message(encode(plain_event(AnyMessage(value=b"x")))).get_attributes()


def test_decoded_message_is_encoded_unchanged() -> None:
    """In binary mode and in JSON it is bytes."""
    packed = AnyMessage(type_url=ORDER_URL, value=b"\x08\x07")
    payload = encode(plain_event()).data + _record(8, packed)
    event = decode(payload)
    assert encode(event).data == payload
    assert decode(payload, parse_data=False).get_data().type_url == ORDER_URL
    assert to_nats_message(event).data == b"\x08\x07"
    assert b'"data_base64":"CAc="' in to_nats_message(event, mode="structured").data


def test_bytes_with_a_dataschema_are_a_message() -> None:
    """As received in binary mode."""
    event = plain_event(b"\x08\x07", datacontenttype=DATA_TYPE, dataschema=f"https://{ORDER_URL}")
    decoded = from_nats_message(encode(event))
    assert decoded.get_attributes() == event.attributes
    assert (decoded.get_data(), decoded.get_data().type_url) == (b"\x08\x07", f"https://{ORDER_URL}")


@each(("content_type", "schema"), [(DATA_TYPE, ...), ("image/png", "a:b"), (..., "a:b")])
def test_other_bytes_are_binary_data(content_type: Any, schema: Any) -> None:
    message = encode(plain_event(b"x", datacontenttype=content_type, dataschema=schema))
    assert message.data.endswith(DATA["binary_data"])


def test_dataschema_that_is_the_type_url_gets_a_scheme() -> None:
    """No other dataschema does: it must be a URI."""
    packed = _record(8, AnyMessage(type_url=ORDER_URL, value=b"x"))
    for schema in (ORDER_URL, "example.com/a"):
        entry = _record(5, _record(1, b"dataschema") + _record(2, _record(5, schema.encode())))
        payload = encode(plain_event()).data + entry + packed
        if schema == ORDER_URL:
            assert decode(payload).dataschema == f"https://{ORDER_URL}"
        else:
            refused(DecodeError, "invalid-uri", decode, payload)


@each("content_type", ["application/json", "text/plain", "image/svg+xml"])
def test_message_under_a_text_type_is_rejected(content_type: str) -> None:
    error = refused(EncodeError, "invalid-data", encode, plain_event(ORDER, datacontenttype=content_type))
    assert (error.attribute, error.requirement) == ("data", "PF-3-01")
    assert error.message == f"data of type '{content_type}' must not be a protobuf message"
    payload = encode(plain_event(datacontenttype=content_type)).data + DATA["proto_data"]
    error = refused(DecodeError, "invalid-data", decode, payload)
    assert (error.attribute, error.requirement) == ("data", "PF-3-01")
    assert error.message == f"data in proto_data must not be of type '{content_type}'"


def test_message_without_required_fields_is_rejected() -> None:
    """proto2."""
    refused(EncodeError, "invalid-data", encode, plain_event(UninterpretedOption.NamePart()))


def test_unpack() -> None:
    assert ProtobufData(ORDER.SerializeToString()).unpack(Struct) == ORDER
    refused(DecodeError, "invalid-data", ProtobufData(b"", ORDER_URL).unpack, StringValue)
    refused(DecodeError, "invalid-data", ProtobufData(b"\xff", ORDER_URL).unpack, Struct)


def test_data_of_a_message_is_bytes_with_a_type() -> None:
    data = ProtobufData.of(ORDER)
    for other in (copy.copy(data), copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        assert (other, other.type_url, type(other)) == (data, data.type_url, ProtobufData)
    assert repr(ProtobufData(b"x", "a/b")) == "ProtobufData(b'x', 'a/b')"


@given(objects)
def test_format_without_a_message(value: Any) -> None:
    """Payloads from elsewhere, such as those of sdk-go's NATS protocols."""
    payload = value if isinstance(value, bytes) else encode(plain_event()).data
    envelope, error = attempt(DecodeError, find("protobuf").decode, payload)
    assert (envelope is None) != (error is None)
