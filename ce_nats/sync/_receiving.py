"""Receive events: from subscriptions, and from consumers of JetStream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from nats.aio.msg import Msg

from .. import aio
from ..codec.event import DecodedEvent
from ..errors import CeNatsError, DeliveryError, ErrorCode
from ._link import Linked
from ._loop import Loop, current

# Messages of a subscription that are decoded ahead; nats-py has limits of its own for the others.
_MAX_AHEAD: Final = 256
_END: Final = object()

T = TypeVar("T")


class Feed(Generic[T]):
    """
    Gives to threads what an asynchronous iterator gives in the loop.

    Args:
        loop: The loop.
        limit: Items that are taken ahead.
    """

    def __init__(self, loop: Loop, limit: int) -> None:
        self._loop = loop
        self._limit = limit
        self._taken: SimpleQueue[Any] = SimpleQueue()
        self._room = asyncio.Event()
        self._is_full = False
        self._error: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, items: AsyncIterator[T]) -> None:
        """Begin; in the loop."""
        self._task = asyncio.create_task(self._take_all(items))

    async def stop(self) -> None:
        """End the iterations, and drop what was not taken; in the loop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with suppress(Empty):
            while True:
                self._taken.get_nowait()
        self._taken.put(_END)

    def next(self, timeout: float | None) -> T:
        """
        Return the next item; may be called in any thread.

        Raises:
            StopIteration: The iterator has ended, or there was nothing for ``timeout`` seconds.
            Exception: What the iterator has raised.
        """
        try:
            item = self._taken.get(timeout=timeout)
        except Empty:
            raise StopIteration from None
        if item is _END:
            self._taken.put(_END)  # for others, and for the next time
            if self._error is not None:
                raise self._error
            raise StopIteration
        if self._is_full and self._taken.qsize() <= self._limit // 2:
            self._is_full = False
            with suppress(DeliveryError):
                self._loop.call_soon(self._room.set)
        result: T = item
        return result

    async def _take_all(self, items: AsyncIterator[T]) -> None:
        try:
            async for item in items:
                self._taken.put(item)
                if self._taken.qsize() >= self._limit:
                    await self._wait_for_room()
        except Exception as error:
            self._error = error
        finally:
            self._taken.put(_END)

    async def _wait_for_room(self) -> None:
        self._room.clear()
        self._is_full = True
        # A thread that took something before it could see that may have been the last one.
        if self._taken.qsize() > self._limit // 2:
            await self._room.wait()
        self._is_full = False


