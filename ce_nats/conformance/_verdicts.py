"""
Compare the answer of an implementation with the expected outcomes of a vector.

The rules are those of spec-fixtures/README.md, "What counts as equal": JSON by value and type, ``ce-`` headers in any
order, all other headers in wire order, timestamps by their text. Other implementations may write the Content-Type of
structured mode in any equivalent spelling.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter
from typing import Any, Final

from ._adapter import answer
from ._cases import Answer, Case, octets, text

# Both modes encode these types as strings, and a receiver cannot distinguish them.
_STRING_TYPES: Final = frozenset({"String", "URI", "URI-reference"})

# Content-Type of structured mode as ce_nats writes it, and the decision about its spelling. Other implementations need
# the same spelling only in cases with this decision.
_CONTENT_TYPE: Final = ("Content-Type", "application/cloudevents+json")
_CONTENT_TYPE_DECISION: Final = "A-34"

# Operations whose ``data`` is the data of an event; in all others it is bytes.
_DECODING: Final = frozenset({"from_nats_message", "formats.protobuf.decode", "wire.iggy.from_iggy_message"})


class Result(str, Enum):
    """Result of a case."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Verdict:
    """
    The result of a case for an implementation.

    Attributes:
        case: The vector.
        result: Passed, failed or skipped.
        got: Answer, or ``{}`` without a valid answer.
        problem: Reason, in one line, why the case was skipped or has no answer to compare; else ``""``.
    """

    case: Case
    result: Result
    got: Answer
    problem: str = ""


def run_case(case: Case) -> Verdict:
    """Run a case on ce_nats. The error code must match; an exception other than CeNatsError is a failure."""
    try:
        return judge(case, answer(case.op, case.input), compare_codes=True)
    except Exception as error:
        return Verdict(case, Result.FAILED, {}, f"crashed: {type(error).__name__}: {error}")


def judge(case: Case, got: object, *, compare_codes: bool) -> Verdict:
    """
    Judge an answer.

    Args:
        case: The vector.
        got: ``{"result": ...}``, ``{"error": "any text"}`` or ``{"skipped": "reason"}``; anything else is a failure.
        compare_codes: Whether an error must have the code of the vector. The codes are those of ce_nats; for another
            implementation, any error passes.
    """
    if not isinstance(got, dict) or len(got.keys() & {"result", "error", "skipped"}) != 1:
        return Verdict(case, Result.FAILED, {}, "the answer must be an object with one of result, error and skipped")
    if "skipped" in got:
        return Verdict(case, Result.SKIPPED, got, str(got["skipped"]))
    if not compare_codes and _CONTENT_TYPE_DECISION not in case.requirements:
        got = _with_normal_content_type(case, got)
    problem = ""
    for outcome in case.outcomes:
        if "error" in got and "error" in outcome:
            if not compare_codes or got["error"] == outcome["error"]:
                return Verdict(case, Result.PASSED, got)
        elif "result" in got and "expected" in outcome:
            try:
                if matches(case.op, outcome["expected"], got["result"]):
                    return Verdict(case, Result.PASSED, got)
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                problem = f"the result must have the form of {case.op}: {error!r}"
    return Verdict(case, Result.FAILED, got, problem)


def _with_normal_content_type(case: Case, got: dict[str, Any]) -> dict[str, Any]:
    """Return the answer with the Content-Type of structured mode in the spelling of ce_nats, if it is equivalent."""
    result = got.get("result")
    if case.op != "to_nats_message" or not isinstance(result, dict) or "json" not in result:
        return got
    headers = result.get("headers")
    if not isinstance(headers, list):
        return got
    return {**got, "result": {**result, "headers": [_normal_content_type(header) for header in headers]}}


def _normal_content_type(header: Any) -> Any:
    match header:
        case [str(name), str(value)] if name.lower() == "content-type":
            media_type = value.partition(";")[0].strip().lower()
            return list(_CONTENT_TYPE) if media_type == _CONTENT_TYPE[1] else header
    return header


def matches(op: str, expected: Any, result: Any) -> bool:
    """
    Return whether a result equals the expected one.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: One of them does not have the form of the operation.
    """
    return _equal(_normal(op, expected), _normal(op, result))


def _equal(one: Any, other: Any) -> bool:
    """Return whether JSON values are equal in value and type: 1, 1.0 and true are different."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return type(one) is type(other) and bool(one == other)


def _normal(op: str, result: Any) -> dict[str, Any]:
    return {field: _normal_field(op, field, value) for field, value in result.items()}


def _normal_field(op: str, field: str, value: Any) -> Any:
    if op in _DECODING and field == "data":
        return _normal_data(value)
    normalise = _NORMALISERS.get(field)
    return value if normalise is None or value is None else normalise(value)


def _normal_data(data: Any) -> list[Any]:
    """Return ``[kind, value]``, so that text, bytes and JSON are never equal."""
    if data.get("absent") is True:
        return ["absent"]
    if "not_delivered" in data:
        return ["not_delivered", data["not_delivered"]]
    if "json" in data:
        return ["json", data["json"]]
    if "text" in data:
        return ["text", text(data["text"])]
    return ["bytes", _normal_bytes(data)]


def _normal_bytes(data: Any) -> str:
    return b64encode(octets(data)).decode("ascii")


def _normal_attributes(attributes: Any) -> dict[str, Any]:
    return {
        name: ["String" if tagged["type"] in _STRING_TYPES else tagged["type"], text(tagged["value"])]
        for name, tagged in attributes.items()
    }


def _normal_headers(headers: Any) -> list[Any]:
    """Move ``ce-`` headers to the front, sorted by name: only the order of values of the same name matters."""
    pairs = [[text(name), text(value)] for name, value in headers]
    attributes = sorted((pair for pair in pairs if pair[0].lower().startswith("ce-")), key=itemgetter(0))
    return [attributes, [pair for pair in pairs if not pair[0].lower().startswith("ce-")]]


def _normal_frames(frames: Any) -> list[Any]:
    return [{key: value for key, value in _normal("", frame).items() if value is not None} for frame in frames]


def _normal_entries(entries: Any) -> list[Any]:
    """Sort the entries: Iggy headers are an unordered map."""
    return sorted([_normal_key(key), _normal_header(value)] for key, value in entries)


def _normal_key(key: Any) -> list[str]:
    return _normal_header(key) if isinstance(key, dict) and "kind" in key else ["string", text(key)]


def _normal_header(value: Any) -> list[str]:
    return [value["kind"], _normal_bytes(value["value"])]


def _normal_message(message: Any) -> dict[str, Any]:
    return _normal("", {key: value for key, value in message.items() if value is not None})


def _normal_fields(fields: Any) -> dict[str, Any]:
    """Normalise the fields of a NATS Streaming message: text and numbers are strings, bytes have spellings."""
    return {name: _normal_bytes(value) if isinstance(value, dict) else value for name, value in fields.items()}


_NORMALISERS: Final[dict[str, Callable[[Any], Any]]] = {
    "attributes": _normal_attributes,
    "block": _normal_bytes,
    "bytes": _normal_bytes,
    "data": _normal_bytes,
    "entries": _normal_entries,
    "fields": _normal_fields,
    "frame": _normal_bytes,
    "frames": _normal_frames,
    "headers": _normal_headers,
    "message": _normal_message,
    "messages": lambda messages: [_normal_message(message) for message in messages],
    "payload": _normal_bytes,
    "text": text,
    "value": text,
    "values": lambda values: [text(value) for value in values],
}
