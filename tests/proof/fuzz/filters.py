r"""Expressions of CESQL: ``EXPRESSION\0NAME=VALUE\0...``, of any bytes; values of digits are integers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from ce_nats import cesql
from ce_nats.conformance import load_cases
from ce_nats.conformance._cases import text as spelled
from tests.proof.fuzz.target import Target, one_by_one


def evaluate(data: bytes) -> Hashable:
    text, *pairs = data.decode("utf-8", "surrogateescape").split("\0")
    try:
        expression = cesql.compile(text)
    except cesql.ParseError as error:
        wrong = error
    else:
        return _outcome(expression, pairs)
    assert 0 <= wrong.position <= len(text)
    assert len(str(wrong)) < 500
    return wrong.expected


def _outcome(expression: cesql.Expression, pairs: list[str]) -> Hashable:
    again = cesql.compile(str(expression))
    assert again == expression
    assert str(again) == str(expression)
    named = (pair.partition("=") for pair in pairs)
    event = {name: int(value) if value.isdecimal() and len(value) < 12 else value for name, _, value in named}
    fast, complete = expression.evaluate(event), expression.evaluate(event, fail_fast=False)
    assert type(fast.value) in (str, int, bool)
    assert fast.errors == complete.errors[:1]
    assert fast.errors or fast.value == complete.value
    assert expression.matches(event) == (fast.value is True and not fast.errors)
    return type(fast.value).__name__, *dict.fromkeys(error.kind for error in complete.errors)


def _seeds() -> Iterable[bytes]:
    for case in load_cases():
        if case.op == "cesql.evaluate":
            text = spelled(case.input["expression"])
            given = case.input.get("attributes", {}).items()
            yield "\0".join([text, "id=1", *(f"{name}={tagged['value']}" for name, tagged in given)]).encode()


TARGETS = [
    Target(
        "cesql",
        "A text is an expression or a ParseError; an evaluation has a value, and both modes agree on what passes.",
        one_by_one(evaluate),
        lambda: list(_seeds()),
    )
]
