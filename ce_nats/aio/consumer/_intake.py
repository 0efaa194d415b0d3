"""Add messages that have arrived to the ledger, and do what their arrival requires."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

from .._util.supervising import supervise
from ._acks import AckWriter
from ._binding import Binding
from ._delivery import Delivery
from ._entry import Entry
from ._ledger import Ledger
from ._record import Recorder
from ._running import Running
from ._settle import Settler

_log: Final = logging.getLogger(__name__)


class Intake:
    """Receives the messages of a consumer."""

    def __init__(
        self,
        binding: Binding,
        ledger: Ledger,
        acks: AckWriter,
        settler: Settler,
        recorder: Recorder,
        running: Running,
    ) -> None:
        self._binding = binding
        self._ledger = ledger
        self._acks = acks
        self._settler = settler
        self._recorder = recorder
        self._running = running
        self._releasing: asyncio.Task[None] | None = None
        self._identifying: asyncio.Task[None] | None = None

    def receive(self, entries: list[Entry]) -> None:
        """Add messages that have arrived to the ledger."""
        connection, released = self._settler.nc.stats["reconnects"], self._recorder.record.released
        arrivals = self._ledger.arrive(entries, time.monotonic(), connection, released)
        if self._ledger.acks:
            self._acks.schedule()
        if arrivals.recheck:
            self._check_identity()
        if arrivals.release:
            self._release_late(arrivals.release)
        self._running.wake(arrivals.new)

    def _release_late(self, entries: list[Entry]) -> None:
        """
        Release messages that were redelivered while they were queued.

        If a handler blocks the event loop for longer than ack_wait, all queued messages would be redelivered each time,
        and the counts of messages that were not handled would grow.
        """
        _log.warning(
            "%s: messages were redelivered while they waited for a handler: the event loop was blocked for longer than "
            "ack_wait; fetching one by one from now on",
            self._binding.target,
        )
        self._releasing = supervise(self.release(entries), self._binding.target, self._running.fail)

    async def release(self, entries: Sequence[Entry]) -> None:
        """Release messages to other clients."""
        await self._settler.release([Delivery(self._settler, entry, None) for entry in entries])

    def _check_identity(self) -> None:
        """Check whether the consumer was deleted and created again, unless this is being checked."""
        if self._identifying is None or self._identifying.done():
            self._identifying = supervise(self._binding.check_identity(), self._binding.target, self._running.fail)

    async def close(self) -> None:
        """Wait until late messages are released, and end the check."""
        if self._releasing is not None:
            await asyncio.gather(self._releasing, return_exceptions=True)
        if self._identifying is not None:
            self._identifying.cancel()
