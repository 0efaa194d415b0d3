"""
Offsets of a streaming query: the position in each stream, and the creation time of the stream.

    {"ORDERS": {"sequence": 41, "created": "2026-01-02T03:04:05.123456789Z", "subjects": ["orders.eu"],
                "filter": "tier = 'gold'"}}

``sequence`` is the last sequence that was read; 0 means the beginning of the stream at the time of reading.
``created`` distinguishes a stream from a later one with the same name. ``subjects`` are the patterns whose messages
were read up to the sequence, ``filter`` the expression that events had to pass; without them, all messages. A stream
that is no longer in the options, or was deleted, keeps its position, and reading resumes there if it is back. Spark
stores offsets in the checkpoint, as JSON, and compares them as text. These functions are pure: they accept stream
states and return offsets and ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from ..._ranges import StreamRange, StreamState
from ...errors import DataLossError, DecodeError, ErrorCode, preview, shortened
from ...subjects import covers
from ._limits import Fit, Limits, estimate

Offset: TypeAlias = dict[str, dict[str, Any]]
OnLoss: TypeAlias = Callable[[DataLossError], None]

_ALL: Final[Mapping[str, Any]] = {}  # a selection of all messages


def at(state: StreamState, sequence: int, selection: Mapping[str, Any] = _ALL) -> dict[str, Any]:
    """Return the part of an offset for one stream; ``selection`` has the ``subjects`` and the ``filter`` in it."""
    return {"sequence": sequence, "created": state.created, **selection}


def checked(offset: Any) -> Offset:
    """
    Return an offset from a checkpoint.

    Raises:
        DecodeError: ``invalid-message``: another source wrote the checkpoint, or its files are damaged.
    """
    if not isinstance(offset, dict) or not all(map(_is_position, offset.values())):
        raise DecodeError(
            ErrorCode.INVALID_MESSAGE,
            "the offset in the checkpoint must have the sequence and the creation time of each stream, got "
            f"{preview(offset)}: the checkpoint is damaged, or of another source; use another checkpointLocation",
        )
    return offset


def _is_position(part: Any) -> bool:
    if not isinstance(part, dict) or not isinstance(part.get("created"), str):
        return False
    subjects = part.get("subjects", [])
    if not isinstance(part.get("filter", ""), str) or not isinstance(subjects, list):
        return False
    if not all(isinstance(subject, str) for subject in subjects):
        return False
    sequence = part.get("sequence")
    return isinstance(sequence, int) and not isinstance(sequence, bool) and sequence >= 0


def advance(
    start: Offset,
    states: Mapping[str, StreamState],
    *,
    selection: Mapping[str, Any] = _ALL,
    limits: Limits | None = None,
    target: Offset | None = None,
    skip: Callable[[StreamState, int], int] = lambda state, sequence: sequence,
    fit: Fit = estimate,
    on_loss: OnLoss,
) -> Offset:
    """
    Return the end offset of the next batch. Positions never decrease, unless a stream was deleted and created again.

    ``on_loss``: Called for a stream that was replaced or lost messages. It returns to continue the query, or raises to
    stop it.
    """
    begins, ends = _spans(start, states, target, on_loss)
    if limits is not None and not limits.allow(states.values(), [ends[name] - begins[name] for name in states]):
        begins = {name: min(skip(state, begins[name]), ends[name]) for name, state in states.items()}
        backlogs = [ends[name] - begins[name] for name in states]
        granted = limits.grant([*states.values()], [*begins.values()], backlogs, fit)
        ends = {name: begins[name] + share for name, share in zip(states, granted)}
    return in_order({**start, **{name: at(state, ends[name], selection) for name, state in states.items()}})


def check_selection(start: Offset, streams: Iterable[str], selection: Mapping[str, Any], on_loss: OnLoss) -> None:
    """
    Check that a query does not read further subjects, or with another filter, than before its restart: earlier messages
    would be missing.

    ``on_loss``: Called for a stream with a wider selection. It returns to continue the query, or raises to stop it.
    """
    subjects = selection.get("subjects", [">"])
    for name in streams:
        part = start.get(name)
        if part is None or not part["sequence"]:
            continue
        before = part.get("subjects") or [">"]
        added = [subject for subject in subjects if not any(covers(one, subject) for one in before)]
        if added:
            on_loss(DataLossError.not_selected(name, part["sequence"], ", ".join(before), f"on {', '.join(added)}"))
        passing = part.get("filter")
        if passing is not None and passing != selection.get("filter"):
            text = f"the events that pass {shortened(passing)}"
            on_loss(DataLossError.not_selected(name, part["sequence"], text, "that did not pass"))


def unread(start: Offset, states: Mapping[str, StreamState], on_loss: OnLoss) -> int:
    """Return the number of sequences that :func:`advance` without limits would read."""
    begins, ends = _spans(start, states, None, on_loss)
    return sum(ends.values()) - sum(begins.values())


def in_order(offset: Offset) -> Offset:
    """Return an offset ordered by stream name, because Spark compares offsets as text."""
    return dict(sorted(offset.items()))


def changed(start: Offset, end: Offset) -> list[str]:
    """Return the names of the streams of ``end`` with another position than in ``start``."""
    return [name for name, part in end.items() if start.get(name) != part]


def ranges(
    start: Offset, end: Offset, states: Mapping[str, StreamState], subjects: tuple[str, ...], on_loss: OnLoss
) -> list[StreamRange]:
    """
    Return the ranges between two offsets, without sequences that have been removed since.

    ``on_loss``: Called for removed sequences. It returns to continue the query, or raises to stop it.
    """
    found = []
    for name, state in states.items():
        part = end[name]
        if state.created != part["created"]:
            on_loss(DataLossError.recreated(name, part["created"], state.created))
            continue
        before = start.get(name)
        # The offset of a deleted stream with the same name does not apply to this one.
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


def shorter_than(offset: Offset, states: Mapping[str, StreamState]) -> list[StreamState]:
    """Return the states that end before an offset of the same stream."""
    return [
        states[name]
        for name, part in offset.items()
        if name in states and states[name].created == part["created"] and states[name].last < part["sequence"]
    ]


def _spans(
    start: Offset, states: Mapping[str, StreamState], target: Offset | None, on_loss: OnLoss
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the last sequences before the messages to read, and the last ones of them, by stream."""
    begins: dict[str, int] = {}
    ends: dict[str, int] = {}
    for name, state in states.items():
        read = _read_so_far(start.get(name), state, on_loss)
        ends[name] = max(read, _last(state, read, target))
        begins[name] = min(max(read, state.first - 1), ends[name])
    return begins, ends


def _last(state: StreamState, read: int, target: Offset | None) -> int:
    """Return the last sequence of a stream that may be read."""
    if target is None:
        return state.last
    end = target.get(state.name)
    # A stream that was created after the target is not read before the next run of the query.
    return min(state.last, end["sequence"]) if end is not None and end["created"] == state.created else read


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
