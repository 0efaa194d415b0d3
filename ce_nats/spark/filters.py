"""
Conditions of a query that the source can use: those on stream, subject, sequence and timestamp.

Spark hands over conditions that all have to hold. What the server applies exactly is taken; what only helps to read
less is used and given back, so that Spark applies it too; everything else is given back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from ..errors import EncodeError
from ..subjects import check_pattern, covers, disjoint, is_literal, overlap

__all__ = ["Narrowed", "narrow"]

_COLUMNS: Final = ("subject", "reply", "headers", "data", "stream", "sequence", "timestamp")
# A consumer takes many subjects, but each one costs it time.
_MOST_SUBJECTS: Final = 100
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND: Final = timedelta(microseconds=1)
# A server's clock may be set back, and then times do not quite ascend; a search by time would miss what lies between.
_CLOCK_NANOSECONDS: Final = 60 * 1_000_000_000

_EQUAL: Final = ("EqualTo", "EqualNullSafe")


@dataclass(frozen=True, slots=True)
class Narrowed:
    """
    What is left of a selection.

    Attributes:
        streams: Only these; None for all.
        subjects: Patterns that do not overlap; without any, all subjects. None: no subject at all.
        first: First sequence, inclusive.
        last: Last sequence, inclusive, or None.
        since: Nothing before is wanted, in nanoseconds since 1970; or None.
        until: Nothing at or after is wanted; or None.
    """

    streams: frozenset[str] | None = None
    subjects: tuple[str, ...] | None = ()
    first: int = 0
    last: int | None = None
    since: int | None = None
    until: int | None = None


def narrow(filters: Iterable[Any], subjects: tuple[str, ...]) -> tuple[Narrowed, list[Any]]:
    """
    Use conditions.

    Args:
        filters: Of ``pyspark.sql.datasource``; all have to hold.
        subjects: Patterns that the options choose.

    Returns:
        What is left, and the conditions that Spark still has to apply.
    """
    left = Narrowed(subjects=subjects)
    remaining = []
    for condition in filters:
        left, is_exact = _apply(left, condition)
        if not is_exact:
            remaining.append(condition)
    return left, remaining


def _apply(left: Narrowed, condition: Any) -> tuple[Narrowed, bool]:
    """What a condition leaves, and whether that is all it says."""
    kind = type(condition).__name__
    path: tuple[str, ...] = getattr(condition, "attribute", ())
    if len(path) != 1 or path[0] not in _COLUMNS:
        return left, False
    if kind == "IsNotNull":
        return left, True  # no column is ever NULL
    value = getattr(condition, "value", None)
    if path[0] == "stream":
        return _by_stream(left, kind, value)
    if path[0] == "subject":
        return _by_subject(left, kind, value)
    if path[0] == "sequence":
        return _by_sequence(left, kind, value)
    if path[0] == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        return _by_time(left, kind, value), False
    return left, False


def _by_stream(left: Narrowed, kind: str, value: Any) -> tuple[Narrowed, bool]:
    names = _strings(kind, value)
    if names is None:
        return left, False
    chosen = frozenset(names)
    return replace(left, streams=chosen if left.streams is None else left.streams & chosen), True


def _by_subject(left: Narrowed, kind: str, value: Any) -> tuple[Narrowed, bool]:
    if kind == "StringStartsWith" and isinstance(value, str) and "." in value:
        patterns = [value[: value.rindex(".")] + ".>"]
        is_exact = False
    else:
        patterns = list(_strings(kind, value) or ())
        is_exact = True
        if not patterns or not all(map(is_literal, patterns)):
            return left, False
    # A "%" may stand for a byte that is no UTF-8, and then it is not in the subject that the server knows.
    if len(patterns) > _MOST_SUBJECTS or any("%" in pattern or not _is_pattern(pattern) for pattern in patterns):
        return left, False
    return _with_subjects(left, patterns, is_exact)


def _with_subjects(left: Narrowed, patterns: Sequence[str], is_exact: bool) -> tuple[Narrowed, bool]:
    if left.subjects is None:
        return left, True
    if not left.subjects:
        return replace(left, subjects=disjoint(patterns)), is_exact
    both = []
    for known in left.subjects:
        for pattern in patterns:
            if covers(known, pattern):
                both.append(pattern)
            elif covers(pattern, known):
                both.append(known)
            elif overlap(known, pattern):
                return left, False  # no one pattern says what both do
    return replace(left, subjects=disjoint(both) if both else None), is_exact


def _by_sequence(left: Narrowed, kind: str, value: Any) -> tuple[Narrowed, bool]:
    if kind == "In" and value and all(type(one) is int for one in value):
        return _between(left, min(value), max(value)), False
    if type(value) is not int:
        return left, False
    if kind in _EQUAL:
        return _between(left, value, value), True
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        return _between(left, value + (kind == "GreaterThan"), None), True
    if kind in ("LessThan", "LessThanOrEqual"):
        return _between(left, 0, value - (kind == "LessThan")), True
    return left, False


def _between(left: Narrowed, first: int, last: int | None) -> Narrowed:
    if last is not None and left.last is not None:
        last = min(last, left.last)
    return replace(left, first=max(left.first, first), last=left.last if last is None else last)


def _by_time(left: Narrowed, kind: str, value: datetime) -> Narrowed:
    at = (value - _EPOCH) // _MICROSECOND * 1000
    since, until = left.since, left.until
    if kind in (*_EQUAL, "GreaterThan", "GreaterThanOrEqual"):
        earliest = at - _CLOCK_NANOSECONDS
        since = earliest if since is None else max(since, earliest)
    if kind in (*_EQUAL, "LessThan", "LessThanOrEqual"):
        # A column has microseconds: 0.0000009 s is 0 s in it.
        latest = at + 1000 + _CLOCK_NANOSECONDS
        until = latest if until is None else min(until, latest)
    return replace(left, since=since, until=until)


def _strings(kind: str, value: Any) -> list[str] | None:
    """The values that a condition of equality allows; None where it is another one."""
    values = [value] if kind in _EQUAL else list(value) if kind == "In" else []
    strings = [one for one in values if isinstance(one, str)]
    return strings if values and len(strings) == len(values) else None


def _is_pattern(text: str) -> bool:
    try:
        check_pattern(text)
    except EncodeError:
        return False
    return True
