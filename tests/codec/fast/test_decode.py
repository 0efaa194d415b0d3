"""Messages that the fast path decodes, and agreement of its results with those of the full codec."""

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from itertools import product
from types import MappingProxyType
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from ce_nats import (
    ContentMode,
    DecodeError,
    Dialect,
    Headers,
    NatsMessage,
    Timestamp,
    from_nats_message,
    to_nats_message,
)
from ce_nats.codec.attributes import canonical
from tests.support.fast_path import (
    COMMON,
    DATA,
    ENCODED,
    MODES,
    ODD_VALUES,
    NatsLike,
    check_agreement,
    without_full_codec,
)
from tests.support.strategies import Event, binary_message, exact, hostile_messages, structured_message, valid_messages
from tests.support.tables import each

UNTYPED = {"x": None, "count": None, "flag": None, "blob": None, "at": None}
TYPES = {"x": int, "count": int, "flag": bool, "blob": bytes, "at": datetime, "comexampleextension1": str}


@given(
    hostile_messages,
    st.sampled_from([None, *MODES]),
    st.sampled_from(Dialect),
    st.booleans(),
    st.sampled_from([None, TYPES, UNTYPED]),
)
def test_same_event_or_same_error(message: Any, mode: Any, dialect: Dialect, parse_data: bool, types: Any) -> None:
    assume(not isinstance(getattr(message, "headers", None), Iterator))  # the second call would get nothing from it
    check_agreement(
        from_nats_message, message, mode=mode, dialect=dialect, parse_data=parse_data, extension_types=types
    )


@given(valid_messages(), st.booleans())
def test_same_event_from_valid_messages(message: NatsMessage, parse_data: bool) -> None:
    check_agreement(from_nats_message, message, parse_data=parse_data)


@each("name", COMMON)
def test_headers_with_an_odd_value(name: str) -> None:
    """Each attribute with each value; each name in upper case, duplicated or missing; a Content-Type before them."""
    for value, parse_data in product([*ODD_VALUES, ["a"], ["a", "b"]], (True, False)):
        for as_headers in (dict, lambda pairs: Headers(pairs.items())):
            headers = {f"ce-{key}": text for key, text in ENCODED.items()} | {f"ce-{name}": value}
            try:
                message = NatsLike(as_headers(headers), b'{"a": [1]}')
            except DecodeError:
                continue
            check_agreement(from_nats_message, message, parse_data=parse_data, extension_types=TYPES)
    for headers in (
        {f"CE-{key}": text for key, text in ENCODED.items()},
        {f"ce-{key}": text for key, text in ENCODED.items()} | {f"CE-{name}": ENCODED[name]},
        {f"ce-{key}": text for key, text in ENCODED.items() if key != name},
        *(
            {"Content-Type": kind} | {f"ce-{key}": text for key, text in ENCODED.items()}
            for kind in CONTENT_TYPE_HEADERS
        ),
    ):
        check_agreement(from_nats_message, NatsLike(headers, b"1"))


CONTENT_TYPE_HEADERS = [
    "application/json",
    "application/cloudevents",
    "Application/CloudEvents+JSON; charset=UTF-8",
    "application/cloudevents+json; charset=latin1",
    "application/cloudevents-batch+json",
    "application/cloudevents+avro",
    "",
]


@each(
    "headers",
    [
        None,
        {},
        Headers(),
        MappingProxyType({}),
        [],
        [("Content-Type", "application/cloudevents+json")],
        *({"Content-Type": kind} for kind in CONTENT_TYPE_HEADERS),
        {"content-type": "application/cloudevents", "Nats-Msg-Id": "1"},
        [("Content-Type", "application/cloudevents")] * 2,
        {"Content-Type": 1},
    ],
)
@each(
    "payload",
    [
        b"",
        b"{}",
        b"null",
        None,
        5,
        bytearray(b'{"id":"1"}'),
        json.dumps(COMMON).encode(),
        json.dumps({**COMMON, "data": DATA}).encode() + b"\n",
    ],
)
def test_headers_and_payloads(headers: Any, payload: Any) -> None:
    check_agreement(from_nats_message, NatsLike(headers, payload))
    check_agreement(from_nats_message, NatsLike(headers, payload), parse_data=False)


EVENT = '{"specversion":"1.0","id":"ü","source":"/s","type":"t","x":1,"data":{"a":["b"],"c":null}}'.encode()
INSERTED = [
    b"",
    b'"',
    b"\\",
    b"}",
    b"{",
    b",",
    b":",
    b" ",
    b"\n",
    b"\x7f",
    b"\0",
    b"\xff",
    b"1",
    b"\\u0000",
    b'\\"',
    b'"id":"2",',
    b'"data":1,',
    b',"data":',
]


@each("parse_data", [True, False])
def test_json_events_with_odd_text(parse_data: bool) -> None:
    """Text that changes the structure of a JSON event, inserted at each position, or in place of a byte."""
    for place, inserted, length in product(range(len(EVENT) + 1), INSERTED, (0, 1)):
        payload = EVENT[:place] + inserted + EVENT[place + length :]
        check_agreement(from_nats_message, structured_message(payload), parse_data=parse_data)


