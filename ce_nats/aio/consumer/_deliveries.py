"""Take the messages of a consumer one after the other, as deliveries."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from ...errors import DecodeError
from ..link._link import Link
from ._acks import AckWriter
from ._delivery import Delivery
from ._fetch import Fetcher
from ._ledger import Ledger
from ._prepare import Preparation
from ._running import Running
from ._settle import Settler

_MAX_UNSUSPENDED_SECONDS: Final = 0.05
# Interval in which a task looks whether a connection that is being drained is closed.
_DRAINING_SECONDS: Final = 0.2


class Deliveries:
    """
    Source of deliveries, from which several tasks take.

    Attributes:
        settler: Settles their messages.
        is_plain: Whether a message only has to be decoded.
    """

    def __init__(
        self,
        ledger: Ledger,
        acks: AckWriter,
        fetcher: Fetcher,
        settler: Settler,
        preparation: Preparation,
        running: Running,
    ) -> None:
        self._ledger = ledger
        self._acks = acks
        self._fetcher = fetcher
        self.settler = settler
        self._nc = settler.nc
        self._preparation = preparation
        self._running = running
        self.is_plain = preparation.is_plain
        self._suspended = 0.0

    @property
    def is_ending(self) -> bool:
        """Whether the program has stopped the consumer, or its connection is closed or being drained."""
        return self._running.stopped.is_set() or self._nc.is_closed or self._nc.is_draining

    def take(self, *, gathers: bool = False) -> Delivery | None:
        """
        Return the next delivery if there is one, and it only has to be decoded; else None: see :meth:`next`.

        ``gathers``: As for :meth:`Ledger.take`.
        """
        ledger, preparation = self._ledger, self._preparation
        while True:
            now = time.monotonic()
            if (
                not self.is_plain
                or now - self._suspended > _MAX_UNSUSPENDED_SECONDS
                or self._running.has_ended
                or not self._nc.is_connected
            ):
                return None
            entry = ledger.take(now, gathers=gathers)
            if entry is None:
                return None
            raw = entry.raw
            if (entry.arrival > 1 and ledger.isolation.alone is entry) or not raw[0].isascii():
                break
            if now >= ledger.acks.due or ledger.waiting <= ledger.prefetch.half:
                self._note_taken(now)
            event = entry.event
            if event is None and not preparation.drops(entry):
                try:
                    event = preparation.decode(raw[2], raw[3])
                except DecodeError:
                    break
                if not preparation.passes(event):
                    event = None
            delivery = Delivery(self.settler, entry, event, preparation.resolve)
            if event is not None:
                return delivery
            if not self.settler.acknowledge(delivery):  # it was filtered
                break
        ledger.put_back(entry)
        return None

    async def next(self, *, gathers: bool = False) -> Delivery | None:
        """
        Wait for the next delivery, and return it; None after the end.

        ``gathers``: As for :meth:`Ledger.take`.

        Raises:
            DeliveryError: The error that ends the iterations.
        """
        await self._yield_to_other_tasks()
        ledger, running = self._ledger, self._running
        while not running.stopped.is_set():
            if not await self.may_handle():
                continue
            now = time.monotonic()
            entry = ledger.take(now, gathers=gathers)
            if entry is not None:
                self._note_taken(now)
                delivery = await self._preparation.prepare(entry)
                if delivery is not None:
                    return delivery
            elif running.error is not None:
                raise running.error
            else:
                self._acks.flush()
                self._fetcher.wake()
                await running.wait(ledger.pause(now))
        return None

    async def may_handle(self) -> bool:
        """
        Return whether a handler may start; after a short time, if the connection is being drained.

        Raises:
            DeliveryError: Nothing can be acknowledged any more.
        """
        running = self._running
        if self._nc.is_closed:
            running.cut_off(Link.of(self._nc).ending.closed_error(running.target))
        if running.is_cut_off:
            assert running.error is not None
            raise running.error
        if not self._nc.is_draining:
            return True
        await running.wait(_DRAINING_SECONDS)
        return False

    def flush_acks(self) -> None:
        """Write the pending acknowledgements."""
        self._acks.flush()

    def _note_taken(self, now: float) -> None:
        """After a message was taken, write acknowledgements and request more messages if it is time."""
        ledger = self._ledger
        if ledger.are_acks_due(now):
            self._acks.flush()
        if ledger.waiting <= ledger.prefetch.half or ledger.keys is not None:
            self._fetcher.wake()

    async def _yield_to_other_tasks(self) -> None:
        """
        Yield to other tasks from time to time.

        Neither taking a queued delivery nor acknowledging it yields to other tasks. So without this, handlers that each
        block the event loop for a short time would prevent ack deadlines from being extended until the queue is empty.
        """
        if time.monotonic() - self._suspended > _MAX_UNSUSPENDED_SECONDS:
            self._acks.flush()
            for _ in range(3):  # a timer, the task that it wakes, and the write of that task
                await asyncio.sleep(0)
            self._suspended = time.monotonic()
