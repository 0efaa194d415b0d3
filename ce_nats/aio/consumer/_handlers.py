"""Run a handler for the deliveries of a consumer, several concurrently, until the consumer is stopped."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterable, Awaitable, Callable
from functools import partial
from typing import Final

from ...errors import DeliveryError, ErrorCode, preview
from .._util.checks import not_async
from .._util.supervising import CancellableTask, supervise
from ._delivery import Delivery

_log: Final = logging.getLogger(__name__)

# Time after stop() until handlers that still run are logged; then after twice the time, and so on.
_FIRST_LOG_SECONDS: Final = 10.0


class _Worker(CancellableTask[None]):
    """Task that calls the handler."""

    delivery: Delivery | None = None
    began = 0.0


class _NotAsyncError(Exception):
    """The handler did not return an awaitable."""


class Workers:
    """
    Tasks that call a handler with deliveries.

    Args:
        deliveries: Source of the deliveries; several tasks iterate over it.
        handler: Called with one delivery.
        report: Called with the exceptions of handlers.
        target: Name of the consumer, for the log.
    """

    def __init__(
        self,
        deliveries: AsyncIterable[Delivery],
        handler: Callable[[Delivery], Awaitable[object]],
        report: Callable[[Exception, Delivery], None],
        target: str,
    ) -> None:
        self._deliveries = deliveries
        self._handler = handler
        self._report = report
        self._target = target
        self._workers: list[_Worker] = []
        self._is_cancelling = False

    async def run(self, count: int, stopped: asyncio.Event, stop_timeout: float | None) -> None:
        """
        Run until the iteration has ended and the handlers have returned.

        Args:
            count: Number of tasks.
            stopped: Event that ends the iteration.
            stop_timeout: Seconds after the event until handlers are cancelled; or None.

        Raises:
            DeliveryError: As the iteration does; ``handler-cancelled``: one of the tasks was cancelled, and not by this
                object.
            TypeError: The handler did not return an awaitable.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        for _ in range(count):
            worker = _Worker(self._work(), loop=loop)
            worker.add_done_callback(partial(self._check, ended))
            self._workers.append(worker)
        overdue = supervise(self._watch(stopped, stop_timeout), self._target, partial(_end, ended))
        try:
            await ended
        finally:
            self._cancel()
            await asyncio.gather(*self._workers, return_exceptions=True)
            overdue.cancel()
            await asyncio.gather(overdue, return_exceptions=True)

    def _check(self, ended: asyncio.Future[None], worker: _Worker) -> None:
        """After the last worker, or the first one that failed, end the run."""
        self._workers.remove(worker)
        error: BaseException | None
        if worker.cancelled():
            text = f"{self._target}: a task of run() was cancelled, but neither run() nor the consumer was stopped"
            error = None if self._is_cancelling else DeliveryError(ErrorCode.HANDLER_CANCELLED, text)
        else:
            error = worker.exception()
        if error is not None or not self._workers:
            _end(ended, error)

    def _cancel(self) -> None:
        """Cancel the workers; until then a ``CancelledError`` is an error of the handler, or of other tasks."""
        self._is_cancelling = True
        for worker in self._workers:
            worker.cancel()

    async def _work(self) -> None:
        worker = asyncio.current_task()
        assert isinstance(worker, _Worker)
        async for delivery in self._deliveries:
            worker.delivery, worker.began = delivery, time.monotonic()
            requests = worker.cancelling()
            try:
                async with delivery:
                    await self._call(worker, delivery)
            except _NotAsyncError:
                raise not_async(self._handler) from None
            except Exception as error:
                self._report(error, delivery)
            worker.delivery = None
            del delivery  # it is settled, and must not be kept until the next one arrives
            if self._is_cancelling:  # the handler suppressed the CancelledError
                raise asyncio.CancelledError
            worker.take_back(requests)

    async def _call(self, worker: _Worker, delivery: Delivery) -> None:
        """
        Call the handler, and distinguish its own ``CancelledError`` from one that the worker gets.

        Timeouts and task groups inside of a handler also cancel the worker, and take this back.
        """
        requests = worker.cancelling()
        try:
            result = self._handler(delivery)
            if not inspect.isawaitable(result):
                raise _NotAsyncError
            await result
        except asyncio.CancelledError as error:
            if self._is_cancelling or worker.cancelling() > requests:
                raise
            text = "a task that the handler awaited was cancelled, and the handler with it"
            raise DeliveryError(ErrorCode.HANDLER_CANCELLED, text) from error

    async def _watch(self, stopped: asyncio.Event, stop_timeout: float | None) -> None:
        """After the iteration was stopped, log handlers that still run, and cancel them after the timeout."""
        await stopped.wait()
        began = time.monotonic()
        pause = _FIRST_LOG_SECONDS
        end = None if stop_timeout is None else began + stop_timeout
        while True:
            is_last = end is not None and end - time.monotonic() <= pause
            await asyncio.sleep(max(0.0, end - time.monotonic()) if is_last and end is not None else pause)
            seconds = round(time.monotonic() - began)
            text = "; ".join(map(_description, (worker for worker in self._workers if worker.delivery is not None)))
            if is_last:
                end = None
                if text:
                    _log.warning(
                        "%s: stopped %d s ago; cancelling the handlers that still run: %s", self._target, seconds, text
                    )
                self._cancel()
            else:
                pause *= 2
                _log.warning("%s: stopped %d s ago; waiting for handlers: %s", self._target, seconds, text)


def _end(ended: asyncio.Future[None], error: BaseException | None) -> None:
    """End a run, with an error if there is one. Has no effect if it has ended."""
    if ended.done():
        return
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)


def _description(worker: _Worker) -> str:
    delivery = worker.delivery
    assert delivery is not None
    seconds = round(time.monotonic() - worker.began)
    return f"sequence {delivery.sequence} on {preview(delivery.subject)}, running for {seconds} s"
