"""
Encoding and decoding: both modes decode to the same event, all classes of messages and events are accepted, and no
argument is modified.
"""

from collections.abc import Callable
from email.header import Header
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from cloudevents.core.v03.event import CloudEvent as CloudEventV03
from cloudevents.core.v1.event import CloudEvent
from cloudevents.v1.http import CloudEvent as OldCloudEvent
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.msg import Msg
from nats.js.api import RawStreamMsg

from ce_nats import (
    ContentMode,
    DecodeError,
    EncodeError,
    Headers,
    NatsMessage,
    dedup_id,
    detect_mode,
    from_nats_message,
    to_nats_message,
)
from ce_nats.codec._message_id import dedup_text
from tests.support.strategies import (
    Event,
    any_events,
    attempt,
    binary_message,
    events,
    exact,
    expected_attributes,
    extension_types,
    hostile_messages,
    legal_text,
    mutated_messages,
    objects,
    plain_event,
    refused,
    structured_message,
    valid_messages,
)
from tests.support.tables import each

MODES = ["binary", "structured"]


def contents(event: Any) -> Any:
    """Return all that a decoded event contains, in a form that can be compared."""
    return exact(event.get_attributes()), exact(event.get_data()), event.has_data


# --- Round trips ----------------------------------------------------------------------------------------------------


@given(events())
def test_both_modes_decode_to_the_same_event(event: Event) -> None:
    """With the types of extensions declared."""
    types = extension_types(event)
    binary, structured = (from_nats_message(to_nats_message(event, mode=mode), extension_types=types) for mode in MODES)
    assert binary == structured
    assert contents(binary) == contents(structured)
    assert exact(binary.get_attributes()) == exact(expected_attributes(event))


@given(st.one_of(valid_messages(), mutated_messages(), hostile_messages), st.booleans())
def test_decoded_events_round_trip_in_their_mode(message: Any, parse_data: bool) -> None:
    """Nanoseconds, offset, leap second, null and raw text are kept."""
    first, error = attempt(DecodeError, from_nats_message, message, parse_data=parse_data)
    if error is not None:
        return
    encoded, error = attempt(EncodeError, to_nats_message, first, mode=detect_mode(message))
    if error is None:
        assert contents(from_nats_message(encoded, parse_data=parse_data)) == contents(_with_implied_type(first))
    else:  # accepted in decoding only: JSON with a string that cannot be encoded in the charset of its type
        assert error.attribute == "data"
        assert "charset" in first.get_attributes()["datacontenttype"].lower()


@given(valid_messages(), st.sampled_from(MODES))
def test_changing_the_mode_keeps_the_event(message: NatsMessage, mode: str) -> None:
    """Except for types that headers cannot represent."""
    first = from_nats_message(message)
    types = extension_types(Event(first.get_attributes()))
    second = from_nats_message(to_nats_message(first, mode=mode), extension_types=types)
    assert contents(second) == contents(_with_implied_type(first))
    payload = from_nats_message(message, parse_data=False)
    moved = from_nats_message(to_nats_message(payload, mode=mode), parse_data=False)
    assert moved.get_data() == payload.get_data()


def _with_implied_type(event: Any) -> Any:
    """Add the datacontenttype that encoding adds to data of a JSON event without one."""
    attributes = dict(event.get_attributes())
    if event.has_data and event.is_json:
        attributes.setdefault("datacontenttype", "application/json")
    return type(event)(attributes, event.get_data(), has_data=event.has_data)


@each(
    "members",
    [
        '"data":null',
        '"data":null,"datacontenttype":"application/json"',
        '"data":""',
        '"data":"","datacontenttype":"text/plain"',
        '"data_base64":""',
        '"time":"2016-12-31T23:59:60.123456789123Z"',
        '"time":"2020-01-01T00:00:00.100-00:00"',
        '"data":1.0,"x":-0,"y":true,"z":"\\u0022"',
        '"data":123456789012345678901234567890',
    ],
)
def test_structured_events_round_trip(members: str) -> None:
    """Events that differ in one detail still differ."""
    text = f'{{"specversion":"1.0","id":"1","source":"/s","type":"t",{members}}}'
    first = from_nats_message(structured_message(text.encode()))
    again = from_nats_message(to_nats_message(first, mode="structured"))
    assert contents(again) == contents(_with_implied_type(first))


