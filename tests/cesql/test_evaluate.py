"""Evaluation of CESQL beyond spec-fixtures/cesql.json: events of all kinds, random expressions, hostile values."""

from __future__ import annotations

from datetime import datetime, timezone
from enum import Enum
from threading import Thread
from typing import Any

import pytest
from cloudevents.core.v1.event import CloudEvent
from cloudevents.v1.http import CloudEvent as OldEvent
from hypothesis import given
from hypothesis import strategies as st

from ce_nats import DecodedEvent, Timestamp, cesql, from_nats_message, to_nats_message
from tests.support.expressions import EVENTS, TEXTS
from tests.support.tables import each

ATTRIBUTES = {"specversion": "1.0", "id": "1", "source": "/eu/x", "type": "t", "tier": "gold", "priority": 4}
GOLD = cesql.compile("source LIKE '/eu/%' AND tier = 'gold' AND priority > 3")


def kinds(result: cesql.Result) -> list[str]:
    return [error.kind for error in result.errors]


@each(
    "event",
    [
        ATTRIBUTES,
        DecodedEvent(dict(ATTRIBUTES)),
        CloudEvent({**ATTRIBUTES, "time": datetime.now(timezone.utc)}, None),
        OldEvent(ATTRIBUTES, None),
        from_nats_message(to_nats_message(DecodedEvent(dict(ATTRIBUTES)), "s")),
    ],
)
def test_events(event: Any) -> None:
    """Whatever can be encoded, what was decoded, and a mapping of attributes."""
    assert GOLD.matches(event)
    assert GOLD.evaluate(event) == (True, ())
    assert not cesql.compile("tier = 'silver'").matches(event)


@each("other", [None, 5, "text", [("id", "1")]])
def test_other_objects(other: Any) -> None:
    """Anything else is a mistake of the program."""
    with pytest.raises(TypeError, match="get_attributes"):
        GOLD.matches(other)


class Tier(str, Enum):
    GOLD = "gold"


@each(
    "value, text",
    [
        (Timestamp("2024-01-02T03:04:05.123456789Z"), "2024-01-02T03:04:05.123456789Z"),
        (datetime(2024, 1, 2, tzinfo=timezone.utc), "2024-01-02T00:00:00Z"),
        (b"\x01\x02", "AQI="),
        (Tier.GOLD, "gold"),
    ],
)
def test_values_of_attributes(value: Any, text: str) -> None:
    """Values that are not of the language are their canonical strings."""
    assert cesql.compile("x").evaluate({"x": value}) == (text, ())


@each("value", [1.5, 2**31, datetime(2024, 1, 2), [1], {}, "a\x00", object()])
def test_values_that_attributes_cannot_have(value: Any) -> None:
    """They are errors of the evaluation, unless a string has a character that events must not have."""
    result = cesql.compile("x = 'y'").evaluate({"x": value})
    assert result.value is False
    assert kinds(result) == ([] if isinstance(value, str) else ["generic"])


def test_none_is_missing() -> None:
    """An attribute that is None is unset, as when an event is encoded."""
    assert kinds(cesql.compile("x").evaluate({"x": None})) == ["missing-attribute"]
    assert not cesql.compile("EXISTS x").matches({"x": None})


def test_errors_tell_where() -> None:
    """An error has the position of the part at fault, and a sentence."""
    result = cesql.compile("tier = 'gold' AND hops / 0 > size").evaluate({"tier": "gold", "hops": "x"}, fail_fast=False)
    assert [(error.kind, error.position) for error in result.errors] == [
        ("cast", 18),
        ("math", 23),
        ("missing-attribute", 29),
    ]
    assert [str(error) for error in result.errors] == [
        "cast at position 18: 'x' is not Integer",
        "math at position 23: division by zero",
        "missing-attribute at position 29: the event has no attribute size",
    ]
    assert "data" in cesql.compile("data = 1").evaluate({"data": 1}).errors[0].message


@given(text=TEXTS, event=EVENTS)
def test_random_expressions(text: str, event: dict[str, Any]) -> None:
    """An evaluation always has a value of its type; both modes agree on what passes and on the first error."""
    try:
        expression = cesql.compile(text)
    except cesql.ParseError:
        return
    before = dict(event)
    fast, complete = expression.evaluate(event), expression.evaluate(event, fail_fast=False)
    assert event == before
    assert type(fast.value) in (str, int, bool)
    assert len(fast.errors) <= 1
    assert fast.errors == complete.errors[:1]
    if not fast.errors:
        assert fast == complete
    passes = fast.value is True and not fast.errors
    assert expression.matches(event) == expression.matches(DecodedEvent(event)) == passes


@given(text=TEXTS, event=EVENTS)
def test_chains_are_nested_from_the_right(text: str, event: dict[str, Any]) -> None:
    """A chain of AND, OR and XOR is what its canonical text says with parentheses, errors included."""
    parts = [f"({text})", "TRUE", "tier", "(1 = urgent)", "FALSE"]
    operators = ["XOR", "AND", "OR", "XOR"]
    nested = parts[-1]
    for part, operator in zip(reversed(parts[:-1]), reversed(operators), strict=True):
        nested = f"((0 = 0) = ({part} {operator} {nested}))"  # a comparison is not a part of the chain
    chain = " ".join(word for pair in zip(parts, [*operators, ""], strict=True) for word in pair)
    try:
        flat, deep = cesql.compile(chain), cesql.compile(nested)
    except cesql.ParseError:
        return
    for fail_fast in (True, False):
        one, other = flat.evaluate(event, fail_fast=fail_fast), deep.evaluate(event, fail_fast=fail_fast)
        assert (one.value, kinds(one)) == (other.value, kinds(other))


@given(x=st.integers(-(2**31), 2**31 - 1), y=st.integers(-(2**31), 2**31 - 1))
def test_arithmetic(x: int, y: int) -> None:
    """Division truncates and the remainder belongs to it; everything is an integer of 32 bits."""
    names = {"x": x, "y": y}

    def value(text: str) -> int:
        return cesql.compile(text).evaluate(names).value  # type: ignore[return-value]

    if y:
        assert value("(x / y) * y + x % y = x")
        assert abs(value("x % y")) < abs(y)
        assert value("x % y") * x >= 0
    for text, exact in (("x + y", x + y), ("x - y", x - y), ("x * y", x * y), ("-x", -x)):
        assert (value(text) - exact) % 2**32 == 0
        assert -(2**31) <= value(text) < 2**31


def test_strings_are_bounded() -> None:
    """Joined strings have a limit, so that a text cannot make gigabytes."""
    long = "x" * 2**19
    assert cesql.compile("LENGTH(CONCAT(x, x))").evaluate({"x": long}) == (2**20, ())
    result = cesql.compile("CONCAT(CONCAT(x, x), 'y')").evaluate({"x": long})
    assert (result.value, kinds(result)) == ("", ["function-evaluation"])
    many = cesql.compile("CONCAT_WS(x, " + ", ".join(["x"] * 10_000) + ")")
    assert kinds(many.evaluate({"x": long})) == ["function-evaluation"]


def test_threads() -> None:
    """An expression can be used by several threads."""
    wrong: list[object] = []

    def evaluate(number: int) -> None:
        event = {**ATTRIBUTES, "priority": number}
        wrong.extend(number for _ in range(2000) if GOLD.evaluate(event) != (number > 3, ()))

    threads = [Thread(target=evaluate, args=(number,)) for number in range(2, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
