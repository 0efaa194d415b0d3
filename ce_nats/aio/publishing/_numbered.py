"""
The unacknowledged messages of a bulk publisher, by number. Pure: no I/O, and ``now`` is an argument.

A message has no object: its number is the last token of its reply subject, and its frame is a part of the frames that
were made together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ...wire._frames import Frames
from ..link._permissions import Denial


class Piece(NamedTuple):
    """Messages to write: those of ``frames`` from index ``start`` to below ``stop``."""

    frames: Frames
    start: int
    stop: int


class Numbered:
    """
    Messages with consecutive numbers.

    Attributes:
        next: Number of the next message.
        pending: Numbers of the unacknowledged messages.
        frames: Frames with unacknowledged or unsent messages, oldest first.
        acknowledged: Number of acknowledged messages.
        duplicates: Number of those that the stream had before, without those that were resent.
        retries: Times at which messages are resent that were not stored, by number.
    """

    def __init__(self) -> None:
        self.next = 0
        self.pending: set[int] = set()
        self.frames: deque[Frames] = deque()
        self.acknowledged = self.duplicates = 0
        self.retries: dict[int, float] = {}
        self._next_unsent = 0
        # Numbers from the first to below the second, and when they were sent; oldest first.
        self._sent: deque[tuple[int, int, float]] = deque()
        self._resent: set[int] = set()
        self._no_responders: dict[int, str] = {}

    def forget(self) -> None:
        """Forget the unacknowledged messages."""
        self.frames.clear()
        self.pending.clear()
        self.forget_acknowledged()

    def add(self, frames: Frames) -> None:
        """Add messages, which are not sent yet."""
        self.frames.append(frames)
        self.next = frames.end

    @property
    def held(self) -> int:
        """Bytes of the frames."""
        return sum(len(some.octets) for some in self.frames)

    def subject(self, number: int) -> str:
        """Return the subject of a message."""
        frames = next(frames for frames in self.frames if frames.first <= number < frames.end)
        return frames.subject(number - frames.first)

    @property
    def first_subject(self) -> str:
        """Subject of the first unacknowledged message."""
        return self.subject(min(self.pending))

    # --- Sending ------------------------------------------------------------------------------------------------------

    def send(self, piece: Piece, now: float) -> None:
        """Note that messages are written for the first time."""
        first, end = piece.frames.first + piece.start, piece.frames.first + piece.stop
        self.pending.update(range(first, end))
        self._sent.append((first, end, now))
        self._next_unsent = end

    def begin_connection(self) -> list[int]:
        """Return the numbers of the messages to resend on a new connection: all."""
        self._sent.clear()
        self._resent |= self.pending.difference(self.retries)  # the others were not stored
        self.retries.clear()
        return sorted(self.pending)

    def due(self, now: float) -> list[int]:
        """Return the numbers of messages whose retry is due, once."""
        due = sorted(number for number, at in self.retries.items() if at <= now)
        for number in due:
            del self.retries[number]
        return [number for number in due if number in self.pending]

    def resend(self, numbers: Sequence[int], now: float) -> Iterator[Piece]:
        """Yield the pieces of messages that are resent, each run of consecutive numbers at once."""
        firsts = [frames.first for frames in self.frames]
        position = 0
        while position < len(numbers):
            frames = self.frames[bisect_right(firsts, numbers[position]) - 1]
            first = end = numbers[position]
            while position < len(numbers) and numbers[position] == end < frames.end:
                position, end = position + 1, end + 1
            self._sent.append((first, end, now))
            yield Piece(frames, first - frames.first, end - frames.first)

    # --- Replies ------------------------------------------------------------------------------------------------------

    def acknowledge(self, numbers: Iterable[int], duplicates: Iterable[int] = ()) -> int:
        """Note acknowledgements, and return how many messages they have finished."""
        for number in set(duplicates):
            self.duplicates += number in self.pending and number not in self._resent
        before = len(self.pending)
        self.pending.difference_update(numbers)
        count = before - len(self.pending)
        self.acknowledged += count
        return count

    def retry(self, number: int, at: float, *, without_responders: bool) -> None:
        """Note that a message was not stored, and is resent at a time."""
        self.retries[number] = at
        if without_responders:
            self._no_responders[number] = self.subject(number)

    def lacks_stream(self, subject: str | None) -> bool:
        """Return whether no stream has received an unacknowledged message to a subject."""
        return any(number in self.pending and its == subject for number, its in self._no_responders.items())

    def denied(self, denial: Denial) -> str:
        """Return the subject of the first message that a denial may refer to, or ``""``."""
        subjects = (self.subject(number) for number in sorted(self.pending))
        return next((subject for subject in subjects if denial.is_publish(subject)), "")

    # --- Time ---------------------------------------------------------------------------------------------------------

    def is_late(self, now: float, timeout: float) -> bool:
        """Return whether a message is unacknowledged for a time; call :meth:`forget_acknowledged` before."""
        return bool(self._sent) and now - self._sent[0][2] >= timeout

    def forget_acknowledged(self) -> None:
        """Forget what is only needed for unacknowledged messages."""
        if not self.pending:
            self._sent.clear()
            self._resent.clear()
            self.retries.clear()
            self._no_responders.clear()
        oldest = min(self.pending, default=self._next_unsent)
        while self._sent and self.pending.isdisjoint(range(*self._sent[0][:2])):
            self._sent.popleft()
        while self.frames and self.frames[0].end <= oldest:
            self.frames.popleft()
