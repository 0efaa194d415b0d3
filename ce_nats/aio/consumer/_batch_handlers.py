"""Collect the deliveries of a consumer to batches, and call a handler with them; divide batches that fail."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextvars import copy_context
from typing import Final

from ...errors import BatchError
from ...redelivery import BreakerState
from ...routing import AnyRouter
from .._log_fields import error_fields
from ._acks import is_acked
from ._batch import Batch
from ._deliveries import Deliveries
from ._delivery import Delivery
from ._handlers import NotAsyncError, Worker, Workers
from ._ledger import Ledger
from ._running import Reporter

_log: Final = logging.getLogger(__name__)


class Collector:
    """Collects deliveries to batches, for one task at a time."""

    def __init__(self, deliveries: Deliveries, ledger: Ledger, max_events: int, max_wait: float) -> None:
        self._deliveries = deliveries
        self._ledger = ledger
        self._max_events = max_events
        self._max_wait = max_wait
        self._collecting = asyncio.Lock()
        # Outlives a batch whose time is over: the next delivery may wait for a dead letter, for instance.
        self._next: asyncio.Task[Delivery | None] | None = None

    async def collect(self) -> list[Delivery]:
        """
        Wait for deliveries, and return those of a batch; none after the end.

        Raises:
            DeliveryError: The error that ends the iterations.
        """
        async with self._collecting:
            batch: list[Delivery] = []
            while True:
                try:
                    await self._fill(batch)
                    if not batch:
                        return batch
                    batch = self._in_turn(batch)
                    may_handle = await self._deliveries.may_handle()
                except BaseException:
                    self._put_back(batch)
                    raise
                if not may_handle:
                    self._put_back(batch)
                    batch = []
                    continue
                breaker = self._ledger.breaker
                if breaker.state is not BreakerState.CLOSED:
                    self._put_back([delivery for delivery in batch if not breaker.is_probe(delivery.sequence)])
                    batch = [delivery for delivery in batch if breaker.is_probe(delivery.sequence)]
                if batch:
                    return batch

    def _in_turn(self, batch: list[Delivery]) -> list[Delivery]:
        """Return the deliveries of a complete batch without those that must wait for others of their keys."""
        self._ledger.end_batch([delivery._entry for delivery in batch])
        return [delivery for delivery in batch if delivery._entry.is_current(delivery._turn)]

    async def _fill(self, batch: list[Delivery]) -> None:
        isolation = self._ledger.isolation
        end = 0.0
        while len(batch) < self._max_events:
            delivery = self._deliveries.take(gathers=True) if self._next is None else None
            if delivery is None:
                delivery = await self._wait(end - time.monotonic() if batch else None, is_first=not batch)
                if delivery is None:
                    return
            if not batch:
                end = time.monotonic() + self._max_wait
            batch.append(delivery)
            if isolation.alone is delivery._entry:  # it may end the process
                return
            if self._ledger.breaker.state is not BreakerState.CLOSED:
                return

    async def _wait(self, seconds: float | None, *, is_first: bool) -> Delivery | None:
        """Return the next delivery; None after the end, after the time, and after an error that can wait."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._deliveries.next(gathers=True))
        await asyncio.wait({self._next}, timeout=seconds if seconds is None else max(0.0, seconds))
        if not self._next.done() or (not is_first and (self._next.cancelled() or self._next.exception() is not None)):
            return None
        task, self._next = self._next, None
        return task.result()

    async def close(self) -> None:
        """Put back the delivery that belongs to no batch."""
        if self._next is not None:
            self._next.cancel()
            [delivery] = await asyncio.gather(self._next, return_exceptions=True)
            if isinstance(delivery, Delivery):
                self._put_back([delivery])

    def _put_back(self, batch: list[Delivery]) -> None:
        for delivery in reversed(batch):
            self._ledger.put_back(delivery._entry)


