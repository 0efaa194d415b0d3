"""
Where is each message of a consumer that is not settled? A pure machine: no I/O, no tasks, and ``now`` is an argument.

    arrive -> READY -> TAKEN -> PENDING -> SETTLED

A message arrives, is taken by the program, and is acknowledged; its acknowledgement is pending until it is written. A
message that was delivered very often is a SUSPECT, and taken alone. With a key a message begins in the INBOX, until its
key is known, and is BLOCKED until it is the first one of its key, or is taken together with those before it; a failed
one is DELAYED until its next attempt. Without a key, a failed message leaves the ledger, and the server delivers it
again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from ...codec.event import DecodedEvent
from ...redelivery import Action, Breaker, BreakerState
from ...wire._ack_subject import AckSubject
from .._util.thread_queue import ThreadQueue
from ._delivery import Delivery
from ._entry import Entry, Place, unexplained
from ._handled import Handled
from ._isolation import Isolation
from ._keys import Keys

# Maximum number of messages that wait for others of their keys, for each prefetched message.
_BLOCKED_FACTOR: Final = 64
# Maximum number of messages that wait, unless it is given.
_PREFETCH: Final = 64
# Number of acknowledgements that are written at once.
MAX_ACKS: Final = 256

# Interval in which tasks look for the end of a probe that is put back.
_PROBE_SECONDS: Final = 1.0

_CLOSED: Final = BreakerState.CLOSED
# Module constants, because member look-up on an enum class is slow in Python 3.11.
_READY, _SUSPECT, _TAKEN, _DROPPED = Place.READY, Place.SUSPECT, Place.TAKEN, Place.DROPPED
_PENDING, _SETTLED, _DELAYED, _BLOCKED, _INBOX = (
    Place.PENDING,
    Place.SETTLED,
    Place.DELAYED,
    Place.BLOCKED,
    Place.INBOX,
)
_NOTHING_RELEASED: Final[Mapping[int, int]] = {}


class Arrivals(NamedTuple):
    """
    What messages that have arrived require.

    Attributes:
        new: Number of them that were not in the ledger.
        release: Messages to release to other clients: this process has missed the ack deadlines of queued messages.
        recheck: Whether one was redelivered and the server has not counted this, so that the consumer may have been
            created again.
    """

    new: int
    release: list[Entry]
    recheck: bool


class Effect(Enum):
    """How the server is notified that a message was settled."""

    ACK = "ack"  # together with others
    CONFIRM = "confirm"  # acknowledged, and the server confirms it
    NAK = "nak"
    TERM = "term"
    DELAY = "delay"  # not at all: the message is handled again after the delay


_ACKNOWLEDGE: Final = Action.ACK
_ACKNOWLEDGED: Final = (Effect.ACK, False)


class AckQueue(list[Entry]):
    """
    Messages whose acknowledgements are pending, in order.

    Attributes:
        due: Time at which they have to be written; infinite if no acknowledgement is pending.
    """

    def __init__(self, delay: float) -> None:
        super().__init__()
        self.due = math.inf
        self._delay = delay

    def put(self, entry: Entry, now: float) -> None:
        """Add a message."""
        if not self:
            self.due = now + self._delay
        self.append(entry)

    def clear(self) -> None:
        """Remove all, because they were written."""
        super().clear()
        self.due = math.inf


class Prefetch:
    """
    Number of messages that are fetched before they are taken, at most ``size``.

    At first they are few: a process that is stopped soon releases them, which increments their delivery counts. If
    ``size`` is None, the maximum follows that of batches.

    Attributes:
        size: The maximum.
        half: Number of waiting messages up to which others are fetched.
        takes: Number of messages that were taken.
    """

    def __init__(self, size: int | None) -> None:
        self.size = size or _PREFETCH
        self.half = self.size // 2
        self.takes = 0
        self._is_given = size is not None

    def follow(self, events: int) -> None:
        """Note that batches have this number of events: a whole one may wait, unless the maximum was given."""
        if not self._is_given:
            self.size = max(_PREFETCH, events)
            self.half = self.size // 2

    @property
    def most(self) -> int:
        """Maximum number of waiting messages now."""
        return min(self.size, 2 * self.takes + 1)


class Ledger:
    """
    The messages of a consumer that are not settled.

    Attributes:
        handled: Messages that were handled, and may be delivered again.
        keys: Order of keys; None if the order is not kept.
        waiting: Number of messages that have arrived, and are neither handled nor settled.
        taken: Number of messages that the program handles.
        prefetch: Number of messages that may wait.
        handed: Messages that were taken for other threads, and that none of these has begun.
        acks: Messages whose acknowledgements are pending.
    """

    def __init__(
        self, prefetch: int | None, isolation: Isolation, breaker: Breaker, ack_delay: float, *, confirms: bool = False
    ) -> None:
        self.isolation = isolation
        self.breaker = breaker
        self.handled = Handled()
        self.keys: Keys | None = None
        self.waiting = self.taken = 0
        self.handed: ThreadQueue[Delivery] = ThreadQueue()
        self.acks = AckQueue(ack_delay)
        self.prefetch = Prefetch(prefetch)
        self._confirms = confirms
        self._entries: dict[int, Entry] = {}  # by sequence
        self._ready: deque[Entry] = deque()
        self._suspects: deque[Entry] = deque()
        self._connection = 0  # on which the first waiting message has arrived

    # --- Arrival ------------------------------------------------------------------------------------------------------

    def free_slots(self, now: float) -> int:
        """Return the number of messages that may be fetched now."""
        waiting, keys = self.waiting, self.keys
        most = self.prefetch.most
        is_one_by_one = self.isolation.is_one_by_one(now)
        if keys is not None:
            if not keys.is_complete:
                return keys.free_slots(1 if is_one_by_one else most, now)
            queued = len(self._ready) + len(self._suspects) + len(keys.inbox)
            most = min(most, _BLOCKED_FACTOR * self.prefetch.size - (waiting - queued))
            waiting = queued
        if is_one_by_one:
            return 0 if waiting or self.isolation.is_one_alone(now) or most <= 0 else 1
        waiting += len(self.handed)
        return max(0, most - waiting) if waiting <= most // 2 else 0

    def arrive(
        self,
        entries: list[Entry],
        now: float,
        connection: int = 0,
        released: Mapping[int, int] = _NOTHING_RELEASED,
    ) -> Arrivals:
        """Note deliveries."""
        known, ready = self._entries, self._ready
        new, recheck, is_late = len(entries), False, False
        is_plain = False  # the first one also tells the connection of those that wait
        for entry in entries:
            # As _add() does, without a call: almost all messages are delivered for the first time.
            if is_plain and entry.deliveries == 1 and entry.sequence not in known:
                known[entry.sequence] = entry
                self.waiting += 1
                ready.append(entry)
                continue
            if entry.deliveries > 1:
                entry.arrival = unexplained(entry.sequence, entry.deliveries, released)
            present = known.get(entry.sequence)
            origin = self._origin(entry, now, is_known=present is not None)
            if present is not None:
                new -= 1
                if present.place is not _PENDING and entry.deliveries <= present.deliveries:
                    recheck = True
                else:
                    is_late = is_late or self._is_late(present, connection)
                present.replace(entry)
            elif origin in self.handled:
                new -= 1
                self._pend(entry, now)
            else:
                self._add(entry, now, connection)
            is_plain = self.keys is None and self.isolation.limit >= 1
        return Arrivals(new, self._release_late() if is_late else [], recheck)

    def _origin(self, entry: Entry, now: float, *, is_known: bool) -> AckSubject | None:
        """Return the metadata of a delivery, which the keys need, or None if nothing does: parsing takes long."""
        if self.keys is None and not (entry.deliveries > 1 and self.handled):
            return None
        origin = entry.origin
        if self.keys is not None:
            self.keys.receive(origin, now, is_known=is_known)
        return origin

    def _add(self, entry: Entry, now: float, connection: int) -> None:
        """Add a message that was not in the ledger."""
        if not self.waiting:
            self._connection = connection
        self._entries[entry.sequence] = entry
        self.waiting += 1
        isolation = self.isolation
        if entry.arrival > isolation.limit or not isolation.has_received:
            isolation.receive(entry.arrival, now)
        if self.keys is not None:
            entry.place = _INBOX
            self.keys.inbox.append(entry)
        elif entry.arrival <= isolation.limit:
            self._ready.append(entry)
        else:
            self._queue(entry, now)

    def _is_late(self, known: Entry, connection: int) -> bool:
        """Return whether a redelivered message is queued, so that this process has missed its ack deadline."""
        # With keys, released messages would be delivered after newer ones of their keys.
        is_queued = known.place in (_READY, _SUSPECT) and self.keys is None and connection == self._connection
        return is_queued and not self.isolation.is_permanent

    def _release_late(self) -> list[Entry]:
        """Withdraw all messages, and fetch one by one from now on."""
        self.isolation.stay_one_by_one()
        return self.withdraw()

    def _queue(self, entry: Entry, now: float) -> None:
        """Queue a message, which may be taken now."""
        if entry.arrival <= self.isolation.limit:
            entry.place = _READY
            self._ready.append(entry)
            return
        entry.place = _SUSPECT
        if not self._suspects:
            self.isolation.begin_to_wait(now)
        self._suspects.append(entry)

    # --- Handling -----------------------------------------------------------------------------------------------------

    def take(self, now: float, *, gathers: bool = False) -> Entry | None:
        """
        Return the next message; None if none waits, or the next one must wait until others are settled.

        If it is gathered for a batch, it may follow one of its key that was taken for the same batch.
        """
        isolation, breaker = self.isolation, self.breaker
        if isolation.alone is not None and isolation.is_one_alone(now):
            return None
        if breaker.state is not _CLOSED and breaker.wait(now) != 0:
            return None
        if self._ready:
            entry = self._ready.popleft()
        elif self._suspects and isolation.may_take(now, self.taken):
            entry = self._suspects.popleft()
            isolation.take(entry, now, self.taken)
        elif gathers and (successor := self._next_gathered()) is not None:
            entry = successor
        else:
            return None
        if gathers and self.keys is not None:
            self.keys.gathering.add(entry.sequence)
        if breaker.state is not _CLOSED:
            breaker.begin(entry.sequence)
        entry.place = _TAKEN
        entry.turn += 1
        self.waiting -= 1
        self.taken += 1
        self.prefetch.takes += 1
        return entry

    def _next_gathered(self) -> Entry | None:
        """Return a message that waits only for others of its key that the batch has, unless it is a suspect."""
        keys = self.keys
        while keys is not None and (sequence := keys.gathering.next()) is not None:
            entry = self._entries.get(sequence)
            if entry is not None and entry.place is _BLOCKED and entry.arrival <= self.isolation.limit:
                return entry
        return None

    def end_batch(self, entries: Sequence[Entry]) -> None:
        """Note that a batch is complete, and put back messages that must not be handled in it."""
        if self.keys is not None:
            self.keys.gathering.clear()
            for entry in self.out_of_turn(entries):
                self.put_back(entry)

    def out_of_turn(self, entries: Sequence[Entry]) -> set[Entry]:
        """Return those of some messages that must wait for others of their keys, which are not among them."""
        if self.keys is None:
            return set()
        sequences = {*self.keys.order.out_of_turn(entry.sequence for entry in entries)}
        return {entry for entry in entries if entry.sequence in sequences}

    def pause(self, now: float) -> float | None:
        """Return the seconds after which :meth:`take` may return a message without a further event; None if never."""
        wait = self.breaker.wait(now)
        if wait != 0:
            return _PROBE_SECONDS if wait is None else wait
        return self.isolation.pause(now, bool(self._suspects))

    def put_back(self, entry: Entry, *, is_first: bool = True) -> None:
        """Put a taken message back to the front of the queue, or to its end."""
        if entry.place is not _TAKEN:
            return
        self._leave(entry)
        self.waiting += 1
        is_suspect = self.isolation.end(entry)
        if self.keys is not None and not self.keys.order.is_first(entry.sequence):
            entry.place = _BLOCKED
            return
        entry.place = _SUSPECT if is_suspect else _READY
        queue = self._suspects if is_suspect else self._ready
        if is_first:
            queue.appendleft(entry)
        else:
            queue.append(entry)

    def begin(self, entry: Entry) -> None:
        """Note that the block of a message was entered."""
        entry.has_started = True

    def keep(self, entry: Entry, event: DecodedEvent) -> None:
        """Keep the event of a message, so that it is decoded once."""
        entry.event = event

    def set_aside(self, entry: Entry) -> None:
        """Take a message that no handler gets, because it is not an event, for instance."""
        if entry.place is not _TAKEN:
            self._leave(entry)
            entry.place = _TAKEN
            self.taken += 1

    def take_back(self) -> None:
        """Put back the messages that other threads have not begun."""
        for delivery in reversed(self.handed.give_back()):
            self.put_back(delivery._entry)

    def hold(self, entry: Entry, *, is_first: bool) -> None:
        """As :meth:`put_back`, for a message whose handler has failed because of an outage; others wait for its end."""
        self.take_back()
        self.put_back(entry, is_first=is_first)
        entry.turn += 1

    def drop(self, entry: Entry, turn: int) -> bool:
        """Note that the program has dropped a delivery, and return whether it was not settled."""
        if not entry.is_current(turn):
            return False
        self._leave(entry)
        self.isolation.end(entry)
        entry.place = _DROPPED
        return True

    def withdraw(self) -> list[Entry]:
        """Return all messages that wait, in order; they are not taken any more."""
        waiting = self._waiting()
        for entry in waiting:
            self._leave(entry)
            entry.place = _DROPPED
        return waiting

    def unhandled(self) -> list[Entry]:
        """As :meth:`withdraw`; return also the other messages whose blocks were not entered."""
        self.withdraw()
        return [entry for entry in self.in_flight() if not entry.has_started]

    def in_flight(self) -> list[Entry]:
        """Return the messages that are not settled, in the order in which the server would redeliver them."""
        return [entry for _, entry in sorted(self._entries.items()) if entry.place is not _PENDING]

    def sequences(self) -> list[int]:
        """Return the sequences of all messages that the server does not know to be settled."""
        return [*self._entries]

    # --- Settlement ---------------------------------------------------------------------------------------------------

    def settle(self, entry: Entry, action: Action, now: float) -> tuple[Effect, bool]:
        """
        Settle a message; with keys, a retry only begins the delay before the next attempt.

        Returns how the server is notified, and whether others may be taken therefore.
        """
        if action is not _ACKNOWLEDGE:
            return self._settle(entry, action, now)
        if self._confirms:
            return Effect.CONFIRM, self.remove(entry, now)
        if entry.place is _TAKEN and self.breaker.state is _CLOSED:  # as in _leave()
            self.taken -= 1
        else:
            self._leave(entry)
        entry.place = _PENDING  # as in _pend()
        self.acks.put(entry, now)
        if self.keys is None and not self._suspects and self.isolation.alone is None:
            return _ACKNOWLEDGED  # as _end() does
        return Effect.ACK, self._end(entry, now)

    def _settle(self, entry: Entry, action: Action, now: float) -> tuple[Effect, bool]:
        """Settle a message, but not by an acknowledgement."""
        if action is Action.DEAD_LETTER:
            return Effect.TERM, self.remove(entry, now)
        if self.keys is None:
            return Effect.NAK, self.remove(entry, now, is_final=False)
        self._delay(entry)
        return Effect.DELAY, True

    def _pend(self, entry: Entry, now: float) -> None:
        entry.place = _PENDING
        self.acks.put(entry, now)

    def are_acks_due(self, now: float) -> bool:
        """Return whether the pending acknowledgements have to be written: the first is old, or no message waits."""
        return bool(self.acks) and (now >= self.acks.due or not self.waiting)

    def settle_acks(self, now: float) -> None:
        """Note that the pending acknowledgements were written."""
        entries, is_remembered = self._entries, self._remembers(now)
        for entry in self.acks:
            entry.place = _SETTLED
            if entries.get(entry.sequence) is entry:
                del entries[entry.sequence]
            if is_remembered:
                self.handled.add(entry.origin)
        self.acks.clear()

    def remove(self, entry: Entry, now: float, *, is_final: bool = True) -> bool:
        """Remove a message that is settled in another way; return whether others may be taken therefore."""
        self._leave(entry)
        entry.place = _SETTLED
        self._entries.pop(entry.sequence, None)
        if is_final and self._remembers(now):
            self.handled.add(entry.origin)
        return self._end(entry, now)

    def _remembers(self, now: float) -> bool:
        """Return whether messages that are settled now are remembered: with keys all are, to keep the order."""
        return self.keys is not None or self.handled.is_late(now)

    def _delay(self, entry: Entry) -> None:
        """With keys: begin the delay before the next attempt at a message, whose present one has failed."""
        self._leave(entry)
        self.isolation.end(entry)
        entry.place = _DELAYED
        entry.turn += 1
        entry.retries += 1
        self.waiting += 1

    def end_delay(self, entry: Entry, now: float) -> None:
        """End the delay of a message."""
        if entry.place is _DELAYED:
            entry.place = _BLOCKED
            self._continue(entry, now)

    def end_block(self, entry: Entry, turn: int, now: float) -> bool:
        """Note the end of a block; return whether others may be taken therefore."""
        if not entry.has_ended(turn):
            return False  # the block has not settled it
        entry.has_started = False
        if self.keys is None:
            return False
        return self._continue(entry, now)

    def _leave(self, entry: Entry) -> None:
        """Remove a message from its place."""
        place = entry.place
        if place is _TAKEN:
            self.taken -= 1
            self.breaker.end(entry.sequence)
        elif place in _WAITING:
            self.waiting -= 1
            if place is _READY:
                self._ready.remove(entry)
            elif place is _SUSPECT:
                self._suspects.remove(entry)
            elif place is _INBOX and self.keys is not None and entry in self.keys.inbox:
                self.keys.inbox.remove(entry)

    def _end(self, entry: Entry, now: float) -> bool:
        """After the handling of a message, return whether others may be taken."""
        is_next = self.keys is not None and not entry.has_started and self._continue(entry, now)
        if self.isolation.alone is not None:
            return self.isolation.end(entry) or is_next
        return is_next or bool(self._suspects and not self.taken)

    # --- Keys ---------------------------------------------------------------------------------------------------------

    def keep_order(self, keys: Keys) -> list[Entry]:
        """Keep the order of keys from now on; return the messages that are taken, whose keys are not known."""
        self.keys = keys
        keys.inbox.extend(self._waiting())
        for entry in keys.inbox:
            entry.place = _INBOX
        self._ready.clear()
        self._suspects.clear()
        return [entry for entry in self._entries.values() if entry.place is _TAKEN]

    def end_order(self, now: float) -> None:
        """Keep no order from now on; all messages that wait may be taken."""
        self.keys = None
        waiting = self._waiting()
        self._ready.clear()
        self._suspects.clear()
        for entry in waiting:
            self._queue(entry, now)

    def admit(self, entry: Entry, key: Hashable, now: float) -> None:
        """
        Note the key of a message, which may be taken if it is the first one of its key.

        Raises:
            TypeError: The key is not hashable.
        """
        assert self.keys is not None
        is_first = self.keys.order.add(entry.sequence, key)
        entry.has_key = True
        if entry.place is not _INBOX:  # it is being handled
            return
        self.keys.inbox.remove(entry)
        entry.place = _BLOCKED
        if is_first:
            self._queue(entry, now)
        else:
            self.keys.gathering.admit(key)

    def admit_without_key(self, entry: Entry) -> None:
        """Note that the function for the key of a message has failed: it holds back no others."""
        entry.has_key = False

    def _continue(self, entry: Entry, now: float) -> bool:
        """Queue the next message of a key, or the same one again; return whether one was queued."""
        keys = self.keys
        if keys is None:
            return False
        if entry.is_settled:
            following = self._entries.get(keys.order.finish(entry.sequence) or 0)
            if following is None or following.place is not _BLOCKED:
                return False
            self._queue(following, now)
        elif entry.has_started or entry.place is not _BLOCKED or not keys.order.is_first(entry.sequence):
            return False
        elif entry.has_key:
            self._queue(entry, now)
        else:
            entry.place = _INBOX
            keys.inbox.insert(0, entry)
        return True

    def _waiting(self) -> list[Entry]:
        return [entry for _, entry in sorted(self._entries.items()) if entry.place in _WAITING]


_WAITING: Final = frozenset({_INBOX, _BLOCKED, _READY, _SUSPECT, _DELAYED})
