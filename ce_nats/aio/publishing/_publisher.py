"""Pipeline publishes to JetStream while acknowledgements arrive."""

from __future__ import annotations

import asyncio
from types import TracebackType

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
from ...schemas import Validate
from .._claim_check import ClaimCheck
from .._log_fields import event_text
from .._observer import Instruments, Observer, OnOutcome
from .._util.checks import check_count, check_jetstream
from ..check_up._durability import Durability, RequiredStream
from ..link._client import api_prefix, client_of
from ._pending_acks import PendingAcks
from ._pending_message import PendingMessage
from ._prepare import DedupId, Preparation, Prepared, TimeToLive
from ._schedule import Schedule


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

    Events are written to the connection in the order of the calls, also relative to other messages that the program
    publishes on it; those of batches, see below, may follow later ones that are published otherwise. If the connection
    is closed within the block, accepted events are sent before, and fail with ``timeout`` if the acknowledgement does
    not arrive.

    After no-responders, for instance during the election of a leader, any message is resent for ``retry_timeout``
    seconds, because it was not stored. Before the first acknowledgement the server is asked (on
    ``$JS.API.STREAM.NAMES``) whether a stream listens; if no stream listens, the error is raised at once.

    To a stream with ``allow_batched`` (fast ingest, nats-server 2.14) messages with a ``Nats-Msg-Id`` are published in
    batches, in half the time. The stream stores them in the order of the calls, also after a lost connection and after
    an election. It acknowledges several hundred at once and reports neither their sequences nor which are duplicates,
    so the acknowledgement of an event has ``seq`` 0 if its batch has other events. Messages with
    ``Nats-Expected-Last-...`` or without a ``Nats-Msg-Id`` are published one by one, after the batches before them. For
    each new subject the server is asked which stream listens.

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
        require: Durability that the stream of all events must have. It is looked up when the block begins, which needs
            permission for ``$JS.API.STREAM.INFO.<stream>``, and not again.
        fast_ingest: False publishes each message separately, also to streams with ``allow_batched``.
        on_outcome: Called with the :class:`~ce_nats.aio.MessageOutcome` of each event that was sent, when it is
            acknowledged or has failed; not for events that :meth:`publish` refuses. Exceptions in it are logged.
        instrumentation: Creates spans and metrics: :class:`ce_nats.otel.Instrumentation`.

    Attributes:
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
        require: Durability | None = None,
        fast_ingest: bool = True,
        on_outcome: OnOutcome | None = None,
        instrumentation: Instruments | None = None,
    ) -> None:
        check_jetstream(js)
        check_count("window", window)
        nc = client_of(js)
        self._js = js
        self._require = require
        self._dedup = dedup
        self._claim_check = claim_check
        self._preparation = Preparation(
            nc,
            mode=mode,
            format=format,
            dedup=dedup,
            ttl=ttl,
            validate=validate,
            headerless=headerless,
            observer=Observer.of(on_outcome, instrumentation),
        )
        self._acks = PendingAcks(
            nc,
            self._done,
            window=max(1, window),
            ack_timeout=ack_timeout,
            retry_timeout=retry_timeout,
            api_prefix=api_prefix(js),
            fast_ingest=fast_ingest,
        )
        self.failures: list[Failure] = []

    @property
    def acknowledged(self) -> int:
        """Number of stored events, those included that the stream already had."""
        return self._acks.tally.messages

    @property
    def duplicates(self) -> int | None:
        """
        Number of acknowledged events that the stream already had, according to their ``Nats-Msg-Id``.

        None if that is unknown, because some of them were acknowledged in a batch of several, of which others are new.
        Events that were resent one by one are not counted.
        """
        return self._acks.tally.duplicates

    @property
    def batched(self) -> int:
        """Number of acknowledged events that were sent in a batch of several."""
        return self._acks.tally.batched

    async def __aenter__(self) -> Publisher:
        """
        Begin to publish.

        Raises:
            DeliveryError: ``incompatible-config``: the stream does not have the durability of ``require``, or that is
                not known; ``stream-not-found``, ``timeout``, ``permission-denied``, ``connection-failed``.
        """
        if self._require is not None:
            self._preparation.required = await RequiredStream.look_up(self._js, self._require)
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
        schedule: Schedule | None = None,
    ) -> asyncio.Future[PubAck]:
        """
        Publish an event, and return as soon as the window has a free slot for it.

        ``mode=``, ``format=`` and ``ttl=`` are arguments of :class:`Publisher` only.

        Args:
            event: The event, as for :func:`ce_nats.to_nats_message`.
            subject: NATS subject to publish to, or a subject template.
            headers: As for :func:`ce_nats.aio.jetstream.publish`.
            trace: As for :func:`ce_nats.aio.publish`; by default that of the instrumentation.
            schedule: As for :func:`ce_nats.aio.jetstream.publish`.

        Returns:
            A future of the acknowledgement. It need not be awaited: later calls and the end of the block also raise
            failures.

        Raises:
            EncodeError: As :func:`ce_nats.aio.jetstream.publish` does; ``data-mismatch``: ``validate`` refuses it. This
                event was not sent.
            PublishError: Earlier events were not acknowledged. This one was not sent. Each failure is raised once, so
                publishing may continue.
            DeliveryError: ``connection-closed``, ``not-open``; ``incompatible-config``, also if the stream of
                ``require`` does not listen on the subject; as :meth:`ce_nats.aio.ClaimCheck.check_in` does. This event
                was not sent.
        """
        outgoing = self._preparation.validated(event)
        if self._claim_check is not None:
            outgoing = outgoing.with_reference(await self._claim_check.check_in(outgoing.event))
        prepared = self._preparation.encode(outgoing, subject, headers=headers, trace=trace, schedule=schedule)
        try:
            if self._acks.is_full:
                await self._acks.wait_for_slot()
            raise_failures(self.failures)
            if self._dedup is dedup_id and not headers:  # the server detects a copy
                item = self._acks.send_now(prepared.subject, prepared.data, prepared.block, prepared)
                if item is not None:
                    return item.ack
        except BaseException as error:
            prepared.abandon(error)
            raise
        return await self._send(prepared)

    async def _send(self, prepared: Prepared) -> asyncio.Future[PubAck]:
        """Send as soon as the window has a free slot; the second half of :meth:`publish`."""
        try:
            message = prepared.kept or NatsMessage(prepared.subject, prepared.data)
            return (await self._acks.send(message, prepared.block, prepared)).ack
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
        prepared: Prepared = item.tag
        if isinstance(outcome, DeliveryError):
            self.failures.append(Failure(prepared.event, item.subject, outcome))
        if prepared.sending is not None:
            prepared.sending.done(prepared.message, outcome)


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
    others = f" (and {len(raised) - 1} more)" if len(raised) > 1 else ""
    error = PublishError(first.code, f"{first.message}; event with {event_text(raised[0].event)}{others}")
    error.failures = raised
    raise error from first
