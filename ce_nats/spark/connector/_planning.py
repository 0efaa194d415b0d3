"""
Resolve positions of the options ("earliest", "latest", an instant) to sequences of a stream in its current state.

Stream states are arguments; a position by time needs a request to the server, which :class:`Requests` makes.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from ..._ranges import StreamRange, StreamState, split
from ...codec.timestamp import Timestamp
from ...errors import DataLossError, preview
from ._offsets import Offset, at
from ._positions import EARLIEST, LATEST, Instant, Position
from ._read_options import ReadOptions

_log = logging.getLogger(__name__)

# Number of sequences that one task reads by default: with the maximum, a task takes a few seconds; with fewer than the
# minimum, starting it takes a notable part of its time.
_MIN_SEQUENCES: Final = 50_000
_MAX_SEQUENCES: Final = 500_000
# Spark keeps the partitions of a query in the driver's memory.
_MAX_PARTITIONS: Final = 100_000
# Number of stream names in an error.
_MAX_EXAMPLES: Final = 5


class Requests(Protocol):
    """Requests to the server that planning needs; implemented by :class:`._streams.Streams`."""

    def sequence_at(self, state: StreamState, since: int) -> int: ...


def find_streams(
    read_options: ReadOptions, existing: Callable[[], Iterable[str]], known: Iterable[str] = ()
) -> list[str]:
    """
    Return the names of the streams to read, ordered: those of the options, or those that match the pattern.

    Raises:
        ValueError: No stream matches the pattern.
    """
    pattern = read_options.pattern
    if pattern is None:
        return list(read_options.streams)
    names = sorted({*existing(), *known})
    found = pattern.matching(names)
    if not found:
        some = f"the account has {', '.join(names[:_MAX_EXAMPLES])}" + (", ..." if names[_MAX_EXAMPLES:] else "")
        raise ValueError(
            f"option streamPattern must match a stream, got {preview(pattern.text)}; "
            f"{some if names else 'the account has no streams'}. The pattern is a regular expression for the whole "
            "name, such as ORDERS_.*"
        )
    return found


def batch_ranges(
    read_options: ReadOptions,
    states: dict[str, StreamState],
    requests: Requests,
    on_loss: Callable[[DataLossError], None],
) -> list[StreamRange]:
    """
    Return the ranges to read for a table.

    Raises:
        ValueError: The options have positions by stream, but not for these streams, or a stream has no message at or
            after the instant to start at, and the options forbid that.
    """
    found = []
    starts, ends = read_options.starting.of(states), read_options.ending.of(states)
    for name, state in states.items():
        starting = starts[name]
        first = max(_first(starting, state, requests, read_options), 1)
        last = _last(ends[name], state, requests)
        if first > last:
            continue
        if first < state.first:
            on_loss(DataLossError.gone(name, first, min(last, state.first - 1), state.first))
        # Without a first sequence in the options, messages that limits remove before the tasks start are not a loss.
        from_beginning = not isinstance(starting, int) and first == state.first
        found.append(
            StreamRange(name, max(first, state.first), last, state.created, read_options.subjects, from_beginning)
        )
    return divide(read_options, found)


def first_offset(read_options: ReadOptions, states: dict[str, StreamState], requests: Requests) -> Offset:
    """Return the start offset of a new streaming query."""
    offset = {}
    for name, starting in read_options.starting.of(states).items():
        # 0 means the beginning of the stream when the first batch is read.
        read = 0 if starting == EARLIEST else max(0, _first(starting, states[name], requests, read_options) - 1)
        offset[name] = at(states[name], read, read_options.selection)
    return offset


def divide(read_options: ReadOptions, found: list[StreamRange]) -> list[StreamRange]:
    """
    Divide ranges into partitions.

    Raises:
        ValueError: The options make too many partitions.
    """
    pieces = read_options.min_partitions or _default_partitions(found)
    largest = read_options.max_per_partition
    if read_options.min_partitions or largest:
        count = max(
            min(pieces, sum(map(len, found))), sum(math.ceil(len(item) / (largest or len(item))) for item in found)
        )
        if count > _MAX_PARTITIONS:
            raise ValueError(
                f"options minPartitions and maxMessagesPerPartition must make at most {_MAX_PARTITIONS:,} partitions, "
                f"got {count:,}"
            )
    return split(found, pieces, largest)


def _default_partitions(found: list[StreamRange]) -> int:
    """Return a number of partitions for ranges: at least one for each core, if each is worth a task."""
    sequences = sum(map(len, found))
    return max(math.ceil(sequences / _MAX_SEQUENCES), min(_cores(), sequences // _MIN_SEQUENCES))


def _cores() -> int:
    """Return the number of cores that this process may use; planning cannot find out those of the executors."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def loss_policy(read_options: ReadOptions) -> Callable[[DataLossError], None]:
    """Return a function that raises an error of lost messages, or logs it once, depending on ``failOnDataLoss``."""
    logged: set[str] = set()

    def on_loss(error: DataLossError) -> None:
        if read_options.fail_on_data_loss:
            raise DataLossError(error.code, f"{error.message}. Set failOnDataLoss=false to continue without them")
        if error.message not in logged:
            logged.add(error.message)
            _log.warning("%s", error.message)

    return on_loss


def _first(position: Position, state: StreamState, requests: Requests, read_options: ReadOptions) -> int:
    if position == EARLIEST:
        return state.first
    if position == LATEST:
        return state.last + 1
    if isinstance(position, Instant):
        sequence = requests.sequence_at(state, _nanoseconds(position.at))
        if sequence > state.last and read_options.needs_messages:
            raise ValueError(
                f"option startingTimestamp: stream {state.name} has no message stored at or after {position.text}. "
                "With startingTimestampStrategy=latest the query starts after the last message"
            )
        return sequence
    assert isinstance(position, int)
    return position


def _last(position: Position, state: StreamState, requests: Requests) -> int:
    if isinstance(position, int):
        return min(position, state.last)
    if isinstance(position, Instant):
        return requests.sequence_at(state, _nanoseconds(position.at)) - 1
    return state.last


def _nanoseconds(instant: Timestamp) -> int:
    from ...aio._jetstream_api import nanoseconds

    return nanoseconds(instant)
