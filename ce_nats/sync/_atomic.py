"""Publish events to a stream as an atomic batch."""

from __future__ import annotations

from threading import Lock
from types import TracebackType

from .. import aio
from ..aio._observer import OnOutcome
from ..aio.jetstream import DedupId, TimeToLive
from ..codec.binding import Mode, dedup_id
from ..codec.event import EventLike
from ..codec.formats import Format
from ..codec.mode import ContentMode
from ..codec.subject_template import SubjectTemplate
from ..extensions.tracing import TraceContext
from ..message import HeadersLike
from ..schemas import Validate
from ._bridge import check_process
from ._claim_check import ClaimCheck
from ._link import Linked


class AtomicBatch:
    """
    Events that a stream stores together or not at all, as a context manager: see :class:`ce_nats.aio.AtomicBatch`.

        with nc.atomic_batch() as batch:
            batch.publish(paid, "orders.1", expected_last_subject_sequence=7)
            batch.publish(reserved, "stock.4711", expected_last_subject_sequence=12)
        print(batch.ack.first, batch.ack.last)

    The end of the block sends the batch, and waits until the stream has stored it. Several threads may add events at
    once. A forked process cannot use a batch of its parent.

    Args:
        nc: A connection.
        stream: As for :class:`ce_nats.aio.AtomicBatch`, and so are the other arguments. ``on_outcome`` is called in the
            loop's thread.

    Raises:
        EncodeError: At the end of the block, as :class:`ce_nats.aio.AtomicBatch` does.
        DeliveryError: At the end of the block, as :class:`ce_nats.aio.AtomicBatch` does.
    """

    def __init__(
        self,
        nc: Linked,
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
        instrumentation: aio.Instruments | None = None,
    ) -> None:
        self._link = nc._link
        self._lock = Lock()
        self._claim_check = claim_check
        self._batch = aio.AtomicBatch(
            self._link.js,
            stream=stream,
            mode=mode,
            format=format,
            dedup=dedup,
            ttl=ttl,
            validate=validate,
            ack_timeout=ack_timeout,
            retry_timeout=retry_timeout,
            on_outcome=on_outcome,
            instrumentation=instrumentation,
        )

    @property
    def ack(self) -> aio.BatchAck | None:
        """Acknowledgement of the stream after the end of the block; None before, and for a batch without events."""
        return self._batch.ack

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self._batch)

    def __enter__(self) -> AtomicBatch:
        self._link.run(self._batch.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            check_process(self._link.loop, "atomic batch")
        if self._link.loop.belongs_to_this_process:
            self._link.run(self._batch.__aexit__, kind, error, traceback)

    def publish(
        self,
        event: EventLike,
        subject: str | SubjectTemplate,
        *,
        expected_last_subject_sequence: int | None = None,
        headers: HeadersLike = None,
        trace: TraceContext | None = None,
        schedule: aio.Schedule | None = None,
    ) -> None:
        """
        Add an event, which is sent at the end of the block.

        Args:
            event: As :func:`ce_nats.to_nats_message` accepts it. It is encoded in this call.
            subject: NATS subject to publish to, or a template of it.
            expected_last_subject_sequence: As for :meth:`ce_nats.aio.AtomicBatch.publish`, and so are the other
                arguments.
            headers: Additional headers.
            trace: Trace context.
            schedule: When the stream publishes the event.

        Raises:
            EncodeError: As :meth:`ce_nats.aio.AtomicBatch.publish` does.
            DeliveryError: ``not-open``.
        """
        check_process(self._link.loop, "atomic batch")
        self._batch._check_open(subject)
        outgoing = self._batch._preparation.validated(event)
        if self._claim_check is not None:
            outgoing = outgoing.with_reference(self._claim_check.check_in(outgoing.event))
        with self._lock:
            self._batch._add(
                outgoing, subject, expected_last_subject_sequence, headers=headers, trace=trace, schedule=schedule
            )
