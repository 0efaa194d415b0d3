"""Consume events from JetStream."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from types import TracebackType
from typing import Any, Final

from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig

from .. import aio
from .._callables import is_async
from .._numbers import check_count, check_optional_seconds
from ..aio._observer import OnOutcome
from ..aio._util.checks import check_key
from ..aio.consumer._pull_consumer import ACK_DELAY, BACKOFF
from ..codec.attributes import ExtensionTypes
from ..codec.binary import Dialect
from ..codec.binding import DialectName, Mode
from ..codec.event import DecodedEvent
from ..errors import CeNatsError, preview
from ..redelivery import Backoff, RetryPolicy
from ..schemas import Validate
from ._bridge import ThreadBridge, check_fork
from ._claim_check import ClaimCheck
from ._handled import HandledDeliveries
from ._link import Linked
from ._loop import Loop
from ._read_ahead import ReadAhead

# Maximum number of messages that are handed out before threads ask for them.
_MAX_AHEAD: Final = 64


def _check_handler(handler: object) -> None:
    if is_async(handler) or not callable(handler):
        raise TypeError(f"handler must be a function that is not async, got {preview(handler)}")


def _check_result(result: object) -> None:
    if result is not None and inspect.isawaitable(result):
        raise TypeError(f"handler must not return an awaitable, got {preview(result)}")


class _ExitError(BaseException):
    """Carries an exception that ends the program, such as SystemExit, through the loop, which it would end."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause


class _InThreads:
    """
    Async handler of batches that calls a function in threads.

    ``pool``: The threads.
    """

    def __init__(
        self, function: Callable[[aio.Batch], object], pool: ThreadPoolExecutor, timeout: float | None
    ) -> None:
        self._function = function
        self._pool = pool
        self._timeout = timeout
        self._running = 0
        self._last = time.monotonic()

    async def __call__(self, batch: aio.Batch) -> None:
        self._running += 1
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._pool, self._call, batch)
        finally:
            self._running -= 1
            self._last = time.monotonic()
        _check_result(result)

    def _call(self, batch: aio.Batch) -> object:
        """
        Call the function, in its thread.

        Raises:
            _ExitError: It raised an exception that ends the program.
        """
        try:
            return self._function(batch)
        except Exception:
            raise
        except BaseException as error:
            raise _ExitError(error) from None

    async def wait_until_idle(self) -> None:
        """Wait until there was no batch for ``timeout`` seconds; forever if it is None."""
        if self._timeout is None:
            await asyncio.get_running_loop().create_future()
        timeout = self._timeout or 0.0
        while True:
            rest = self._last + timeout - time.monotonic()
            if rest <= 0 and not self._running:
                return
            await asyncio.sleep(rest if rest > 0 else timeout)