@each(
    ("text", "charset", "code", "reason"),
    [
        (
            "12 €",
            "iso-8859-1",
            "invalid-data",
            "text in iso-8859-1, the charset of its datacontenttype, which does not have '€' at character 3",
        ),
        ("a", "klingon", "unsupported-charset", "'klingon'"),
    ],
)
def test_only_structured_mode_has_text_outside_of_its_charset(text: str, charset: str, code: str, reason: str) -> None:
    event = from_nats_message(
        to_nats_message(plain_event(text, datacontenttype=f"text/plain; charset={charset}"), mode="structured")
    )
    assert event.get_data() == text
    assert event.data_error is not None
    error = refused(EncodeError, code, to_nats_message, event)
    assert reason in error.message
    assert (event.data_error.code, event.data_error.message) == (error.code, error.message)


def test_null_differs_from_no_data() -> None:
    """In both modes: a JSON null is a payload of four characters."""
    null = from_nats_message(binary_message(b"null", datacontenttype="application/json"))
    assert to_nats_message(null).data == b"null"
    assert to_nats_message(null, mode="structured").data.endswith(b',"data":null}')
    nothing = from_nats_message(binary_message(datacontenttype="application/json"))
    assert to_nats_message(nothing).data == b""
    assert b'"data' not in to_nats_message(nothing, mode="structured").data.replace(b'"datacontenttype"', b"")


@given(any_events(), st.sampled_from(MODES))
def test_both_modes_reject_the_same_attributes(event: Event, mode: str) -> None:
    """dedup_id() rejects them, too."""
    _, error = attempt(EncodeError, to_nats_message, event, mode=mode)
    _, other = attempt(EncodeError, dedup_id, event)
    if other is not None:
        assert (error.code, error.attribute) == (other.code, other.attribute)
    elif error is not None:
        assert error.attribute == "data"


@given(hostile_messages, st.sampled_from([None, *MODES]), st.dictionaries(st.just("x"), st.sampled_from([int, bytes])))
def test_any_message_is_decoded_or_rejected(message: Any, mode: Any, types: dict[str, type]) -> None:
    attempt(DecodeError, from_nats_message, message, mode=mode, extension_types=types)


# --- Messages -------------------------------------------------------------------------------------------------------

PAIRS = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t"), ("ce-subject", "%C3%BC")]


@each(
    "headers",
    [
        dict(PAIRS),
        iter(PAIRS),
        {name: [value] for name, value in PAIRS},
        Headers(PAIRS),
        dict(PAIRS).items(),
        {**dict(PAIRS), "ce-subject": Header("ü", "utf-8")},
        {**dict(PAIRS), "ce-subject": "ü", "Other": ["1", "2"]},
    ],
)
def test_headers_in_any_form_are_accepted(headers: Any) -> None:
    """Mappings to a string or to strings, pairs in any container, mail headers."""
    event = from_nats_message(SimpleNamespace(headers=headers, data=b"a"))
    assert (event.get_id(), event.get_subject(), event.get_data()) == ("1", "ü", b"a")


@each(
    "message",
    [
        NatsMessage("s", b"a", Headers(PAIRS)),
        Msg(None, "s", "", b"a", dict(PAIRS)),  # type: ignore[arg-type]
        RawStreamMsg("s", 1, b"a", None, dict(PAIRS)),
        SimpleNamespace(data=bytearray(b"a"), headers=PAIRS),
        SimpleNamespace(data=memoryview(b"a"), headers=PAIRS),
    ],
)
def test_message_classes_are_accepted(message: Any) -> None:
    """nats-py's classes, and any object with data and headers."""
    event = from_nats_message(message)
    assert (event.get_id(), event.get_data()) == ("1", b"a")
    assert type(event.get_data()) is bytes


def test_none_means_no_headers_and_no_data() -> None:
    """nats-py has None for both."""
    envelope = b'{"specversion":"1.0","id":"1","source":"/s","type":"t"}'
    assert from_nats_message(Msg(None, "s", "", envelope, None)).get_id() == "1"  # type: ignore[arg-type]
    event = from_nats_message(RawStreamMsg("s", 1, None, None, dict(PAIRS)))
    assert (event.get_data(), event.has_data) == (None, False)
    refused(DecodeError, "not-a-cloudevent", from_nats_message, RawStreamMsg("s", 1))
    refused(DecodeError, "invalid-json", from_nats_message, RawStreamMsg("s", 1), mode="structured")


@each("mode", [None, *MODES])
@each("message", [None, 5, b"{}", "{}", {}, SimpleNamespace(headers={}), SimpleNamespace(data=b""), object])
def test_other_objects_are_not_messages(message: Any, mode: Any) -> None:
    """An object without data or headers is rejected in every mode."""
    refused(DecodeError, "invalid-message", from_nats_message, message, mode=mode)


