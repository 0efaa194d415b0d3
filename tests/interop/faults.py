"""What is wrong with an answer that failed a conformance case, as short facts that are the same in every run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any, Final

from ce_nats.conformance import Case, Verdict
from ce_nats.conformance._cases import octets

_LONGEST: Final = 60  # characters of a value that are shown


class Kind(Enum):
    """How an answer is wrong."""

    NO_ANSWER = "no answer"
    TAKEN = "taken"  # what had to be refused
    REFUSED = "refused"  # what is right
    MISSING = "missing"
    MADE_UP = "made up"
    CHANGED = "changed"


@dataclass(frozen=True)
class Fault:
    """
    One thing that is wrong with an answer.

    Attributes:
        kind: How.
        where: Name of an attribute, a header, a member of the JSON or a field of the result; of TAKEN the code of the
            error that was wanted.
        wanted: The value, in short; ``""`` where there was to be none.
        got: The value, in short; of REFUSED the error's text, which is not shown.
    """

    kind: Kind
    where: str = ""
    wanted: str = ""
    got: str = ""

    def __str__(self) -> str:
        match self.kind:
            case Kind.NO_ANSWER:
                return "no answer to compare"
            case Kind.TAKEN:
                return f"wanted the error {self.where}, came a result"
            case Kind.REFUSED:
                return "wanted a result, came an error"
            case Kind.MISSING:
                return f"{self.where}: wanted {self.wanted}, came none"
            case Kind.MADE_UP:
                # What is made up differs from run to run.
                return f"{self.where}: wanted none, came one"
            case _:
                return f"{self.where}: wanted {self.wanted}, came {self.got}"


def faults(verdict: Verdict) -> list[Fault]:
    """All that is wrong with the answer of a failed case, in one order."""
    case, got = verdict.case, verdict.got
    if not got:
        return [Fault(Kind.NO_ANSWER)]
    if "error" in got:
        return [Fault(Kind.REFUSED, got=str(got["error"]))]
    expected = [outcome["expected"] for outcome in case.outcomes if "expected" in outcome]
    if not expected:
        return [Fault(Kind.TAKEN, case.outcomes[0]["error"])]
    # Of several that would pass, the nearest.
    return min((list(_differences(case, one, got["result"])) for one in expected), key=len)


def _differences(case: Case, expected: Mapping[str, Any], result: Mapping[str, Any]) -> Iterator[Fault]:
    for field in dict.fromkeys([*expected, *result]):
        wanted, came = expected.get(field), result.get(field)
        if field == "attributes":
            yield from _compared(_attributes(wanted), _attributes(came))
        elif field == "headers" and isinstance(came, list):
            yield from _compared(_headers(wanted), _headers(came))
        elif field == "json" and isinstance(came, dict):
            yield from _compared(_shown_values(wanted), _shown_values(came))
        else:
            yield from _compared({field: _value(case, field, wanted)}, {field: _value(case, field, came)})


def _compared(wanted: Mapping[str, str], came: Mapping[str, str]) -> Iterator[Fault]:
    for name in sorted({*wanted, *came}):
        if name not in came:
            yield Fault(Kind.MISSING, name, wanted=wanted[name])
        elif name not in wanted:
            yield Fault(Kind.MADE_UP, name, got=came[name])
        elif wanted[name] != came[name]:
            yield Fault(Kind.CHANGED, name, wanted[name], came[name])


def _attributes(attributes: Any) -> dict[str, str]:
    return {name: f"{_type(tagged['type'])}{_shown(tagged['value'])}" for name, tagged in attributes.items()}


def _type(name: str) -> str:
    """Types of extensions are shown where they are not that of most."""
    return f"{name} " if name in ("Boolean", "Integer", "Binary", "Timestamp") else ""


def _headers(headers: Any) -> dict[str, str]:
    """By lower-case name; the spelling of the one that is always there is not compared."""
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
    """No vector has a time of these days, so that it was made up."""
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return False
    return time.tzinfo is not None and abs(datetime.now(timezone.utc) - time) < timedelta(days=1)