class Subscription:
    """
    Iterator over the messages of a subscription; made by :meth:`Connection.subscribe`.

    It gives what ``aio`` gives: ``event``, ``error``, ``message``, ``subject`` and so on. It ends when it is closed, or
    the connection is, and raises when the connection is lost for good, or the server denies the permission. Where there
    is no message for ``timeout`` seconds an iteration ends, and another one may begin. As a context manager it
    unsubscribes at the end of the block.
    """

    def __init__(self, nc: Linked, subject: str, *, timeout: float | None, **options: Any) -> None:
        self._loop = nc.link.loop
        self._feed: Feed[aio.Received] = Feed(self._loop, _MAX_AHEAD)
        self._timeout = timeout
        self._subject = subject
        self._events: aio.Events = nc.link.run(self._open, nc, subject, options)

    async def _open(self, nc: Linked, subject: str, options: dict[str, Any]) -> aio.Events:
        events = await aio.subscribe(nc.link.client, subject, **options)
        self._feed.start(events)
        self._loop.opened[self] = None
        return events

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> aio.Received:
        """
        The next message.

        Raises:
            DeliveryError: ``connection-closed``: it was lost for good; ``permission-denied``; ``not-open``: this is
                another process than that which subscribed.
        """
        _check_process(self._loop, self._subject)
        return self._feed.next(self._timeout)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unsubscribe, and end the iterations; does nothing when called again."""
        if self in self._loop.opened and self._loop.is_here:
            self._loop.run(self.end)

    async def end(self, seconds: float | None = None) -> None:
        """Close; in the loop."""
        self._loop.opened.pop(self, None)
        await self._feed.stop()
        await self._events.stop()


class PullConsumer:
    """
    Iterator over the deliveries of a JetStream consumer: see :class:`ce_nats.aio.PullConsumer`.

        with nc.consumer("ORDERS", "billing", dead_letter="dead.orders") as consumer:
            for delivery in consumer:
                with delivery as event:
                    charge(event)

    It fetches from the start. Leaving the outer block, or :meth:`close`, releases what was fetched and not handled. A
    message's ack deadline is extended while its handler runs, however long that takes. Several threads may iterate.

    Args:
        nc: A connection.
        stream: Name of the stream.
        consumer: Name of the consumer.
        timeout: Seconds; an iteration ends when there is no message for so long. None waits for ever.
        options: As for :class:`ce_nats.aio.PullConsumer`.

    Raises:
        EncodeError, DeliveryError, ValueError, TypeError: As :class:`ce_nats.aio.PullConsumer` and its block do.
    """

    def __init__(self, nc: Linked, stream: str, consumer: str, *, timeout: float | None = None, **options: Any) -> None:
        self._loop = nc.link.loop
        self._feed: Feed[aio.Delivery] = Feed(self._loop, 1)
        self._timeout = timeout
        self._name = f"consumer {consumer} of stream {stream}"
        self._consumer: aio.PullConsumer = nc.link.run(self._open, nc, stream, consumer, options)

    async def _open(self, nc: Linked, stream: str, name: str, options: dict[str, Any]) -> aio.PullConsumer:
        consumer = await aio.PullConsumer(nc.link.js, stream, name, **options).__aenter__()
        self._feed.start(consumer)
        self._loop.opened[self] = None
        return consumer

    def __iter__(self) -> PullConsumer:
        return self

    def __next__(self) -> Delivery:
        """
        The next delivery with an event.

        Raises:
            DeliveryError: As the iteration of :class:`ce_nats.aio.PullConsumer` does; ``not-open``: this is another
                process than that which made the consumer.
        """
        _check_process(self._loop, self._name)
        return Delivery(self._loop, self._feed.next(self._timeout))

    def __enter__(self) -> PullConsumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release what was not handled, and end the iterations; does nothing when called again."""
        if self in self._loop.opened and self._loop.is_here:
            self._loop.run(self.end)

    async def end(self, seconds: float | None = None) -> None:
        """Close; in the loop."""
        self._loop.opened.pop(self, None)
        self._consumer.stop()
        await self._feed.stop()
        await asyncio.wait_for(self._consumer.__aexit__(None, None, None), seconds)


class Delivery:
    """
    A message that was delivered and is not settled yet, and the event in it: see :class:`ce_nats.aio.Delivery`.

    As a context manager it gives the event, and settles the message at the end of the block.
    """

    __slots__ = ("_delivery", "_loop")

    def __init__(self, loop: Loop, delivery: aio.Delivery) -> None:
        self._loop = loop
        self._delivery = delivery

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
    def sequence(self) -> int:
        """Sequence in the stream."""
        return self._delivery.sequence

    @property
    def deliveries(self) -> int:
        """How often the message was delivered, this time included."""
        return self._delivery.deliveries

    @property
    def is_settled(self) -> bool:
        """Whether it was acknowledged, redelivered, dead-lettered or released."""
        return self._delivery.is_settled

    def ack(self) -> None:
        """
        Acknowledge the message: the event was processed.

        Raises:
            DeliveryError: As :meth:`ce_nats.aio.Delivery.ack` does.
        """
        self._loop.run(self._delivery.ack)

    def nak(self, delay: float | None = None) -> None:
        """
        Have the message redelivered.

        Args:
            delay: Seconds until then; by default what the policy says.

        Raises:
            DeliveryError: As :meth:`ce_nats.aio.Delivery.nak` does.
        """
        self._loop.run(self._delivery.nak, delay)

    def reject(self, reason: str = "") -> None:
        """
        Dead-letter the message.

        Args:
            reason: Why, for whoever reads the dead letter.

        Raises:
            DeliveryError: As :meth:`ce_nats.aio.Delivery.nak` does.
        """
        self._loop.run(self._delivery.reject, reason)

    def __enter__(self) -> DecodedEvent:
        return self._delivery.enter_block()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._delivery.leave_block()
        self._loop.run(self._delivery.settle_block, error)

    def __repr__(self) -> str:
        return repr(self._delivery)


def _check_process(loop: Loop, what: str) -> None:
    if loop is not current():
        raise DeliveryError(ErrorCode.NOT_OPEN, f"{what}: it was opened by the process of which this is a fork")
