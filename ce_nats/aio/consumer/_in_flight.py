"""Keep deliveries that are queued or being handled, and extend their ack deadlines."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from ...errors import DeliveryError
from ...wire._ack_subject import AckSubject, parse_ack_subject
from .._util.supervising import supervise
from ._delivery import Delivery, Settles
from ._isolation import Isolation

# Maximum number of messages that wait for others of their keys, for each prefetched message.
_BLOCKED_FACTOR: Final = 64


class Gate(Protocol):
    """Decides when messages are queued: see :class:`~ce_nats.aio.consumer._keyed.KeyGate`."""

    @property
    def is_complete(self) -> bool: ...

    @property
    def waiting(self) -> int: ...

    def slots(self, most: int) -> int: ...

    def receive(self, message: Msg, origin: AckSubject) -> bool: ...

    def add(self, delivery: Delivery) -> None: ...


@dataclass(slots=True)
class _Taken:
    """
    A delivery that the program is handling.

    Attributes:
        delivery: Weak reference, to detect a delivery that the program has dropped without settling it.
        message: Its message.
    """

    delivery: weakref.ref[Delivery]
    message: Msg


class InFlightDeliveries:
    """
    Unsettled deliveries.

    The ack deadline of each delivery is extended regularly, so that the server does not redeliver it. (Code that blocks
    the event loop prevents this.)

    Args:
        nc: An open connection.
        settler: Settles the deliveries.
        prefetch: Maximum number of queued messages.
        count: Returns the number of deliveries that may have ended a process.
        wake: Called when the results of :meth:`take` and :meth:`free_slots` may have changed.
        on_dropped: Called when the program has dropped a delivery without settling it.
        on_redelivered: Called, once, with all waiting deliveries when one of them is redelivered. They are removed from
            the queue.
        on_uncounted: Called when a message is delivered again, and the server does not count this: it has lost its last
            state, or the consumer was deleted and created again.
        target: Name of the consumer, for errors.
        fail: Called with the error after which ack deadlines are not extended any more.
    """

    def __init__(
        self,
        nc: Client,
        settler: Settles,
        *,
        prefetch: int,
        count: Callable[[AckSubject], int],
        wake: Callable[[], None],
        on_dropped: Callable[[AckSubject], None],
        on_redelivered: Callable[[list[Delivery]], None],
        on_uncounted: Callable[[], None],
        target: str,
        fail: Callable[[DeliveryError], None],
    ) -> None:
        self._nc = nc
        self._settler = settler
        self._prefetch = prefetch
        self._count = count
        self._wake = wake
        self._on_dropped = on_dropped
        self._on_redelivered = on_redelivered
        self._on_uncounted = on_uncounted
        self._target = target
        self._fail = fail
        self._reconnects = 0
        # By stream sequence; each message is in one of these three.
        self._waiting: dict[int, Delivery] = {}
        self._taken: dict[int, _Taken] = {}
        self._dropped: dict[int, Delivery] = {}
        # The waiting ones, in order. With a gate, those that have passed it.
        self._ready: deque[Delivery] = deque()
        self._suspects: deque[Delivery] = deque()
        self._alone: int | None = None  # sequence of the suspect that is being handled
        self._has_company = False  # others were being handled when it was taken
        self._alone_until = 0.0
        self._together_from = 0.0  # time from which a waiting suspect is handled together with others
        self._task: asyncio.Task[None] | None = None
        self._gate: Gate | None = None

    def open(self, isolation: Isolation, interval: float) -> None:
        """
        Begin to keep deliveries, and to extend ack deadlines.

        Args:
            isolation: Decides which message is handled alone.
            interval: Seconds between two extensions.
        """
        self._isolation = isolation
        self._loop = asyncio.get_running_loop()
        self._task = supervise(self._keep_extending(interval), self._target, self._fail)

    async def close(self) -> None:
        """Stop extending ack deadlines."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- What may be fetched and taken --------------------------------------------------------------------------------

    def free_slots(self) -> int:
        """Return the number of messages that may be fetched now."""
        gate, waiting, most = self._gate, len(self._waiting), self._prefetch
        if gate is not None:
            if not gate.is_complete:
                return gate.slots(1 if self._isolation.is_one_by_one else most)
            queued = len(self._ready) + len(self._suspects) + gate.waiting
            most = min(most, _BLOCKED_FACTOR * most - (waiting - queued))
            waiting = queued
        if self._isolation.is_one_by_one:
            return 0 if waiting or self._is_one_alone() or most <= 0 else 1
        return max(0, most - waiting) if waiting <= self._prefetch // 2 else 0

    def take(self) -> Delivery | None:
        """Return the next delivery; None if the queue is empty, or the next one must wait until others are settled."""
        if self._is_one_alone():
            return None
        if self._ready:
            return self._hand_out(self._ready.popleft())
        if self._suspects and (not self._taken or time.monotonic() >= self._together_from):
            delivery = self._suspects.popleft()
            self._alone, self._has_company = delivery.sequence, bool(self._taken)
            self._alone_until = self._together_from = self._in_a_while()
            return self._hand_out(delivery)
        return None

    def put_back(self, delivery: Delivery) -> None:
        """Put a delivery back to the front of the queue."""
        if self._taken.pop(delivery.sequence, None) is None:
            return
        self._waiting[delivery.sequence] = delivery
        if self._alone == delivery.sequence:
            self._alone = None
            self._suspects.appendleft(delivery)
        else:
            self._ready.appendleft(delivery)
        self._wake()

    def _is_one_alone(self) -> bool:
        return self._alone is not None and time.monotonic() < self._alone_until

    def _in_a_while(self) -> float:
        """Schedule a wake-up, and return its time."""
        self._loop.call_later(self._isolation.alone_seconds, self._wake)
        return time.monotonic() + self._isolation.alone_seconds

    # --- Deliveries ---------------------------------------------------------------------------------------------------

    def add(self, message: Msg, origin: AckSubject) -> None:
        """Add a message to the queue, or to the gate."""
        if self._gate is not None and self._gate.receive(message, origin):
            return
        known = self._find(origin.sequence)
        if known is not None:
            # It was redelivered after ack_wait, or because the server was restarted, and is still in flight.
            is_counted = origin.deliveries > known._known.deliveries
            known._replace(message, origin)
            if origin.sequence in self._taken:
                self._taken[origin.sequence].message = message
            if not is_counted:
                self._on_uncounted()
            elif origin.sequence in self._waiting:
                self._check_late()
            return
        delivery = Delivery(message, origin, self._settler, self._count(origin))
        if not self._waiting:
            self._reconnects = self._nc.stats["reconnects"]
        self._waiting[origin.sequence] = delivery
        self._isolation.receive(delivery._arrival)
        if self._gate is None:
            self.queue(delivery)
        else:
            self._gate.add(delivery)

    def queue(self, delivery: Delivery) -> None:
        """Queue a message, which may be taken now."""
        if not self.is_suspect(delivery):
            self._ready.append(delivery)
            return
        if not self._suspects:
            self._together_from = self._in_a_while()
        self._suspects.append(delivery)

    def is_suspect(self, delivery: Delivery) -> bool:
        """Return whether a message was delivered so often that it is handled alone."""
        return self._isolation.is_suspect(delivery._arrival)

    def is_alone(self, delivery: Delivery) -> bool:
        """Return whether a message is a suspect that was taken while no other message was being handled."""
        return self._alone == delivery.sequence and not self._has_company

    def hold(self, delivery: Delivery) -> None:
        """Replace a taken delivery by the one of its next attempt, which waits."""
        sequence = delivery.sequence
        for held in (self._taken, self._dropped):
            held.pop(sequence, None)
        self._waiting[sequence] = delivery
        self._end_turn(sequence)

    def open_gate(self, gate: Gate) -> list[Delivery]:
        """Queue messages when a gate allows it; return the deliveries that are taken."""
        self._gate = gate
        self._ready.clear()
        self._suspects.clear()
        for delivery in self._waiting.values():
            gate.add(delivery)
        return [delivery for delivery in self._deliveries() if delivery.sequence in self._taken]

    def close_gate(self) -> None:
        """Queue all messages that wait."""
        self._gate = None
        self._ready.clear()
        self._suspects.clear()
        for _, delivery in sorted(self._waiting.items()):
            self.queue(delivery)

    def sequences(self) -> list[int]:
        """Return the sequences of all unsettled messages."""
        return [*self._waiting, *self._taken, *self._dropped]

    def remove(self, delivery: Delivery) -> None:
        """Remove a delivery. Has no effect if it is not in flight."""
        sequence = delivery.sequence
        for held in (self._waiting, self._taken, self._dropped):
            held.pop(sequence, None)
        self._end_turn(sequence)

    def unhandled(self) -> list[Delivery]:
        """Empty the queue, and return deliveries whose blocks were not entered, by their sequences."""
        self._ready.clear()
        self._suspects.clear()
        return sorted(
            (delivery for delivery in self._deliveries() if not delivery._has_started),
            key=lambda delivery: delivery.sequence,
        )

    def _hand_out(self, delivery: Delivery) -> Delivery:
        sequence = delivery.sequence

        def drop(reference: weakref.ref[Delivery]) -> None:
            # Called in the thread that has dropped the delivery. The reference to a settled delivery was removed
            # before.
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._drop, sequence, reference)

        del self._waiting[sequence]
        self._taken[sequence] = _Taken(weakref.ref(delivery, drop), delivery.message)
        return delivery

    def _drop(self, sequence: int, reference: weakref.ref[Delivery]) -> None:
        taken = self._taken.get(sequence)
        if taken is None or taken.delivery is not reference:
            return
        del self._taken[sequence]
        if not taken.message.is_acked:  # with nats-py's own methods
            origin = parse_ack_subject(taken.message.reply)
            self._dropped[sequence] = Delivery(taken.message, origin, self._settler)
            self._on_dropped(origin)
        self._end_turn(sequence)

    def _check_late(self) -> None:
        """
        Release queued deliveries if this process missed their ack deadlines, and not because of a lost connection.

        If a handler blocks the event loop for longer than ack_wait, all queued messages would be redelivered each time,
        and the counts of messages that were not handled would grow.
        """
        if self._isolation.is_permanent or self._reconnects != self._nc.stats["reconnects"]:
            return
        if self._gate is not None:  # released, they would be delivered after newer messages of their keys
            return
        self._isolation.stay_one_by_one()
        self._ready.clear()
        self._suspects.clear()
        self._on_redelivered(list(self._waiting.values()))

    def _end_turn(self, sequence: int) -> None:
        """Let other messages be taken, after the handling of a message has ended."""
        if self._alone == sequence:
            self._alone = None
            self._wake()
        elif self._suspects and not self._taken:
            self._wake()

    def _find(self, sequence: int) -> Delivery | None:
        taken = self._taken.get(sequence)
        if taken is not None:
            delivery = taken.delivery()
            if delivery is not None:
                return delivery
            self._drop(sequence, taken.delivery)  # the scheduled call has not run yet
        return self._waiting.get(sequence) or self._dropped.get(sequence)

    def _deliveries(self) -> Iterator[Delivery]:
        yield from list(self._waiting.values())
        for sequence, taken in list(self._taken.items()):
            delivery = taken.delivery()
            if delivery is not None:
                yield delivery
            else:
                self._drop(sequence, taken.delivery)
        yield from list(self._dropped.values())

    async def _keep_extending(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            # In this order they expire, and the server redelivers them, if the process ends.
            for delivery in sorted(self._deliveries(), key=lambda delivery: delivery.sequence):
                if self._nc.is_connected and not delivery.is_settled:
                    with suppress(nats.errors.Error):
                        await delivery.message.in_progress()
