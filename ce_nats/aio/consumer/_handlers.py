"""Run a handler for the deliveries of a consumer, several concurrently, until the consumer is stopped."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from types import CoroutineType
from typing import Any, Final, NoReturn

from ...errors import DeliveryError, ErrorCode
from ...redelivery import Decision
from .._util.checks import not_async
from .._util.supervising import CancellableTask, supervise
from ._deliveries import Deliveries
from ._delivery import Delivery
from ._running import Reporter, place_of

_log: Final = logging.getLogger(__name__)

# Time after stop() until handlers that still run are logged; then after twice the time, and so on.
_FIRST_LOG_SECONDS: Final = 10.0


class Worker(CancellableTask[None]):
    """Task that calls the handler."""

    delivery: Delivery | None = None
    began = 0.0
    context: Context | None = None  # of the blocks of a batch


class NotAsyncError(Exception):
    """The handler did not return an awaitable."""


class Workers:
    """Tasks that call a handler with deliveries."""

    def __init__(
        self,
        deliveries: Deliveries,
        handler: Callable[[Any], Awaitable[object]],
        reporter: Reporter,
    ) -> None:
        self._deliveries = deliveries
        self._handler = handler
        self._report = reporter.report
        self._target = reporter.target
        self._workers: list[Worker] = []
        self._is_cancelling = False

    async def run(self, count: int, stopped: asyncio.Event, stop_timeout: float | None) -> None:
        """
        Run until the iteration has ended and the handlers have returned.

        Raises:
            DeliveryError: As the iteration does; ``handler-cancelled``: one of the tasks was cancelled, and not by this
                object.
            TypeError: The handler did not return an awaitable.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        for _ in range(count):
            worker = Worker(self._work(), loop=loop)
            worker.add_done_callback(partial(self._check, ended))
            self._workers.append(worker)
        overdue = supervise(self._watch(stopped, stop_timeout), self._target, partial(_end, ended))
        settler = self._deliveries.settler
        try:
            await ended
        except asyncio.CancelledError:
            await self._end_workers()
            await settler.background.cancel()
            raise
        finally:
            await self._end_workers()
            overdue.cancel()
            await asyncio.gather(overdue, return_exceptions=True)
            await settler.finish()

    async def _end_workers(self) -> None:
        self._cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    def _check(self, ended: asyncio.Future[None], worker: Worker) -> None:
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
        assert isinstance(worker, Worker)
        deliveries, settler, handler = self._deliveries, self._deliveries.settler, self._handler
        while (delivery := deliveries.take() or await deliveries.next()) is not None:
            worker.delivery, worker.began = delivery, time.monotonic()
            requests = worker.cancelling()
            error: BaseException | None = None
            try:
                settler.begin(delivery)  # as delivery._enter_block(), whose other check is not needed here
                result = handler(delivery)
                if result.__class__ is not CoroutineType and not inspect.isawaitable(result):
                    raise NotAsyncError
                await result
            except BaseException as failure:
                error = self._cause(worker, requests, failure)
            if error is not None or not settler.acknowledge(delivery):
                await self._settle(delivery, error)
                error = None
            worker.delivery = None
            if self._is_cancelling:  # the handler suppressed the CancelledError
                raise asyncio.CancelledError
            if worker.cancelling() > requests:
                worker.take_back(requests)

    def _cause(self, worker: Worker, requests: int, failure: BaseException) -> BaseException:
        """
        Distinguish a handler's own ``CancelledError`` from one that the worker gets; return other exceptions unchanged.

        Timeouts and task groups inside of a handler also cancel the worker, and take this back.
        """
        is_own = isinstance(failure, asyncio.CancelledError)
        if not is_own or self._is_cancelling or worker.cancelling() > requests:
            return failure
        text = "a task that the handler awaited was cancelled, and the handler with it"
        error = DeliveryError(ErrorCode.HANDLER_CANCELLED, text)
        error.__cause__ = failure
        return error

    async def _settle(self, delivery: Delivery, error: BaseException | None) -> None:
        """
        Settle a message after its handler has returned, or raised an exception, which is reported.

        Raises:
            TypeError: The handler is not async.
            BaseException: ``error``, if it ends the worker.
        """
        if isinstance(error, Exception) and not isinstance(error, NotAsyncError):
            self._leave(delivery)
            settler = self._deliveries.settler
            decision = settler.judge(delivery, delivery._outcome(error), error)
            ending = self._settle_failed(delivery, error, decision)
            await (settler.background.run(ending) if settler.is_stored(decision) else ending)
            return
        await self._end(delivery, error)
        if error is not None:
            self._raise(error)

    async def _settle_failed(self, delivery: Delivery, error: Exception, decision: Decision | None) -> None:
        await self._settle_block(delivery, error, decision)
        self._report(error, delivery)

    async def _end(self, delivery: Delivery, error: BaseException | None) -> None:
        """End the block of a message, which settles it; a failure is reported."""
        self._leave(delivery)
        await self._settle_block(delivery, error)

    async def _settle_block(
        self, delivery: Delivery, error: BaseException | None, decision: Decision | None = None
    ) -> None:
        try:
            await delivery._end_block(error, decision)
        except Exception as failure:
            self._report(failure, delivery)

    def _leave(self, delivery: Delivery) -> None:
        """End the code of the block of a message."""
        delivery._leave_block()

    def _raise(self, error: BaseException) -> NoReturn:
        """End the worker with an error."""
        if isinstance(error, NotAsyncError):
            raise not_async(self._handler) from None
        raise error

    async def _result(self, argument: object) -> None:
        """
        Call the handler, and wait for its end.

        Raises:
            NotAsyncError: It is not async.
        """
        result = self._handler(argument)
        if not inspect.isawaitable(result):
            raise NotAsyncError
        await result

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


def _description(worker: Worker) -> str:
    delivery = worker.delivery
    assert delivery is not None
    return f"{place_of(delivery)}, running for {round(time.monotonic() - worker.began)} s"
