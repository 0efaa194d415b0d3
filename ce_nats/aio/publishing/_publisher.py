"""Pipeline publishes to JetStream while acknowledgements arrive."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import NamedTuple, TypeAlias

from nats.js import JetStreamContext
from nats.js.api import PubAck

from ...codec.binding import Mode, dedup_id
from ...codec.event import EventLike
from ...codec.formats import Format
from ...codec.mode import ContentMode
from ...codec.subject_template import SubjectTemplate
from ...errors import DeliveryError, ErrorCode, Failure, PublishError
from ...extensions.tracing import TraceContext
from ...message import HeadersLike, NatsMessage
from ...schemas import Validate, validator_of
from ...wire.nats import write_header_block
from .._claim_check import ClaimCheck
from .._natspy import api_prefix, client_of
from .._observer import Instruments, Observer, OnOutcome, Sending
from .._util.checks import check_count, check_jetstream
from ..core._publish import check_size
from ._pending_acks import PendingAcks
from ._pending_message import PendingMessage, is_duplicate
from ._prepare import MAX_HEADER_BYTES, DedupId, TimeToLive, prepare_for_stream

# The event, and its observer and message if there is an observer.
_Tag: TypeAlias = tuple[EventLike, "Sending | None", "NatsMessage | None"]


class Prepared(NamedTuple):
    """
    An encoded event before it is sent.

    Attributes:
        message: The message.
        block: Header block of the message.
        event: The event.
        sending: Observer of the outcome, or None.
    """

    message: NatsMessage
    block: bytes
    event: EventLike
    sending: Sending | None

    @property
    def tag(self) -> _Tag:
        """What is kept until the acknowledgement; the message only if its outcome is observed."""
        return self.event, self.sending, None if self.sending is None else self.message

    def abandon(self, error: BaseException) -> None:
        """Report that the event will not be sent."""
        if self.sending is not None:
            self.sending.abandon(error)


class Publisher:
    """
    Publisher of many events to streams, as an asynchronous context manager.

        async with Publisher(nc.jetstream()) as publisher:
            for event in events:
                await publisher.publish(event, "orders.paid")
        print(publisher.acknowledged)

    The end of the block waits for all acknowledgements, and raises an error with the unacknowledged events. After an
    exception in the block it also waits, and :attr:`failures` has the unacknowledged events; after a cancellation it
    does not wait.

    An unacknowledged message is resent for ``retry_timeout`` seconds, so that a broken connection or a restarted server
    delays events without losing any. Only messages with a ``Nats-Msg-Id`` are resent, by which the server detects
    copies within the stream's duplicate window (two minutes by default). Other messages fail after ``ack_timeout``,
    and so do messages with ``Nats-Expected-Last-...``: the server would refuse the copy of a stored message. A resent
    message may be stored after later ones.

    After no-responders, for instance during the election of a leader, any message is resent for ``retry_timeout``
    seconds, because it was not stored. Before the first acknowledgement the server is asked (on
    ``$JS.API.STREAM.NAMES``) whether a stream listens; if no stream listens, the error is raised at once.

    To a stream with ``allow_batched`` (fast ingest, nats-server 2.14) messages with a ``Nats-Msg-Id`` are published in
    batches, in half the time. The stream stores them in the order of the calls, also after a lost connection and after
    an election. It acknowledges several hundred at once and reports neither their sequences nor duplicates, so the
    acknowledgement of an event has ``seq`` 0 if its batch has other events. Messages with ``Nats-Expected-Last-...`` or
    without a ``Nats-Msg-Id`` are published one by one, after the batches before them. For each new subject the server
    is asked which stream listens.

    Args:
        js: From ``nc.jetstream()``.
        mode: ``BINARY`` or ``STRUCTURED``.
        format: Event format of structured mode, as for :func:`ce_nats.to_nats_message`.
        dedup: As for :func:`ce_nats.aio.jetstream.publish`.
        ttl: As for :func:`ce_nats.aio.jetstream.publish`.
        validate: Checks each event before it is sent: :class:`ce_nats.schemas.Schemas`, a mapping for it, or a
            function.
        headerless: As for :func:`ce_nats.aio.publish`; needs ``dedup=None``.
        window: Maximum number of unacknowledged events, 1 or more.
        ack_timeout: Seconds to wait for an acknowledgement.
        retry_timeout: Seconds to retry an event.
        claim_check: As for :func:`ce_nats.aio.jetstream.publish`. :meth:`publish` returns after the data is stored.
            Failures and outcomes have the event that refers to its data; it can be published again.
        fast_ingest: False publishes each message separately, also to streams with ``allow_batched``.
        on_outcome: Called with the :class:`~ce_nats.aio.MessageOutcome` of each event that was sent, when it is
            acknowledged or has failed; not for events that :meth:`publish` refuses. Exceptions in it are logged.
        instrumentation: Creates spans and metrics: :class:`ce_nats.otel.Instrumentation`.

    Attributes:
        acknowledged: Number of stored events.
        duplicates: Number of them that the stream already had. Resent events are not counted, and duplicates in a batch
            of several events are not reported.
        batched: Number of them that were stored, or were duplicates, in a batch of several events.
        failures: Unacknowledged events that were not raised yet.

    Raises:
        TypeError: ``js`` is not a JetStreamContext.
        ValueError: ``window`` is below 1.
    """

    def __init__(
        self,
        js: JetStreamContext,
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
        fast_ingest: bool = True,
        on_outcome: OnOutcome | None = None,
        instrumentation: Instruments | None = None,
    ) -> None:
        check_jetstream(js)
        check_count("window", window)
        self._mode = mode
        self._format = format
        self._dedup = dedup
        self._ttl = ttl
        self._claim_check = claim_check
        self._validator = validator_of(validate)
        self._headerless = headerless
        self._observer = Observer.of(on_outcome, instrumentation)
        self._nc = client_of(js)
        self._acks = PendingAcks(
            self._nc,
            self._done,
            window=max(1, window),
            ack_timeout=ack_timeout,
            retry_timeout=retry_timeout,
            api_prefix=api_prefix(js),
            fast_ingest=fast_ingest,
        )
        self.acknowledged = 0
        self.duplicates = 0
        self.batched = 0
        self.failures: list[Failure] = []

    async def __aenter__(self) -> Publisher:
        await self._acks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None or isinstance(error, Exception):
                await self._acks.drain()
        finally:
            for item in self._acks.pending.values():
                self._done(
                    item,
                    DeliveryError(
                        ErrorCode.TIMEOUT,
                        f"{item.subject}: the publisher was closed before the acknowledgement arrived",
                    ),
                )
            await self._acks.__aexit__()
        if error is None:
            raise_failures(self.failures)

    async def publish(
        self,
        event: EventLike,
        subject: str | SubjectTemplate,
        *,
        headers: HeadersLike = None,
        trace: TraceContext | None = None,
    ) -> asyncio.Future[PubAck]:
        """
        Publish an event, and return as soon as the window has a free slot for it.

        Args:
            event: The event, as for :func:`ce_nats.to_nats_message`.
            subject: NATS subject to publish to, or a subject template.
            headers: As for :func:`ce_nats.aio.jetstream.publish`.
            trace: As for :func:`ce_nats.aio.publish`; by default that of the instrumentation.

        Returns:
            A future of the acknowledgement. It need not be awaited: later calls and the end of the block also raise
            failures.

        Raises:
            EncodeError: As :func:`ce_nats.aio.jetstream.publish` does; ``data-mismatch``: ``validate`` refuses it. This
                event was not sent.
            PublishError: Earlier events were not acknowledged. This one was not sent. Each failure is raised once, so
                publishing may continue.
            DeliveryError: ``connection-closed``, ``not-open``, ``incompatible-config``; as
                :meth:`ce_nats.aio.ClaimCheck.check_in` does. This event was not sent.
        """
        given, event = event, self._validated(event)
        if self._claim_check is not None:
            valid, event = event, await self._claim_check.check_in(event)
            given = given if event is valid else event  # large data is not kept until the acknowledgement
        prepared = self._prepare(event, subject, headers=headers, trace=trace, given=given)
        try:
            if self._acks.is_full:
                await self._acks.wait_for_slot()
            raise_failures(self.failures)
            if self._dedup is dedup_id and not headers:  # the server detects a copy
                item = self._acks.send_now(prepared.message, prepared.block, prepared.tag)
                if item is not None:
                    return item.ack
        except BaseException as error:
            prepared.abandon(error)
            raise
        return await self._send(prepared)

    def _validated(self, event: EventLike) -> EventLike:
        """
        Return an event that ``validate`` accepts, with ``dataschema`` if it sets one.

        Raises:
            EncodeError: As :meth:`publish` does.
        """
        return event if self._validator is None else self._validator.checked(event)

    def _prepare(
        self,
        event: EventLike,
        subject: str | SubjectTemplate,
        *,
        headers: HeadersLike = None,
        trace: TraceContext | None = None,
        given: EventLike | None = None,
    ) -> Prepared:
        """
        Encode and check an event, in any thread; the first half of :meth:`publish`.

        Args:
            event: The event to send.
            subject: As for :meth:`publish`.
            headers: As for :meth:`publish`.
            trace: As for :meth:`publish`.
            given: The event that the caller has published, for failures; by default ``event``.

        Raises:
            EncodeError: As :meth:`publish` does.
            DeliveryError: ``incompatible-config``.
        """
        sending = None if self._observer is None else self._observer.send(event, subject)
        try:
            message = prepare_for_stream(
                self._nc,
                event,
                subject,
                mode=self._mode,
                format=self._format,
                headers=headers,
                dedup=self._dedup,
                ttl=self._ttl,
                headerless=self._headerless,
                trace=sending.trace if trace is None and sending is not None else trace,
            )
            block = write_header_block(message.headers.items()) if message.headers else b""
            check_size(message, self._nc.max_payload, MAX_HEADER_BYTES, len(block))
        except BaseException as error:
            if sending is not None:
                sending.abandon(error)
            raise
        return Prepared(message, block, event if given is None else given, sending)

    async def _send(self, prepared: Prepared) -> asyncio.Future[PubAck]:
        """
        Send as soon as the window has a free slot; the second half of :meth:`publish`.

        Raises:
            DeliveryError: As :meth:`publish` does. Earlier failures are not raised.
        """
        try:
            return (await self._acks.send(prepared.message, prepared.block, prepared.tag)).ack
        except BaseException as error:
            prepared.abandon(error)
            raise

    async def flush(self) -> None:
        """
        Wait until each event so far is acknowledged or has failed.

        Raises:
            PublishError: Some events have failed.
        """
        await self._acks.drain()
        raise_failures(self.failures)

    def _done(self, item: PendingMessage, outcome: PubAck | DeliveryError) -> None:
        tag: _Tag = item.tag
        event, sending, message = tag
        if isinstance(outcome, DeliveryError):
            self.failures.append(Failure(event, item.subject, outcome))
        else:
            self.acknowledged += 1
            if outcome.duplicate:
                self.duplicates += is_duplicate(item, outcome)
            if not outcome.seq:
                self.batched += 1
        if sending is not None and message is not None:
            sending.done(message, outcome)


def raise_failures(failures: list[Failure]) -> None:
    """
    Raise failures, and clear their list.

    Raises:
        PublishError: The list was not empty.
    """
    if not failures:
        return
    raised = tuple(failures)
    failures.clear()
    first = raised[0].error
    error = PublishError(
        first.code, first.message if len(raised) == 1 else f"{first.message} (and {len(raised) - 1} more)"
    )
    error.failures = raised
    raise error from first
