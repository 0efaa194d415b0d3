"""Publish events to a stream as an atomic batch: all of them are stored, or none (ADR-50, nats-server 2.12.1)."""

from __future__ import annotations

from types import TracebackType
from typing import Final

from nats.js import JetStreamContext

from ...codec.binding import Mode, dedup_id
from ...codec.event import EventLike
from ...codec.formats import Format
from ...codec.mode import ContentMode
from ...codec.subject_template import SubjectTemplate
from ...errors import AtomicBatchError, DeliveryError, EncodeError, ErrorCode, preview
from ...extensions.tracing import TraceContext
from ...message import MSG_ID, HeadersLike, NatsMessage, folded
from ...schemas import Validate
from ...subjects import check_name
from .._claim_check import ClaimCheck
from .._observer import Instruments, Observer, OnOutcome
from .._util.checks import check_jetstream, check_positive
from ..link._client import client_of
from ._atomic_commit import AtomicCommit, BatchAck, batch_lines
from ._atomic_lookup import EXPECTED_SEQUENCE, EXPECTED_SUBJECT, EXPECTED_SUBJECT_SEQUENCE
from ._prepare import DedupId, Outgoing, Preparation, Prepared, TimeToLive
from ._schedule import Schedule

# The server's default.
MAX_EVENTS: Final = 1000
# Maximum size of the headers that a batch adds to a message.
_ADDED_BYTES: Final = len(batch_lines("0" * 32, MAX_EVENTS - 1, is_last=True))
_BATCH_HEADERS: Final = "nats-batch-"
_EXPECTED_ID: Final = "Nats-Expected-Last-Msg-Id"


