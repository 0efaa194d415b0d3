"""
Acknowledge messages that threads have handled, many at once.

A switch to the loop's thread for each message costs several times as much as handling it. So threads collect what they
have handled, and the loop acknowledges it when a thread needs more messages, when none waits, after ``ack_delay``, and
before the connection is closed. A delivery is settled in its thread as soon as it was collected.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from .. import aio
from ..aio._util.supervising import failure, supervise
from ..aio.consumer._acks import AckWriter
from ..aio.consumer._ledger import Ledger
from ..aio.consumer._running import Reporter, Running
from ..aio.consumer._settle import Settler
from ..aio.link._link import Link
from ._bridge import check_fork
from ._loop import Loop


class HandledDeliveries:
    """
    Deliveries whose blocks have ended without an exception, and whose messages the loop will acknowledge.

    While threads are busy, the loop looks for them every ``delay`` seconds, which needs no wake-up by a thread.

    ``waiting``: Returns the number of messages that wait for a thread; may be called in any thread.

    ``wake``: Has :meth:`look` called in the loop; may be called in any thread.
    """

    def __init__(
        self,
        loop: Loop,
        settler: Settler,
        ledger: Ledger,
        acks: AckWriter,
        running: Running,
        reporter: Reporter,
        delay: float,
        waiting: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._settler = settler
        self._ledger = ledger
        self._acks = acks
        self._running = running
        self._reporter = reporter
        self._delay = delay
        self._waiting = waiting
        self._wake = wake
        self._handled: deque[aio.Delivery] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = not delay
        # Those that need more than an acknowledgement in the ledger, or whose acknowledgement may fail.
        self._others: deque[aio.Delivery] = deque()
        self._task: asyncio.Task[None] | None = None
        self._forget = Link.of(settler.nc).closing.before(self._flush)

    def add(self, delivery: aio.Delivery) -> bool:
        """
        Add a delivery; may be called in any thread.

        Return False if the caller has to settle it in the loop, because that could raise an exception now.

        Raises:
            DeliveryError: ``not-open``: the parent process has opened the consumer, and this one is a fork.
        """
        if self._loop.is_inherited:
            check_fork(self._loop, self._running.target)
        if self._is_closed or not self._settler.is_acknowledged_later(delivery):
            return False
        self._handled.append(delivery)
        if self._timer is None or not self._waiting():
            self._wake()
        return True

    def look(self) -> None:
        """Settle what was collected, and look again after ``delay`` if more will follow; called in the loop."""
        self.settle()
        if self._timer is None and not self._is_closed and self._waiting():
            self._start_timer()

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._delay, self._end_timer)

    def _end_timer(self) -> None:
        self._timer = None  # before it looks: a delivery that is added from now on wakes the loop
        if self._handled:
            self._start_timer()
            self._flush()

    def _flush(self) -> None:
        self.settle(is_last=True)

    def settle(self, *, is_last: bool = False) -> None:
        """Settle what was collected; called in the loop, and does not raise."""
        try:
            self._acknowledge()
            if is_last or self._ledger.are_acks_due(time.monotonic()):
                self._acks.flush()
        except Exception as error:
            self._running.fail(failure(self._running.target, error))

    def _acknowledge(self) -> None:
        handled = self._handled
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
                    self._reporter.report(error, delivery)
        finally:
            self._task = None

    async def settle_all(self) -> None:
        """Settle what was collected, and wait until it is settled or reported."""
        self._flush()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """As :meth:`settle_all`; from now on, callers settle deliveries themselves."""
        self._is_closed = True
        self._forget()
        await self.settle_all()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
