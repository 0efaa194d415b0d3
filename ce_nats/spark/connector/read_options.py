"""
Options of the data source that say what to read: streams, subjects, where to begin and to end, and in which partitions.

Values only; what the positions mean in sequences of a stream is found out elsewhere (see planning.py).
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
from .connection import read_boolean

__all__ = ["EARLIEST", "LATEST", "READ_OPTIONS", "Instant", "Position", "ReadOptions"]

READ_OPTIONS: Final = (
    "stream",
    "streams",
    "subjects",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "minPartitions",
    "partitions",
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
    """A position by time: the first message that was stored then or later."""

    text: str

    @property
    def at(self) -> Timestamp:
        return Timestamp.parse(self.text)


# "earliest", "latest", a sequence, or an instant.
Position = str | int | Instant


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """
    What to read.

    Attributes:
        starting: For each stream where to begin, in the order of their names: ``earliest``, ``latest`` (behind what is
            there), a first sequence, or an instant.
        ending: For each stream where to end: ``latest``, a last sequence, inclusive, or an instant, exclusive.
        subjects: Patterns that do not overlap; without any, all subjects.
        partitions: How many partitions are wanted at least, or None.
        most_per_trigger: Most messages in a micro-batch, or None.
        fail_on_data_loss: Whether messages that are gone without having been read are an error.
    """

    starting: Mapping[str, Position]
    ending: Mapping[str, Position]
    subjects: tuple[str, ...] = ()
    partitions: int | None = None
    most_per_trigger: int | None = None
    fail_on_data_loss: bool = True

    @property
    def streams(self) -> list[str]:
        return list(self.starting)

    @classmethod
    def from_options(cls, options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
        """
        Read the options of a data source.

        Args:
            options: Names in any case; others are left alone.
            streaming: Whether a query begins, which has no end, or a table is read, which has one.

        Raises:
            ValueError: An option is missing, or malformed, or two contradict one another.
        """
        given = {name.lower(): value.strip() for name, value in options.items() if value.strip()}
        streams = _read_streams(given)
        starting = _read_position(given, "starting", LATEST if streaming else EARLIEST, streams)
        if not streaming and LATEST in starting.values():
            raise ValueError("startingOffsets cannot be latest where a table is read: nothing would be in it")
        if streaming and ("endingoffsets" in given or "endingtimestamp" in given):
            raise ValueError("a streaming query has no endingOffsets and no endingTimestamp")
        ending = _read_position(given, "ending", LATEST, streams)
        if EARLIEST in ending.values():
            raise ValueError("endingOffsets cannot be earliest: nothing would be read")
        return cls(
            starting=starting,
            ending=ending,
            subjects=_read_subjects(given),
            partitions=_min_partitions(given),
            most_per_trigger=_read_count(given, "maxMessagesPerTrigger"),
            fail_on_data_loss=read_boolean(given, "failOnDataLoss", default=True),
        )


def _read_streams(given: Mapping[str, str]) -> list[str]:
    if "stream" in given and "streams" in given:
        raise ValueError("stream and streams are two names for one option")
    names = [name.strip() for name in given.get("stream", given.get("streams", "")).split(",")]
    if names == [""]:
        raise ValueError("option stream is missing: the name of a stream, or several with commas between them")
    for name in names:
        if not _STREAM_NAME.fullmatch(name):
            raise ValueError(f"option stream: {preview(name)} is not a name of a stream")
    # In an order that does not depend on how they were listed: offsets are compared as text.
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
        raise ValueError(f"{offsets} and {instant} say the same in two ways")
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
        raise ValueError(f'option {offsets}: several streams take {{"NAME": sequence}} with all of their names')
    return dict.fromkeys(streams, position)


def _read_positions_by_stream(option: str, text: str, streams: list[str]) -> dict[str, Position]:
    try:
        by_stream = json.loads(text)
    except ValueError as error:
        raise ValueError(f"option {option}: {preview(text)} is not JSON: {error}") from error
    if sorted(by_stream) != streams:
        raise ValueError(f"option {option} has positions for {sorted(by_stream)}, and the streams are {streams}")
    return {stream: _position(option, by_stream[stream]) for stream in streams}


def _position(option: str, value: object) -> Position:
    if isinstance(value, str) and value.lower() in (EARLIEST, LATEST):
        return value.lower()
    text = str(value) if type(value) in (int, str) else ""
    if not _NUMBER.fullmatch(text) or int(text) > _LARGEST:
        raise ValueError(
            f'option {option} is earliest, latest, a sequence or JSON such as {{"NAME": 1}}, not {preview(value)}'
        )
    return int(text)


def _min_partitions(given: Mapping[str, str]) -> int | None:
    if "partitions" in given and "minpartitions" in given:
        raise ValueError("partitions and minPartitions are two names for one option")
    return _read_count(given, "partitions" if "partitions" in given else "minPartitions")


def _read_count(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option.lower())
    if text is None:
        return None
    if not _NUMBER.fullmatch(text) or not 0 < int(text) <= _LARGEST:
        raise ValueError(f"option {option} is a number above 0, not {preview(text)}")
    return int(text)
