"""
Resolve positions of the options ("earliest", "latest", an instant) to sequences of a stream in its current state.

Stream states are arguments; a position by time needs a request to the server, which :class:`Requests` makes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final, Protocol

from ..._ranges import StreamRange, StreamState, split
from ...codec.timestamp import Timestamp
from ...errors import DataLossError
from ._offsets import Offset, at
from ._read_options import EARLIEST, LATEST, Instant, Position, ReadOptions

_log = logging.getLogger(__name__)

# Number of sequences that one task reads by default; it takes a few seconds.
_SEQUENCES_PER_PARTITION: Final = 500_000


class Requests(Protocol):
    """Requests to the server that planning needs; implemented by :class:`._streams.Streams`."""

    def sequence_at(self, state: StreamState, since: int) -> int: ...


def batch_ranges(
    read_options: ReadOptions,
    states: dict[str, StreamState],
    requests: Requests,
    on_loss: Callable[[DataLossError], None],
) -> list[StreamRange]:
    """
    Return the ranges to read for a table.

    Args:
        read_options: Options.
        states: States of the streams to read, by name.
        requests: Resolves positions by time.
        on_loss: Called for messages that the options select and that have been removed.
    """
    found = []
    for name, state in states.items():
        starting = read_options.starting[name]
        first = max(_first(starting, state, requests), 1)
        last = _last(read_options.ending[name], state, requests)
        if first > last:
            continue
        if first < state.first:
            on_loss(DataLossError.gone(name, first, min(last, state.first - 1), state.first))
        # Without a first sequence in the options, messages that limits remove before the tasks start are not a loss.
        from_beginning = not isinstance(starting, int) and first == state.first
        found.append(
            StreamRange(name, max(first, state.first), last, state.created, read_options.subjects, from_beginning)
        )
    return split(found, partitions(read_options, found))


def first_offset(read_options: ReadOptions, states: dict[str, StreamState], requests: Requests) -> Offset:
    """Return the start offset of a new streaming query."""
    offset = {}
    for name, state in states.items():
        starting = read_options.starting[name]
        # 0 means the beginning of the stream when the first batch is read.
        read = 0 if starting == EARLIEST else max(0, _first(starting, state, requests) - 1)
        offset[name] = at(state, read)
    return offset


def partitions(read_options: ReadOptions, found: list[StreamRange]) -> int:
    """Return the number of partitions for ranges."""
    return read_options.min_partitions or math.ceil(sum(map(len, found)) / _SEQUENCES_PER_PARTITION)


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


def _first(position: Position, state: StreamState, requests: Requests) -> int:
    if position == EARLIEST:
        return state.first
    if position == LATEST:
        return state.last + 1
    if isinstance(position, Instant):
        return requests.sequence_at(state, _nanoseconds(position.at))
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
