"""
Event formats other than JSON: their names and registration, and checks that are as strict as for JSON.

A-90: a message in another format is in structured mode, by its media type.
"""

import subprocess
import sys
from datetime import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ce_nats import (
    ContentMode,
    DecodeError,
    EncodeError,
    NatsMessage,
    Timestamp,
    detect_mode,
    from_nats_message,
    to_nats_message,
)
from ce_nats.codec import _fast_path, formats
from ce_nats.codec.formats import Envelope, EventFormat, find, register
from ce_nats.codec.mode import inspect
from tests.support.strategies import (
    Event,
    any_events,
    attempt,
    events,
    exact,
    expected_attributes,
    extension_types,
    objects,
    plain_event,
    refused,
)
from tests.support.tables import each

TYPE = "application/cloudevents+msgpack"


class MessagePack:
    """A minimal user-defined format."""

    media_type = TYPE

    def encode(self, envelope: Envelope) -> bytes:
        self.written = envelope
        values = {
            name: str(value) if isinstance(value, Timestamp) else value for name, value in envelope.attributes.items()
        }
        return msgspec.msgpack.encode((values, envelope.data))

    def decode(self, payload: bytes) -> Envelope:
        return Envelope(*msgspec.msgpack.decode(payload, type=tuple[dict[str, Any], Any]))


class Broken:
    """A format whose methods return or raise a given object."""

    media_type = "application/cloudevents+broken"

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    def encode(self, envelope: Envelope) -> Any:
        return self.outcome

    def decode(self, payload: bytes) -> Any:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def encoded(event: Any, event_format: Any = "msgpack") -> NatsMessage:
    return to_nats_message(event, "s", mode="structured", format=event_format)


@pytest.fixture(autouse=True)
def _registered() -> None:
    register(MessagePack())


# --- A user-defined format ------------------------------------------------------------------------------------------


@given(events())
def test_events_round_trip(event: Event) -> None:
    """Times are text in this format, so that no digit is lost."""
    decoded = from_nats_message(encoded(event), extension_types=extension_types(event))
    assert exact(decoded.get_attributes()) == exact(expected_attributes(event))
    assert exact(decoded.get_data()) == exact(event.data)


@given(events())
def test_envelope_has_valid_attributes_and_data(event: Event) -> None:
    """Attributes have one of five types; data is bytes, or text unless the type is JSON."""
    own = MessagePack()
    encoded(event, own)
    assert {type(value) for value in own.written.attributes.values()} <= {bool, int, str, bytes, Timestamp}
    assert isinstance(own.written.attributes.get("time", Timestamp(2020, 1, 1)), datetime)
    assert isinstance(own.written.data, (bytes, str, type(None)))
    assert (own.written.data is None) == (event.data is None)


@given(any_events())
def test_same_events_are_rejected_as_in_json(event: Event) -> None:
    """With the same codes."""
    _, in_json = attempt(EncodeError, to_nats_message, event, mode="structured")
    _, other = attempt(EncodeError, encoded, event)
    assert str(in_json and in_json.code) == str(other and other.code)


def test_content_type_is_the_media_type_of_the_format() -> None:
    message = to_nats_message(plain_event(), "s", mode="structured", format="msgpack", reply="r", headers={"X": "y"})
    assert message.headers.items() == [("Content-Type", TYPE), ("X", "y")]
    assert (message.subject, message.reply) == ("s", "r")
    refused(EncodeError, "reserved-header", to_nats_message, plain_event(), mode="structured", headers={"ce-id": "1"})


@each("content_type", [TYPE, "Application/CloudEvents+MsgPack", f" {TYPE} ; charset=utf-8"])
def test_messages_are_decoded_by_media_type(content_type: str) -> None:
    """In any case, with or without parameters, and with any other headers."""
    payload = encoded(plain_event("x", datacontenttype="text/plain")).data
    for further in ({}, {"ce-id": "2", "Nats-Msg-Id": "3"}):
        message = NatsMessage("s", payload, {"content-type": content_type, **further})
        assert detect_mode(message) is ContentMode.STRUCTURED
        assert inspect(message).reason == f"Content-Type is {TYPE}"
        assert from_nats_message(message).get_data() == "x"
        assert from_nats_message(message, mode="structured").get_data() == "x"
        assert _fast_path.decode(message.headers, message.data, None, True, None) is None


