"""
Read options of the data source: streams, subjects, start and end positions, partitions.

Options are parsed and checked here; _planning.py resolves the positions to sequences of a stream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ...codec.timestamp import Timestamp
from ...errors import CeNatsError, preview
from ...subjects import disjoint
from ._connection import read_boolean

READ_OPTIONS: Final = (
    "stream",
    "subjects",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "minPartitions",
    "maxMessagesPerTrigger",
    "failOnDataLoss",
)
EARLIEST: Final = "earliest"
LATEST: Final = "latest"

# "A stream name cannot contain whitespace, ., *, >, path separators, and non-printable characters."
_STREAM_NAME: Final = re.compile(r"[^\x00-\x20\x7f.*>/\\,]+")
_NUMBER: Final = re.compile(r"[0-9]{1,19}")
_LARGEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Instant:
    """A position by time: the first message stored at this time or later."""

    text: str

    @property
    def at(self) -> Timestamp:
        return Timestamp.parse(self.text)


# "earliest", "latest", a sequence, or an instant.
Position = str | int | Instant


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """
    Parsed read options.

    Attributes:
        starting: Start position by stream, ordered by stream name: ``earliest``, ``latest`` (after the last message
            stored so far), a first sequence, or an instant.
        ending: End position by stream: ``latest``, a last sequence (inclusive), or an instant (exclusive).
        subjects: Subject patterns that do not overlap; empty for all subjects.
        min_partitions: Minimum number of partitions, or None for the default.
        max_per_trigger: Maximum number of messages in a micro-batch, or None for no limit.
        fail_on_data_loss: True to raise an error if messages were removed before they were read.
    """

    starting: Mapping[str, Position]
    ending: Mapping[str, Position]
    subjects: tuple[str, ...] = ()
    min_partitions: int | None = None
    max_per_trigger: int | None = None
    fail_on_data_loss: bool = True

    @property
    def streams(self) -> list[str]:
        return list(self.starting)

    @classmethod
    def from_options(cls, options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
        """
        Read the options of a data source.

        Args:
            options: Options by name, in any case; other options are ignored.
            streaming: True for a streaming query, False for a table.

        Raises:
            ValueError: An option is missing or malformed, or two options exclude each other.
        """
        given = {name.lower(): value.strip() for name, value in options.items() if value.strip()}
        streams = _read_streams(given)
        starting = _read_position(given, "starting", LATEST if streaming else EARLIEST, streams)
        if not streaming and LATEST in starting.values():
            raise ValueError("startingOffsets must not be latest for a table: it would have no messages")
        if streaming and ("endingoffsets" in given or "endingtimestamp" in given):
            raise ValueError("endingOffsets and endingTimestamp must be used with tables, got a streaming query")
        ending = _read_position(given, "ending", LATEST, streams)
        if EARLIEST in ending.values():
            raise ValueError("endingOffsets must not be earliest: the table would have no messages")
        return cls(
            starting=starting,
            ending=ending,
            subjects=_read_subjects(given),
            min_partitions=_read_count(given, "minPartitions"),
            max_per_trigger=_read_count(given, "maxMessagesPerTrigger"),
            fail_on_data_loss=read_boolean(given, "failOnDataLoss", default=True),
        )


def _read_streams(given: Mapping[str, str]) -> list[str]:
    names = [name.strip() for name in given.get("stream", "").split(",")]
    if names == [""]:
        raise ValueError("option stream is missing: it must be a stream name, or several separated by commas")
    for name in names:
        if not _STREAM_NAME.fullmatch(name):
            raise ValueError(f"option stream must be stream names separated by commas, got {preview(name)}")
    # Sorted, because Spark compares offsets as text: the order of the names in the option must not matter.
    return sorted(set(names))


def _read_subjects(given: Mapping[str, str]) -> tuple[str, ...]:
    patterns = [pattern.strip() for pattern in given["subjects"].split(",")] if "subjects" in given else []
    try:
        chosen = disjoint(patterns)
    except CeNatsError as error:
        raise ValueError(f"option subjects: {error.message}") from error
    return () if chosen == (">",) else chosen


def _read_position(given: Mapping[str, str], which: str, default: str, streams: list[str]) -> dict[str, Position]:
    offsets, instant = f"{which}Offsets", f"{which}Timestamp"
    if offsets.lower() in given and instant.lower() in given:
        raise ValueError(f"{offsets} and {instant} exclude each other: use one of them")
    if instant.lower() in given:
        text = given[instant.lower()]
        try:
            Timestamp.parse(text)
        except CeNatsError as error:
            raise ValueError(f"option {instant}: {error.message}") from error
        return dict.fromkeys(streams, Instant(text))
    text = given.get(offsets.lower(), default)
    if text.startswith("{"):
        return _read_positions_by_stream(offsets, text, streams)
    position = _position(offsets, text)
    if isinstance(position, int) and len(streams) > 1:
        raise ValueError(f'option {offsets} must be JSON such as {{"NAME": 1}} with all streams, got {preview(text)}')
    return dict.fromkeys(streams, position)


def _read_positions_by_stream(option: str, text: str, streams: list[str]) -> dict[str, Position]:
    try:
        by_stream = json.loads(text)
    except ValueError as error:
        raise ValueError(f"option {option} must be JSON, got {preview(text)}: {error}") from error
    if sorted(by_stream) != streams:
        raise ValueError(f"option {option} must have positions for {streams}, got {sorted(by_stream)}")
    return {stream: _position(option, by_stream[stream]) for stream in streams}


def _position(option: str, value: object) -> Position:
    if isinstance(value, str) and value.lower() in (EARLIEST, LATEST):
        return value.lower()
    text = str(value) if type(value) in (int, str) else ""
    if not _NUMBER.fullmatch(text) or int(text) > _LARGEST:
        raise ValueError(
            f'option {option} must be earliest, latest, a sequence or JSON such as {{"NAME": 1}}, got {preview(value)}'
        )
    return int(text)


def _read_count(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option.lower())
    if text is None:
        return None
    if not _NUMBER.fullmatch(text) or not 0 < int(text) <= _LARGEST:
        raise ValueError(f"option {option} must be an integer from 1, got {preview(text)}")
    return int(text)
