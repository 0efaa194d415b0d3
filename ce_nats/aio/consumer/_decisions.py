"""What the policy of a consumer decides for a message, and how many messages wait for their redelivery."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from heapq import heappop, heappush
from typing import Final

from ...redelivery import Decision, Outcome, RetryPolicy, decide
from .._util.pausing import random_number
from ._attempt import Attempt
from ._binding import Binding
from ._entry import Entry
from ._handled import limit

_log: Final = logging.getLogger(__name__)


class Decisions:
    """
    Decisions about the messages of a consumer.

    Attributes:
        policy: How often a message is tried, and after which delays.
    """

    def __init__(self, policy: RetryPolicy, binding: Binding) -> None:
        self.policy = policy
        self._binding = binding
        self._failures: OrderedDict[int, int] = OrderedDict()  # of handlers, by sequence

    def decide(self, attempt: Attempt, outcome: Outcome) -> Decision:
        """Return the decision of the policy for an attempt; each call is another failure if that is the outcome."""
        failures = None
        if outcome is Outcome.FAILED:
            sequence = attempt._entry.sequence
            self._failures[sequence] = failures = self._failures.pop(sequence, 0) + 1
            limit(self._failures)
        return decide(outcome, attempt._entry.arrival, self.policy, random_number(), failures=failures)

    def forget(self, sequence: int) -> None:
        """Forget the failures of a message that is settled."""
        self._failures.pop(sequence, None)

    def delay(self, attempt: Attempt) -> float:
        """Return the policy's delay before the redelivery, in seconds."""
        return self.policy.delay(attempt.deliveries, random_number())

    @property
    def max_deliver(self) -> int:
        """Number of deliveries after which the server drops a message; 0 without a limit."""
        return self._binding.max_deliver

    def is_last(self, entry: Entry) -> bool:
        """Return whether the server does not deliver a message again."""
        return 0 < self.max_deliver <= entry.deliveries


class Delays:
    """Messages that wait for their redelivery, and count for the ``max_ack_pending`` of a consumer."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self._ends: list[float] = []  # heap of times
        self._is_warned = False

    def note(self, seconds: float, now: float) -> None:
        """Note a delay, and log once that those which wait hold back others."""
        ends, most = self._ends, self._binding.max_ack_pending
        if self._is_warned or most == math.inf:
            return
        heappush(ends, now + seconds)
        while ends[0] <= now:
            heappop(ends)
        if len(ends) > most / 2:
            self._is_warned = True
            _log.warning(
                "%s: %d messages wait for their redelivery, and the server delivers no others when it is "
                "max_ack_pending, %d: raise it, or shorten the delays",
                self._binding.target,
                len(ends),
                most,
            )