class BatchWorkers(Workers):
    """Tasks that call a handler with batches."""

    def __init__(
        self,
        deliveries: Deliveries,
        handler: Callable[[Batch], Awaitable[object]],
        reporter: Reporter,
        collector: Collector,
        router: AnyRouter | None,
    ) -> None:
        super().__init__(deliveries, handler, reporter)
        self._collector = collector
        self._router = router

    async def run(self, count: int, stopped: asyncio.Event, stop_timeout: float | None) -> None:
        """As :meth:`Workers.run`."""
        try:
            await super().run(count, stopped, stop_timeout)
        finally:
            await self._collector.close()

    async def _work(self) -> None:
        worker = asyncio.current_task()
        assert isinstance(worker, Worker)
        while deliveries := await self._collector.collect():
            worker.delivery, worker.began = deliveries[0], time.monotonic()
            # Blocks in which an OpenTelemetry span is the current one must not see each other.
            worker.context = copy_context()
            for delivery in deliveries:
                worker.context.run(delivery._enter_block)
            await self._handle(worker, deliveries)
            worker.delivery = None

    async def _handle(self, worker: Worker, deliveries: list[Delivery]) -> None:
        """
        Handle a batch; after an exception its halves, one after the other, down to single events.

        When the consumer was stopped or its connection closed, the parts that are left are released. During an outage
        all of them are held.
        """
        parts = self._split(deliveries)
        whole = [*parts]
        try:
            while parts:
                if not await self._is_in_turn(parts):
                    continue
                batch = Batch(parts[-1])
                requests = worker.cancelling()
                error = await self._call(worker, batch, requests)
                failed = self._failed(error, batch)
                if failed is not None:
                    await self._settle_batch(batch, failed)
                    parts.pop()
                elif isinstance(error, Exception) and not isinstance(error, NotAsyncError):
                    if not self._deliveries.settler.is_outage(error):
                        await self._divide(parts, error, is_whole=any(parts[-1] is part for part in whole))
                else:
                    assert error is not None
                    raise error
                if self._is_cancelling:  # the handler suppressed the CancelledError
                    raise asyncio.CancelledError
                worker.take_back(requests)
                if parts and self._deliveries.is_ending:
                    await self._release(parts)
                elif parts and self._deliveries.settler.is_outage(error):
                    await self._hold(parts, error)
        except BaseException as error:
            for delivery in _in_order(parts):
                await self._end(delivery, error)
            self._raise(error)

    async def _is_in_turn(self, parts: list[list[Delivery]]) -> bool:
        """Put back what must wait for others of its key, in the last part; return whether anything is left of it."""
        successors = self._deliveries.settler.out_of_turn(parts[-1])
        if successors:
            parts[-1][:] = [delivery for delivery in parts[-1] if delivery not in successors]
            await self._put_back(successors)
        if not parts[-1]:
            parts.pop()
            return False
        return True

    def _split(self, deliveries: list[Delivery]) -> list[list[Delivery]]:
        """Return the parts of a batch that different functions of a router get, the last of which is handled next."""
        if self._router is None:
            return [deliveries]
        groups = self._router.split([delivery.event for delivery in deliveries])
        return [[deliveries[index] for index in group] for group in reversed(groups)]

    async def _divide(self, parts: list[list[Delivery]], error: Exception, *, is_whole: bool) -> None:
        """Divide the last part, which has failed, except for what its handler has settled."""
        if is_whole:
            name, count = type(error).__name__, len(parts[-1])
            text = "%s: a batch of %d events, from sequence %d, has failed; it is handled in smaller parts: %s: %s"
            _log.warning(text, self._target, count, parts[-1][0].sequence, name, error, extra=error_fields(error))
        left: list[Delivery] = []
        for delivery in parts[-1]:
            if delivery.is_settled or is_acked(delivery._entry):
                await self._end(delivery, error)
            else:
                left.append(delivery)
        half = len(left) // 2
        parts[-1:] = [part for part in (left[half:], left[:half]) if part]

    async def _release(self, parts: list[list[Delivery]]) -> None:
        """Release the events of all parts to other clients."""
        deliveries = _in_order(parts)
        await self._deliveries.settler.release(deliveries)
        parts.clear()
        for delivery in deliveries:
            await self._end(delivery, None)

    async def _hold(self, parts: list[list[Delivery]], error: BaseException | None) -> None:
        """Keep the events of all parts until the end of an outage."""
        deliveries = _in_order(parts)
        parts.clear()
        for delivery in reversed(deliveries):  # each one is the first in the queue
            await self._end(delivery, error)
        if isinstance(error, Exception):
            self._report(error, deliveries[0])

    async def _call(self, worker: Worker, batch: Batch, requests: int) -> BaseException | None:
        """Call the handler, and return its exception."""
        error: BaseException | None = None
        began = time.perf_counter()
        try:
            await self._result(batch)
        except BaseException as failure:
            error = self._cause(worker, requests, failure)
        self._deliveries.settler.note_batch(batch.deliveries, time.perf_counter() - began, error)
        return error

    @staticmethod
    def _failed(error: BaseException | None, batch: Batch) -> dict[int, Exception] | None:
        """Return the exceptions of single events; None if it is not known which have failed."""
        if error is None:
            return {}
        if isinstance(error, BatchError) and all(0 <= index < len(batch) for index in error.errors):
            return error.errors
        if len(batch) == 1 and isinstance(error, Exception) and not isinstance(error, NotAsyncError):
            return {0: error}
        return None

    async def _settle_batch(self, batch: Batch, failed: dict[int, Exception]) -> None:
        """Settle the messages of a batch: first those that only have to be acknowledged."""
        settler, deliveries = self._deliveries.settler, batch.deliveries
        rejected, retried = ([index for index in marks if index not in failed] for marks in (batch.rejects, batch.naks))
        if settler.keeps_order:  # later events of their keys are only done if the dead letters are stored
            for index in rejected:
                self._leave(deliveries[index])
                await self._settle_as_marked(batch, index)
        others = {*failed, *rejected, *retried}
        done = [delivery for index, delivery in enumerate(deliveries) if index not in others]
        successors = settler.out_of_turn(done)
        done = [delivery for delivery in done if delivery not in successors]
        await self._settle_together([delivery for delivery in done if not settler.acknowledge(delivery)])
        await self._put_back(successors)
        for index in [] if settler.keeps_order else rejected:
            self._leave(deliveries[index])
            await settler.background.run(self._settle_as_marked(batch, index))
        for index in retried:
            self._leave(deliveries[index])
            await self._settle_as_marked(batch, index)
        for index, error in failed.items():
            await self._settle(deliveries[index], error)

    async def _settle_together(self, deliveries: list[Delivery]) -> None:
        """Settle messages that the handler has handled; the server confirms all of them in one round trip."""
        self._deliveries.flush_acks()
        for delivery in deliveries:
            self._leave(delivery)
        await asyncio.gather(*(self._settle_block(delivery, None) for delivery in deliveries))

    async def _put_back(self, deliveries: Iterable[Delivery]) -> None:
        """End the blocks of events that are handled again, after others of their keys."""
        for delivery in deliveries:
            self._leave(delivery)
            await self._deliveries.settler.put_back(delivery)

    async def _settle_as_marked(self, batch: Batch, index: int) -> None:
        """Dead-letter or redeliver an event, as the handler has asked for."""
        delivery = batch.deliveries[index]
        try:
            if index in batch.rejects:
                await delivery.reject(batch.rejects[index])
            else:
                await delivery.nak(batch.naks[index])
        except Exception as failure:
            self._report(failure, delivery)
        except asyncio.CancelledError as error:
            await self._settle_block(delivery, error)
            raise
        await self._settle_block(delivery, None)

    def _leave(self, delivery: Delivery) -> None:
        worker = asyncio.current_task()
        assert isinstance(worker, Worker)
        assert worker.context is not None
        worker.context.run(delivery._leave_block)


def _in_order(parts: list[list[Delivery]]) -> list[Delivery]:
    """Return the deliveries of all parts, the last of which is handled next."""
    return [delivery for part in reversed(parts) for delivery in part]
