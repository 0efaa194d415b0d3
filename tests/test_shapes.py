"""
The fast path for common events: it is taken, it agrees with the careful code, and it remembers little.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ce_nats import DecodeError, Dialect, EncodeError, NatsMessage, from_nats_message, shapes, to_nats_message
from tests.strategies import (
    Event,
    any_events,
    binary_message,
    events,
    exact,
    hostile_messages,
    plain_event,
    structured_message,
    valid_messages,
    without_shapes,
)

MODES = ["binary", "structured"]


def outcome(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """All that a caller can see of a call, as something to compare."""
    try:
        result = call(*args, **kwargs)
    except (EncodeError, DecodeError) as error:
        return type(error), error.code, error.attribute, error.header, str(error), error.requirement
    if isinstance(result, NatsMessage):
        return result
    return exact(result.get_attributes()), exact(result.get_data()), result.has_data, result.is_json


@given(st.one_of(events(), any_events()), st.sampled_from(MODES))
def test_encoding_agrees(event: Event, mode: str) -> None:
    """Same message or same error, with and without the fast path."""
    fast = outcome(to_nats_message, event, mode=mode)
    with without_shapes():
        assert outcome(to_nats_message, event, mode=mode) == fast


@given(hostile_messages, st.sampled_from([None, *MODES]), st.sampled_from(Dialect), st.booleans())
def test_decoding_agrees(message: Any, mode: Any, dialect: Dialect, parse_data: bool) -> None:
    """Same event or same error, with and without the fast path."""
    fast = outcome(from_nats_message, message, mode=mode, dialect=dialect, parse_data=parse_data)
    with without_shapes():
        assert outcome(from_nats_message, message, mode=mode, dialect=dialect, parse_data=parse_data) == fast


@given(valid_messages())
def test_decoding_valid_messages_agrees(message: NatsMessage) -> None:
    """The common case, where the fast path has most to say."""
    fast = outcome(from_nats_message, message)
    with without_shapes():
        assert outcome(from_nats_message, message) == fast


COMMON = {"specversion": "1.0", "id": "a b", "source": "/ü", "type": "t", "time": "2020-01-01T00:00:00Z", "x": "%"}
HEADERS = ["1.0", "a%20b", "/%C3%BC", "t", "2020-01-01T00:00:00Z", "%25"]


def test_the_fast_path_is_taken() -> None:
    """For an event of plain strings each of the four functions has an answer of its own."""
    shape = shapes.find(tuple(COMMON))
    assert shape is not None
    values = list(COMMON.values())
    assert shapes.encode_headers(shape, values) == [(f"ce-{name}", text) for name, text in zip(COMMON, HEADERS)]
    assert shapes.encode_members(shape, values) == COMMON
    assert {name: str(value) for name, value in (shapes.decode_headers(shape, HEADERS) or {}).items()} == COMMON
    assert {name: str(value) for name, value in (shapes.decode_members(shape, values) or {}).items()} == COMMON


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("specversion", "id", "source"),
        ("specversion", "id", "source", "type", "type"),
        ("specversion", "id", "source", "type", "X"),
        ("specversion", "id", "source", "type", "data"),
        ("specversion", "id", "source", "type", 1),
        ("specversion", "id", "source", "type", None),
        ("specversion", "id", "source", "type", ""),
    ],
)
def test_no_shape(names: Any) -> None:
    """Names that no valid event has are left to the careful code."""
    assert shapes.find(names) is None
    assert shapes.find(names) is None  # from memory


def test_what_is_remembered_is_bounded() -> None:
    """Attribute names that a peer makes up do not fill the memory."""
    for number in range(3000):
        from_nats_message(binary_message(**{f"x{number}": "1"}))
    from_nats_message(binary_message(**{"x" * 5000: "1"}))
    from_nats_message(binary_message(**{f"x{number}": "1" for number in range(500)}))
    assert 0 < len(shapes._shapes) <= 1024
    assert max(sum(map(len, names)) for names in shapes._shapes) <= 1024


class Name(str, Enum):
    SPECVERSION = "specversion"
    ID = "id"
    SOURCE = "source"
    TYPE = "type"
    EXTENSION = "fromenum"


@pytest.fixture
def no_memory() -> Iterator[None]:
    """Shapes that a test leaves behind are no other test's."""
    shapes._shapes.clear()
    yield
    shapes._shapes.clear()


NAMED = Event(dict(zip(Name, ("1.0", "1", "/s", "t", "x"))))
PLAIN = plain_event(fromenum="x")


@pytest.mark.usefixtures("no_memory")
def test_names_that_are_members_of_an_enum() -> None:
    """An attribute's name is the string that it is, not the name of the enum's member."""
    assert to_nats_message(NAMED).headers.items() == [
        ("ce-specversion", "1.0"),
        ("ce-id", "1"),
        ("ce-source", "/s"),
        ("ce-type", "t"),
        ("ce-fromenum", "x"),
    ]


@pytest.mark.usefixtures("no_memory")
def test_one_callers_names_do_not_become_anothers() -> None:
    """What was remembered of an enum's members does not show in later events of plain names."""
    to_nats_message(NAMED)
    assert to_nats_message(PLAIN).headers.get("ce-id") == "1"
    names = from_nats_message(to_nats_message(PLAIN, mode="structured")).get_attributes()
    assert [type(name) for name in names] == [str] * 5


def test_shapes_hold_no_values() -> None:
    """Two events of one shape have nothing in common but their names."""
    first = from_nats_message(binary_message(b"1", x="a"))
    second = from_nats_message(binary_message(b"2", x="b"))
    assert first.get_attributes()["x"] == "a"
    assert first.get_attributes() is not second.get_attributes()
    structured = structured_message(b'{"specversion":"1.0","id":"1","source":"/s","type":"t","x":"c"}')
    assert from_nats_message(structured).get_attributes()["x"] == "c"
