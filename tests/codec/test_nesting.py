"""Nesting depth of JSON text: exact for JSON, a result for any other bytes, in linear time."""

import json
from time import process_time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ce_nats.codec._nesting import MAX_LEVELS, is_deeper
from tests.support.tables import each

MEBIBYTE = 2**20
# Strings that could be mistaken for brackets, for the end of a string, or for an escape.
TEXTS = st.text('[]{}"\\/ab\n€', max_size=6)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=60,
)


def levels_of(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(levels_of, value), default=0) if isinstance(value, list) else 0


@given(VALUES, st.sampled_from([None, 1]), st.booleans())
@example(["\\", ["]"], "\\\\", [['"']], '\\"[['], None, True)
@example([[["[" * 300, "]" * 300, '"' * 9]]], None, True)
def test_depth_of_every_value(value: Any, indent: int | None, ascii_only: bool) -> None:
    """With any strings in it, and any white space."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    depth = levels_of(value)
    for levels in range(depth + 3):
        assert is_deeper(text, levels) == (depth > levels)


@given(VALUES)
@example([1] * 5000)
def test_depth_of_one_branch_of_a_large_value(value: Any) -> None:
    """A wide value is not deep; one deep branch is."""
    depth = levels_of(value)
    for inner in (value, [[]] * 200, {"a": [{}] * 3000}, ["[]"] * 2000):
        most = max(depth, levels_of(inner))
        for branches in ([value, inner], [inner, value], [inner, value, inner], {"a": inner, "b": value}):
            text = json.dumps(branches).encode()
            assert not is_deeper(text, most + 1)
            assert is_deeper(text, most)


@each(
    ("opening", "closing", "levels"),
    [(b"[", b"]", 1), (b'{"a":', b"}", 1), (b'[ {"[": ', b"} ] ", 2), (b'["[\\"{",', b',"]"]', 1)],
)
def test_limit_is_exact(opening: bytes, closing: bytes, levels: int) -> None:
    times = MAX_LEVELS // levels
    text = opening * times + b"1" + closing * times
    assert levels_of(json.loads(text)) == MAX_LEVELS
    assert not is_deeper(text)
    assert is_deeper(b"[" + text + b"]")
    assert is_deeper(b'{"a":[], "b": ' + text + b"}")


@each("bracket", [b"[", b"{"])
def test_text_too_short_to_close_its_brackets_is_not_deeper(bracket: bytes) -> None:
    """The parser reports that it is truncated."""
    assert is_deeper(bracket * 5, 3) is False
    assert is_deeper(bracket * 6, 3) is False
    assert is_deeper(bracket * 7, 3) is True
    assert is_deeper(b"1" * 7, 3) is False
    assert is_deeper(b"", 0) is False


@given(st.binary(max_size=30), st.integers(1, 40), st.integers(0, 9))
@example(b"[\xff", 40, 9)
def test_any_bytes_have_a_result(piece: bytes, times: int, levels: int) -> None:
    """Also bytes that are not JSON."""
    assert is_deeper(piece * times, levels) in (True, False)


PIECES = {
    "open arrays": b"[",
    "closed arrays": b"]",
    "pairs": b"[]",
    "objects": b'{"a":[',
    "quotes": b'"',
    "brackets in strings": b'"[",',
    "brackets between strings": b'"",[',
    "an odd quote": b'"[""',
    "backslashes": b"\\",
    "escaped quotes": b'\\"[',
    "escapes": b"\\u005b",
}


@pytest.mark.faults
@each("piece", PIECES.values())
@each("start", [b"", b'"', b"[" * MAX_LEVELS, b'["'])
def test_time_is_linear(start: bytes, piece: bytes) -> None:
    """Ten times the size takes ten times as long, not a hundred times."""

    def seconds(size: int) -> float:
        text = start + piece * (size // len(piece))
        took = []
        for _ in range(3):
            began = process_time()
            is_deeper(text)
            took.append(process_time() - began)
        return min(took)

    assert seconds(MEBIBYTE) < 30 * seconds(MEBIBYTE // 10) + 0.05