def test_binary_mode_can_be_requested() -> None:
    headers = {"Content-Type": TYPE, "ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
    assert from_nats_message(NatsMessage("s", b"x", headers), mode="binary").get_data() == b"x"


def test_encoding_uses_the_given_format_and_decoding_a_registered_one() -> None:
    class Unregistered(MessagePack):
        media_type = "application/cloudevents+unregistered"

    message = encoded(plain_event(), Unregistered())
    assert refused(DecodeError, "unsupported-format", from_nats_message, message).header == "Content-Type"
    refused(DecodeError, "unsupported-format", detect_mode, message)
    register(Unregistered())
    assert from_nats_message(message).get_attributes() == plain_event().attributes


def test_last_registered_format_is_used() -> None:
    first, second = MessagePack(), MessagePack()
    register(first)
    register(second)
    assert find("msgpack") is second


@each("essence", ["application/cloudevents-batch+msgpack", "application/cloudevents-batch+protobuf"])
def test_batches_are_rejected(essence: str) -> None:
    """PF-5-01: the media type of a batch is not that of the format."""
    refused(DecodeError, "batch-not-supported", from_nats_message, NatsMessage("s", b"", {"Content-Type": essence}))


def test_two_content_types_are_rejected() -> None:
    pairs = [("Content-Type", TYPE), ("content-type", TYPE)]
    refused(DecodeError, "duplicate-header", from_nats_message, NatsMessage("s", b"", pairs))


# --- Names ----------------------------------------------------------------------------------------------------------


def test_json_is_the_default() -> None:
    event = plain_event({"a": 1}, time="2020-01-01T00:00:00Z")
    assert encoded(event, "json") == encoded(event, None) == to_nats_message(event, "s", mode="structured")


@each("event_format", ["json", "protobuf", "msgpack", "avro", MessagePack()])
def test_format_in_binary_mode_is_rejected(event_format: Any) -> None:
    for mode in ({}, {"mode": "binary"}, {"mode": ContentMode.BINARY}):
        with pytest.raises(ValueError, match="format must be None in binary mode, got"):
            to_nats_message(plain_event(), format=event_format, **mode)


@each("name", ["avro", "", "JSON", "application/cloudevents+msgpack", "batch"])
def test_unknown_names_are_rejected(name: str) -> None:
    with pytest.raises(ValueError, match=r"format must be .*json, msgpack, protobuf.* or a format object, got"):
        encoded(plain_event(), name)


@each(
    "media_type",
    [
        *(None, 1, "", "json", "application/json", "application/cloudevents", "application/cloudevents+"),
        *("application/cloudevents+MsgPack", "application/cloudevents+x; charset=utf-8", " application/cloudevents+x"),
        *("application/cloudevents-batch+x", "application/cloudevents+x\r\nX: y", "application/cloudevents+json"),
    ],
)
def test_invalid_media_types_are_rejected(media_type: Any) -> None:
    """In register() and in encoding; the media type of JSON is reserved."""
    other = Broken(b"")
    other.media_type = media_type
    for use in (register, find, lambda given: encoded(plain_event(), given)):
        with pytest.raises(ValueError, match=r"media_type|built in"):
            use(other)


@each("nothing", [object(), 1, b"json", MessagePack.encode])
def test_objects_that_are_not_formats_are_rejected(nothing: Any) -> None:
    with pytest.raises(ValueError, match="the media_type of a format must be"):
        encoded(plain_event(), nothing)


# --- Broken formats ------------------------------------------------------------------------------------------------


@each("outcome", [None, "text", bytearray(b"x"), 1])
def test_format_must_return_bytes(outcome: Any) -> None:
    with pytest.raises(TypeError, match=r"cloudevents\+broken: encode\(\) must return bytes, got"):
        encoded(plain_event(), Broken(outcome))


@each("outcome", [KeyError("x"), ValueError(), RuntimeError("é\n"), RecursionError(), None, {"attributes": {}}, 1])
def test_exceptions_of_a_format_are_decode_errors(outcome: Any) -> None:
    """Also if it returns something other than an envelope."""
    register(Broken(outcome))
    message = NatsMessage("s", b"x", {"Content-Type": Broken.media_type})
    error = refused(DecodeError, "not-a-cloudevent", from_nats_message, message)
    assert Broken.media_type in error.message


def test_decode_errors_of_a_format_are_kept() -> None:
    own = refused(DecodeError, "missing-attribute", from_nats_message, NatsMessage("s", b"{}"), mode="structured")
    register(Broken(own))
    message = NatsMessage("s", b"x", {"Content-Type": Broken.media_type})
    assert refused(DecodeError, "missing-attribute", from_nats_message, message) is own


BASE = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}


