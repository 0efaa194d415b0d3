"""Patterns of LIKE."""

from __future__ import annotations

import re
from time import process_time

from hypothesis import example, given
from hypothesis import strategies as st

from ce_nats import cesql
from ce_nats.cesql import _like
from tests.support.tables import each

_TEXTS = st.text(st.sampled_from("ab%_\\.\n\U0001f600"), max_size=12)


def reference(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for a pattern: slow for some, but simple."""
    parts = {"%": ".*", "_": "."}
    return re.compile("".join(parts.get(token) or re.escape(token[-1]) for token in _like.tokens(pattern)), re.DOTALL)


@given(pattern=_TEXTS, text=_TEXTS)
@example(pattern="a%b_c%", text="aabbc")
@example(pattern="%_%", text="")
@example(pattern="%a_b%a%", text="aabbaab")
def test_is_as_a_regular_expression(pattern: str, text: str) -> None:
    """A text matches if the regular expression of the pattern matches all of it."""
    assert _like.matcher(pattern)(text) == bool(reference(pattern).fullmatch(text))


@given(text=_TEXTS)
def test_text_matches_itself(text: str) -> None:
    """A text with its wildcards escaped matches itself, and nothing that is longer."""
    pattern = re.sub("[%_]", r"\\\g<0>", text)
    if "\\" not in text:
        assert _like.matcher(pattern)(text)
        assert not _like.matcher(pattern)(text + "a")


def test_tokens() -> None:
    r"""A backslash escapes only ``%`` and ``_``."""
    assert _like.tokens(r"a%_\%\_\x" + "\\") == [r"\a", "%", "_", r"\%", r"\_", "\\\\", r"\x", "\\\\"]


@each(
    "pattern, text",
    [
        ("%a" * 30 + "b", "a" * 30_000),
        ("%" * 30_000 + "b", "a" * 30_000),
        ("%" + "a_" * 2_000 + "b%", "a" * 60_000),
        ("%" + "_" * 60_000 + "b%", "a" * 120_000),
        ("%" + "a" * 3_000 + "_b%", "a" * 60_000),
    ],
)
def test_hostile_patterns_take_linear_time(pattern: str, text: str) -> None:
    """Seconds at most, where backtracking takes hours."""
    expression = cesql.compile(f"subject LIKE '{pattern}'")
    start = process_time()
    assert not expression.matches({"subject": text})
    assert process_time() - start < 5
