"""Run a handler for the deliveries of a consumer, several concurrently, until the consumer is stopped."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Any, Final

from ...errors import DeliveryError, ErrorCode, preview
from .._util.checks import not_async
from ._delivery import Delivery

_log: Final = logging.getLogger(__name__)

# Time after stop() until handlers that still run are logged; then after twice the time, and so on.
_FIRST_LOG_SECONDS: Final = 10.0


class _Worker(asyncio.Task[None]):
    """
    Task that calls the handler, and records whether it was cancelled.

    A handler also raises CancelledError if a task that it awaits was cancelled. (Python 3.10 has no
    ``Task.cancelling()``.)
    """

    is_cancel_requested = False
    delivery: Delivery | None = None
    began = 0.0

    def cancel(self, msg: Any | None = None) -> bool:
        self.is_cancel_requested = True
        return super().cancel(msg)


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

    async def run(self, count: int, stopped: asyncio.Event, stop_timeout: float | None) -> None:
        """
        Run until the iteration has ended and the handlers have returned.

        Args:
            count: Number of tasks.
            stopped: Event that ends the iteration.
            stop_timeout: Seconds after the event until handlers are cancelled; or None.

        Raises:
            DeliveryError: As the iteration does.
            TypeError: The handler did not return an awaitable.
        """
        workers: list[_Worker] = []
        loop = asyncio.get_running_loop()
        for _ in range(count):
            workers.append(_Worker(self._work(workers), loop=loop))
        overdue = asyncio.create_task(self._watch(workers, stopped, stop_timeout))
        try:
            done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            for worker in done:
                if not worker.cancelled():
                    worker.result()
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            overdue.cancel()
            await asyncio.gather(overdue, return_exceptions=True)

    async def _work(self, workers: list[_Worker]) -> None:
        worker = next(item for item in workers if item is asyncio.current_task())
        async for delivery in self._deliveries:
            worker.delivery, worker.began = delivery, time.monotonic()
            try:
                async with delivery:
                    await self._call(worker, delivery)
            except _NotAsyncError:
                raise not_async(self._handler) from None
            except Exception as error:
                self._report(error, delivery)
            worker.delivery = None
            del delivery  # it is settled, and must not be kept until the next one arrives
            if worker.is_cancel_requested:  # the handler suppressed the CancelledError
                raise asyncio.CancelledError

    async def _call(self, worker: _Worker, delivery: Delivery) -> None:
        result = self._handler(delivery)
        if not inspect.isawaitable(result):
            raise _NotAsyncError
        try:
            await result
        except asyncio.CancelledError as error:
            if worker.is_cancel_requested:
                raise
            text = "a task that the handler awaited was cancelled, and the handler with it"
            raise DeliveryError(ErrorCode.HANDLER_CANCELLED, text) from error

    async def _watch(self, workers: list[_Worker], stopped: asyncio.Event, stop_timeout: float | None) -> None:
        """After the iteration was stopped, log handlers that still run, and cancel them after the timeout."""
        await stopped.wait()
        began = time.monotonic()
        pause = _FIRST_LOG_SECONDS
        end = None if stop_timeout is None else began + stop_timeout
        while True:
            is_last = end is not None and end - time.monotonic() <= pause
            await asyncio.sleep(max(0.0, end - time.monotonic()) if is_last and end is not None else pause)
            seconds = round(time.monotonic() - began)
            text = "; ".join(map(_description, (worker for worker in workers if worker.delivery is not None)))
            if is_last:
                end = None
                _log.warning(
                    "%s: stopped %d s ago; cancelling the handlers that still run: %s", self._target, seconds, text
                )
                for worker in workers:
                    worker.cancel()
            else:
                pause *= 2
                _log.warning("%s: stopped %d s ago; waiting for handlers: %s", self._target, seconds, text)


def _description(worker: _Worker) -> str:
    delivery = worker.delivery
    assert delivery is not None
    seconds = round(time.monotonic() - worker.began)
    return f"sequence {delivery.sequence} on {preview(delivery.subject)}, running for {seconds} s"
