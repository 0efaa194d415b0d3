"""Publish many events to JetStream."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from nats.js import JetStreamContext

from .. import aio
from ..aio.publishing._publisher import Prepared, raise_failures
from ..codec.event import EventLike
from ..codec.subject_template import SubjectTemplate
from ..errors import DeliveryError, ErrorCode, Failure
from ..extensions.tracing import TraceContext
from ..message import HeadersLike
from ._link import Linked
from ._loop import Loop, SendQueue, current


class Publisher:
    """
    Publishes events to the streams that listen, without waiting for each one: see :class:`ce_nats.aio.Publisher`.

        with nc.publisher() as publisher:
            for event in events:
                publisher.publish(event, "orders.paid")
        print(publisher.acknowledged)

    It is open at once. The end of the block, or :meth:`close`, waits for all acknowledgements and raises an error with
    the events that have none. Any thread may use it, and several at a time; in a process that was forked it begins
    anew.

    Args:
        nc: A connection.
        options: As for :class:`ce_nats.aio.Publisher`.

    Raises:
        DeliveryError: ``connection-closed``.
    """

    def __init__(self, nc: Linked, **options: Any) -> None:
        self._nc = nc
        self._options = options
        self._is_closed = False
        self._sender = self._open(current())

    def _open(self, loop: Loop) -> Sender:
        sender: Sender = loop.run(Sender.open, loop, self._nc.link.js, self._options)
        return sender

    @property
    def _here(self) -> Sender:
        loop = current()
        if self._sender.loop is not loop and not self._is_closed:
            with loop.lock:
                if self._sender.loop is not loop:
                    self._sender = self._open(loop)
        return self._sender

    @property
    def acknowledged(self) -> int:
        """Events that are stored."""
        return self._sender.publisher.acknowledged

    @property
    def duplicates(self) -> int:
        """How many of them the stream had already."""
        return self._sender.publisher.duplicates

    @property
    def failures(self) -> list[Failure]:
        """Events without an acknowledgement that were not raised yet."""
        return self._sender.publisher.failures

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(error)

    def publish(
        self,
        event: EventLike,
        subject: str | SubjectTemplate,
        *,
        headers: HeadersLike = None,
        trace: TraceContext | None = None,
    ) -> None:
        """
        Publish an event; returns as soon as it has a place in the window.

        Args:
            event: As :func:`ce_nats.to_nats_message` takes it. It is encoded in this call.
            subject: NATS subject to publish to, or a template of it.
            headers: As for :func:`ce_nats.aio.jetstream.publish`.
            trace: As for :func:`ce_nats.aio.publish`.

        Raises:
            EncodeError: As :func:`ce_nats.aio.jetstream.publish` does. This event was not sent.
            PublishError: Earlier events were not acknowledged. This one was not sent. Each failure is raised once, so
                publishing may continue.
            DeliveryError: ``not-open``: the publisher is closed.
        """
        sender = self._here
        if self._is_closed:
            raise DeliveryError(ErrorCode.NOT_OPEN, f"{subject}: the publisher is closed")
        if sender.publisher.failures:
            sender.loop.run(sender.raise_failures)
        sender.queue.put(sender.publisher.prepare(event, subject, headers=headers, trace=trace))

    def flush(self) -> None:
        """
        Wait until every event so far is acknowledged or has failed.

        Raises:
            PublishError: Some have failed.
        """
        sender = self._here
        sender.loop.run(sender.flush)

    def close(self) -> None:
        """
        Wait for all acknowledgements, and close the publisher; does nothing when called again.

        Raises:
            PublishError: Some events have none.
        """
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._sender.loop.is_here:
            self._sender.loop.run(self._sender.end, None, error)


class Sender:
    """
    A publisher of one process.

    Attributes:
        loop: The loop of that process.
        publisher: The publisher in it.
        queue: What it is given.
    """

    def __init__(self, loop: Loop, publisher: aio.Publisher, window: int) -> None:
        self.loop = loop
        self.publisher = publisher
        self.queue: SendQueue[Prepared] = SendQueue(loop, self._send, window)

    @classmethod
    async def open(cls, loop: Loop, js: JetStreamContext, options: dict[str, Any]) -> Sender:
        publisher = await aio.Publisher(js, **options).__aenter__()
        sender = cls(loop, publisher, options.get("window", 1000))
        loop.opened[sender] = None
        return sender

    async def _send(self, prepared: Prepared) -> None:
        try:
            await self.publisher.send(prepared)
        except DeliveryError as error:
            self._fail(prepared, error)

    def _fail(self, prepared: Prepared, error: DeliveryError) -> None:
        self.publisher.failures.append(Failure(prepared.event, prepared.message.subject, error))

    async def raise_failures(self) -> None:
        """In the loop, because the list is its own."""
        raise_failures(self.publisher.failures)

    async def flush(self) -> None:
        await self.queue.emptied()
        await self.publisher.flush()

    async def end(self, seconds: float | None, error: BaseException | None = None) -> None:
        """Close, as the end of the publisher's block does after an error or none."""
        self.loop.opened.pop(self, None)
        try:
            if error is None or isinstance(error, Exception):
                await asyncio.wait_for(self.queue.emptied(), seconds)
        except asyncio.TimeoutError:
            seconds = 0.1
        finally:
            for prepared in await self.queue.close():
                text = f"{prepared.message.subject}: the publisher was closed before it was sent"
                self._fail(prepared, DeliveryError(ErrorCode.TIMEOUT, text))
            kind = None if error is None else type(error)
            try:
                await asyncio.wait_for(self.publisher.__aexit__(kind, error, None), seconds)
            except asyncio.TimeoutError:
                raise_failures(self.publisher.failures)
