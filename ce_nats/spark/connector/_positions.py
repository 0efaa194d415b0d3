"""
Start and end positions of the options: offsets and timestamps, for all streams or for each.

They are parsed and checked here; _planning.py resolves them to sequences of a stream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from ...codec.timestamp import Timestamp
from ...errors import CeNatsError, preview

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
# Of sequences and counts.
LARGEST: Final = 2**63 - 1
NUMBER: Final = re.compile(r"[0-9]{1,19}")

_LAST_MILLISECOND: Final = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z
# Seconds from 2001 to 2286, which would be days of January to April 1970 in milliseconds.
_SECONDS: Final = range(10**9, 10**10)


@dataclass(frozen=True, slots=True)
class Instant:
    """A position by time, RFC 3339: the first message stored at this time or later."""

    text: str

    @property
    def at(self) -> Timestamp:
        return Timestamp.parse(self.text)


# "earliest", "latest", a sequence, or an instant.
Position = str | int | Instant


@dataclass(frozen=True, slots=True)
class Positions:
    """
    Positions in streams.

    Attributes:
        option: Name of the option that they are from.
        common: Position in all streams; None if each stream has one.
        by_stream: Position in each stream; empty if there is a common one.
    """

    option: str
    common: Position | None = None
    by_stream: Mapping[str, Position] = field(default_factory=dict)

    @property
    def all(self) -> list[Position]:
        return [*self.by_stream.values()] if self.common is None else [self.common]

    def of(self, streams: Iterable[str]) -> dict[str, Position]:
        """
        Return the position in each of the streams.

        Raises:
            ValueError: The option has positions by stream, but not for exactly these streams.
        """
        names = sorted(streams)
        if self.common is not None:
            return dict.fromkeys(names, self.common)
        if sorted(self.by_stream) != names:
            raise ValueError(
                f"option {self.option} must have positions for {preview(names, 500)}, "
                f"got {preview(sorted(self.by_stream), 500)}"
            )
        return {name: self.by_stream[name] for name in names}


def read_positions(given: Mapping[str, str], which: str, default: str) -> Positions:
    """
    Read the options ``startingOffsets`` and ``startingTimestamp``, or those for the end.

    Raises:
        ValueError: An option is malformed, or both are given.
    """
    offsets, timestamp = f"{which}Offsets", f"{which}Timestamp"
    if timestamp.lower() not in given:
        return _read(offsets, given.get(offsets.lower(), default), _offset)
    if offsets.lower() in given:
        raise ValueError(f"{offsets} and {timestamp} exclude each other: use one of them")
    return _read(timestamp, given[timestamp.lower()], _instant)


def _read(option: str, text: str, position: Callable[[str, object], Position]) -> Positions:
    if not text.startswith("{"):
        return Positions(option, position(option, text))
    try:
        by_stream = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"option {option} must be JSON, got {preview(text)}: {error}") from error
    return Positions(option, by_stream={name: position(option, value) for name, value in by_stream.items()})


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is duplicated")
    return found


def _offset(option: str, value: object) -> Position:
    if isinstance(value, str) and value.lower() in (EARLIEST, LATEST):
        return value.lower()
    text = _text(value)
    if not NUMBER.fullmatch(text) or int(text) > LARGEST:
        raise ValueError(
            f'option {option} must be earliest, latest, a sequence or JSON such as {{"NAME": 1}}, got {preview(value)}'
        )
    return int(text)


def _instant(option: str, value: object) -> Instant:
    text = _text(value)
    if NUMBER.fullmatch(text) and int(text) <= _LAST_MILLISECOND:
        return _instant_of_milliseconds(option, int(text))
    try:
        Timestamp.parse(text)
    except CeNatsError as error:
        raise ValueError(
            f"option {option} must be an RFC 3339 date-time such as 2026-01-31T23:59:59Z, milliseconds since 1970, or "
            f'JSON such as {{"NAME": 1767225600000}}, got {preview(value)}'
        ) from error
    return Instant(text)


def _instant_of_milliseconds(option: str, milliseconds: int) -> Instant:
    at = datetime(1970, 1, 1) + timedelta(milliseconds=milliseconds)
    text = at.isoformat(timespec="milliseconds") + "Z"
    if milliseconds in _SECONDS:
        raise ValueError(f"option {option} must be in milliseconds since 1970, got {milliseconds}, which is {text}")
    return Instant(text)


def _text(value: object) -> str:
    """Return a value of JSON as text; ``""`` if it is neither text nor an integer."""
    return str(value) if type(value) in (int, str) else ""
