"""Limits of micro-batches: maximum and minimum number of messages, maximum number of bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..._ranges import StreamState

# Called with a stream, the first and the last sequence of a range, and a number of bytes. Returns the sequence up to
# which the messages of the range have at most that many bytes, or the first message more; and their number of bytes.
Fit: TypeAlias = Callable[[StreamState, int, int, int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Limits:
    """
    Limits of a micro-batch, over all streams.

    Attributes:
        max_messages: Maximum number of messages, or None.
        max_bytes: Maximum number of bytes, or None.
        min_messages: Minimum number of messages, or None.
        max_delay: Maximum number of seconds that messages wait for the minimum.
    """

    max_messages: int | None = None
    max_bytes: int | None = None
    min_messages: int | None = None
    max_delay: float = 15 * 60.0

    def allow(self, states: Iterable[StreamState], backlogs: Sequence[int]) -> bool:
        """Return whether a micro-batch may have the backlogs of all streams, whatever the sizes of its messages are."""
        if self.max_messages is not None and sum(backlogs) > self.max_messages:
            return False
        sizes = [state.size for state, backlog in zip(states, backlogs) if backlog]
        return self.max_bytes is None or sum(sizes) <= self.max_bytes

    def grant(
        self, states: Sequence[StreamState], begins: Sequence[int], backlogs: Sequence[int], fit: Fit
    ) -> list[int]:
        """
        Divide the maximum among streams: equal shares, and what a stream does not need is for the following ones.

        With a maximum number of bytes, a stream gets at least one message if it has a backlog, so that no large message
        stops a stream.

        Returns the number of sequences for each stream, at most its backlog.
        """
        most = [backlog if self.max_messages is None else min(backlog, self.max_messages) for backlog in backlogs]
        if self.max_bytes is not None:
            rest, waiting = self.max_bytes, sum(map(bool, backlogs))
            for index, (state, begin) in enumerate(zip(states, begins)):
                if most[index]:
                    last, size = fit(state, begin + 1, begin + most[index], rest // waiting)
                    most[index], rest, waiting = last - begin, max(0, rest - size), waiting - 1
        return most if self.max_messages is None else shares(most, self.max_messages)


def estimate(state: StreamState, first: int, last: int, size: int) -> tuple[int, int]:
    """Return the end of a range, as :data:`Fit`, by the average size of the stream's messages."""
    count = last - first + 1
    if state.messages:
        count = min(count, max(1, size * state.messages // state.size)) if state.size else count
        return first + count - 1, -(-count * state.size // state.messages)
    return last, 0


class Waiting:
    """
    Decide whether messages wait for the minimum of a micro-batch.

    The delay begins when the first of them is seen, so a restarted query waits anew.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._since: float | None = None

    def continues(self, unread: int) -> bool:
        """Return whether the messages have to wait."""
        minimum = self._limits.min_messages
        if minimum is None or not 0 < unread < minimum:
            self._since = None
            return minimum is not None and not unread
        now = self._clock()
        self._since = now if self._since is None else self._since
        if now - self._since < self._limits.max_delay:
            return True
        self._since = None
        return False


def shares(backlogs: Sequence[int], limit: int) -> list[int]:
    """
    Divide a limit among streams: equal shares, but no stream gets more than its backlog.

    Returns a share for each stream. Their sum is ``limit``, or the sum of the backlogs if it is smaller.
    """
    granted = [0] * len(backlogs)
    by_backlog = sorted(range(len(backlogs)), key=backlogs.__getitem__)
    for position, index in enumerate(by_backlog):
        granted[index] = min(backlogs[index], limit // (len(by_backlog) - position))
        limit -= granted[index]
    return granted
