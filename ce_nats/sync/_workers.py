"""Run a handler in threads."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any, TypeAlias

from .. import aio
from .._callables import is_async
from ..aio.consumer._hand_out import HandOut
from ..errors import preview
from ._batch import Batch
from ._delivery import Delivery
from ._handled import HandledDeliveries
from ._loop import Loop

Call: TypeAlias = Callable[[aio.Batch], Awaitable[None]]
RunBatches: TypeAlias = Callable[[Call], Coroutine[Any, Any, None]]


def check_handler(handler: object) -> None:
    """
    Check that a handler is a function that is not async.

    Raises:
        TypeError: It is not.
    """
    if is_async(handler) or not callable(handler):
        raise TypeError(f"handler must be a function that is not async, got {preview(handler)}")


def _check_result(result: object) -> None:
    if result is not None and inspect.isawaitable(result):
        raise TypeError(f"handler must not return an awaitable, got {preview(result)}")


class ThreadWorkers:
    """Threads that call a handler with deliveries; all take them from the same iterator."""

    def __init__(
        self, loop: Loop, hand_out: HandOut, deliveries: Iterable[Delivery], handler: Callable[[Delivery], object]
    ) -> None:
        self._loop = loop
        self._hand_out = hand_out
        self._deliveries = deliveries
        self._handler = handler

    def run(self, count: int, stop: Callable[[], None]) -> None:
        """
        Run until the iteration has ended and the handlers have returned: in this thread, or in several others.

        Raises:
            DeliveryError: As the iteration does.
            BaseException: The handler has raised it, and it ends the program; or this thread was interrupted.
        """
        if count == 1:
            self._work()
            return
        with ThreadPoolExecutor(count, "ce_nats.sync handler") as pool:
            workers: list[Future[None]] = []
            try:
                while len(workers) < count:  # Ctrl-C may come before the last one has started
                    workers.append(pool.submit(self._work))
                wait(workers, return_when=FIRST_EXCEPTION)
            finally:
                if len(workers) < count or not all(worker.done() for worker in workers):
                    stop()
        for worker in workers:
            worker.result()

    def _work(self) -> None:
        delivery: Delivery | None = None
        try:
            for delivery in self._deliveries:
                self._handle(delivery)
        except BaseException as error:
            # Ctrl-C may come at the begin and at the end of a block, too.
            is_interrupt = not isinstance(error, Exception) and self._loop.belongs_to_this_process
            if is_interrupt and delivery is not None and not delivery.is_settled:
                self._loop.run(delivery._delivery._end_block, error)
            raise

    def _handle(self, delivery: Delivery) -> None:
        try:
            with delivery:
                result = self._handler(delivery)
                _check_result(result)
        except Exception as error:
            self._loop.run(self._hand_out.report, error, delivery._delivery)


class _ExitError(BaseException):
    """Carries an exception that ends the program, such as SystemExit, through the loop, which it would end."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause


class ThreadBatchWorkers:
    """
    Threads that call a handler with batches, which the loop collects, and divides after an exception.

    ``timeout``: Seconds without a batch after which a run ends; None waits forever.
    """

    def __init__(
        self,
        loop: Loop,
        handled: HandledDeliveries,
        handler: Callable[[Batch], object],
        timeout: float | None,
    ) -> None:
        self._loop = loop
        self._handled = handled
        self._handler = handler
        self._timeout = timeout
        self._running = 0
        self._last = time.monotonic()

    def run(
        self,
        run: RunBatches,
        count: int,
        stop: Callable[[], None],
    ) -> None:
        """
        Run until the consumer is stopped, or some time passes without a batch.

        ``run``: Called in the loop with an async handler, which it calls with batches.

        Raises:
            DeliveryError: As the iteration does.
            BaseException: As :meth:`ThreadWorkers.run` does.
        """
        # Another thread waits for the loop: Ctrl-C in this one must not cancel what the loop does.
        with ThreadPoolExecutor(count + 1, "ce_nats.sync handler") as pool:

            async def call(batch: aio.Batch) -> None:
                await self._call_in(pool, batch)

            result = pool.submit(self._loop.run, self._run, run, call)
            try:
                wait([result])
            finally:
                if not result.done():
                    stop()
        exit_ = result.result()
        if exit_ is not None:
            raise exit_

    async def _run(
        self,
        run: RunBatches,
        call: Call,
    ) -> BaseException | None:
        """Run until one of the two ends; return the exception of the handler that ends the program, if any."""
        running = asyncio.create_task(run(call))
        idle = asyncio.create_task(self._wait_until_idle())
        try:
            await asyncio.wait({running, idle}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        except _ExitError as exit_:
            return exit_.cause
        finally:
            running.cancel()
            idle.cancel()
            await asyncio.gather(running, idle, return_exceptions=True)
        return None

    async def _call_in(self, pool: ThreadPoolExecutor, batch: aio.Batch) -> None:
        self._running += 1
        try:
            result = await asyncio.get_running_loop().run_in_executor(pool, self._call, batch)
        finally:
            self._running -= 1
            self._last = time.monotonic()
        _check_result(result)

    def _call(self, batch: aio.Batch) -> object:
        """Call the handler, in its thread; an exception that ends the program becomes an ``_ExitError``."""
        try:
            return self._handler(Batch._of(batch, self._loop, self._handled))
        except Exception:
            raise
        except BaseException as error:
            raise _ExitError(error) from None

    async def _wait_until_idle(self) -> None:
        """Wait until there was no batch for ``timeout`` seconds; forever if it is None."""
        if self._timeout is None:
            await asyncio.get_running_loop().create_future()
        timeout = self._timeout or 0.0
        while True:
            rest = self._last + timeout - time.monotonic()
            if rest <= 0 and not self._running:
                return
            await asyncio.sleep(rest if rest > 0 else timeout)