class PullConsumer:
    """
    Iterator over the deliveries of a JetStream consumer: see :class:`ce_nats.aio.PullConsumer`.

        with nc.consumer("ORDERS", "billing", dead_letter="dead.orders") as consumer:
            for delivery in consumer:
                with delivery as event:
                    charge(event)

    It fetches as soon as the program asks for a message. Leaving the outer block, or :meth:`close`, releases messages
    that were fetched and not handled. A message's ack deadline is extended while its handler runs, however long that
    takes. Several threads may iterate.

    If handlers are fast, the event loop hands out as many messages at once as are handled in some milliseconds, at most
    half of ``prefetch``. All threads take from them, so a slow handler holds back only its own message. A block that
    ends without an exception does not wait until its acknowledgement is written, which happens within ``ack_delay`` or
    after a reconnect. The block raises the error of an acknowledgement that cannot be kept until a reconnect; if the
    connection is lost after the block, the error is reported to ``on_error``.

    Args:
        nc: A connection.
        stream: Name of the stream.
        consumer: Name of the consumer.
        dead_letter: As for :class:`ce_nats.aio.PullConsumer`, and so are the arguments after ``timeout``.
        timeout: Seconds without a message after which an iteration ends. None waits forever.

    Raises:
        EncodeError, DeliveryError, ValueError, TypeError: As :class:`ce_nats.aio.PullConsumer` and its block do.
    """

    def __init__(
        self,
        nc: Linked,
        stream: str,
        consumer: str,
        *,
        dead_letter: str | None,
        timeout: float | None = None,
        check_dead_letter: bool = True,
        create: ConsumerConfig | None = None,
        max_deliveries: int = 8,
        max_unfinished: int | None = None,
        backoff: Backoff | Sequence[float] = BACKOFF,
        unavailable: Sequence[type[Exception]] = (),
        pause_after: int | None = 20,
        prefetch: int = 64,
        double_ack: bool = False,
        ack_delay: float = ACK_DELAY,
        mode: Mode | None = None,
        dialect: DialectName = Dialect.SPEC,
        parse_data: bool = True,
        extension_types: ExtensionTypes | None = None,
        validate: Validate | None = None,
        skip_expired: bool = False,
        expiry_leeway: float = 0.0,
        claim_check: ClaimCheck | None = None,
        on_error: Callable[[Exception, aio.Delivery | None], None] | None = None,
        on_outcome: OnOutcome | None = None,
        instrumentation: aio.Instruments | None = None,
    ) -> None:
        check_optional_seconds("timeout", timeout)
        link = nc._link
        self._loop = link.loop
        self._timeout = timeout
        self._name = f"consumer {consumer} of stream {stream}"
        self._bridge: ThreadBridge[aio.Delivery] = ThreadBridge(self._loop, 1, self._name, self._on_wake)
        self._has_key = False

        async def open_it() -> aio.PullConsumer:
            deliveries = await aio.PullConsumer(
                link.js,
                stream,
                consumer,
                dead_letter=dead_letter,
                check_dead_letter=check_dead_letter,
                create=create,
                max_deliveries=max_deliveries,
                max_unfinished=max_unfinished,
                backoff=backoff,
                unavailable=unavailable,
                pause_after=pause_after,
                prefetch=prefetch,
                double_ack=double_ack,
                ack_delay=ack_delay,
                mode=mode,
                dialect=dialect,
                parse_data=parse_data,
                extension_types=extension_types,
                validate=validate,
                skip_expired=skip_expired,
                expiry_leeway=expiry_leeway,
                claim_check=None if claim_check is None else claim_check._of_this_process(),
                on_error=on_error,
                on_outcome=on_outcome,
                instrumentation=instrumentation,
            ).__aenter__()
            parts = deliveries._open_parts()
            self._read_ahead = ReadAhead(max(1, min(prefetch // 2, _MAX_AHEAD)), time.monotonic())
            self._ledger, self._fetcher = parts.ledger, parts.fetcher
            parts.ledger.ahead = self._bridge.count
            parts.outage.on_open = self._give_back
            self._handled = HandledDeliveries(
                self._loop,
                parts.settler,
                parts.ledger,
                parts.acks,
                deliveries._running,
                deliveries._reporter,
                ack_delay,
                self._bridge.count,
                self._bridge.wake,
            )
            # Otherwise an event is checked when it is handed out, and may expire afterwards.
            self._may_read_ahead = parts.preparation.is_plain
            self._bridge.start(deliveries, parts.deliveries.take)
            self._loop.opened[self] = None
            return deliveries

        self._consumer = link.run(open_it)

    @property
    def policy(self) -> RetryPolicy:
        """How often a message is tried, and after which delays."""
        return self._consumer.policy

    def __iter__(self) -> PullConsumer:
        return self

    def __next__(self) -> Delivery:
        """
        Return the next delivery with an event.

        Raises:
            DeliveryError: As the iteration of :class:`ce_nats.aio.PullConsumer` does; ``not-open``: the parent process
                has opened the consumer, and this one is a fork.
        """
        check_fork(self._loop, self._name)  # at the end of the program, the iteration ends as usual
        hand = self._bridge.take(self._timeout)
        delivery = Delivery(self._loop, hand[0], self._handled)
        del hand[0]  # no call follows: see take()
        return delivery

    def run(
        self,
        handler: Callable[[Delivery], object],
        *,
        concurrency: int = 1,
        key: Callable[[aio.Delivery], Hashable] | None = None,
    ) -> None:
        """
        Call a handler with each delivery, until :meth:`stop`, or until there is no message for ``timeout`` seconds.

        The message is acknowledged when the handler returns, unless the handler has settled the delivery itself. After
        an exception it is redelivered with back-off, and the exception is reported to ``on_error``;
        :class:`~ce_nats.Reject`, and ``data-mismatch`` of ``data_as()``, dead-letter it.

            def charge(delivery):
                print(delivery.subject, delivery.event.get_id())

        Ctrl-C releases the message of a handler that runs in the calling thread, and waits for handlers that run in
        other threads.

        Args:
            handler: A function that is not async, called with one delivery.
            concurrency: Maximum number of handlers that run at once. With 1 they run in the calling thread. With more,
                they run in that number of other threads, and the order of events is lost, unless there is a ``key``.
            key: As for :meth:`ce_nats.aio.PullConsumer.run`. It is called in the thread of the event loop, and must not
                block.

        Raises:
            DeliveryError: As the iteration does.
            TypeError: ``handler`` is async, or cannot be called.
            ValueError: ``concurrency`` is below 1.
            RuntimeError: There is a ``key``, and another call with a key is running.
        """
        _check_handler(handler)
        check_count("concurrency", concurrency)
        check_key(key)
        if key is not None:
            self._loop.run(self._keep_order, key)
        try:
            self._run(handler, concurrency)
        finally:
            if self._loop.belongs_to_this_process:
                self._loop.run(self._end_run, has_key=key is not None)

    def run_batches(
        self,
        handler: Callable[[aio.Batch], object],
        *,
        max_events: int = 500,
        max_wait: float = 0.1,
        concurrency: int = 1,
        key: Callable[[aio.Delivery], Hashable] | None = None,
    ) -> None:
        """
        Call a handler with batches of events, until :meth:`stop`, or until there is no message for ``timeout`` seconds.

        Messages are acknowledged, and batches are divided, as by :meth:`ce_nats.aio.PullConsumer.run_batches`. The
        handlers run in other threads. Ctrl-C waits for those that run.

            def store(batch):
                database.insert(batch.events)

        Args:
            handler: A function that is not async, called with one :class:`ce_nats.aio.Batch`. It must not call methods
                of the deliveries, which are asynchronous; ``batch.reject()`` and ``batch.nak()`` are not.
            max_events: As for :meth:`ce_nats.aio.PullConsumer.run_batches`.
            max_wait: As for :meth:`ce_nats.aio.PullConsumer.run_batches`.
            concurrency: Maximum number of handlers that run at once.
            key: As for :meth:`ce_nats.aio.PullConsumer.run_batches`. It is called in the thread of the event loop, and
                must not block.

        Raises:
            DeliveryError: As the iteration does.
            TypeError: ``handler`` is async, or cannot be called.
            RuntimeError: There is a ``key``, and another call with a key is running.
            ValueError: As :meth:`ce_nats.aio.PullConsumer.run_batches` does.
        """
        _check_handler(handler)
        check_count("concurrency", concurrency)
        check_fork(self._loop, self._name)
        options = {"max_events": max_events, "max_wait": max_wait, "concurrency": concurrency, "key": key}
        # Another thread waits for the loop: Ctrl-C in this one must not cancel what the loop does.
        with ThreadPoolExecutor(concurrency + 1, "ce_nats.sync handler") as pool:
            in_threads = _InThreads(handler, pool, self._timeout)
            run = pool.submit(partial(self._loop.run, self._run_batches, in_threads, **options))
            try:
                wait([run])
            finally:
                if not run.done():
                    self.stop()
        exit_ = run.result()
        if exit_ is not None:
            raise exit_

    async def _run_batches(self, handler: _InThreads, **options: Any) -> BaseException | None:
        """
        Run a handler until the consumer is stopped, or some time passes without a batch.

        Returns the exception of the handler, such as SystemExit, that ends the program; else None.
        """
        await self._end_reading_ahead()
        run = asyncio.create_task(self._consumer.run_batches(handler, **options))
        idle = asyncio.create_task(handler.wait_until_idle())
        try:
            await asyncio.wait({run, idle}, return_when=asyncio.FIRST_COMPLETED)
            if run.done():
                run.result()
        except _ExitError as exit_:
            return exit_.cause
        finally:
            run.cancel()
            idle.cancel()
            await asyncio.gather(run, idle, return_exceptions=True)
        return None

    async def _keep_order(self, key: Callable[[aio.Delivery], Hashable]) -> None:
        await self._end_reading_ahead()
        self._consumer._keep_order(key)
        self._has_key = True

    async def _end_run(self, *, has_key: bool) -> None:
        """After the handlers have returned, settle their messages, and put back those that no handler received."""
        await self._end_reading_ahead()
        if has_key:
            self._has_key = False
            await self._consumer._end_order()

    async def _end_reading_ahead(self) -> None:
        await self._handled.settle_all()
        # The caller does not await anything before the order of keys begins or ends.
        self._bridge.limit = 1
        self._put_back(self._bridge.give_back())

    def _run(self, handler: Callable[[Delivery], object], concurrency: int) -> None:
        if concurrency == 1:
            self._handle_all(handler)
            return
        with ThreadPoolExecutor(concurrency, "ce_nats.sync handler") as pool:
            workers: list[Future[None]] = []
            try:
                while len(workers) < concurrency:  # Ctrl-C may come before the last one has started
                    workers.append(pool.submit(self._handle_all, handler))
                wait(workers, return_when=FIRST_EXCEPTION)
            finally:
                if len(workers) < concurrency or not all(worker.done() for worker in workers):
                    self.stop()
        for worker in workers:
            worker.result()

    def _handle_all(self, handler: Callable[[Delivery], object]) -> None:
        delivery: Delivery | None = None
        try:
            for delivery in self:
                self._handle(handler, delivery)
        except BaseException as error:
            # Ctrl-C may come at the begin and at the end of a block, too.
            is_interrupt = not isinstance(error, Exception) and self._loop.belongs_to_this_process
            if is_interrupt and delivery is not None and not delivery.is_settled:
                self._loop.run(delivery._delivery._end_block, error)
            raise

    def _handle(self, handler: Callable[[Delivery], object], delivery: Delivery) -> None:
        try:
            with delivery:
                result = handler(delivery)
                _check_result(result)
        except Exception as error:
            self._loop.run(self._report, error, delivery._delivery)

    async def _report(self, error: Exception, delivery: aio.Delivery) -> None:
        self._consumer._reporter.report(error, delivery)

    def stop(self) -> None:
        """
        Return no further deliveries: iterations end, and :meth:`run` as soon as its handlers have returned.

        It does not wait, so a handler or a signal handler may call it.
        """
        if self._loop.belongs_to_this_process:
            self._loop.call_soon(self._stop)
            self._bridge.refuse()  # the calling thread must not take messages until the loop has run

    def _stop(self) -> None:
        self._consumer.stop()
        self._put_back(self._bridge.end())
        self._handled.settle(is_last=True)

    def _give_back(self) -> None:
        self._put_back(self._bridge.give_back())

    def _put_back(self, deliveries: list[aio.Delivery]) -> None:
        """Put back messages that no handler received."""
        for delivery in reversed(deliveries):
            self._ledger.put_back(delivery._entry)
        self._consumer._running.wake()  # the loop may be waiting for messages

    def _on_wake(self) -> None:
        """Acknowledge what threads have handled, and determine how much they may need next."""
        self._handled.look()
        limit = self._read_ahead.limit(self._bridge.taken, time.monotonic())
        if self._has_key or self._ledger.waiting <= self._ledger.prefetch.half:
            self._fetcher.wake()
        self._bridge.limit = limit if self._may_read_ahead and not self._has_key else 1

    def __enter__(self) -> PullConsumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release messages that were not handled, and end the iterations; does nothing if closed already."""
        if self in self._loop.opened and self._loop.belongs_to_this_process:
            self._loop.run(self._end)

    async def _end(self, seconds: float | None = None) -> None:
        self._loop.opened.pop(self, None)
        self._consumer.stop()
        self._put_back(await self._bridge.stop())
        await asyncio.wait_for(self._leave(), seconds)

    async def _leave(self) -> None:
        try:
            await self._handled.close()
        finally:
            await self._consumer.__aexit__(None, None, None)


class Delivery:
    """
    A message that was delivered and is not settled yet, and the event in it: see :class:`ce_nats.aio.Delivery`.

    As a context manager it returns the event, and settles the message at the end of the block.
    """

    __slots__ = ("_delivery", "_handled", "_is_handled", "_loop")

    def __init__(self, loop: Loop, delivery: aio.Delivery, handled: HandledDeliveries) -> None:
        self._loop = loop
        self._delivery = delivery
        self._handled = handled
        self._is_handled = False  # its block has ended, and the loop acknowledges it

    @property
    def event(self) -> DecodedEvent:
        """The event."""
        return self._delivery.event

    @property
    def error(self) -> CeNatsError | None:
        """Why there is no event in it, or None."""
        return self._delivery.error

    @property
    def message(self) -> Msg:
        """The message of nats-py."""
        return self._delivery.message

    @property
    def subject(self) -> str:
        """The subject that the message was published to."""
        return self._delivery.subject

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self._delivery.stream

    @property
    def consumer(self) -> str:
        """Name of the consumer."""
        return self._delivery.consumer

    @property
    def sequence(self) -> int:
        """Sequence in the stream."""
        return self._delivery.sequence

    @property
    def deliveries(self) -> int:
        """How often the message was delivered, this time included."""
        return self._delivery.deliveries

    @property
    def is_settled(self) -> bool:
        """Whether it was acknowledged, redelivered, dead-lettered or released; or will be, after its block."""
        return self._is_handled or self._delivery.is_settled

    def resolve(self) -> DecodedEvent:
        """
        Return the event with its data, if that is in an object store: see :meth:`ce_nats.aio.Delivery.resolve`.

        Raises:
            DecodeError, DeliveryError: As :meth:`ce_nats.aio.Delivery.resolve` does.
        """
        return self._loop.run(self._delivery.resolve)

    def ack(self) -> None:
        """
        Acknowledge the message: the event was processed.

        Raises:
            DeliveryError: As :meth:`ce_nats.aio.Delivery.ack` does.
        """
        self._settle(self._delivery.ack)

    def nak(self, delay: float | None = None) -> None:
        """
        Have the message redelivered.

        Args:
            delay: Seconds until then; by default the delay of the policy.

        Raises:
            DeliveryError: As :meth:`ce_nats.aio.Delivery.nak` does.
        """
        self._settle(self._delivery.nak, delay)

    def reject(self, reason: str = "") -> None:
        """
        Dead-letter the message.

        Args:
            reason: Reason, stored in the dead letter.

        Raises:
            DeliveryError: As :meth:`ce_nats.aio.Delivery.nak` does.
        """
        self._settle(self._delivery.reject, reason)

    def _settle(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        if not self._is_handled:
            self._loop.run(function, *args)

    def __enter__(self) -> DecodedEvent:
        return self._delivery._enter_block()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        delivery = self._delivery
        delivery._leave_block()
        if error is None and not self._is_handled and self._handled.add(delivery):
            self._is_handled = True
        else:
            self._loop.run(delivery._end_block, error)

    def __repr__(self) -> str:
        return repr(self._delivery)