@each("payload", ["{}", 5, [1], {"a": 1}, object()])
def test_payload_must_be_bytes(payload: Any) -> None:
    message = SimpleNamespace(headers=PAIRS, data=payload)
    refused(DecodeError, "invalid-message", from_nats_message, message)


@each("mode", ["Binary", "", 5, [], b"binary", object()])
def test_invalid_modes_are_value_errors(mode: Any) -> None:
    """Not a DecodeError, for which a consumer would dead-letter the message."""
    with pytest.raises(ValueError, match=r"^mode must be 'binary' or 'structured', got "):
        from_nats_message(NatsMessage(headers=PAIRS), mode=mode)
    with pytest.raises(ValueError, match=r"^mode must be 'binary' or 'structured', got "):
        to_nats_message(plain_event(), mode=mode)


def test_modes_and_dialects_can_be_strings() -> None:
    message = to_nats_message(plain_event(x="a b"), mode="structured")
    assert message == to_nats_message(plain_event(x="a b"), mode=ContentMode.STRUCTURED)
    assert from_nats_message(message, mode="structured", dialect="spec").get_extension("x") == "a b"
    assert from_nats_message(to_nats_message(plain_event(x="a b")), dialect="sdk-go").get_extension("x") == "a%20b"


# --- Events ---------------------------------------------------------------------------------------------------------


@each("mode", MODES)
@each(
    "event",
    [
        CloudEvent({"id": "1", "source": "/s", "type": "t", "specversion": "1.0"}, {"a": 1}),
        OldCloudEvent({"id": "1", "source": "/s", "type": "t"}, {"a": 1}),
        plain_event({"a": 1}),
        Event(MappingProxyType({"id": "1", "source": "/s", "type": "t", "specversion": "1.0"}), {"a": 1}),
        from_nats_message(binary_message(b'{"a":1}', datacontenttype="application/json")),
    ],
)
def test_event_classes_are_accepted(event: Any, mode: str) -> None:
    """The SDK's classes, old and new, decoded events, and any object with the two methods."""
    decoded = from_nats_message(to_nats_message(event, mode=mode))
    assert (decoded.get_id(), decoded.get_source(), decoded.get_type()) == ("1", "/s", "t")
    assert decoded.get_data() == {"a": 1}


def test_events_of_version_0_3_are_rejected() -> None:
    """They have other rules, and are not converted."""
    event = CloudEventV03({"id": "1", "source": "/s", "type": "t", "specversion": "0.3"})
    refused(EncodeError, "unsupported-specversion", to_nats_message, event)


@each("call", [to_nats_message, dedup_id])
@each("event", [None, {}, {"id": "1"}, "event", object(), plain_event])
def test_other_objects_are_not_events(call: Callable[..., Any], event: Any) -> None:
    refused(EncodeError, "invalid-message", call, event)


@each("attributes", [None, 5, [], [("id", "1")], "id"])
def test_attributes_must_be_a_mapping(attributes: Any) -> None:
    for event in (Event(attributes), Event(attributes, 1)):
        refused(EncodeError, "invalid-message", dedup_id, event)
        for mode in MODES:
            refused(EncodeError, "invalid-message", to_nats_message, event, mode=mode)


# --- Arguments ------------------------------------------------------------------------------------------------------


def test_encoding_does_not_modify_its_arguments() -> None:
    """The event's attributes, its data and additional headers are neither changed nor shared with the message."""
    attributes = dict(plain_event(time="2020-01-01t00:00:00z", x=True, dataschema=None).attributes)
    data, headers = {"a": [1]}, {"Nats-Msg-Id": ["1"]}
    before = dict(attributes)
    for mode in MODES:
        message = to_nats_message(Event(attributes, data), mode=mode, headers=headers)
        message.headers.append("x", "y")
    assert attributes == before
    assert list(attributes) == list(before)
    assert (data, headers) == ({"a": [1]}, {"Nats-Msg-Id": ["1"]})


def test_decoding_does_not_modify_the_message() -> None:
    """Headers do not change, and changing the event does not change the message."""
    headers = dict(PAIRS)
    message = Msg(None, "s", "", b"a", headers)  # type: ignore[arg-type]
    first = from_nats_message(message)
    first.get_attributes()["id"] = "other"
    assert headers == dict(PAIRS)
    assert from_nats_message(message).get_id() == "1"
    own = Headers(PAIRS)
    to_nats_message(plain_event(), headers=Headers([("a", "b")])).headers.append("c", "d")
    from_nats_message(NatsMessage("s", b"", own))
    assert own.items() == PAIRS


