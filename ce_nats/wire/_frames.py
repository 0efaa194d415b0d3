"""Publish frames of many messages, one after another in one buffer, so that they are written in large pieces."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..message import NatsMessage
from .nats import write_publish


@dataclass(frozen=True, slots=True)
class Frames:
    """
    Frames of messages with consecutive numbers. The number of a message is the last token of its reply subject.

    Attributes:
        octets: The frames.
        bounds: Offset of each frame in ``octets``, and the end of the last one.
        first: Number of the first message.
        header_sizes: Bytes of each header block; 0 without headers.
        sizes: Bytes of each header block and payload together.
        largest: Maxima of ``header_sizes``, of ``sizes``, and of the bytes of subject and reply subject together.
        subject: Function that returns the subject of a message by its index.
    """

    octets: bytes | memoryview
    bounds: Sequence[int]
    first: int
    header_sizes: Sequence[int]
    sizes: Sequence[int]
    largest: tuple[int, int, int]
    subject: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def end(self) -> int:
        """Number after that of the last message."""
        return self.first + len(self.sizes)

    def piece(self, start: int, stop: int) -> bytes:
        """Return the frames of the messages with the indexes from ``start`` to below ``stop``."""
        return bytes(self.octets[self.bounds[start] : self.bounds[stop]])

    def fitting(self, start: int, stop: int, size: int) -> int:
        """Return the index up to which frames have at most ``size`` bytes; at least ``start + 1``."""
        return max(start + 1, bisect_right(self.bounds, self.bounds[start] + size, start, stop + 1) - 1)


def frames_of(messages: Sequence[tuple[NatsMessage, bytes]], first: int, reply_prefix: str) -> Frames:
    """Return the frames of messages."""
    pieces, bounds, reply = [], [0], ""
    for number, (message, block) in enumerate(messages, first):
        reply = f"{reply_prefix}{number}"
        piece = write_publish(message.subject, message.data, block, reply)
        pieces.append(piece)
        bounds.append(bounds[-1] + len(piece))
    header_sizes = [len(block) for _, block in messages]
    sizes = [len(block) + len(message.data) for message, block in messages]
    subject_size = max((len(message.subject.encode()) for message, _ in messages), default=0)
    largest = (max(header_sizes, default=0), max(sizes, default=0), subject_size + len(reply))
    return Frames(
        b"".join(pieces), bounds, first, header_sizes, sizes, largest, lambda index: messages[index][0].subject
    )
