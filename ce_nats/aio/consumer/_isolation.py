"""
Distinguish messages that end the process from messages that were fetched at the same time.

The server counts a delivery for each message that a process has fetched, handled or not. If a process ends again and
again, the counts of all fetched messages grow, not only that of the message that causes it. A message that was
delivered more often than the policy allows is therefore only a suspect: it is handled alone, and messages are fetched
one by one until no suspect has arrived for a while. If the process ends then, only the count of one message grows.
:mod:`ce_nats.aio.consumer._record` keeps what later processes need to know about it.
"""

from __future__ import annotations

from typing import Final

from ._entry import Entry

# After a crash the server redelivers the messages of the process when their ack deadlines expire.
_SLACK_FACTOR: Final = 1.25
_SLACK_SECONDS: Final = 1.0
# Maximum time for which a suspect is handled alone: handlers may take hours.
_MAX_ALONE_SECONDS: Final = 30.0


class Isolation:
    """
    Decides how many messages a consumer fetches at once, and which message is handled alone. Pure.

    Attributes:
        alone_seconds: Maximum time that other messages wait for a suspect, and a suspect for them, in seconds.
        alone: The suspect that is being handled, or None.
        is_permanent: Whether messages are fetched one by one permanently.
        has_received: Whether a message has arrived.
    """

    def __init__(self, limit: int, ack_wait: float, now: float, *, is_expected: bool) -> None:
        self.limit = limit
        self.alone_seconds = min(ack_wait, _MAX_ALONE_SECONDS)
        self.alone: Entry | None = None
        self.is_permanent = False
        self._has_company = False  # others were being handled when it was taken
        self._alone_until = 0.0
        self._together_from = 0.0  # time from which a waiting suspect is handled together with others
        self._seconds = _SLACK_FACTOR * ack_wait + _SLACK_SECONDS
        self._until = now + self._seconds if is_expected else 0.0
        self.has_received = False

    # --- Fetching -----------------------------------------------------------------------------------------------------

    def is_one_by_one(self, now: float) -> bool:
        """Return whether messages are fetched one by one: at first, and for a while after each suspect."""
        return self.is_permanent or not self.has_received or now < self._until

    def stay_one_by_one(self) -> None:
        """Fetch messages one by one from now on."""
        self.is_permanent = True

    def receive(self, deliveries: int, now: float) -> None:
        """Note the arrival of a message."""
        self.has_received = True
        if deliveries > self.limit:
            self._until = max(self._until, now + self._seconds)

    # --- Handling -----------------------------------------------------------------------------------------------------

    def begin_to_wait(self, now: float) -> None:
        """Note that the first suspect waits for the end of other messages."""
        self._together_from = now + self.alone_seconds

    def is_one_alone(self, now: float) -> bool:
        """Return whether a suspect is handled, and others have to wait."""
        return self.alone is not None and now < self._alone_until

    def may_take(self, now: float, taken: int) -> bool:
        """Return whether a suspect may be taken."""
        return not taken or now >= self._together_from

    def take(self, suspect: Entry, now: float, taken: int) -> None:
        """Note that a suspect is taken; the arguments are those of :meth:`may_take`."""
        self.alone, self._has_company = suspect, bool(taken)
        self._alone_until = self._together_from = now + self.alone_seconds

    def is_alone(self, entry: Entry) -> bool:
        """Return whether a message is a suspect that was taken while no other message was being handled."""
        return self.alone is entry and not self._has_company

    def end(self, entry: Entry) -> bool:
        """Note that a message is not handled any more; return whether it was the suspect."""
        if self.alone is not entry:
            return False
        self.alone = None
        return True

    def pause(self, now: float, is_waiting: bool) -> float | None:
        """Return the seconds after which others may be taken although a suspect is handled, or waits; or None."""
        if self.is_one_alone(now):
            return self._alone_until - now
        return max(0.0, self._together_from - now) if is_waiting else None