def test_additional_headers_are_copied() -> None:
    further = Headers([("a", "b")])
    message = to_nats_message(plain_event(), headers=further)
    message.headers.append("c", "d")
    assert further.items() == [("a", "b")]


# --- Additional headers, subjects -----------------------------------------------------------------------------------


@each(
    "headers",
    [
        {"Nats-Msg-Id": "1", "X": "ü"},
        [("Nats-Msg-Id", "1"), ("X", "ü")],
        iter([("Nats-Msg-Id", "1"), ("X", "ü")]),
        Headers([("Nats-Msg-Id", "1"), ("X", "ü")]),
        {"Nats-Msg-Id": ["1"], "X": ("ü",)},
    ],
)
def test_additional_headers_follow_those_of_the_event(headers: Any) -> None:
    """Unchanged and in their order."""
    message = to_nats_message(plain_event(), headers=headers)
    assert message.headers.items()[4:] == [("Nats-Msg-Id", "1"), ("X", "ü")]
    assert from_nats_message(message).get_id() == "1"


@each(
    ("mode", "headers", "code"),
    [
        ("structured", {"cE-": "1"}, "reserved-header"),
        ("binary", {"content-TYPE": " Application/CloudEvents;x"}, "invalid-header-value"),
        ("binary", {"Content-Type": ["a/b", "a/b"]}, "reserved-header"),
        ("binary", {"Content-Type": "a/b", "content-type": "a/b"}, "reserved-header"),
        ("binary", {"ü": "1"}, "invalid-header-name"),
        ("binary", {5: "1"}, "invalid-header-name"),
        ("binary", {"a": 1}, "invalid-header-value"),
        ("binary", {"a": None}, "invalid-header-value"),
        ("binary", {"a": "\0"}, "invalid-header-value"),
        ("binary", {"a": "\ud800"}, "invalid-header-value"),
        ("binary", 5, "invalid-header-block"),
        ("binary", ["a"], "invalid-header-block"),
    ],
)
def test_invalid_additional_headers_are_rejected(mode: str, headers: Any, code: str) -> None:
    """Headers of the event, headers that would change the mode, and invalid headers."""
    refused(EncodeError, code, to_nats_message, plain_event(), mode=mode, headers=headers)


def test_other_content_types_are_accepted_in_binary_mode() -> None:
    """A Content-Type that is not an event format does not become the datacontenttype."""
    message = to_nats_message(plain_event(b"a"), headers={"Content-Type": "text/plain"})
    assert detect_mode(message) is ContentMode.BINARY
    assert from_nats_message(message).get_data() == b"a"


@given(hostile_messages.filter(lambda message: hasattr(message, "headers")))
def test_any_additional_headers_are_accepted_or_rejected(message: Any) -> None:
    """The message can be decoded with and without them."""
    encoded, error = attempt(EncodeError, to_nats_message, plain_event(), headers=message.headers)
    if error is None:
        assert from_nats_message(encoded) == from_nats_message(to_nats_message(plain_event()))


def test_subject_and_reply_are_kept() -> None:
    """They are empty by default."""
    message = to_nats_message(plain_event(), "orders.eu-1.ü", reply="_INBOX.x")
    assert (message.subject, message.reply) == ("orders.eu-1.ü", "_INBOX.x")
    message = to_nats_message(plain_event())
    assert (message.subject, message.reply) == ("", "")


@each("subject", ["", "orders"])
def test_subject_may_be_of_a_class_derived_from_str(subject: str) -> None:
    class Subject(str):
        __slots__ = ()

    assert to_nats_message(plain_event(), Subject(subject)).subject == subject


@each(
    "subject", ["a b", "a..b", ".a", "a.", "*", "a.>", "a\tb", "a\r\nPUB b 0", "\ud800", " ", b"a", b"", 5, 0, None, []]
)
def test_invalid_subjects_are_rejected(subject: Any) -> None:
    """White space, empty tokens, wildcards, and values that are not text; the same for replies."""
    refused(EncodeError, "invalid-subject", to_nats_message, plain_event(), subject)
    refused(EncodeError, "invalid-subject", to_nats_message, plain_event(), reply=subject)


@given(objects, objects, objects)
def test_any_options_are_accepted_or_rejected(subject: Any, reply: Any, headers: Any) -> None:
    """Objects of any type as subject, reply and headers."""
    attempt(EncodeError, to_nats_message, plain_event(), subject, reply=reply, headers=headers)


