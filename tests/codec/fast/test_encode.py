"""Events that the fast path encodes, and agreement of its results with those of the full codec."""

from collections import OrderedDict
from datetime import datetime
from enum import Enum

from hypothesis import given
from hypothesis import strategies as st

from ce_nats import from_nats_message, to_nats_message
from tests.support.fast_path import COMMON, DATA, MODES, ODD_VALUES, Member, Text, check_agreement
from tests.support.strategies import Event, any_events, events, plain_event
from tests.support.tables import each


@given(st.one_of(events(), any_events()), st.sampled_from(MODES))
def test_same_message_or_same_error(event: Event, mode: str) -> None:
    check_agreement(to_nats_message, event, mode=mode)


@each("name", COMMON)
@each("mode", MODES)
def test_events_with_an_odd_value(name: str, mode: str) -> None:
    """Each attribute of a common event with each value that could be mistaken for a common one."""
    for value in ODD_VALUES:
        check_agreement(to_nats_message, Event({**COMMON, name: value}, DATA), mode=mode)


ODD_DATA = [
    None,
    True,
    0,
    1.5,
    float("nan"),
    float("inf"),
    10**30,
    "",
    "text",
    '"',
    "\ud800",
    "é",
    b"",
    b"bytes",
    bytearray(b"a"),
    memoryview(b"a"),
    [],
    {},
    [[]],
    {"a": None},
    {"a": "null"},
    {"a": "{"},
    {1: 1},
    {None: 1},
    {"a": {1}},
    {"a": b""},
    {"a": datetime(2020, 1, 1)},
    {"a": float("nan")},
    (1, 2),
    {"a": (1,)},
    Text("a"),
    {Text("a"): 1},
    {"a": Member.ONE},
    {"a": Text("1")},
    OrderedDict(a=1),
    {"a": [float("inf")]},
]
CONTENT_TYPES = [
    "application/json",
    "application/x+json; charset=latin1",
    "text/plain",
    "text/plain; charset=latin1",
    "text/plain; charset=us-ascii",
    "text/x; charset=hex",
    "application/xml",
    "image/png",
    "nonsense",
]


@each("content_type", CONTENT_TYPES)
@each("mode", MODES)
def test_events_with_odd_data(content_type: str, mode: str) -> None:
    for data in ODD_DATA:
        check_agreement(to_nats_message, Event({**COMMON, "datacontenttype": content_type}, data), mode=mode)


@each("mode", MODES)
def test_events_without_a_content_type(mode: str) -> None:
    for data in ODD_DATA:
        check_agreement(to_nats_message, plain_event(data), mode=mode)


class Name(str, Enum):
    SPECVERSION = "specversion"
    ID = "id"
    SOURCE = "source"
    TYPE = "type"
    EXTENSION = "fromenum"


NAMED = Event(dict(zip(Name, ("1.0", "1", "/s", "t", "x"))))
PLAIN = plain_event(fromenum="x")


@each("first", [NAMED, PLAIN])
@each("mode", MODES)
def test_names_that_are_members_of_an_enum(first: Event, mode: str) -> None:
    """Names of decoded attributes are plain strings, whichever event was encoded and cached first."""
    for event in (first, NAMED, PLAIN):
        check_agreement(to_nats_message, event, mode=mode)
        names = from_nats_message(to_nats_message(event, mode=mode)).get_attributes()
        assert [(type(name), name) for name in names] == [(str, name.value) for name in Name]
