"""
Ranges of a stream's sequences, as values.

A stream numbers its messages from 1, never reuses a number, and never changes a message. So a range that was read once
can be read again with the same result, except for messages that the stream has removed since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

__all__ = ["StreamRange", "StreamState", "split"]


@dataclass(frozen=True, slots=True)
class StreamState:
    """
    What a stream holds at a moment.

    Attributes:
        name: Name of the stream.
        created: RFC 3339 text, as the server gives it. A stream that was deleted and created again has another one.
        first: Sequence of the first message; ``last + 1`` where there is none.
        last: Sequence of the last message that was ever stored, whether it is still there or not; 0 at the beginning.
        messages: Number of messages. Fewer than ``last - first + 1`` where some between were deleted.
        retention: ``limits``, ``interest`` or ``workqueue``.
    """

    name: str
    created: str
    first: int
    last: int
    messages: int
    retention: str = "limits"


@dataclass(frozen=True, slots=True)
class StreamRange:
    """
    A range to read.

    Attributes:
        stream: Name of the stream.
        first: First sequence, inclusive.
        last: Last sequence, inclusive; ``first - 1`` for none.
        created: ``StreamState.created`` of the stream that is meant; ``""`` for whichever has the name.
        subjects: Patterns of subjects, none of which overlap; without any, all subjects.
        from_beginning: The range begins where the stream begins when it is read, if that is behind ``first``.
    """

    stream: str
    first: int
    last: int
    created: str = ""
    subjects: tuple[str, ...] = ()
    from_beginning: bool = False

    def __len__(self) -> int:
        return max(0, self.last - self.first + 1)


def split(ranges: Sequence[StreamRange], pieces: int) -> list[StreamRange]:
    """
    Cut ranges into about as many pieces as wanted, in order, of about the same number of sequences.

    Args:
        ranges: Empty ones are left out.
        pieces: How many; each range is one at least, and no piece is empty.
    """
    ranges = [item for item in ranges if len(item)]
    total = sum(map(len, ranges))
    parts: list[StreamRange] = []
    for item in ranges:
        count = min(len(item), max(1, round(pieces * len(item) / total)))
        cuts = [item.first + len(item) * part // count for part in range(count + 1)]
        for start, end in pairwise(cuts):
            from_beginning = item.from_beginning and start == item.first
            parts.append(replace(item, first=start, last=end - 1, from_beginning=from_beginning))
    return parts