# --- Deduplication --------------------------------------------------------------------------------------------------

# Few characters, so that similar values are common.
_near = st.one_of(
    st.text("a|%7C: é", min_size=1, max_size=6),
    legal_text(1),
    st.builds("{}{}".format, st.sampled_from(["a" * 250, "a" * 126, "é" * 42, "|" * 85]), st.text("a|é", max_size=8)),
)


@given(_near, _near, _near, _near)
def test_dedup_ids_differ_for_different_events(source: str, name: str, other_source: str, other_name: str) -> None:
    """Two pairs of source and id have the same id only if they are equal."""
    first = dedup_id(plain_event(source=source, id=name))
    second = dedup_id(plain_event(source=other_source, id=other_name))
    assert (first == second) == ((source, name) == (other_source, other_name))


@given(_near, _near, st.integers(0, 10))
def test_dedup_ids_separate_source_and_id(left: str, right: str, cut: int) -> None:
    """Moving characters from the source to the id gives another id."""
    text = left + right
    cut = cut % (len(text) - 1) + 1
    first, second = (dedup_id(plain_event(source=text[:at], id=text[at:])) for at in (cut, len(left)))
    assert (first == second) == (cut == len(left))


@given(_near, _near)
def test_dedup_ids_are_short_ascii_text(source: str, name: str) -> None:
    """Printable ASCII without spaces, of limited length, and the same in every process."""
    word = dedup_id(plain_event(source=source, id=name))
    assert all("!" <= one <= "~" for one in word)
    assert len(word) <= 256
    message = to_nats_message(plain_event(1, id=name, source=source), headers={"Nats-Msg-Id": word})
    assert dedup_id(from_nats_message(message)) == word


@each(
    ("source", "name", "word"),
    [
        ("/s", "1", "/s|1"),
        ("a|b", "c", "a%7Cb|c"),
        ("a", "b|c", "a|b%7Cc"),
        ("a%7Cb", "c", "a%257Cb|c"),
        ("/ü", "a b", "/%C3%BC|a%20b"),
        ("a" * 200, "b" * 55, "a" * 200 + "|" + "b" * 55),
        ("a" * 200, "b" * 56, "sha256:09d4ef8781bbffe5fd3a4a13a36d678eb3d2c938174a19d6976d17f1ad06bdc3"),
    ],
)
def test_dedup_id_examples(source: str, name: str, word: str) -> None:
    """Readable up to 256 characters, else a hash."""
    assert dedup_id(plain_event(source=source, id=name)) == word


@given(events())
def test_dedup_ids_depend_on_source_and_id_only(event: Event) -> None:
    """The same with another time, other data and another type."""
    attributes = event.attributes
    assert dedup_id(event) == dedup_id(plain_event(source=attributes["source"], id=attributes["id"]))


class EqualToAll(str):
    """A string with the hash of the source ``/cached``, and equal to any other."""

    def __eq__(self, _: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash("/cached")


def test_sources_equal_to_others_have_their_own_dedup_id() -> None:
    assert dedup_id(plain_event(source="/cached")) == "/cached|1"
    for source in ("/a", "/b"):
        assert dedup_text(EqualToAll(source), "1") == f"{source}|1"
    assert dedup_id(plain_event(source=EqualToAll("/a"))) == "/a|1"


@given(any_events())
def test_invalid_events_have_no_dedup_id(event: Event) -> None:
    attempt(EncodeError, dedup_id, event)


@each("types", [5, [("x", int)], {"x": []}, {"x": float}, {"x": "int"}])
def test_invalid_extension_types_are_type_errors(types: Any) -> None:
    """In both modes."""
    for _ in range(50):
        with pytest.raises(TypeError, match=r"^extension_types.* must be "):
            from_nats_message(to_nats_message(plain_event(x="5")), extension_types=types)


def test_headers_can_be_an_iterator() -> None:
    """It is read once, also if two headers are searched."""
    pairs = [*to_nats_message(plain_event()).headers.items(), ("content-type", "text/plain")]
    event = from_nats_message(SimpleNamespace(headers=iter(pairs), data=b"x"), dialect="sdk-go")
    assert (event.get_datacontenttype(), event.get_data()) == ("text/plain", "x")
    error = refused(
        DecodeError, "not-a-cloudevent", detect_mode, SimpleNamespace(headers=iter([("Status", "503")]), data=b"")
    )
    assert "503" in str(error)
