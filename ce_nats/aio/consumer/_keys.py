"""
Order of keys in a ledger: which messages wait for their keys, and whether messages before them are missing. Pure.

The server does not keep the order if messages were delivered to an earlier process and not acknowledged, or sent on a
connection that was lost: it delivers newer ones before the ack deadlines of these expire. So no message leaves the
inbox until this client has all unacknowledged messages; :class:`~ce_nats.aio.consumer._key_order.Continuity` detects
missing ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable

from ...wire._ack_subject import AckSubject
from .._jetstream_api import Progress
from ._entry import Entry
from ._key_order import Continuity, KeyOrder


class Gathering:
    """
    The batch that is being collected: messages of a key may be handled together, in their order.

    ``order`` has the messages whose keys are known.
    """

    def __init__(self, order: KeyOrder) -> None:
        self._order = order
        self._last: dict[Hashable, int] = {}  # sequence of the last message of each key in the batch
        self._extensible: deque[Hashable] = deque()  # keys whose next message may be there

    def add(self, sequence: int) -> None:
        """Note a message that was taken for the batch."""
        if sequence in self._order:
            key = self._order[sequence]
            self._last[key] = sequence
            self._extensible.append(key)

    def admit(self, key: Hashable) -> None:
        """Note a message that may not be the first one of its key."""
        if key in self._last:
            self._extensible.append(key)

    def next(self) -> int | None:
        """Return a message that follows those of its key in the batch, and is tried for it; None without one."""
        while self._extensible:
            following = self._order.following(self._last[self._extensible.popleft()])
            if following is not None:
                return following
        return None

    def clear(self) -> None:
        """Note that the batch is complete, and the next one begins."""
        self._last.clear()
        self._extensible.clear()


class Keys:
    """
    State of the order of keys.

    Attributes:
        has_begun: Whether this client may fetch messages: no other one keeps the order.
        inbox: Messages whose keys are not known, in the order of arrival; of the stream, when none is missing.
        order: Messages whose keys are known.
        gathering: The batch that is being collected.
    """

    def __init__(self, pause: float) -> None:
        self.has_begun = False
        self.inbox: list[Entry] = []
        self.order = KeyOrder()
        self.gathering = Gathering(self.order)
        self._pause = pause
        self._continuity = Continuity()
        # While messages are missing:
        self.missing = 1
        self._was_redelivered = False
        self._not_before = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether no message is missing."""
        return self._continuity.is_complete

    def free_slots(self, most: int, now: float) -> int:
        """
        Return the number of messages that may be fetched now, while some are missing.

        The server sends redelivered messages before new ones. New ones have to wait, and a process that ends meanwhile
        increments their delivery counts, so few are fetched.
        """
        if not self.has_begun:
            return 0
        if self._was_redelivered:
            return max(1, min(most, self.missing))
        return 1 if now >= self._not_before else 0

    def receive(self, origin: AckSubject, now: float, *, is_known: bool) -> None:
        """Note a delivery."""
        self._continuity.receive(origin.consumer_sequence)
        if not self.is_complete:
            self._was_redelivered = origin.deliveries > 1 or is_known
            if self._was_redelivered:
                self.missing -= 1
            else:
                self._not_before = now + self._pause

    def begin_request(self, in_flight: Collection[int]) -> None:
        """Note that the progress of the consumer is requested; the argument is that of :meth:`complete`."""
        self._continuity.begin_request(in_flight)

    def complete(self, progress: Progress, in_flight: Collection[int]) -> bool:
        """Return whether no message is missing; messages may then leave the inbox."""
        self.missing = self._continuity.missing(progress, in_flight)
        if self.missing:
            return False
        self.missing, self._was_redelivered, self._not_before = 1, False, 0.0
        self.inbox.sort(key=lambda entry: entry.sequence)
        return True
