"""
From a read_options to sequences: what "earliest", "latest" and an instant mean in a stream right now.

States of streams come in; a position by time is asked for, through an object that knows how.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final, Protocol

from ...codec.timestamp import Timestamp
from ...errors import DataLossError
from ...ranges import StreamRange, StreamState, split
from .offsets import Offset, at
from .read_options import EARLIEST, LATEST, Instant, Position, ReadOptions

__all__ = ["Questions", "batch_ranges", "first_offset", "loss_policy", "partitions"]

_log = logging.getLogger(__name__)

# What one task reads where nobody says how many there should be: some seconds' worth.
_SEQUENCES_PER_PARTITION: Final = 500_000


class Questions(Protocol):
    """What has to be asked of a stream for planning; see streams.py."""

    def sequence_at(self, state: StreamState, since: int) -> int: ...


def batch_ranges(
    read_options: ReadOptions,
    states: dict[str, StreamState],
    ask: Questions,
    on_loss: Callable[[DataLossError], None],
) -> list[StreamRange]:
    """
    Ranges that a read of a table consists of.

    Args:
        read_options: From the options.
        states: Of the streams of the read_options.
        ask: For positions by time.
        on_loss: Told of messages that the options name and that are gone.
    """
    found = []
    for name, state in states.items():
        starting = read_options.starting[name]
        first = max(_first(starting, state, ask), 1)
        last = _last(read_options.ending[name], state, ask)
        if first > last:
            continue
        if first < state.first:
            on_loss(DataLossError.gone(name, first, min(last, state.first - 1), state.first))
        # Where nobody named a first sequence, the limits of the stream may go on while the tasks start.
        from_beginning = not isinstance(starting, int) and first == state.first
        found.append(
            StreamRange(name, max(first, state.first), last, state.created, read_options.subjects, from_beginning)
        )
    return split(found, partitions(read_options, found))


def first_offset(read_options: ReadOptions, states: dict[str, StreamState], ask: Questions) -> Offset:
    """Where a new streaming query begins."""
    offset = {}
    for name, state in states.items():
        starting = read_options.starting[name]
        # 0 is the beginning, wherever it is when the first batch is read.
        read = 0 if starting == EARLIEST else max(0, _first(starting, state, ask) - 1)
        offset[name] = at(state, read)
    return offset


def partitions(read_options: ReadOptions, found: list[StreamRange]) -> int:
    """How many partitions ranges are cut into."""
    return read_options.partitions or math.ceil(sum(map(len, found)) / _SEQUENCES_PER_PARTITION)


def loss_policy(read_options: ReadOptions) -> Callable[[DataLossError], None]:
    """Raise the error, or log it, each one once."""
    logged: set[str] = set()

    def on_loss(error: DataLossError) -> None:
        if read_options.fail_on_data_loss:
            raise DataLossError(error.code, f"{error.message}. failOnDataLoss=false goes on without them")
        if error.message not in logged:
            logged.add(error.message)
            _log.warning("%s", error.message)

    return on_loss


def _first(position: Position, state: StreamState, ask: Questions) -> int:
    if position == EARLIEST:
        return state.first
    if position == LATEST:
        return state.last + 1
    if isinstance(position, Instant):
        return ask.sequence_at(state, _nanoseconds(position.at))
    assert isinstance(position, int)
    return position


def _last(position: Position, state: StreamState, ask: Questions) -> int:
    if isinstance(position, int):
        return min(position, state.last)
    if isinstance(position, Instant):
        return ask.sequence_at(state, _nanoseconds(position.at)) - 1
    return state.last


def _nanoseconds(instant: Timestamp) -> int:
    from ...aio.streams import nanoseconds

    return nanoseconds(instant)
