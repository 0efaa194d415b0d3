"""Hand the messages of a consumer to other threads, and settle those that they have handled."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from .._util.supervising import failure, supervise
from ..link._link import Link
from ._acks import AckWriter
from ._deliveries import Deliveries
from ._delivery import Delivery
from ._fetch import Fetcher
from ._ledger import Ledger
from ._running import Running
from ._settle import Settler


class HandOut:
    """
    Hands messages of a consumer to other threads, and takes them back, handled or not. It is called in the loop.

    Attributes:
        queue: Deliveries that no thread has taken yet.
        prefetch: Number of messages that may wait.
        handled: Deliveries whose blocks have ended without an exception, and whose messages are not settled yet. Any
            thread may add those for which :meth:`is_acknowledged_later`.
        take: Returns the next delivery if there is one, and it only has to be decoded.
        is_acknowledged_later: Returns whether the acknowledgement of a delivery is only collected, so that it cannot
            fail now; may be called in any thread.
    """

    def __init__(
        self,
        deliveries: Deliveries,
        ledger: Ledger,
        acks: AckWriter,
        fetcher: Fetcher,
        settler: Settler,
        running: Running,
    ) -> None:
        self.queue = ledger.handed
        self.prefetch = ledger.prefetch
        self.handled: deque[Delivery] = deque()
        self.take: Final[Callable[[], Delivery | None]] = deliveries.take
        self.is_acknowledged_later = settler.is_acknowledged_later
        self._is_plain = deliveries.is_plain
        self._ledger = ledger
        self._acks = acks
        self._fetcher = fetcher
        self._settler = settler
        self._running = running
        # Those that need more than an acknowledgement in the ledger, or whose acknowledgement may fail.
        self._others: deque[Delivery] = deque()
        self._task: asyncio.Task[None] | None = None
        self._forget = Link.of(settler.nc).closing.before(self.flush)

    @property
    def may_read_ahead(self) -> bool:
        """Whether messages may be handed out before threads ask for them: nothing about them may change meanwhile."""
        return self._is_plain and self._ledger.keys is None

    def request(self) -> None:
        """Request more messages if it is time."""
        ledger = self._ledger
        if ledger.keys is not None or ledger.waiting <= ledger.prefetch.half:
            self._fetcher.wake()

    def take_back(self) -> None:
        """Put back the messages that no thread has taken."""
        self._ledger.take_back()
        self._running.wake()  # the reader may be waiting for messages

    async def report(self, error: Exception, delivery: Delivery) -> None:
        """Report the exception of a handler."""
        self._settler.reporter.report(error, delivery)

    # --- Handled messages ---------------------------------------------------------------------------------------------

    def settle(self, *, is_last: bool = False) -> None:
        """Settle what was handled; does not raise."""
        try:
            self._acknowledge()
            if is_last or self._ledger.are_acks_due(time.monotonic()):
                self._acks.flush()
        except Exception as error:
            self._running.fail(failure(self._running.target, error))

    def flush(self) -> None:
        """As :meth:`settle`, and write the acknowledgements now."""
        self.settle(is_last=True)

    def _acknowledge(self) -> None:
        handled = self.handled
        while handled:
            delivery = handled.popleft()
            if not self._settler.acknowledge(delivery):
                self._others.append(delivery)
        if self._others and self._task is None:
            self._task = supervise(self._settle_others(), self._running.target, self._running.fail)

    async def _settle_others(self) -> None:
        try:
            while self._others:
                delivery = self._others.popleft()
                try:
                    await delivery._end_block(None)
                except Exception as error:
                    self._settler.reporter.report(error, delivery)
        finally:
            self._task = None

    async def settle_all(self) -> None:
        """Settle what was handled, and wait until it is settled or reported."""
        self.flush()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """As :meth:`settle_all`, for the last time."""
        self._forget()
        await self.settle_all()
