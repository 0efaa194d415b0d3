"""Publish many events to JetStream."""

from __future__ import annotations

import asyncio
from types import TracebackType

from .. import aio
from ..aio._observer import OnOutcome
from ..aio.jetstream import DedupId, TimeToLive
from ..aio.publishing._prepare import Prepared
from ..aio.publishing._publisher import raise_failures
from ..codec.binding import Mode, dedup_id
from ..codec.event import EventLike
from ..codec.formats import Format
from ..codec.mode import ContentMode
from ..codec.subject_template import SubjectTemplate
from ..errors import DeliveryError, ErrorCode, Failure
from ..extensions.tracing import TraceContext
from ..message import HeadersLike
from ..schemas import Validate
from ._claim_check import ClaimCheck
from ._link import Linked
from ._loop import Loop, SendQueue, current


class Publisher:
    """
    Publishes events to the streams that listen, without waiting for each one: see :class:`ce_nats.aio.Publisher`.

        with nc.publisher() as publisher:
            for event in events:
                publisher.publish(event, "orders.paid")
        print(publisher.acknowledged)

    It is open when it is created. The end of the block, or :meth:`close`, waits for all acknowledgements and raises an
    error with the events that have none. Several threads may use it at once. In a forked process it starts with a new
    window, and counts from 0.

    Args:
        nc: A connection.
        mode: As for :class:`ce_nats.aio.Publisher`, and so are the other arguments. ``on_outcome`` is called in the
            loop's thread.

    Raises:
        DeliveryError: ``connection-closed``; as the block of :class:`ce_nats.aio.Publisher` does.
    """

    def __init__(
        self,
        nc: Linked,
        *,
        mode: Mode = ContentMode.BINARY,
        format: Format | None = None,  # noqa: A002
        dedup: DedupId | None = dedup_id,
        ttl: TimeToLive | None = None,
        validate: Validate | None = None,
        headerless: bool = False,
        window: int = 1000,
        ack_timeout: float = 5.0,
        retry_timeout: float = 30.0,
        claim_check: ClaimCheck | None = None,
        require: aio.Durability | None = None,
        fast_ingest: bool = True,
        on_outcome: OnOutcome | None = None,
        instrumentation: aio.Instruments | None = None,
    ) -> None:
        def create() -> aio.Publisher:
            return aio.Publisher(
                nc._link.js,
                mode=mode,
                format=format,
                dedup=dedup,
                ttl=ttl,
                validate=validate,
                headerless=headerless,
                window=window,
                ack_timeout=ack_timeout,
                retry_timeout=retry_timeout,
                require=require,
                fast_ingest=fast_ingest,
                on_outcome=on_outcome,
                instrumentation=instrumentation,
            )

        self._create = create
        self._window = window
        self._claim_check = claim_check
        self._is_closed = False
        self._sender = self._open(current())

    def _open(self, loop: Loop) -> Sender:
        return loop.run(Sender.open, loop, self._create(), self._window)

    @property
    def _sender_of_this_process(self) -> Sender:
        loop = current()
        if self._sender.loop is not loop and not self._is_closed:
            with loop.lock:
                if self._sender.loop is not loop:
                    self._sender = self._open(loop)
        return self._sender

    @property
    def acknowledged(self) -> int:
        """Number of stored events, those included that the stream already had."""
        return self._sender.publisher.acknowledged

    @property
    def duplicates(self) -> int | None:
        """Number of acknowledged events that the stream already had; None if that is unknown."""
        return self._sender.publisher.duplicates

    @property
    def batched(self) -> int:
        """Number of acknowledged events that were sent in a batch of several."""
        return self._sender.publisher.batched

    @property
    def failures(self) -> list[Failure]:
        """Events without an acknowledgement whose failure was not raised yet."""
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
        schedule: aio.Schedule | None = None,
    ) -> None:
        """
        Publish an event; returns as soon as there is room for it in the window.

        Args:
            event: As :func:`ce_nats.to_nats_message` takes it. It is encoded in this call.
            subject: NATS subject to publish to, or a template of it.
            headers: As for :func:`ce_nats.aio.jetstream.publish`.
            trace: As for :func:`ce_nats.aio.publish`.
            schedule: As for :func:`ce_nats.aio.jetstream.publish`.

        Raises:
            EncodeError: As :func:`ce_nats.aio.jetstream.publish` does. This event was not sent.
            PublishError: Earlier events were not acknowledged. This one was not sent. Each failure is raised once, so
                publishing may continue.
            DeliveryError: ``not-open``: the publisher is closed; as :meth:`ClaimCheck.check_in` does.
        """
        sender = self._sender_of_this_process
        if self._is_closed:
            raise DeliveryError(ErrorCode.NOT_OPEN, f"{subject}: the publisher is closed")
        if sender.publisher.failures:
            sender.loop.run(sender.raise_failures)
        preparation = sender.publisher._preparation
        outgoing = preparation.validated(event)
        if self._claim_check is not None:
            outgoing = outgoing.with_reference(self._claim_check.check_in(outgoing.event))
        sender.queue.put(preparation.encode(outgoing, subject, headers=headers, trace=trace, schedule=schedule))

    def flush(self) -> None:
        """
        Wait until each event published so far is acknowledged or has failed.

        Raises:
            PublishError: Some events have failed.
        """
        sender = self._sender_of_this_process
        sender.loop.run(sender.flush)

    def close(self) -> None:
        """
        Wait for all acknowledgements, and close the publisher; does nothing if closed already.

        Raises:
            PublishError: Some events have no acknowledgement.
        """
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._sender.loop.belongs_to_this_process:
            self._sender.loop.run(self._sender._end, None, error)


class Sender:
    """
    The publisher of one process.

    Attributes:
        loop: The loop of that process.
        publisher: The publisher in that loop.
        queue: Events for the publisher.
    """

    def __init__(self, loop: Loop, publisher: aio.Publisher, window: int) -> None:
        self.loop = loop
        self.publisher = publisher
        self.queue: SendQueue[Prepared] = SendQueue(loop, self._send, self._fail, window)

    @classmethod
    async def open(cls, loop: Loop, publisher: aio.Publisher, window: int) -> Sender:
        sender = cls(loop, await publisher.__aenter__(), window)
        loop.opened[sender] = None
        return sender

    async def _send(self, prepared: Prepared) -> None:
        try:
            await self.publisher._send(prepared)
        except DeliveryError as error:
            self._fail(prepared, error)

    def _fail(self, prepared: Prepared, error: DeliveryError) -> None:
        self.publisher.failures.append(Failure(prepared.event, prepared.message.subject, error))

    async def raise_failures(self) -> None:
        """Raise earlier failures; in the loop, the only thread that changes the list."""
        raise_failures(self.publisher.failures)

    async def flush(self) -> None:
        await self.queue.emptied()
        await self.publisher.flush()

    async def _end(self, seconds: float | None, error: BaseException | None = None) -> None:
        """Close as the publisher's block does when it ends with ``error``."""
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
