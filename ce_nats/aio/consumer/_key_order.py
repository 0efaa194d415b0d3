"""
Order of messages per key, and gaps in what a client has received. Pure data structures, without I/O.

The sequence of a message in its stream is its place in the order of its key.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Hashable, Iterable
from enum import Enum
from typing import Final

from .._jetstream_api import Progress

# Time for which another client may overlap, the one that a deployment replaces for instance.
IN_USE_SECONDS: Final = 5.0
# Time without a request after which another client has gone.
GONE_SECONDS: Final = 1.5


class KeyOrder:
    """Queues of messages, one for each key: the first message of a key may be handled, with those that follow it."""

    def __init__(self) -> None:
        self._queues: dict[Hashable, list[int]] = {}
        self._keys: dict[int, Hashable] = {}

    def add(self, sequence: int, key: Hashable) -> bool:
        """
        Add a message, and return whether it is the first one of its key.

        It is queued by its sequence, but never before the first one, which may be running. Has no effect if it is
        queued already.
        """
        if sequence in self._keys:
            return False
        queue = self._queues.setdefault(key, [])
        self._keys[sequence] = key
        if not queue or sequence > queue[-1]:
            queue.append(sequence)
        else:
            insort(queue, sequence, lo=1)
        return len(queue) == 1

    def finish(self, sequence: int) -> int | None:
        """Remove a message; return the next one of its key if it was the first one, and another one is queued."""
        key = self._keys.pop(sequence, None)
        queue = self._queues.get(key, [])
        if sequence not in queue:
            return None
        was_first = queue[0] == sequence
        queue.remove(sequence)
        if not queue:
            del self._queues[key]
        return queue[0] if queue and was_first else None

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._keys

    def __getitem__(self, sequence: int) -> Hashable:
        """Return the key of a queued message."""
        return self._keys[sequence]

    def is_first(self, sequence: int) -> bool:
        """Return whether no other message of its key is queued before a message."""
        return not self.out_of_turn([sequence])

    def following(self, sequence: int) -> int | None:
        """Return the message that is queued after another one of its key; None without one."""
        queue = self._queues.get(self._keys.get(sequence), [])
        if not queue:
            return None
        # The first one is not sorted.
        place = 1 if queue[0] == sequence else bisect_right(queue, sequence, lo=1)
        return queue[place] if place < len(queue) else None

    def out_of_turn(self, sequences: Iterable[int]) -> list[int]:
        """Return those of some messages before which others of their keys are queued that are not among them."""
        places: dict[Hashable, int] = {}
        others = []
        for sequence in sequences:
            if sequence not in self._keys:
                continue
            key = self._keys[sequence]
            place = places.get(key, 0)
            if self._queues[key][place] == sequence:
                places[key] = place + 1
            else:
                others.append(sequence)
        return others


class Continuity:
    """
    Detects messages that the server has delivered, but not to this client: to an earlier process, to another client, or
    to a connection that was lost.

    The server redelivers them after their ack deadlines, and delivers newer messages meanwhile. The deliveries of a
    consumer have consecutive sequences, so a gap in them shows that some were missed.

    Attributes:
        is_complete: Whether this client has received all unacknowledged messages, as far as it knows.
    """

    def __init__(self) -> None:
        self.is_complete = False
        self._last = 0
        self._received: set[int] = set()  # while it is not complete
        self._received_before: set[int] = set()
        self._in_flight_before: set[int] = set()

    def receive(self, consumer_sequence: int) -> None:
        """Note a delivery."""
        if self.is_complete and consumer_sequence == self._last + 1:
            self._last = consumer_sequence
            return
        self.is_complete = False
        self._received.add(consumer_sequence)

    def begin_request(self, in_flight: Iterable[int]) -> None:
        """Note that the progress of the consumer is requested."""
        self._received_before = set(self._received)
        self._in_flight_before = set(in_flight)

    def missing(self, progress: Progress, in_flight: Collection[int]) -> int:
        """
        Return the number of unacknowledged messages that this client does not have; 0 completes it.

        Acknowledgements on their way to the server count as missing, so the result can be too large for a moment. It is
        too small only if the stream has removed messages that this client has.
        """
        known = sum(progress.ack_floor < sequence <= progress.delivered for sequence in in_flight)
        if progress.ack_pending > known:
            return progress.ack_pending - known
        # A server that had not saved its last state before it ended delivers some messages for the first time again,
        # and counts from an earlier number.
        if any(sequence > progress.delivered for sequence in self._in_flight_before.intersection(in_flight)):
            return 1
        last = progress.deliveries
        self._received -= {number for number in self._received_before if number > last}
        for number in sorted(number for number in self._received if number > last):
            if number != last + 1:
                return 1
            last = number
        self._last = last
        self._received.clear()
        self.is_complete = True
        return 0


class Sharing(Enum):
    """Whether a consumer has other clients."""

    ALONE = "alone"
    SHARED = "shared"  # another client was seen
    IN_USE = "in use"  # for too long: the other client continues


class OtherClients:
    """
    Detects other clients of a consumer by their requests for messages.

    A client that was killed has none. A busy one has none at times, so one that was seen is remembered for a while.
    """

    def __init__(self) -> None:
        self._first_seen = 0.0
        self._last_seen: float | None = None

    def observe(self, requests: int, now: float) -> Sharing:
        """Note the progress of a consumer."""
        has_gone = self._last_seen is None or now - self._last_seen > GONE_SECONDS
        if requests > 1:
            self._last_seen = now
            if has_gone:
                self._first_seen = now
        elif has_gone:
            self._last_seen = None
            return Sharing.ALONE
        return Sharing.IN_USE if now - self._first_seen >= IN_USE_SECONDS else Sharing.SHARED
