"""
Tell messages that end the process from those that were fetched beside them.

The server counts a delivery for every message that a process has fetched, handled or not. So when a process ends again
and again, the counts of innocent messages grow as fast as that of the one at fault. A message that was delivered more
often than the policy allows is therefore a suspect, and nothing more: it is handled alone, and messages are fetched one
by one until no suspect has come for a while. If the process ends now, the count of one message grows.
"""

from __future__ import annotations

import time
from typing import Final

# After a crash the server redelivers what the process had once its ack deadlines are over.
_SLACK_FACTOR: Final = 1.25
_SLACK_SECONDS: Final = 1.0
# How long a suspect is alone, at most: handlers may take hours.
_MAX_ALONE_SECONDS: Final = 30.0


class Isolation:
    """
    State of a consumer that decides how many messages it fetches at once.

    Args:
        limit: Number of deliveries above which a message is a suspect.
        ack_wait: Longest time until the server redelivers a message, in seconds.
        is_expected: True if the consumer has messages that may be suspects, of an earlier process for instance.

    Attributes:
        alone_seconds: How long other messages wait for a suspect, and a suspect for them, in seconds.
    """

    def __init__(self, limit: int, ack_wait: float, *, is_expected: bool) -> None:
        self.alone_seconds = min(ack_wait, _MAX_ALONE_SECONDS)
        self._limit = limit
        self._seconds = _SLACK_FACTOR * ack_wait + _SLACK_SECONDS
        self._until = time.monotonic() + self._seconds if is_expected else 0.0
        self._has_received = False

    @property
    def is_one_by_one(self) -> bool:
        """Whether messages are fetched one at a time: at first, and for a while after each suspect."""
        return not self._has_received or time.monotonic() < self._until

    @property
    def is_permanent(self) -> bool:
        """Whether that will not change."""
        return self._until == float("inf")

    def stay_one_by_one(self) -> None:
        """Fetch messages one at a time from now on."""
        self._until = float("inf")

    def receive(self, deliveries: int) -> bool:
        """
        Note a message, and return whether it is a suspect.

        Args:
            deliveries: How often it was delivered, this time included.
        """
        self._has_received = True
        is_suspect = deliveries > self._limit
        if is_suspect:
            self._until = max(self._until, time.monotonic() + self._seconds)
        return is_suspect
