"""
Read options of the data source: streams, subjects, start and end positions, limits, partitions.

Options are parsed and checked here; _planning.py resolves the positions to sequences of a stream.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ... import cesql
from ...errors import CeNatsError, preview
from ...subjects import disjoint
from ._connection import read_boolean
from ._limits import Limits
from ._pattern import StreamPattern
from ._positions import EARLIEST, LARGEST, LATEST, NUMBER, Positions, read_positions

READ_OPTIONS: Final = (
    "stream",
    "streamPattern",
    "subjects",
    "filter",
    "startingOffsets",
    "startingTimestamp",
    "startingTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "minPartitions",
    "maxMessagesPerPartition",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "minMessagesPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
)
_STREAMING_OPTIONS: Final = (
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "minMessagesPerTrigger",
    "maxTriggerDelay",
)

# "A stream name cannot contain whitespace, ., *, >, path separators, and non-printable characters."
_STREAM_NAME: Final = re.compile(r"[^\x00-\x20\x7f.*>/\\,]+")
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(ms|s|m|min|h|d|)")
_SECONDS: Final = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """
    Parsed read options.

    Attributes:
        streams: Names of the streams, ordered; empty if there is a pattern.
        starting: Start positions: ``earliest``, ``latest`` (after the last message stored so far), a first sequence, or
            an instant.
        ending: End positions: ``latest``, a last sequence (inclusive), or an instant (exclusive).
        pattern: Pattern of the names of the streams, or None.
        subjects: Subject patterns that do not overlap; empty for all subjects.
        filter: Canonical text of the expression that events have to pass, or None.
        min_partitions: Minimum number of partitions, or None for the default.
        max_per_partition: Maximum number of messages in a partition, or None for no limit.
        limits: Limits of a micro-batch.
        fail_on_data_loss: True to raise an error if messages were removed before they were read.
        needs_messages: True to raise an error if a stream has no message at or after the instant to start at.
    """

    streams: tuple[str, ...]
    starting: Positions
    ending: Positions
    pattern: StreamPattern | None = None
    subjects: tuple[str, ...] = ()
    filter: str | None = None
    min_partitions: int | None = None
    max_per_partition: int | None = None
    limits: Limits = field(default_factory=Limits)
    fail_on_data_loss: bool = True
    needs_messages: bool = False

    @property
    def selection(self) -> dict[str, Any]:
        """The subjects and the filter as in an offset; see _offsets.py."""
        subjects = {"subjects": list(self.subjects)} if self.subjects else {}
        return subjects if self.filter is None else {**subjects, "filter": self.filter}

    @classmethod
    def from_options(cls, options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
        """
        Read the options of a data source.

        Raises:
            ValueError: An option is missing or malformed, or two options exclude each other.
        """
        given = {name.lower(): value.strip() for name, value in options.items() if value.strip()}
        for option in () if streaming else _STREAMING_OPTIONS:
            if option.lower() in given:
                raise ValueError(f"{option} must be used with streaming queries, got a table")
        pattern = _read_pattern(given)
        streams = () if pattern else _read_streams(given)
        starting = read_positions(given, "starting", LATEST if streaming else EARLIEST)
        if not streaming and LATEST in starting.all:
            raise ValueError("startingOffsets must not be latest for a table: it would have no messages")
        if streaming and ("endingoffsets" in given or "endingtimestamp" in given):
            raise ValueError("endingOffsets and endingTimestamp must be used with tables, got a streaming query")
        ending = read_positions(given, "ending", LATEST)
        if EARLIEST in ending.all:
            raise ValueError("endingOffsets must not be earliest: the table would have no messages")
        for positions in (starting, ending):
            _check_streams(positions, streams)
        return cls(
            streams,
            starting,
            ending,
            pattern,
            subjects=_read_subjects(given),
            filter=_read_filter(given),
            min_partitions=_read_count(given, "minPartitions"),
            max_per_partition=_read_count(given, "maxMessagesPerPartition"),
            limits=_read_limits(given),
            fail_on_data_loss=read_boolean(given, "failOnDataLoss", default=True),
            needs_messages=_read_strategy(given) == "error",
        )


def _read_pattern(given: Mapping[str, str]) -> StreamPattern | None:
    if "streampattern" not in given:
        return None
    if "stream" in given:
        raise ValueError("stream and streamPattern exclude each other: use one of them")
    pattern = StreamPattern(given["streampattern"])
    pattern.check()
    return pattern


def _read_streams(given: Mapping[str, str]) -> tuple[str, ...]:
    names = [name.strip() for name in given.get("stream", "").split(",")]
    if names == [""]:
        raise ValueError(
            "option stream is missing: it must be a stream name, or several separated by commas; or use streamPattern, "
            "a regular expression for the names"
        )
    for name in names:
        if not _STREAM_NAME.fullmatch(name):
            hint = "; for a pattern, use streamPattern" if "*" in name or ">" in name else ""
            raise ValueError(f"option stream must be stream names separated by commas, got {preview(name)}{hint}")
    # Sorted, because Spark compares offsets as text: the order of the names in the option must not matter.
    return tuple(sorted(set(names)))


def _check_streams(positions: Positions, streams: tuple[str, ...]) -> None:
    """Check that positions are those of the streams; without streams, there is a pattern, and planning checks them."""
    if isinstance(positions.common, int) and len(streams) != 1:
        raise ValueError(
            f"option {positions.option} must be JSON such as {{\"NAME\": 1}} with all streams, got '{positions.common}'"
        )
    if streams:
        positions.of(streams)


def _read_strategy(given: Mapping[str, str]) -> str:
    """Return what to do if no message was stored at or after the start: ``latest`` starts after the last one."""
    option = "startingTimestampStrategy"
    if option.lower() in given and "startingtimestamp" not in given:
        raise ValueError(f"option {option} must be used with startingTimestamp")
    strategy = given.get(option.lower(), LATEST).lower()
    if strategy not in (LATEST, "error"):
        raise ValueError(f"option {option} must be latest or error, got {preview(strategy)}")
    return strategy


def _read_subjects(given: Mapping[str, str]) -> tuple[str, ...]:
    patterns = [pattern.strip() for pattern in given["subjects"].split(",")] if "subjects" in given else []
    try:
        chosen = disjoint(patterns)
    except CeNatsError as error:
        raise ValueError(f"option subjects: {error.message}") from error
    return () if chosen == (">",) else chosen


def _read_filter(given: Mapping[str, str]) -> str | None:
    try:
        return str(cesql.compile(given["filter"])) if "filter" in given else None
    except cesql.ParseError as error:
        raise ValueError(f"option filter must be an expression of CloudEvents SQL: {error}") from error


def _read_limits(given: Mapping[str, str]) -> Limits:
    limits = Limits(
        max_messages=_read_count(given, "maxMessagesPerTrigger"),
        max_bytes=_read_count(given, "maxBytesPerTrigger"),
        min_messages=_read_count(given, "minMessagesPerTrigger"),
    )
    if limits.min_messages and limits.max_messages and limits.min_messages > limits.max_messages:
        raise ValueError(
            f"option minMessagesPerTrigger must be at most maxMessagesPerTrigger, which is {limits.max_messages}, "
            f"got {limits.min_messages}"
        )
    if "maxtriggerdelay" not in given:
        return limits
    if limits.min_messages is None:
        raise ValueError("option maxTriggerDelay must be used with minMessagesPerTrigger")
    text = given["maxtriggerdelay"]
    duration = _DURATION.fullmatch(text.lower())
    delay = float(duration[1]) * _SECONDS[duration[2]] if duration else 0
    if not delay:
        raise ValueError(
            f"option maxTriggerDelay must be a number of seconds above 0, or a duration such as 500ms, 30s, 15m or 2h, "
            f"got {preview(text)}"
        )
    return replace(limits, max_delay=delay)


def _read_count(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option.lower())
    if text is None:
        return None
    if not NUMBER.fullmatch(text) or not 0 < int(text) <= LARGEST:
        raise ValueError(f"option {option} must be an integer from 1, got {preview(text)}")
    return int(text)
