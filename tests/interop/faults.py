"""Faults of an answer that failed a conformance case, as short facts that do not differ between runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any, Final

from ce_nats.conformance import Case, Verdict
from ce_nats.conformance._cases import octets

_LONGEST: Final = 60  # maximum length of a value in a fact, in characters


class Kind(Enum):
    """Kind of a fault."""

    NO_ANSWER = "no answer"
    ACCEPTED = "accepted"  # invalid input
    REJECTED = "rejected"  # valid input
    MISSING = "missing"
    ADDED = "added"
    CHANGED = "changed"


@dataclass(frozen=True)
class Fault:
    """
    One fault of an answer.

    Attributes:
        kind: Its kind.
        where: Name of an attribute, a header, a member of the JSON or a field of the result; for ACCEPTED the code of
            the expected error.
        expected: Short form of the expected value; ``""`` if none is expected.
        got: Short form of the value; for REJECTED the text of the error, which is not shown.
    """

    kind: Kind
    where: str = ""
    expected: str = ""
    got: str = ""

    def __str__(self) -> str:
        match self.kind:
            case Kind.NO_ANSWER:
                return "no answer to compare"
            case Kind.ACCEPTED:
                return f"expected error {self.where}, got a result"
            case Kind.REJECTED:
                return "expected a result, got an error"
            case Kind.MISSING:
                return f"{self.where}: expected {self.expected}, got nothing"
            case Kind.ADDED:
                # The added value may differ between runs.
                return f"{self.where}: expected nothing, got a value"
            case _:
                return f"{self.where}: expected {self.expected}, got {self.got}"


def faults(verdict: Verdict) -> list[Fault]:
    """Return all faults of the answer of a failed case, in a stable order."""
    case, got = verdict.case, verdict.got
    if not got:
        return [Fault(Kind.NO_ANSWER)]
    if "error" in got:
        return [Fault(Kind.REJECTED, got=str(got["error"]))]
    expected = [outcome["expected"] for outcome in case.outcomes if "expected" in outcome]
    if not expected:
        return [Fault(Kind.ACCEPTED, case.outcomes[0]["error"])]
    # Of several accepted results, the one with the fewest differences.
    return min((list(_differences(case, one, got["result"])) for one in expected), key=len)


def _differences(case: Case, expected: Mapping[str, Any], result: Mapping[str, Any]) -> Iterator[Fault]:
    for field in dict.fromkeys([*expected, *result]):
        want, got = expected.get(field), result.get(field)
        if field == "attributes":
            yield from _compared(_attributes(want), _attributes(got))
        elif field == "headers" and isinstance(got, list):
            yield from _compared(_headers(want), _headers(got))
        elif field == "json" and isinstance(got, dict):
            yield from _compared(_shown_values(want), _shown_values(got))
        else:
            yield from _compared({field: _value(case, field, want)}, {field: _value(case, field, got)})


def _compared(expected: Mapping[str, str], got: Mapping[str, str]) -> Iterator[Fault]:
    for name in sorted({*expected, *got}):
        if name not in got:
            yield Fault(Kind.MISSING, name, expected=expected[name])
        elif name not in expected:
            yield Fault(Kind.ADDED, name, got=got[name])
        elif expected[name] != got[name]:
            yield Fault(Kind.CHANGED, name, expected[name], got[name])


def _attributes(attributes: Any) -> dict[str, str]:
    return {name: f"{_type(tagged['type'])}{_shown(tagged['value'])}" for name, tagged in attributes.items()}


def _type(name: str) -> str:
    """Return the name of a type with a space, or ``""`` for types that most attributes have."""
    return f"{name} " if name in ("Boolean", "Integer", "Binary", "Timestamp") else ""


def _headers(headers: Any) -> dict[str, str]:
    """Return values by lower-case name; parameters of the structured Content-Type are not compared."""
    return {f"header {name.lower()}": _shown(_header(name, value)) for name, value in headers}


def _header(name: str, value: str) -> str:
    is_structured = name.lower() == "content-type" and value.lower().startswith("application/cloudevents+json")
    return "application/cloudevents+json" if is_structured else value


def _shown_values(members: Any) -> dict[str, str]:
    return {name: _shown(value) for name, value in members.items()}


def _value(case: Case, field: str, value: Any) -> str:
    if field == "data" and isinstance(value, dict):
        return _data(case, value)
    return _shown(value)


def _data(case: Case, data: Mapping[str, Any]) -> str:
    if data.get("absent"):
        return "no data"
    if "not_delivered" in data:
        return "data that was not delivered"
    if "json" in data:
        return f"JSON {_shown(data['json'])}"
    if "text" in data and case.op == "from_nats_message":
        return f"text {_shown(data['text'])}"
    return f"bytes {_shown(octets(data).decode('utf-8', 'backslashreplace'))}"


def _shown(value: Any) -> str:
    if isinstance(value, str) and _is_now(value):
        return "the current time"
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    if not text.isprintable():
        text = json.dumps(value, sort_keys=True)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def _is_now(text: str) -> bool:
    """Return whether a text is a time of today, which no case has, so that the SDK generated it."""
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return False
    return time.tzinfo is not None and abs(datetime.now(timezone.utc) - time) < timedelta(days=1)
