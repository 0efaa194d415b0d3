"""
Offsets of a streaming query: how far each stream was read, and which stream that was.

    {"ORDERS": {"sequence": 41, "created": "2026-01-02T03:04:05.123456789Z"}}

``sequence`` is the last one that was read; 0 stands for the beginning of the stream, wherever that is when it is read.
``created`` tells a stream from one that took its name. Spark keeps offsets in the checkpoint, as JSON, and compares
them as text. Values only: states of streams come in, offsets and ranges go out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ...errors import DataLossError
from ...ranges import StreamRange, StreamState

__all__ = ["Offset", "advance", "at", "ranges", "shares"]

Offset: TypeAlias = dict[str, dict[str, Any]]
OnLoss: TypeAlias = Callable[[DataLossError], None]


def at(state: StreamState, sequence: int) -> dict[str, Any]:
    """One stream's part of an offset."""
    return {"sequence": sequence, "created": state.created}


def advance(
    start: Offset,
    states: Mapping[str, StreamState],
    *,
    most: int | None = None,
    target: Offset | None = None,
    skip: Callable[[StreamState, int], int] = lambda state, sequence: sequence,
    on_loss: OnLoss,
) -> Offset:
    """
    How far to read next. Never less far than before, as long as the streams are the same.

    Args:
        start: How far the query has read. A stream that is not in it is read from its beginning.
        states: Of the streams to read, by name, in the order of the offset.
        most: Sequences to go on at most, over all streams; None for all there are.
        target: Where the query is to end altogether, or None.
        skip: For a stream that will be read in part, given a sequence: the last one behind it in front of which there
            is nothing to read. Long gaps are passed in one step so.
        on_loss: Told of a stream that was replaced or cut off. Returns to go on, raises to end.
    """
    begins: dict[str, int] = {}  # up to here there is nothing to read
    ends: dict[str, int] = {}
    for name, state in states.items():
        read = _read_so_far(start.get(name), state, on_loss)
        ends[name] = max(read, _last(state, read, target))
        begins[name] = min(max(read, state.first - 1), ends[name])
    if most is not None and sum(ends.values()) - sum(begins.values()) > most:
        begins = {name: min(skip(state, begins[name]), ends[name]) for name, state in states.items()}
        granted = shares([ends[name] - begins[name] for name in states], most)
        ends = {name: begins[name] + share for name, share in zip(states, granted)}
    return {name: at(state, ends[name]) for name, state in states.items()}


def shares(backlogs: Sequence[int], most: int) -> list[int]:
    """
    Share out a number: to each the same, unless it needs less. All of it is given away, or every need is met.

    Args:
        backlogs: What each one needs.
        most: What there is.
    """
    granted = [0] * len(backlogs)
    by_need = sorted(range(len(backlogs)), key=backlogs.__getitem__)
    for position, index in enumerate(by_need):
        granted[index] = min(backlogs[index], most // (len(by_need) - position))
        most -= granted[index]
    return granted


def ranges(
    start: Offset, end: Offset, states: Mapping[str, StreamState], subjects: tuple[str, ...], on_loss: OnLoss
) -> list[StreamRange]:
    """
    What lies between two offsets, with what is gone by now left out.

    Args:
        start: As for :func:`advance`.
        end: From :func:`advance`.
        states: Of the streams in ``end``.
        subjects: Patterns that do not overlap.
        on_loss: Told of what is gone. Returns to go on, raises to end.
    """
    found = []
    for name, part in end.items():
        state = states[name]
        if state.created != part["created"]:
            on_loss(DataLossError.recreated(name, part["created"], state.created))
            continue
        before = start.get(name)
        # What was read of a stream that is no more does not count.
        read = before["sequence"] if before is not None and before["created"] == part["created"] else 0
        first, last = read + 1, part["sequence"]
        if first > last:
            continue
        if state.last < last:
            on_loss(DataLossError.shortened(name, last, state.last))
        if read and state.first > first:
            on_loss(DataLossError.gone(name, first, min(last, state.first - 1), state.first))
        found.append(StreamRange(name, max(first, state.first), last, state.created, subjects, not read))
    return [item for item in found if len(item)]


def _last(state: StreamState, read: int, target: Offset | None) -> int:
    """Up to where a stream may be read."""
    if target is None:
        return state.last
    aim = target.get(state.name)
    # One that came later is for another query.
    return min(state.last, aim["sequence"]) if aim is not None and aim["created"] == state.created else read


def _read_so_far(before: Mapping[str, Any] | None, state: StreamState, on_loss: OnLoss) -> int:
    if before is None:
        return 0
    if before["created"] != state.created:
        on_loss(DataLossError.recreated(state.name, before["created"], state.created))
        return 0
    read: int = before["sequence"]
    if state.last < read:
        on_loss(DataLossError.shortened(state.name, read, state.last))
    return read
