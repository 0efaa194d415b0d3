"""
Ranges of stream sequences, as values.

A stream numbers its messages from 1, never reuses a sequence, and never changes a message. So reading a range again
returns the same messages, except for those that the stream has removed since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Final

# Time for which a state may be old: a leader without its replicas reports it, until it notices that after ten seconds.
OLD_STATE_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class StreamState:
    """
    State of a stream at one point in time.

    Attributes:
        name: Name of the stream.
        created: Time of its creation, RFC 3339 text of the server. It differs after the stream was deleted and created
            again.
        first: Sequence of the first message; ``last + 1`` if the stream is empty.
        last: Sequence of the last message that was ever stored, even if it was removed; 0 before the first message.
        messages: Number of messages. Less than ``last - first + 1`` if messages between were deleted.
        retention: ``limits``, ``interest`` or ``workqueue``.
        size: Number of bytes that the server stores for the messages.
    """

    name: str
    created: str
    first: int
    last: int
    messages: int
    retention: str = "limits"
    size: int = 0


@dataclass(frozen=True, slots=True)
class StreamRange:
    """
    A range of sequences to read.

    Attributes:
        stream: Name of the stream.
        first: First sequence, inclusive.
        last: Last sequence, inclusive; ``first - 1`` for an empty range.
        created: ``StreamState.created`` that the stream must have; ``""`` accepts any stream of this name.
        subjects: Subject patterns that do not overlap; empty for all subjects.
        from_beginning: True if the range begins at the stream's first message when it is read, even if that is after
            ``first``.
    """

    stream: str
    first: int
    last: int
    created: str = ""
    subjects: tuple[str, ...] = ()
    from_beginning: bool = False

    def __len__(self) -> int:
        return max(0, self.last - self.first + 1)


def split(ranges: Sequence[StreamRange], pieces: int, largest: int | None = None) -> list[StreamRange]:
    """Split ranges into pieces with about the same number of sequences, in order."""
    ranges = [item for item in ranges if len(item)]
    total = sum(map(len, ranges))
    parts: list[StreamRange] = []
    for item in ranges:
        count = max(round(pieces * len(item) / total), ceil(len(item) / (largest or total)))
        count = min(len(item), count)
        cuts = [item.first + len(item) * part // count for part in range(count + 1)]
        for start, end in pairwise(cuts):
            from_beginning = item.from_beginning and start == item.first
            parts.append(replace(item, first=start, last=end - 1, from_beginning=from_beginning))
    return parts
