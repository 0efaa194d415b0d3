"""
DecodedEvent: the received attributes and data, as a CloudEvent of the SDK.
"""

import copy
import pickle
import re
from datetime import datetime, timezone
from typing import Any

import pytest
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given

from ce_nats import ContentMode, DecodeError, NatsMessage, Timestamp, from_nats_message, to_nats_message
from ce_nats.codec.event import DecodedEvent, ExtendedEvent, NotDelivered, attributes_data_and_presence
from tests.support.strategies import binary_message, exact, plain_event, structured_message, valid_messages
from tests.support.tables import each


def test_event_is_a_cloudevent_of_the_sdk() -> None:
    """All accessors of the class work."""
    event = from_nats_message(
        binary_message(b"1", time="2020-01-02T03:04:05Z", datacontenttype="application/json", dataschema="a:b", x="y")
    )
    assert isinstance(event, CloudEvent)
    assert (event.get_id(), event.get_source(), event.get_type(), event.get_specversion()) == ("1", "/s", "t", "1.0")
    assert event.get_time() == datetime(2020, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    assert isinstance(event.get_time(), Timestamp)
    assert event.get_datacontenttype() == "application/json"
    assert event.get_dataschema() == "a:b"
    assert event.get_subject() is None
    assert event.get_extension("x") == "y"
    assert event.get_data() == 1


def test_attributes_are_attributes_of_the_event() -> None:
    event = from_nats_message(
        binary_message(
            b"[1]",
            subject="n",
            time="2020-01-02T03:04:05Z",
            datacontenttype="application/json",
            dataschema="a:b",
            x="y",
        )
    )
    assert (event.specversion, event.id, event.source, event.type) == ("1.0", "1", "/s", "t")
    assert (event.subject, event.datacontenttype, event.dataschema) == ("n", "application/json", "a:b")
    assert isinstance(event.time, Timestamp)
    assert str(event.time) == "2020-01-02T03:04:05Z"
    assert event.extensions == {"x": "y"}
    assert event.extensions["x"] == "y"
    assert event.data == [1]
    assert event.data is event.get_data()


def test_missing_optional_attributes_are_none() -> None:
    event = from_nats_message(binary_message())
    assert (event.subject, event.time, event.datacontenttype, event.dataschema, event.data) == (None,) * 5
    assert event.extensions == {}


@each("name", ["type", "data", "extensions"])
def test_attributes_cannot_be_assigned(name: str) -> None:
    event = from_nats_message(binary_message(x="y"))
    with pytest.raises(AttributeError):
        setattr(event, name, "other")
    with pytest.raises(TypeError):
        event.extensions["x"] = "other"
    assert (event.type, event.extensions, event.data) == ("t", {"x": "y"}, None)


def test_nothing_is_generated() -> None:
    """The SDK's constructor would add a time; decoding adds nothing and keeps the order."""
    event = from_nats_message(binary_message())
    assert list(event.get_attributes().items()) == [
        ("specversion", "1.0"),
        ("id", "1"),
        ("source", "/s"),
        ("type", "t"),
    ]
    assert event.get_time() is None


@given(valid_messages())
def test_same_message_decodes_to_equal_events(message: NatsMessage) -> None:
    """Events are compared by attributes and data, not by identity."""
    event = from_nats_message(message)
    assert event == from_nats_message(message)


@given(valid_messages())
def test_copies_are_equal(message: NatsMessage) -> None:
    """Pickled and copied, including all digits of the time."""
    event = from_nats_message(message)
    for other in (pickle.loads(pickle.dumps(event)), copy.deepcopy(event), copy.copy(event)):
        assert other == event
        assert repr(other) == repr(event)
        assert (other.has_data, other.is_json) == (event.has_data, event.is_json)


@each(
    "other",
    [
        binary_message(b"2"),
        binary_message(b"1", x=""),
        binary_message(b"1", id="2"),
        binary_message(),
    ],
)
def test_different_events_are_not_equal(other: NatsMessage) -> None:
    """In an attribute, in the data, or in whether they have data."""
    assert from_nats_message(other) != from_nats_message(binary_message(b"1"))


def test_null_differs_from_no_data() -> None:
    """get_data() returns None for both; has_data and equality distinguish them."""
    start = b'{"specversion":"1.0","id":"1","source":"/s","type":"t"'
    null = from_nats_message(structured_message(start + b',"data":null}'))
    nothing = from_nats_message(structured_message(start + b"}"))
    assert null.get_data() is nothing.get_data() is None
    assert (null.has_data, nothing.has_data) == (True, False)
    assert null != nothing
    assert from_nats_message(binary_message(b"null", datacontenttype="application/json")).has_data


def test_has_data_follows_from_the_data() -> None:
    """Unless it is given."""
    assert DecodedEvent({}, 0).has_data
    assert not DecodedEvent({}).has_data
    assert DecodedEvent({}, None, has_data=True).has_data


@each(
    ("event", "value"),
    [
        (DecodedEvent({"datacontenttype": "application/json"}, b'{"a":1}'), {"a": 1}),
        (DecodedEvent({"datacontenttype": "application/json"}, bytearray(b"[1]")), [1]),
        (DecodedEvent({"datacontenttype": "application/json"}, b""), None),
        (DecodedEvent({"datacontenttype": "text/plain; charset=iso-8859-1"}, b"\xe9"), "é"),
        (DecodedEvent({"datacontenttype": "text/plain"}, b""), ""),
        (DecodedEvent({"datacontenttype": "image/png"}, b""), b""),
        (DecodedEvent({}, b"[1]", is_json=True), [1]),
        (DecodedEvent({}, b"[1]"), b"[1]"),
        (DecodedEvent({"datacontenttype": "application/json"}, "[1]"), "[1]"),
        (DecodedEvent({"datacontenttype": "application/json"}, [1]), [1]),
        (DecodedEvent({}), None),
    ],
)
def test_data_can_be_parsed_later(event: DecodedEvent, value: object) -> None:
    """Bytes by their media type, as decoding with ``parse_data=True`` does; parsed data is unchanged."""
    assert exact(event._parsed_data()) == exact(value)


@each(
    "event",
    [DecodedEvent({"x": "y"}, b"[1]", is_json=True), DecodedEvent({}, None, has_data=True), DecodedEvent({}, 5)],
)
def test_extended_event_has_the_data_of_its_event(event: DecodedEvent) -> None:
    extended = ExtendedEvent(event, {"x": "z", "a": "b"})
    assert extended.get_attributes() == {"a": "b", "x": "z", **event.get_attributes()}
    assert attributes_data_and_presence(extended)[1:] == attributes_data_and_presence(event)[1:]
    assert (extended.has_data, extended.is_json) == (event.has_data, event.is_json)


def test_extended_event_of_another_class_has_data_unless_it_is_none() -> None:
    for data in (None, b"1"):
        extended = ExtendedEvent(plain_event(data), {"x": "y"})
        assert attributes_data_and_presence(extended) == (plain_event(x="y").attributes, data, data is not None)


def test_data_of_a_json_event_keeps_its_media_type() -> None:
    for is_json, attributes in ((True, {"datacontenttype": "application/json"}), (False, {})):
        assert attributes_data_and_presence(DecodedEvent({}, b"1", is_json=is_json)) == (attributes, b"1", True)


def test_data_that_was_not_delivered_is_its_size() -> None:
    data = NotDelivered(5)
    assert (data, hash(data), data.size) == (NotDelivered(5), hash(NotDelivered(5)), 5)
    assert data != NotDelivered(6)
    assert data != 5
    assert not data
    assert repr(data) == "NotDelivered(size=5)"


GZIP = b"\x1f\x8b\x08"
LATIN = "<?xml version='1.0' encoding='ISO-8859-1'?><a>é</a>".encode("latin-1")


@each(
    ("payload", "content_type", "modes", "code"),
    [
        (GZIP, "application/json", ["structured"], "invalid-utf8"),
        (b"{", "a/b+json", ["structured"], "invalid-json"),
        (b"1", "application/json; charset=utf-16", ["structured"], "unsupported-charset"),
        (LATIN, "application/xml", ["binary", "structured"], "invalid-data"),
        (LATIN, "text/plain; charset=none", ["binary", "structured"], "unsupported-charset"),
    ],
)
def test_data_that_its_media_type_does_not_explain_is_bytes(
    payload: bytes, content_type: str, modes: list[Any], code: str
) -> None:
    """The event is forwarded as it was received; only reading its data as another type is an error."""
    sent = plain_event(payload, datacontenttype=content_type)
    for mode in modes:
        message = to_nats_message(sent, mode=mode)
        event = from_nats_message(message)
        assert event == from_nats_message(message, parse_data=False)
        assert (event.data, event.has_data) == (payload, True)
        assert event.data_error is not None
        assert (event.data_error.code, event.data_error.attribute) == (code, "data")
        assert to_nats_message(event, mode=mode) == message
        with pytest.raises(DecodeError) as info:
            event.data_as(str)
        assert info.value.code == "data-mismatch"
        assert event.data_error.message in info.value.message


@each(("value", "content_type"), [(b"{", None), (b"{}", "a/json"), ({}, "a/json"), ("{", "a/json"), ("é", "text/x")])
@each("parse_data", [True, False])
def test_other_data_has_no_error(value: Any, content_type: str | None, parse_data: bool) -> None:
    attributes = {} if content_type is None else {"datacontenttype": content_type}
    for mode in ContentMode:
        event = from_nats_message(to_nats_message(plain_event(value, **attributes), mode=mode), parse_data=parse_data)
        assert event.data_error is None


def test_unparsed_json_that_is_malformed_has_an_error() -> None:
    message = to_nats_message(plain_event(b"{", datacontenttype="application/json"))
    error = from_nats_message(message, parse_data=False).data_error
    assert error is not None
    assert error.code == "invalid-json"
    not_delivered = DecodedEvent({}, NotDelivered(5)).data_error
    assert not_delivered is not None
    assert not_delivered.code == "data-not-delivered"


def test_event_of_the_sdk_is_not_equal() -> None:
    """It is compared by identity."""
    event = from_nats_message(binary_message())
    assert event != CloudEvent(dict(event.get_attributes()))
    assert event != 5
    assert event.__eq__(5) is NotImplemented  # so that the other object is asked, too


def test_event_is_a_table_in_notebooks() -> None:
    """tests/test_notebook.py tests all else of the tables."""
    text = DecodedEvent({"id": "1", "x": "y"}, "z")._repr_html_()
    assert re.findall(r"(?:<caption>|<th [^>]*>|<pre [^>]*>)([^<]*)", text) == [
        "CloudEvent",
        "id",
        "1",
        "x",
        "y",
        "data",
        "z",
    ]


def test_event_is_not_hashable() -> None:
    """Its data is not."""
    with pytest.raises(TypeError):
        hash(from_nats_message(binary_message()))


def test_repr_shows_attributes_and_data() -> None:
    assert repr(from_nats_message(binary_message(b"\0", x="y"))) == (
        "DecodedEvent({'specversion': '1.0', 'id': '1', 'source': '/s', 'type': 't', 'x': 'y'}, b'\\x00')"
    )