@each(
    ("attributes", "value", "code"),
    [
        ({"id": ""}, None, "empty-attribute"),
        ({"id": 1}, None, "invalid-attribute-type"),
        ({"subject": Timestamp("2020-01-01T00:00:00Z")}, None, "invalid-attribute-type"),
        ({"time": 1}, None, "invalid-attribute-type"),
        ({"time": "2020"}, None, "invalid-timestamp"),
        ({"x": 1.5}, None, "invalid-attribute-type"),
        ({"x": None}, None, "invalid-attribute-type"),
        ({"x": "\ud800"}, None, "invalid-character"),
        ({1: "x"}, None, "invalid-attribute-name"),
        ({"X": Timestamp("2020-01-01T00:00:00Z")}, None, "invalid-attribute-name"),
        ({"datacontenttype": "application/json"}, "{", "invalid-json"),
        ({}, "\ud800", "invalid-data"),
        ({}, {"a": 1}, "invalid-data"),
        ({}, 1, "invalid-data"),
    ],
)
def test_decoded_envelopes_are_checked(attributes: dict[Any, Any], value: Any, code: str) -> None:
    register(Broken(Envelope({**BASE, **attributes}, value)))
    refused(DecodeError, code, from_nats_message, NatsMessage("s", b"x", {"Content-Type": Broken.media_type}))


@each(
    ("content_type", "value", "code"),
    [
        ("application/json", b"{", "invalid-json"),
        ("application/json", b'"\xff"', "invalid-utf8"),
        ("application/json; charset=latin-1", b"1", "unsupported-charset"),
        ("text/plain", b"\xff", "invalid-data"),
        ("text/plain; charset=x", b"x", "unsupported-charset"),
    ],
)
def test_bytes_that_their_media_type_does_not_explain_stay_bytes(content_type: str, value: bytes, code: str) -> None:
    register(Broken(Envelope({**BASE, "datacontenttype": content_type}, value)))
    event = from_nats_message(NatsMessage("s", b"x", {"Content-Type": Broken.media_type}))
    assert event.get_data() == value
    assert event.data_error is not None
    assert event.data_error.code == code


def test_nothing_is_generated() -> None:
    for name in BASE:
        register(Broken(Envelope({key: value for key, value in BASE.items() if key != name})))
        message = NatsMessage("s", b"x", {"Content-Type": Broken.media_type})
        assert refused(DecodeError, "missing-attribute", from_nats_message, message).attribute == name


@given(st.builds(Envelope, st.one_of(objects, st.dictionaries(st.text(max_size=3), objects).map(BASE.__or__)), objects))
def test_any_envelope_is_decoded_or_rejected(envelope: Envelope) -> None:
    register(Broken(envelope))
    message = NatsMessage("s", b"x", {"Content-Type": Broken.media_type})
    for parse_data in (True, False):
        event, _ = attempt(DecodeError, from_nats_message, message, parse_data=parse_data)
        if event is not None:
            assert not parse_data or event.has_data == (event.get_data() is not None)
            assert parse_data or isinstance(event.get_data(), (bytes, type(None)))


# --- Without the extra ----------------------------------------------------------------------------------------------

WITHOUT = """
import sys
sys.modules["google"] = sys.modules["google.protobuf"] = None
from ce_nats import DecodeError, NatsMessage, detect_mode, from_nats_message, to_nats_message
from tests.support.strategies import plain_event

message = NatsMessage("s", b"", {"Content-Type": "application/cloudevents+protobuf"})
for read in (from_nats_message, detect_mode):
    try:
        read(message)
    except DecodeError as error:
        print(error)
try:
    to_nats_message(plain_event(), mode="structured", format="protobuf")
except ImportError as error:
    print(error)
print(len(to_nats_message(plain_event(), mode="structured", format="json").headers))
"""


def test_without_the_extra() -> None:
    """Decoding is an error of the message, encoding an ImportError; both name the extra."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    needed = "the event format protobuf needs protobuf: pip install 'ce-nats[protobuf]'"
    unsupported = f"unsupported-format: event format application/cloudevents+protobuf is not supported: {needed}"
    assert done.stdout.splitlines() == [unsupported, unsupported, needed, "1"]


@pytest.mark.parametrize("first", ["encode", "decode"])
def test_protobuf_is_registered_when_it_is_needed(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    message = encoded(plain_event(), "protobuf")
    monkeypatch.delitem(formats._formats, "application/cloudevents+protobuf")
    if first == "encode":
        assert encoded(plain_event(), "protobuf") == message
    else:
        assert from_nats_message(message).get_attributes() == plain_event().attributes


def test_classes_implement_the_protocol() -> None:
    both: list[EventFormat] = [MessagePack(), find("protobuf")]
    assert [one.media_type for one in both] == [TYPE, "application/cloudevents+protobuf"]
