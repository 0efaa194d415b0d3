"""
Report outcomes of messages to a hook and to an instrumentation.

A consumer and a publisher have an :class:`Observer` if there is a hook or an instrumentation, else None. Exceptions of
hooks are logged; they neither lose nor duplicate a message.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from nats.aio.msg import Msg
from nats.js.api import PubAck

from ..codec.event import attributes_and_data
from ..codec.subject_template import SubjectTemplate
from ..errors import DeliveryError, ErrorCode
from ..extensions.tracing import TraceContext
from ..message import NatsMessage
from ..redelivery import Reason
from ._jetstream_api import Lag
from .core._received import Received

_log: Final = logging.getLogger(__name__)

_REFUSED: Final = {
    *(ErrorCode.PUBLISH_REFUSED, ErrorCode.PERMISSION_DENIED, ErrorCode.NO_RESPONDERS),
    *(ErrorCode.INCOMPATIBLE_CONFIG, ErrorCode.TEMPORARILY_UNAVAILABLE, ErrorCode.INVALID_BATCH),  # of atomic batches
}

T = TypeVar("T")


class OutcomeKind(str, Enum):
    """Outcome of a message. The first ten are those of a consumer, the last three those of a publisher."""

    ACKNOWLEDGED = "acknowledged"
    EXPIRED = "expired"  # acknowledged without a handler: see ``skip_expired``
    FILTERED = "filtered"  # the same: see ``filter``
    REDELIVERED = "redelivered"  # the server redelivers it after ``delay`` seconds
    UNAVAILABLE = "unavailable"  # it is handled again, when something that its handler needs is available again
    # Delivered again without a failure: its handler was cancelled, or never ran, or an event before it has failed.
    RELEASED = "released"
    DEAD_LETTERED = "dead-lettered"  # the dead letter was stored, and the message terminated
    TERMINATED = "terminated"  # without a dead letter: the consumer has no subject for dead letters
    UNSETTLED = "unsettled"  # the acknowledgement was not sent; the server redelivers it after ``ack_wait``
    SETTLED = "settled"  # by the program, with a method of nats-py's message
    PUBLISHED = "published"  # a stream has stored it
    REFUSED = "refused"  # the server refused it, or no stream listens: it is not stored
    UNACKNOWLEDGED = "unacknowledged"  # no acknowledgement arrived: it may be stored

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class MessageOutcome:
    """
    Outcome of a message.

    Attributes:
        kind: Kind of outcome.
        subject: Subject of the message.
        message: Message of nats-py for a consumer, :class:`~ce_nats.NatsMessage` for a publisher.
        delivery: The delivery; None for a publisher.
        event: The published event; None for a consumer, whose ``delivery`` has the event.
        error: Exception of the handler, or error of decoding or publishing; else None.
        seconds: Duration of the handler, None if no handler ran; for a publisher, time until the acknowledgement.
        delay: Seconds until the message is redelivered, for ``REDELIVERED``.
        reason: Reason for ``DEAD_LETTERED`` and ``TERMINATED``.
        ack: Acknowledgement of the stream, for ``PUBLISHED``.
        template: Subject template of the publisher, or ``""``.
    """

    kind: OutcomeKind
    subject: str
    message: Msg | NatsMessage | None
    delivery: Received | None = None
    event: Any = None
    error: BaseException | None = None
    seconds: float | None = None
    delay: float | None = None
    reason: Reason | None = None
    ack: PubAck | None = None
    template: str = ""


OnOutcome: TypeAlias = Callable[[MessageOutcome], object]


class Operation(Protocol):
    """Publishing or handling of one message, observed by an instrumentation."""

    @property
    def trace(self) -> TraceContext | None:
        """Trace context to send with the message."""

    def leave(self) -> None:
        """End the handler; called in the task of the handler, before the message is settled."""

    def end(self, outcome: MessageOutcome | None, error: BaseException | None) -> None:
        """
        End the operation; the last call.

        Args:
            outcome: Outcome of the message; None if it was not sent.
            error: Exception of the handler, or the error for which the message was not sent.
        """


class Instruments(Protocol):
    """Instrumentation of consumers and publishers: see :class:`ce_nats.otel.Instrumentation`."""

    def send(self, event: Any, subject: str, template: str) -> Operation:
        """
        Begin to publish an event.

        Args:
            event: The event, unchecked.
            subject: Subject of the event, ``""`` if there is a template.
            template: Subject template, or ``""``.
        """

    def process(self, received: Received) -> Operation:
        """Begin to handle a message; called in the task of the handler."""

    def record(self, outcome: MessageOutcome) -> None:
        """Record the outcome of a message; called once per message, after ``end()`` if there was an operation."""

    def pause(self, consumer: str, change: int) -> None:
        """
        Record that the handlers of a consumer pause because of an outage, or continue.

        Args:
            consumer: Name of the consumer.
            change: 1 if they pause, -1 if they continue, or the consumer is left.
        """

    def batch(self, stream: str, consumer: str, events: int, seconds: float, error: BaseException | None) -> None:
        """
        Record a call of a handler of batches.

        Args:
            stream: Name of the stream.
            consumer: Name of the consumer.
            events: Number of events of the batch, or of the part of it.
            seconds: Duration of the handler.
            error: Exception of the handler, or None.
        """

    def lag(self, stream: str, consumer: str, lag: Lag | None) -> None:
        """
        Record the lag of a consumer; called at intervals.

        Args:
            stream: Name of the stream.
            consumer: Name of the consumer.
            lag: ``pending``, ``ack_pending`` and ``redelivered``, in messages; None when the consumer is left.
        """


class Observer:
    """Reports outcomes of messages."""

    def __init__(self, on_outcome: OnOutcome | None, instruments: Instruments | None) -> None:
        self._instruments = instruments
        self._hooks: list[OnOutcome] = [] if on_outcome is None else [on_outcome]
        if instruments is not None:
            self._hooks.append(instruments.record)

    @classmethod
    def of(cls, on_outcome: OnOutcome | None, instruments: Instruments | None) -> Observer | None:
        """Return an observer; None if there is neither a hook nor an instrumentation."""
        return None if on_outcome is None and instruments is None else cls(on_outcome, instruments)

    def begin(self, delivery: Received) -> Handling:
        """Begin to handle a delivery."""
        instruments = self._instruments
        operation = None if instruments is None else guarded(lambda: instruments.process(delivery))
        return Handling(self, delivery, operation)

    def send(self, event: Any, subject: str | SubjectTemplate) -> Sending:
        """
        Begin to publish an event.

        Raises:
            EncodeError: ``invalid-message``: the argument is not an event.
        """
        attributes_and_data(event)
        plain, template = ("", subject.template) if isinstance(subject, SubjectTemplate) else (subject, "")
        instruments = self._instruments
        operation = None if instruments is None else guarded(lambda: instruments.send(event, plain, template))
        return Sending(self, event, template, operation)

    def pause(self, consumer: str, change: int) -> None:
        """Report that the handlers of a consumer pause, or continue: see :meth:`Instruments.pause`."""
        instruments = self._instruments
        if instruments is not None:
            guarded(lambda: instruments.pause(consumer, change))

    def batch(self, stream: str, consumer: str, events: int, seconds: float, error: BaseException | None) -> None:
        """Report a call of a handler of batches: see :meth:`Instruments.batch`."""
        instruments = self._instruments
        if instruments is not None:
            guarded(lambda: instruments.batch(stream, consumer, events, seconds, error))

    @property
    def has_instruments(self) -> bool:
        """Whether there is an instrumentation, not only a hook for outcomes."""
        return self._instruments is not None

    def lag(self, stream: str, consumer: str, lag: Lag | None) -> None:
        """Report the lag of a consumer: see :meth:`Instruments.lag`."""
        instruments = self._instruments
        if instruments is not None:
            guarded(lambda: instruments.lag(stream, consumer, lag))

    def record(self, outcome: MessageOutcome) -> None:
        """Report the outcome of a message."""
        for hook in self._hooks:
            guarded(partial(hook, outcome))


class Handling:
    """
    A running handler.

    The outcome is reported when the handler has ended, also if it has settled the message before.
    """

    __slots__ = ("_began", "_observer", "_operation", "_outcome", "_seconds")

    def __init__(self, observer: Observer, delivery: Received, operation: Operation | None) -> None:
        self._observer = observer
        self._operation = operation
        self._outcome = MessageOutcome(OutcomeKind.UNSETTLED, delivery.subject, delivery.message, delivery)
        self._began = time.perf_counter()
        self._seconds = 0.0

    def settled(self, outcome: MessageOutcome) -> None:
        """Set the outcome of the message."""
        self._outcome = outcome

    def leave(self) -> None:
        """End the handler."""
        self._seconds = time.perf_counter() - self._began
        if self._operation is not None:
            guarded(self._operation.leave)

    def end(self, error: BaseException | None) -> None:
        """Report the outcome: the message is settled, or will not be."""
        own = self._outcome.error
        outcome = replace(self._outcome, error=error if own is None else own, seconds=self._seconds)
        operation = self._operation
        if operation is not None:
            guarded(lambda: operation.end(outcome, error))
        self._observer.record(outcome)


class Sending:
    """An event that is being published to a stream."""

    __slots__ = ("_began", "_event", "_observer", "_operation", "_template")

    def __init__(self, observer: Observer, event: Any, template: str, operation: Operation | None) -> None:
        self._observer = observer
        self._event = event
        self._template = template
        self._operation = operation
        self._began = time.perf_counter()

    @property
    def trace(self) -> TraceContext | None:
        """Trace context to send with the event."""
        return None if self._operation is None else self._operation.trace

    def done(self, message: NatsMessage, result: PubAck | DeliveryError) -> None:
        """Report the acknowledgement, or the error if there is none."""
        error = result if isinstance(result, DeliveryError) else None
        outcome = MessageOutcome(
            OutcomeKind.PUBLISHED if error is None else kind_of(error),
            message.subject,
            message,
            event=self._event,
            error=error,
            seconds=time.perf_counter() - self._began,
            ack=None if isinstance(result, DeliveryError) else result,
            template=self._template,
        )
        operation = self._operation
        if operation is not None:
            guarded(lambda: operation.end(outcome, error))
        self._observer.record(outcome)

    def abandon(self, error: BaseException) -> None:
        """End the operation of an event that was not sent; the caller gets the error."""
        operation = self._operation
        if operation is not None:
            guarded(lambda: operation.end(None, error))


def kind_of(error: DeliveryError) -> OutcomeKind:
    """Return the outcome of a message whose publishing failed."""
    return OutcomeKind.REFUSED if error.code in _REFUSED else OutcomeKind.UNACKNOWLEDGED


def guarded(call: Callable[[], T]) -> T | None:
    """
    Call user code, and log its exceptions.

    Also a ``CancelledError``, which cannot mean the calling task, and those of test frameworks, which would end
    nats-py's read loop.
    """
    try:
        return call()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        _log.exception("a hook or an instrumentation must not raise")
        return None
