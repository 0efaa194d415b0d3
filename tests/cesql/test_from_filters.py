"""Filters of the Subscriptions API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ce_nats import cesql
from tests.support.expressions import EVENTS, STRINGS, TEXTS
from tests.support.tables import each

_NAMES = st.sampled_from(("id", "source", "type", "subject", "tier", "hops", "missing"))
_VALUES = st.dictionaries(_NAMES, STRINGS.filter(bool), min_size=1, max_size=2)
FILTERS = st.recursive(
    st.one_of(
        st.fixed_dictionaries({"exact": _VALUES}),
        st.fixed_dictionaries({"prefix": _VALUES}),
        st.fixed_dictionaries({"suffix": _VALUES}),
        st.fixed_dictionaries({"sql": TEXTS}),
    ),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"all": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"any": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"not": inner}),
    ),
    max_leaves=5,
)


def passes(one: dict[str, Any], event: dict[str, Any]) -> bool:
    """Return whether an event passes, as the text of the Subscriptions API has it."""
    ((dialect, value),) = one.items()
    if dialect == "all":
        return all(passes(inner, event) for inner in value)
    if dialect == "any":
        return any(passes(inner, event) for inner in value)
    if dialect == "not":
        return not passes(value, event)
    if dialect == "sql":
        return cesql.compile(value).matches(event)
    texts = {name: cesql.compile(f"STRING({name})").evaluate(event).value if name in event else None for name in value}
    test: Any = {"exact": str.__eq__, "prefix": str.startswith, "suffix": str.endswith}[dialect]
    return all(texts[name] is not None and test(texts[name], text) for name, text in value.items())


@given(filters=st.lists(FILTERS, min_size=1, max_size=3), event=EVENTS)
def test_same_events_pass(filters: list[dict[str, Any]], event: dict[str, Any]) -> None:
    try:
        expression = cesql.from_filters(json.dumps(filters))
        wanted = passes({"all": filters}, event)
    except cesql.ParseError:  # an sql that is not an expression, or a text without a literal
        return
    assert expression.matches(event) == wanted
    assert cesql.compile(str(expression)) == expression


@each(
    "filters, text",
    [
        ({"exact": {"type": "a"}}, "type = 'a'"),
        ([{"exact": {"tier": "a", "type": "b"}}], "EXISTS tier AND tier = 'a' AND type = 'b'"),
        ({"prefix": {"type": "com.%_"}}, r"type LIKE 'com.\%\_%'"),
        ({"suffix": {"subject": "a\\b"}}, r"EXISTS subject AND RIGHT(subject, 3) = 'a\b'"),
        ({"not": {"exact": {"type": "a"}}}, "NOT (type = 'a')"),
        ([{"any": [{"exact": {"id": "1"}}, {"sql": "tier = 1"}]}], "(id = '1') OR MATCHES(tier = 1)"),
        ([{"sql": "tier = 1"}, {"sql": "a OR b"}], "tier = 1 AND (a OR b)"),
    ],
)
def test_expressions(filters: Any, text: str) -> None:
    assert cesql.from_filters(filters) == cesql.from_filters(json.dumps(filters)) == cesql.compile(text)


@each(
    "filters",
    [
        *("", "{", "null", "1", '"sql"', "[]", "{}", "[[]]", "[1]", "[" * 100_000),
        *([{"sql": "x", "exact": {}}], {"exact": {}}, {"exact": {"type": ""}}, {"exact": {"type": 1}}, {"exact": "a"}),
        *(
            {"exact": {"a_b": "x"}},
            {"exact": {"like": "x"}},
            {"exact": {"": "x"}},
            {"exact": {"id = '1' OR type": "x"}},
        ),
        *({"all": []}, {"any": {}}, {"all": "ab"}, {"not": []}, {"not": {}}, {"sql": "x ="}, {"sql": 1}, {"cel": "x"}),
        *({"exact": {"id = '1' OR type": "x"}}, {"exact": {"type": "a\\"}}, None, 5),
    ],
)
def test_refused_filters(filters: Any) -> None:
    with pytest.raises(cesql.ParseError):
        cesql.from_filters(filters)


def test_nesting_is_bounded() -> None:
    filters: Any = {"exact": {"type": "a"}}
    for _ in range(500):
        filters = {"not": {"all": [filters]}}
    with pytest.raises(cesql.ParseError):
        cesql.from_filters(filters)


def test_matches() -> None:
    """The function has no errors."""
    assert cesql.compile("MATCHES(tier = 'gold')").evaluate({}) == (False, ())
    assert cesql.compile("NOT MATCHES(1 / 0 = 1) AND MATCHES(id = '1')").matches({"id": "1"})
    assert cesql.compile("MATCHES('true')").evaluate({}, fail_fast=False) == (False, ())
