"""Splitting of JSON events into members and data, compared with the standard library's JSON parser."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ce_nats.codec._json_members import MAX_HEAD, are_distinct, data_text, split_event
from tests.support.strategies import any_text, hostile_payloads, json_values
from tests.support.tables import each

scalars = st.one_of(any_text, st.none(), st.booleans(), st.integers(-(2**40), 2**40), json_values)
names = st.one_of(st.sampled_from(["id", "source", "x", "data", "data_base64"]), st.text("abc01", min_size=1), any_text)


def pairs_of(payload: bytes) -> Any:
    """Return the members of a JSON object as pairs, or None for other text."""
    try:
        pairs = json.loads(payload, object_pairs_hook=tuple)
    except ValueError:
        return None
    return pairs if payload.lstrip().startswith(b"{") else None


def check_split(payload: bytes) -> None:
    """Check that a payload is split as its members are, or not at all."""
    try:
        members, text, value = split_event(payload)
    except (ValueError, RecursionError):
        return
    pairs = pairs_of(payload)
    assert pairs is not None
    assert [*members.items()] == [(name, item) for name, item in pairs if name != "data" and item is not None]
    assert len(dict(pairs)) == len(pairs)
    assert (text is not None) == ("data" in dict(pairs))
    if text is not None:
        assert text in payload
        assert json.dumps(json.loads(text)) == json.dumps(value) == json.dumps(json.loads(payload)["data"])


@given(st.lists(st.tuples(names, scalars), max_size=6), st.booleans(), st.sampled_from([(",", ":"), (" , ", ": ")]))
def test_any_object_is_split_or_declined(members: Any, ascii_only: bool, separators: tuple[str, str]) -> None:
    comma, colon = separators
    parts = (f"{json.dumps(name)}{colon}{json.dumps(value, ensure_ascii=ascii_only)}" for name, value in members)
    check_split(f"{{{comma.join(parts)}}}".encode("utf-8", "surrogatepass"))


@given(hostile_payloads.filter(lambda payload: isinstance(payload, bytes)))
def test_any_bytes_are_split_or_declined(payload: bytes) -> None:
    check_split(payload)


@each(
    ("payload", "expected"),
    [
        (b'{"id":"1","n":5,"b":true}', ({"id": "1", "n": 5, "b": True}, None, None)),
        (b'{"id":"1","data":12}', ({"id": "1"}, b"12", 12)),
        (b'{"id":"1","data":\n\t 1\r\n}', ({"id": "1"}, b"1", 1)),
        (b'{"id":"\xc3\xbc"}', ({"id": "ü"}, None, None)),
        (b'{"id":"a\\"b","x":"\\/\\u00e9"}', ({"id": 'a"b', "x": "/é"}, None, None)),
        (b'{"id":"1","data_base64":null}', ({"id": "1"}, None, None)),
        (b'{"id":"1","x":null,"data":{"a": 1} }\n', ({"id": "1"}, b'{"a": 1}', {"a": 1})),
        (b'{"data":null,"id":"1"}', ({"id": "1"}, b"null", None)),
        (b'{"id":"1","data":[{"data":2}],"x":"y"}', ({"id": "1", "x": "y"}, b'[{"data":2}]', [{"data": 2}])),
    ],
)
def test_common_events_are_split(payload: bytes, expected: Any) -> None:
    assert split_event(payload) == expected


def test_events_without_data_are_split_up_to_a_size() -> None:
    """The whole event is searched for data; longer ones may have it after the part that is searched."""
    start, end = b'{"id":"', b'"}'
    text = b"1" * (MAX_HEAD - len(start + end))
    assert split_event(start + text + end) == ({"id": text.decode()}, None, None)
    with pytest.raises(ValueError, match="long members"):
        split_event(start + text + b"1" + end)


def test_long_events_with_binary_data_are_split() -> None:
    payload = b'{"id":"1","data_base64":"' + b"A" * MAX_HEAD + b'"}'
    assert split_event(payload) == ({"id": "1", "data_base64": "A" * MAX_HEAD}, None, None)


@each(
    "payload",
    [
        b'{"id":"1","id":"1"}',
        b'{"id":"1","\\u0069d":"1"}',
        b'{"id":"1","data":1,"data":2}',
        b'{"id":"1","data":1,"data":1}',
        b'{"id":"1","data" :1,"data":2}',
        b'{"id":"1","data" :"2"}',
        b'{"id":""}',
        b'{"id":"\\u0000"}',
        b'{"id":"\x7f"}',
        b'{"a":"\\\\","b":"\\\\","c":"\\\\","d":"1","d":"\\\\"}',
        b'{"id":1}',
        b'{"data_base64":1}',
        b'{"x":1.5}',
        b'{"x":2147483648}',
        b'{"x":{"data":1}}',
        b'{"X":null}',
        b"[]",
        b"{",
        b"",
        b'{"x":"' + b"y" * MAX_HEAD + b'","data":1}',
        b'{"id":"data_base64","x":"' + b"y" * MAX_HEAD + b'"}',
        b'{"id":"1","data":' + b"[" * 200 + b"]" * 200 + b"}",
    ],
)
def test_other_payloads_are_declined(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        split_event(payload)


@each(
    ("payload", "expected"),
    [
        (b'{"id":"1","data":"a"}', True),
        (b'{"id":"1","data":{"id":"2"}}', True),
        (b'{"id":"1","id":"1","data":1}', False),
        (b'{"id":"\\"","data":1}', False),  # an escaped quote is counted, too
    ],
)
def test_quotes_prove_that_names_are_distinct(payload: bytes, expected: bool) -> None:
    assert are_distinct(payload, json.loads(payload), data_text(payload)) is expected
