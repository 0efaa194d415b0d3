"""Hold deliveries: those that wait to be taken, and those that are being handled."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from ...wire._ack_subject import AckSubject, parse_ack_subject
from ._delivery import Delivery, Settles
from ._isolation import Isolation


@dataclass(slots=True)
class _Taken:
    """
    A delivery that the program has.

    Attributes:
        delivery: A weak reference, because a delivery that the program drops will never be settled by it.
        message: Its message.
    """

    delivery: weakref.ref[Delivery]
    message: Msg


class InFlightDeliveries:
    """
    Deliveries that are not settled.

    The ack deadline of each one is extended again and again, so that it is not redelivered meanwhile. (Code that blocks
    the event loop prevents that.)

    Args:
        nc: An open connection.
        settler: Settles the deliveries.
        prefetch: Maximum number of messages fetched and not taken yet.
        wake: Called when :meth:`take` and :meth:`free_slots` may return something else than before.
        on_dropped: Called when the program has dropped a delivery without settling it.
        on_redelivered: Called, once, with all waiting deliveries when one of them is redelivered. They are removed from
            the queue.
    """

    def __init__(
        self,
        nc: Client,
        settler: Settles,
        *,
        prefetch: int,
        wake: Callable[[], None],
        on_dropped: Callable[[AckSubject], None],
        on_redelivered: Callable[[list[Delivery]], None],
    ) -> None:
        self._nc = nc
        self._settler = settler
        self._prefetch = prefetch
        self._wake = wake
        self._on_dropped = on_dropped
        self._on_redelivered = on_redelivered
        self._reconnects = 0
        # By stream sequence: a message is in one of these three.
        self._waiting: dict[int, Delivery] = {}
        self._taken: dict[int, _Taken] = {}
        self._dropped: dict[int, Delivery] = {}
        # Those that wait, in their order.
        self._ready: deque[Delivery] = deque()
        self._suspects: deque[Delivery] = deque()
        self._alone: int | None = None  # sequence of the suspect that is being handled
        self._alone_until = 0.0
        self._together_from = 0.0  # when a suspect that waits is handled beside others
        self._task: asyncio.Task[None] | None = None

    def open(self, isolation: Isolation, interval: float) -> None:
        """
        Begin to hold deliveries, and to extend ack deadlines.

        Args:
            isolation: Decides which message is handled alone.
            interval: Seconds between two extensions.
        """
        self._isolation = isolation
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._keep_extending(interval))

    async def close(self) -> None:
        """Extend no further ack deadlines."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- What may be fetched and taken --------------------------------------------------------------------------------

    def free_slots(self) -> int:
        """How many messages may be fetched now."""
        waiting = len(self._waiting)
        if self._isolation.is_one_by_one:
            return 0 if waiting or self._is_one_alone() else 1
        return self._prefetch - waiting if waiting <= self._prefetch // 2 else 0

    def take(self) -> Delivery | None:
        """The next delivery for the program; None if there is none, or it has to wait for others to be settled."""
        if self._is_one_alone():
            return None
        if self._ready:
            return self._hand_out(self._ready.popleft())
        if self._suspects and (not self._taken or time.monotonic() >= self._together_from):
            delivery = self._suspects.popleft()
            self._alone = delivery.sequence
            self._alone_until = self._together_from = self._in_a_while()
            return self._hand_out(delivery)
        return None

    def put_back(self, delivery: Delivery) -> None:
        """Have a delivery taken once more, before others."""
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
        """Set an alarm, and return its time."""
        self._loop.call_later(self._isolation.alone_seconds, self._wake)
        return time.monotonic() + self._isolation.alone_seconds

    # --- Deliveries ---------------------------------------------------------------------------------------------------

    def add(self, message: Msg, origin: AckSubject) -> None:
        """Hold a message."""
        known = self._find(origin.sequence)
        if known is not None:
            # It took longer than ack_wait, or the server was restarted, so it was redelivered. It is still held.
            known._replace(message, origin)
            if origin.sequence in self._taken:
                self._taken[origin.sequence].message = message
            elif origin.sequence in self._waiting:
                self._check_late()
            return
        delivery = Delivery(message, origin, self._settler)
        if not self._waiting:
            self._reconnects = self._nc.stats["reconnects"]
        self._waiting[origin.sequence] = delivery
        if not self._isolation.receive(origin.deliveries):
            self._ready.append(delivery)
            return
        if not self._suspects:
            self._together_from = self._in_a_while()
        self._suspects.append(delivery)

    def remove(self, delivery: Delivery) -> None:
        """Stop holding a delivery; does nothing if it is not held."""
        sequence = delivery.sequence
        for held in (self._waiting, self._taken, self._dropped):
            held.pop(sequence, None)
        self._end_turn(sequence)

    def unhandled(self) -> list[Delivery]:
        """Deliveries whose blocks were not entered; none of them can be taken any more."""
        self._ready.clear()
        self._suspects.clear()
        return [delivery for delivery in self._deliveries() if not delivery._has_started]

    def _hand_out(self, delivery: Delivery) -> Delivery:
        sequence = delivery.sequence

        def drop(reference: weakref.ref[Delivery]) -> None:
            # Called in the thread that has dropped it. A delivery that was settled is not in here any more, and nor is
            # the reference to it.
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
        Give back what waits if the ack deadlines were missed here, and not because of a lost connection.

        A handler that blocks the loop for longer than ack_wait would have all of it redelivered each time, and the
        counts of messages would grow that no handler was given.
        """
        if self._isolation.is_permanent or self._reconnects != self._nc.stats["reconnects"]:
            return
        self._isolation.stay_one_by_one()
        self._ready.clear()
        self._suspects.clear()
        self._on_redelivered(list(self._waiting.values()))

    def _end_turn(self, sequence: int) -> None:
        """A message is not being handled any more, so that others may be taken."""
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
            self._drop(sequence, taken.delivery)  # the call is on its way
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
            for delivery in self._deliveries():
                if self._nc.is_connected and not delivery.is_settled:
                    with suppress(nats.errors.Error):
                        await delivery.message.in_progress()
