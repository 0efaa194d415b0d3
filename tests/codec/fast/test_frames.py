"""Header blocks that the fast path writes, and agreement with the header blocks of the full codec."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ce_nats import EncodeError, dedup_id, to_nats_message
from ce_nats.codec.fast._frames import block_encoder_source, encode_block
from ce_nats.conformance import load_cases
from ce_nats.conformance._events import SpelledEvent
from ce_nats.wire.nats import write_header_block
from tests.support.fast_path import COMMON, DATA, ODD_TEXTS, ODD_VALUES, Text
from tests.support.strategies import Event, any_events, events, plain_event, without_fast_path
from tests.support.tables import each


def full(event: Any, has_message_id: bool) -> tuple[bytes, bytes]:
    """Return header block and payload without the fast path."""
    with without_fast_path():
        message = to_nats_message(event)
        if has_message_id:
            message.headers.append("Nats-Msg-Id", dedup_id(event))
    return write_header_block(message.headers.items()), message.data


def outcome(call: Any, event: Any, has_message_id: bool) -> Any:
    """Return the result of a call, or what a caller sees of its error."""
    try:
        return call(event, has_message_id)
    except EncodeError as error:
        return error.code, error.attribute, error.header, str(error)


def check(event: Any) -> bool:
    """Check that the fast path declines an event, or agrees with the full codec; return whether it handles it."""
    for has_message_id in (False, True):
        for _ in range(2):  # the second time with cached values
            found = outcome(encode_block, event, has_message_id)
            assert found in (None, outcome(full, event, has_message_id))
    return found is not None and {*map(type, found)} == {bytes}


@given(st.one_of(events(), any_events()))
def test_same_block_or_same_error(event: Event) -> None:
    check(event)


@each("name", COMMON)
def test_events_with_an_odd_value(name: str) -> None:
    for value in ODD_VALUES:
        check(Event({**COMMON, name: value}, DATA))


def test_events_of_the_fixtures() -> None:
    given = [case.input["event"] for case in load_cases() if "event" in case.input]
    assert sum(check(SpelledEvent(event["attributes"], event["data"])) for event in given) > 50


@each(
    "event",
    [
        plain_event(),
        plain_event(DATA, **{**COMMON, "x": 1, "y": True}),
        plain_event(b"\xff", datacontenttype="image/png"),
        plain_event("ü", datacontenttype="text/plain; charset=latin1"),
        plain_event(5, subject="Größe € 😀"),
        plain_event(id="x" * 249, source="/a|b"),
        plain_event(id="x" * 250, source="/a|b"),
        plain_event(id="a|b ü|"),
    ],
)
def test_common_events_are_handled(event: Event) -> None:
    assert check(event)


@each(
    "event",
    [
        plain_event(id=Text("1")),
        plain_event(source=Text("/s")),
        plain_event(source="\ud800"),
        plain_event(x=b"1"),
    ],
)
def test_other_events_are_declined_or_equal(event: Event) -> None:
    if event.attributes["source"] != "\ud800":
        full(event, True)
    assert encode_block(event, True) is None


def test_texts_of_the_message_id() -> None:
    for text in ODD_TEXTS:
        for event in (plain_event(id=text), plain_event(source=text), plain_event(id=text, source=text)):
            check(event)


def test_source_text() -> None:
    assert (
        block_encoder_source(("id", "source", "specversion", "type"), has_message_id=True)
        == r"""def convert(attributes):
    v0, v1, v2, v3 = attributes.values()
    if not (v0.__class__ is v1.__class__ is v2.__class__ is v3.__class__ is str):
        raise NotHandled
    if not (v2 == "1.0"):
        raise NotHandled
    if not (v0):
        raise NotHandled
    if not is_literal(f"{v0}"):
        v0, = escape_all((v0,))
    source = source_texts[v1]
    identifier = v0.replace('|', '%7C')
    message_id = f"{source_parts[v1]}|{identifier}"
    if len(message_id) > 256:
        message_id = hashed(message_id)
    return f"NATS/1.0\r\nce-id: {v0}\r\nce-source: {source}\r\nce-specversion: 1.0\r\nce-type: {type_texts[v3]}\r\n"""
        r"""Nats-Msg-Id: {message_id}\r\n\r\n".encode()"""
    )
