"""Limits of micro-batches: maximum and minimum number of messages, maximum number of bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..._ranges import StreamState


@dataclass(frozen=True, slots=True)
class Limits:
    """
    Limits of a micro-batch, over all streams.

    Attributes:
        max_messages: Maximum number of messages, or None.
        max_bytes: Approximate maximum number of bytes, or None.
        min_messages: Minimum number of messages, or None.
        max_delay: Maximum number of seconds that messages wait for the minimum.
    """

    max_messages: int | None = None
    max_bytes: int | None = None
    min_messages: int | None = None
    max_delay: float = 15 * 60.0

    def allow(self, states: Iterable[StreamState], backlogs: Sequence[int]) -> bool:
        """Return whether a micro-batch may have the backlogs of all streams."""
        if self.max_messages is not None and sum(backlogs) > self.max_messages:
            return False
        return self.max_bytes is None or sum(map(_bytes, states, backlogs)) <= self.max_bytes

    def grant(self, states: Sequence[StreamState], backlogs: Sequence[int]) -> list[int]:
        """
        Divide the maximum among streams.

        The number of bytes of a range is estimated by the average size of the stream's messages. With a maximum number
        of bytes, a stream gets at least one message if it has a backlog, so that no large message stops a stream.

        Args:
            states: States of the streams.
            backlogs: Number of sequences to read from each stream.

        Returns:
            The number of sequences for each stream, at most its backlog.
        """
        if self.max_bytes is not None:
            allowed = shares([_bytes(state, backlog) for state, backlog in zip(states, backlogs)], self.max_bytes)
            backlogs = [
                min(backlog, max(1, count * state.messages // state.size)) if state.size else backlog
                for state, backlog, count in zip(states, backlogs, allowed)
            ]
        return list(backlogs) if self.max_messages is None else shares(backlogs, self.max_messages)


class Waiting:
    """
    Decide whether messages wait for the minimum of a micro-batch.

    The delay begins when the first of them is seen, so a restarted query waits anew.

    Args:
        limits: The limits.
        clock: Returns seconds.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._since: float | None = None

    def continues(self, unread: int) -> bool:
        """
        Return whether the messages have to wait.

        Args:
            unread: Number of messages that a micro-batch without limits would read.
        """
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

    Args:
        backlogs: Number of sequences to read from each stream.
        limit: Number of sequences to divide.

    Returns:
        A share for each stream. Their sum is ``limit``, or the sum of the backlogs if it is smaller.
    """
    granted = [0] * len(backlogs)
    by_backlog = sorted(range(len(backlogs)), key=backlogs.__getitem__)
    for position, index in enumerate(by_backlog):
        granted[index] = min(backlogs[index], limit // (len(by_backlog) - position))
        limit -= granted[index]
    return granted


def _bytes(state: StreamState, sequences: int) -> int:
    """Return the estimated size of a number of messages, rounded up."""
    return -(-sequences * state.size // state.messages) if state.messages else 0
