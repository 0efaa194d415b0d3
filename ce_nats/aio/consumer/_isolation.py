"""
Distinguish messages that end the process from messages that were fetched at the same time.

The server counts a delivery for each message that a process has fetched, handled or not. If a process ends again and
again, the counts of all fetched messages grow, not only that of the message that causes it. A message that was
delivered more often than the policy allows is therefore only a suspect: it is handled alone, and messages are fetched
one by one until no suspect has arrived for a while. If the process ends then, only the count of one message grows.
:mod:`ce_nats.aio.consumer._record` keeps what later processes need to know about it.
"""

from __future__ import annotations

import time
from typing import Final

# After a crash the server redelivers the messages of the process when their ack deadlines expire.
_SLACK_FACTOR: Final = 1.25
_SLACK_SECONDS: Final = 1.0
# Maximum time for which a suspect is handled alone: handlers may take hours.
_MAX_ALONE_SECONDS: Final = 30.0


class Isolation:
    """
    State that decides how many messages a consumer fetches at once.

    Args:
        limit: Number of deliveries above which a message is a suspect.
        ack_wait: Longest time until the server redelivers a message, in seconds.
        is_expected: True if the consumer may have suspects, of an earlier process for instance.

    Attributes:
        alone_seconds: Maximum time that other messages wait for a suspect, and a suspect for them, in seconds.
    """

    def __init__(self, limit: int, ack_wait: float, *, is_expected: bool) -> None:
        self.alone_seconds = min(ack_wait, _MAX_ALONE_SECONDS)
        self._limit = limit
        self._seconds = _SLACK_FACTOR * ack_wait + _SLACK_SECONDS
        self._until = time.monotonic() + self._seconds if is_expected else 0.0
        self._has_received = False

    @property
    def is_one_by_one(self) -> bool:
        """Whether messages are fetched one by one: at first, and for a while after each suspect."""
        return not self._has_received or time.monotonic() < self._until

    @property
    def is_permanent(self) -> bool:
        """Whether messages are fetched one by one permanently."""
        return self._until == float("inf")

    def stay_one_by_one(self) -> None:
        """Fetch messages one by one from now on."""
        self._until = float("inf")

    def is_suspect(self, deliveries: int) -> bool:
        """
        Return whether a message is a suspect.

        Args:
            deliveries: Number of its deliveries when it arrived.
        """
        return deliveries > self._limit

    def receive(self, deliveries: int) -> bool:
        """
        Note a message, and return whether it is a suspect.

        Args:
            deliveries: Number of its deliveries, including this one.
        """
        self._has_received = True
        is_suspect = self.is_suspect(deliveries)
        if is_suspect:
            self._until = max(self._until, time.monotonic() + self._seconds)
        return is_suspect