class AtomicBatch:
    """
    Events that a stream stores together or not at all, as an asynchronous context manager.

        async with AtomicBatch(nc.jetstream()) as batch:
            await batch.publish(paid, "orders.1", expected_last_subject_sequence=7)
            await batch.publish(reserved, "stock.4711", expected_last_subject_sequence=12)
        print(batch.ack.first, batch.ack.last)

    Events are encoded and kept in memory until the end of the block, which sends them and waits until the stream has
    stored them. An exception in the block abandons the batch: nothing is sent. Consumers and readers of the stream
    never see a part of a batch. Subscribers of core NATS receive its events when they are sent, also if the stream then
    refuses the batch.

    The stream must have the setting ``allow_atomic`` (nats-server 2.12.1, see
    :func:`ce_nats.aio.jetstream.configure_stream`). This is looked up before anything is sent, because servers before
    2.12 would store each event at once; it needs permission to publish to ``$JS.API.STREAM.NAMES`` and
    ``$JS.API.STREAM.INFO.<stream>``.

    If the connection or the leader of the stream is lost, the batch is resent for ``retry_timeout`` seconds, as long as
    the outcome of the attempts before is known, or the stream would refuse a copy: by a ``Nats-Msg-Id`` of any event,
    within the stream's duplicate window, or by an expected sequence. Then the stream is searched for the batch, which
    needs permission to read it. What remains unknown is a ``timeout``.

    Args:
        js: From ``nc.jetstream()``.
        stream: Name of the stream; by default the stream that listens on the subjects. It is needed if subjects have
            other names in the account of the stream; its subjects are not compared then.
        mode: ``BINARY`` or ``STRUCTURED``.
        format: Event format of structured mode, as for :func:`ce_nats.to_nats_message`.
        dedup: As for :func:`ce_nats.aio.jetstream.publish`. A stream that already has an event of the batch refuses the
            whole batch.
        ttl: As for :func:`ce_nats.aio.jetstream.publish`.
        validate: As for :class:`~ce_nats.aio.Publisher`.
        ack_timeout: Seconds to wait for the reply to each message.
        retry_timeout: Seconds to retry.
        claim_check: As for :func:`ce_nats.aio.jetstream.publish`. :meth:`publish` stores large data at once; it remains
            in the object store if the batch is not stored.
        on_outcome: Called with the :class:`~ce_nats.aio.MessageOutcome` of each event that was sent, at the end of the
            block. Exceptions in it are logged.
        instrumentation: Creates spans and metrics: :class:`ce_nats.otel.Instrumentation`.

    Raises:
        EncodeError: At the end of the block, with nothing sent. ``invalid-batch``: the events are for several streams;
            ``payload-too-large``: an event is too large for the stream.
        AtomicBatchError: At the end of the block, with nothing stored. ``publish-refused``: the stream refused the
            batch; ``err_code`` is the number of the server's error, 10071 if the last sequence of a subject is not the
            expected one, 10201 if the stream has an event already; ``position`` and ``event`` are those of the event,
            if it can be found. ``incompatible-config``; ``temporarily-unavailable``.
        DeliveryError: At the end of the block. ``timeout``: all events are stored, or none. With any other code nothing
            is stored: ``incompatible-config``: the stream does not allow atomic batches; ``no-responders``: no stream
            listens; ``temporarily-unavailable``; ``permission-denied``; ``connection-closed``.
        TypeError: ``js`` is not a JetStreamContext.
        ValueError: ``ack_timeout`` is not above 0.
    """

    def __init__(
        self,
        js: JetStreamContext,
        *,
        stream: str | None = None,
        mode: Mode = ContentMode.BINARY,
        format: Format | None = None,  # noqa: A002
        dedup: DedupId | None = dedup_id,
        ttl: TimeToLive | None = None,
        validate: Validate | None = None,
        ack_timeout: float = 5.0,
        retry_timeout: float = 30.0,
        claim_check: ClaimCheck | None = None,
        on_outcome: OnOutcome | None = None,
        instrumentation: Instruments | None = None,
    ) -> None:
        check_jetstream(js)
        check_positive("ack_timeout", ack_timeout)
        if stream is not None:
            check_name("stream", stream)
        self._js = js
        self._stream = stream
        self._claim_check = claim_check
        self._preparation = Preparation(
            client_of(js),
            mode=mode,
            format=format,
            dedup=dedup,
            ttl=ttl,
            validate=validate,
            observer=Observer.of(on_outcome, instrumentation),
            added_bytes=_ADDED_BYTES,
        )
        self._ack_timeout = ack_timeout
        self._retry_timeout = retry_timeout
        self._is_open: bool | None = None
        self._entries: list[Prepared] = []
        self._positions: dict[str, int] = {}
        self._subjects: set[str] = set()
        self._ack: BatchAck | None = None

    @property
    def ack(self) -> BatchAck | None:
        """Acknowledgement of the stream after the end of the block; None before, and for a batch without events."""
        return self._ack

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self._entries)

    async def __aenter__(self) -> AtomicBatch:
        if self._is_open is not None:
            raise DeliveryError(ErrorCode.NOT_OPEN, "an atomic batch must be entered once; create a new one")
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        if error is not None:
            self._abandon(error)
        elif self._entries:
            await self._commit()

    async def publish(
        self,
        event: EventLike,
        subject: str | SubjectTemplate,
        *,
        expected_last_subject_sequence: int | None = None,
        headers: HeadersLike = None,
        trace: TraceContext | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        """
        Add an event, which is sent at the end of the block.

        Args:
            event: The event, as for :func:`ce_nats.to_nats_message`.
            subject: NATS subject to publish to, or a subject template.
            expected_last_subject_sequence: Sequence that the last message on the subject must have before the batch, 0
                if the subject must have none; otherwise the stream refuses the batch. Only for the first event on a
                subject.
            headers: As for :func:`ce_nats.aio.jetstream.publish`. ``Nats-Expected-Last-Sequence`` only for the first
                event; ``Nats-Expected-Last-Msg-Id`` is not allowed in a batch.
            trace: As for :func:`ce_nats.aio.publish`; by default that of the instrumentation.
            schedule: As for :func:`ce_nats.aio.jetstream.publish`.

        Raises:
            EncodeError: As :func:`ce_nats.aio.jetstream.publish` does; ``invalid-batch``: the batch has 1,000 events,
                or one with the same ``Nats-Msg-Id``, or the headers are not allowed; ``data-mismatch``: ``validate``
                refuses it. The event was not added.
            DeliveryError: ``not-open``, ``incompatible-config``; as :meth:`ce_nats.aio.ClaimCheck.check_in` does. The
                event was not added.
            ValueError: ``expected_last_subject_sequence`` is below 0.
        """
        self._check_open(subject)
        outgoing = self._preparation.validated(event)
        if self._claim_check is not None:
            outgoing = outgoing.with_reference(await self._claim_check.check_in(outgoing.event))
        self._add(outgoing, subject, expected_last_subject_sequence, headers=headers, trace=trace, schedule=schedule)

    def _check_open(self, subject: str | SubjectTemplate) -> None:
        if not self._is_open:
            raise DeliveryError(ErrorCode.NOT_OPEN, f"{subject}: the batch must be used inside of its block")

    def _add(
        self,
        outgoing: Outgoing,
        subject: str | SubjectTemplate,
        expected: int | None,
        *,
        headers: HeadersLike,
        trace: TraceContext | None,
        schedule: Schedule | None,
    ) -> None:
        """Add an event, in any thread, but in one at once."""
        self._check_open(subject)
        if len(self._entries) >= MAX_EVENTS:
            raise EncodeError(
                ErrorCode.INVALID_BATCH,
                f"an atomic batch must have at most {MAX_EVENTS} events, got one more, on {subject}",
            )

        def check(message: NatsMessage) -> None:
            if expected is not None:
                _expect(message, expected)
            self._check(message)

        entry = self._preparation.encode(
            outgoing, subject, headers=headers, trace=trace, schedule=schedule, check=check
        )
        message = entry.message
        if identifier := message.headers.get(MSG_ID):
            self._positions[identifier] = len(self._entries)
        self._subjects.add(message.subject)
        self._entries.append(entry)

    def _check(self, message: NatsMessage) -> None:
        """
        Refuse a message for which the server would refuse the batch.

        Raises:
            EncodeError: ``invalid-batch``.
        """
        headers = message.headers
        names = list(headers)
        for name in names:
            if folded(name).startswith(_BATCH_HEADERS):
                raise _invalid(message, f"the batch itself sets header {preview(name)}", name)
            if name == _EXPECTED_ID:
                raise _invalid(message, f"header {name!r} is not allowed in an atomic batch", name)
        if EXPECTED_SEQUENCE in headers and self._entries:
            raise _invalid(
                message, "only the first event may expect the last sequence of the stream", EXPECTED_SEQUENCE
            )
        if EXPECTED_SUBJECT_SEQUENCE in headers:
            subject = headers.get(EXPECTED_SUBJECT) or message.subject
            if len(headers.values(EXPECTED_SUBJECT_SEQUENCE)) > 1:
                raise _invalid(message, "the expected sequence must be given once", EXPECTED_SUBJECT_SEQUENCE)
            if subject in self._subjects:
                text = f"an earlier event of the batch is on {subject}, so the expected sequence cannot be checked"
                raise _invalid(message, text, EXPECTED_SUBJECT_SEQUENCE)
        identifier = headers.get(MSG_ID)
        if identifier and (position := self._positions.get(identifier)) is not None:
            raise _invalid(message, f"the event at position {position} also has {MSG_ID} {preview(identifier)}", MSG_ID)

    async def _commit(self) -> None:
        batch = [(entry.message, entry.block) for entry in self._entries]
        commit = AtomicCommit(
            self._js, batch, stream=self._stream, ack_timeout=self._ack_timeout, retry_timeout=self._retry_timeout
        )
        try:
            for entry in self._entries:  # the connection may be to another server now
                self._preparation.check_size(entry.message, entry.block)
            self._ack = await commit.run()
        except BaseException as error:
            if isinstance(error, AtomicBatchError) and error.position is not None:
                error.event = self._entries[error.position].event
            if commit.was_sent:
                self._report(error if isinstance(error, DeliveryError) else _interrupted())
            else:
                self._abandon(error)
            raise
        self._report(None)

    def _report(self, error: DeliveryError | None) -> None:
        """Report the outcome of each event."""
        for position, entry in enumerate(self._entries):
            if entry.sending is not None:
                outcome = self._ack.of(position) if error is None and self._ack is not None else error
                assert outcome is not None
                entry.sending.done(entry.message, outcome)

    def _abandon(self, error: BaseException) -> None:
        for entry in self._entries:
            entry.abandon(error)


def _expect(message: NatsMessage, sequence: int) -> None:
    if isinstance(sequence, bool) or not isinstance(sequence, int):
        raise TypeError(f"expected_last_subject_sequence must be an int, got {preview(sequence)}")
    if sequence < 0:
        raise ValueError(f"expected_last_subject_sequence must be 0 or more, got {sequence}")
    message.headers.append(EXPECTED_SUBJECT_SEQUENCE, str(sequence))


def _invalid(message: NatsMessage, reason: str, header: str) -> EncodeError:
    return EncodeError(ErrorCode.INVALID_BATCH, f"{message.subject}: {reason}", header=header)


def _interrupted() -> DeliveryError:
    return DeliveryError(ErrorCode.TIMEOUT, "the commit of the atomic batch was cancelled; it may be stored")