@each("name", [*COMMON, "data", "data_base64", "new", "Data", ""])
def test_json_events_with_an_odd_member(name: str) -> None:
    """Each member with each value: at its position, as the first or last member, and beside other data."""
    values = [*filter(None, map(_json, ODD_VALUES)), "[[]]", "-0", "1e2", "1.0", "10000000000"]
    for value in values:
        others = {key: json.dumps(text) for key, text in COMMON.items()}
        for members in (
            {**others, name: value},
            {**others, "data": '{"a":1}', name: value},
            {name: value, **others, "data": "null"},
            {**others, "data_base64": '"YQ=="', name: value},
        ):
            payload = "{" + ",".join(f"{json.dumps(key)}:{text}" for key, text in members.items()) + "}"
            message = structured_message(payload.encode())
            check_agreement(from_nats_message, message, extension_types=TYPES)
        check_agreement(from_nats_message, message, extension_types=UNTYPED)
        check_agreement(from_nats_message, message, parse_data=False)


def _json(value: Any) -> str | None:
    """Return the value as JSON that is UTF-8, if there is one."""
    with suppress(TypeError, UnicodeEncodeError):
        text = json.dumps(value, ensure_ascii=False)
        return text if text.encode() else None
    return None


def test_deep_data() -> None:
    """Data nested up to the limit, and deeper."""
    for levels in (127, 128, 129, 2000):
        data = b"[" * levels + b"1" + b"]" * levels
        check_agreement(
            from_nats_message,
            structured_message(b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":' + data + b"}"),
        )
        check_agreement(from_nats_message, binary_message(data, datacontenttype="application/json"))


def test_long_events() -> None:
    """The data may begin after the part of the event in which the fast path looks for it."""
    for length in (4000, 4080, 4096, 5000):
        text = "x" * length
        for member in ("id", "x", "data_base64"):
            for data in ("", ',"data":1'):
                members = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", member: text}
                check_agreement(
                    from_nats_message,
                    structured_message(json.dumps(members, separators=(",", ":"))[:-1].encode() + f"{data}}}".encode()),
                )


@each("mode", MODES)
@each(
    ("attributes", "data"),
    [
        ({}, DATA),
        ({"time": datetime(2020, 1, 1, tzinfo=timezone.utc)}, DATA),
        ({"time": Timestamp("2020-01-01T00:00:00+02:00")}, DATA),
        ({"x": 5, "y": True}, DATA),
        ({"datacontenttype": "text/plain"}, "text"),
        ({"datacontenttype": "image/png"}, b"bytes"),
        ({}, None),
    ],
)
def test_common_events_are_handled(attributes: dict[str, Any], data: Any, mode: str) -> None:
    """The full codec is never called, in either direction."""
    event = Event({**COMMON, **attributes}, data)
    with without_full_codec():
        message = to_nats_message(event, mode=mode, headers={"Nats-Msg-Id": "1"})
        decoded = from_nats_message(message)
        assert from_nats_message(NatsLike(dict(message.headers), message.data)) == decoded
    assert decoded.get_data() == data
    sent = {**COMMON, **attributes, "time": Timestamp(event.get_attributes()["time"])}
    assert {name: canonical(value) for name, value in decoded.get_attributes().items()} == {
        name: canonical(value) for name, value in sent.items()
    }


@each("mode", ContentMode)
def test_required_mode_without_headers_is_that_of_the_payload(mode: ContentMode) -> None:
    event = json.dumps(COMMON, separators=(",", ":")).encode()
    for message in (NatsMessage("s", event), binary_message(event)):
        check_agreement(from_nats_message, message, mode=mode)
    if mode is ContentMode.STRUCTURED:
        assert from_nats_message(NatsMessage("s", event), mode=mode).get_id() == COMMON["id"]


def test_declared_types_are_handled() -> None:
    with without_full_codec():
        event = from_nats_message(
            NatsLike({f"ce-{name}": text for name, text in ENCODED.items()}, b""), extension_types={"x": int}
        )
        assert event.get_attributes()["x"] == 42
        event = from_nats_message(structured_message(EVENT), extension_types={"x": int})
        assert event.get_attributes()["x"] == 1


@each(
    ("content_type", "parsed", "unparsed"),
    [
        ("text/plain", "é", "é".encode()),
        ("text/plain; charset=iso-8859-1", "é", b"\xe9"),
        ("image/png", "é".encode(), "é".encode()),
        ("application/json", "é", '"é"'.encode()),
    ],
)
def test_strings_in_json_events_are_handled(content_type: str, parsed: Any, unparsed: Any) -> None:
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "datacontenttype": content_type, "data": "é"}
    message = structured_message(json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode())
    with without_full_codec():
        assert exact(from_nats_message(message).get_data()) == exact(parsed)
        assert exact(from_nats_message(message, parse_data=False).get_data()) == exact(unparsed)


@each("value", [5, True, "5"])
def test_extensions_with_declared_type_none_keep_their_type(value: Any) -> None:
    payload = json.dumps({"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "n": value}).encode()
    event = from_nats_message(structured_message(payload), extension_types={"n": None})
    assert exact(event.get_attributes()["n"]) == exact(value)


def test_events_with_the_same_names_share_no_state() -> None:
    first = from_nats_message(binary_message(b"1", x="a"))
    second = from_nats_message(binary_message(b"2", x="b"))
    assert first.get_attributes()["x"] == "a"
    assert first.get_attributes() is not second.get_attributes()
    third = from_nats_message(structured_message(b'{"specversion":"1.0","id":"1","source":"/s","type":"t","x":"c"}'))
    assert third.get_attributes()["x"] == "c"
