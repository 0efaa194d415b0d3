"""Consume events from JetStream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from types import TracebackType
from typing import Final

from nats.js.api import ConsumerConfig

from .. import aio, cesql
from .._numbers import check_count, check_optional_seconds
from ..aio._observer import OnOutcome
from ..aio._util.checks import check_key, check_single
from ..aio.consumer._pull_consumer import ACK_DELAY, BACKOFF
from ..codec.attributes import ExtensionTypes
from ..codec.binary import Dialect
from ..codec.binding import DialectName, Mode
from ..redelivery import Backoff, RetryPolicy
from ..schemas import Validate
from ._batch import Batch
from ._bridge import ThreadBridge, check_fork
from ._claim_check import ClaimCheck
from ._delivery import Delivery
from ._handled import HandledDeliveries
from ._link import Linked
from ._read_ahead import ReadAhead
from ._workers import ThreadBatchWorkers, ThreadWorkers, check_handler

# Maximum number of messages that are handed out before threads ask for them.
_MAX_AHEAD: Final = 64


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
        prefetch: int | None = None,
        double_ack: bool = False,
        ack_delay: float = ACK_DELAY,
        mode: Mode | None = None,
        dialect: DialectName = Dialect.SPEC,
        parse_data: bool = True,
        extension_types: ExtensionTypes | None = None,
        filter: str | cesql.Expression | None = None,
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
                filter=filter,
                validate=validate,
                skip_expired=skip_expired,
                expiry_leeway=expiry_leeway,
                claim_check=None if claim_check is None else claim_check._of_this_process(),
                on_error=on_error,
                on_outcome=on_outcome,
                instrumentation=instrumentation,
            ).__aenter__()
            self._hand_out = hand_out = deliveries._hand_out()
            self._read_ahead = ReadAhead(max(1, min(hand_out.prefetch.half, _MAX_AHEAD)), time.monotonic())
            self._bridge = ThreadBridge(self._loop, hand_out.queue, 1, self._name, self._on_wake)
            self._handled = HandledDeliveries(self._loop, hand_out, self._name, ack_delay, self._bridge.wake)
            self._bridge.start(deliveries, hand_out.take)
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
        check_handler(handler)
        check_single(handler)
        check_count("concurrency", concurrency)
        check_key(key)
        if key is not None:
            self._loop.run(self._keep_order, key)
        try:
            ThreadWorkers(self._loop, self._hand_out, self, handler).run(concurrency, self.stop)
        finally:
            if self._loop.belongs_to_this_process:
                self._loop.run(self._end_run, has_key=key is not None)

    def run_batches(
        self,
        handler: Callable[[Batch], object],
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
            handler: A function that is not async, called with one :class:`Batch`.
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
        check_handler(handler)
        check_count("concurrency", concurrency)
        check_fork(self._loop, self._name)

        async def run(call: Callable[[aio.Batch], Awaitable[None]]) -> None:
            await self._end_reading_ahead()
            await self._consumer._run_batches(call, handler, max_events, max_wait, concurrency, key)

        ThreadBatchWorkers(self._loop, self._handled, handler, self._timeout).run(run, concurrency, self.stop)

    async def _keep_order(self, key: Callable[[aio.Delivery], Hashable]) -> None:
        await self._end_reading_ahead()
        self._consumer._keep_order(key)

    async def _end_run(self, *, has_key: bool) -> None:
        """After the handlers have returned, settle their messages, and put back those that no handler received."""
        await self._end_reading_ahead()
        if has_key:
            await self._consumer._end_order()

    async def _end_reading_ahead(self) -> None:
        await self._hand_out.settle_all()
        # The caller does not await anything before the order of keys begins or ends.
        self._bridge.limit = 1
        self._hand_out.take_back()

    def stop(self) -> None:
        """
        Return no further deliveries: iterations end, and :meth:`run` as soon as its handlers have returned.

        It does not wait, so a handler or a signal handler may call it.
        """
        if self._loop.belongs_to_this_process:
            self._loop.call_soon(self._stop)
            self._hand_out.queue.refuse()  # the calling thread must not take messages until the loop has run

    def _stop(self) -> None:
        self._consumer.stop()
        self._bridge.end()
        self._hand_out.take_back()
        self._hand_out.flush()

    def _on_wake(self) -> None:
        """Acknowledge what threads have handled, and determine how much they may need next."""
        self._handled.look()
        self._hand_out.request()
        limit = self._read_ahead.limit(self._hand_out.queue.taken, time.monotonic())
        self._bridge.limit = limit if self._hand_out.may_read_ahead else 1

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
        await self._bridge.stop()
        self._hand_out.take_back()
        await asyncio.wait_for(self._leave(), seconds)

    async def _leave(self) -> None:
        try:
            await self._handled.close()
        finally:
            await self._consumer.__aexit__(None, None, None)
