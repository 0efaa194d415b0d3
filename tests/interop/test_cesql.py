"""
The engines of CESQL in Go and Java, on random expressions and events: each difference has a known reason.

A reason cites the sentence of the specification that ce_nats follows; docs/interop.md lists the reasons.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import pytest

from ce_nats import cesql
from tests.interop.peers import go_peer, java_peer
from tests.support.caching import available
from tests.support.expressions import ALL, ASCII, random_event, random_text

pytestmark = pytest.mark.long

CASES = 20_000


class Case(NamedTuple):
    """An expression, an event, and the results of ce_nats and of another engine."""

    text: str
    event: dict[str, Any]
    ours: cesql.Result
    theirs: dict[str, Any]

    @property
    def is_same(self) -> bool:
        """Whether both have an error, or both the same value."""
        if "value" not in self.theirs:
            return False
        value, errors = self.ours
        if errors or "error" in self.theirs:
            return bool(errors) and "error" in self.theirs
        return value == self.theirs["value"] and type(value) is type(self.theirs["value"])

    @property
    def kinds(self) -> set[str]:
        """Errors of ce_nats in all parts."""
        return {error.kind for error in cesql.compile(self.text).evaluate(self.event, fail_fast=False).errors}

    @property
    def is_ascii(self) -> bool:
        return (self.text + json.dumps(self.event, ensure_ascii=False)).isascii()


Reasons = dict[str, Callable[[Case], bool]]

GO: Reasons = {
    "SUBSTRING with a negative length (3.5.1: an error)": lambda case: (
        "SUBSTRING" in case.text and "function-evaluation" in case.kinds
    ),
    "LENGTH, LIKE, LEFT and RIGHT count bytes (3.5.1: characters)": lambda case: not case.is_ascii,
    "a text that begins with % (3.4.3: % is any number of characters)": lambda case: "LIKE" in case.text,
}
JAVA: Reasons = {
    "OR drops the errors of its left operand (3.4.2)": lambda case: " OR " in case.text and bool(case.kinds),
    "a missing attribute is false (3.2: the zero value of the type)": lambda case: "missing-attribute" in case.kinds,
    "IS_INT of a Boolean (not in the text; in Go as here)": lambda case: "IS_INT" in case.text,
    "characters beyond the BMP, line breaks in LIKE, TRIM (3.4.3, 3.5.1)": lambda case: (
        not case.is_ascii or "\n" in case.text or "\\" in case.text
    ),
    "SUBSTRING with a length beyond the string (3.5.1: the maximum substring)": lambda case: (
        "214748364" in case.text and "SUBSTRING" in case.text
    ),
}


def results(command: list[str], characters: str, seed: int) -> list[Case]:
    """Return random cases, and the results of an engine."""
    random = Random(seed)
    asked: list[tuple[str, dict[str, Any], cesql.Result]] = []
    while len(asked) < CASES:
        text, event = random_text(random, characters), random_event(random, characters)
        try:
            asked.append((text, event, cesql.compile(text).evaluate(event)))
        except cesql.ParseError:
            continue
    lines = "".join(json.dumps({"expression": text, "event": event}) + "\n" for text, event, _ in asked)
    done = subprocess.run(command, input=lines.encode(), capture_output=True, check=True)
    answers = done.stdout.decode().splitlines()
    return [Case(*one, json.loads(answer)) for one, answer in zip(asked, answers, strict=True)]


@pytest.mark.parametrize(("peer", "reasons"), [("go", GO), ("java", JAVA)])
@pytest.mark.parametrize("characters", [ASCII, ALL], ids=["ascii", "all"])
def test_differences_are_known(peer: str, reasons: Reasons, characters: str) -> None:
    command = available(java_peer if peer == "java" else lambda: go_peer("cesql"), f"engine in {peer}")
    cases = results(command, characters, seed=len(characters))
    different = [case for case in cases if not case.is_same]
    unexplained = [case for case in different if not any(explains(case) for explains in reasons.values())]
    assert unexplained == []
    found = Counter(next(name for name, explains in reasons.items() if explains(case)) for case in different)
    print(f"{peer}: {len(different)} of {CASES} differ: {dict(found)}")
    assert len(different) < CASES * (0.05 if peer == "java" else 0.01)
    assert sum(bool(case.ours.errors) for case in cases) > CASES * 0.2
    assert sum(case.ours.value is True for case in cases) > CASES * 0.1


@pytest.mark.parametrize(
    ("text", "value", "others"),
    [
        ("TRUE OR FALSE AND FALSE", True, {"go": True, "java": True}),
        ("FALSE AND FALSE OR TRUE", False, {"go": False, "java": False}),
        ("NOT 10", False, {"go": False, "java": False}),
        ("2147483647 + 1", -2147483648, {"go": -2147483648, "java": -2147483648}),
        ("'it''s'", None, {"go": "it''s", "java": "it''s"}),
        ("3-1", 2, {"go": None, "java": None}),
        ("id = '1' #", None, {"go": True, "java": True}),
        ("LENGTH(tier)", 0, {"go": 0, "java": 5}),
        ("SUBSTRING('abc', 2, 2147483647)", "bc", {"go": "bc", "java": ""}),
        ("TRIM('\u2003a')", "a", {"go": "a", "java": "\u2003a"}),
        ("LENGTH('\u00e9')", 1, {"go": 2, "java": 1}),
        ("'%abc' LIKE '%'", True, {"go": False, "java": True}),
        ("LENGTH('\U0001f600')", 1, {"go": 4, "java": 2}),
        ("IS_INT(TRUE)", True, {"go": True, "java": False}),
    ],
)
@pytest.mark.parametrize("peer", ["go", "java"])
def test_documented_differences(peer: str, text: str, value: object, others: dict[str, object]) -> None:
    """As in docs/interop.md; None is a parse error."""
    try:
        ours = cesql.compile(text).evaluate({"id": "1"}).value
    except cesql.ParseError:
        ours = None  # type: ignore[assignment]
    assert ours == value
    command = available(java_peer if peer == "java" else lambda: go_peer("cesql"), f"engine in {peer}")
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
    line = json.dumps({"expression": text, "event": event}) + "\n"
    done = subprocess.run(command, input=line.encode(), capture_output=True, check=True)
    assert json.loads(done.stdout).get("value") == others[peer]
