"""
What became of messages: told to a hook, and to an instrumentation.

A consumer and a publisher have an :class:`Observer` where somebody looks, and None otherwise. Whatever a hook raises is
logged, and neither loses nor repeats a message.
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
from .consumer._delivery import Delivery
from .core._received import Received

_log: Final = logging.getLogger(__name__)

_REFUSED: Final = {ErrorCode.PUBLISH_REFUSED, ErrorCode.PERMISSION_DENIED, ErrorCode.NO_RESPONDERS}

T = TypeVar("T")


class OutcomeKind(str, Enum):
    """What became of a message. The first seven are a consumer's, the last three a publisher's."""

    ACKNOWLEDGED = "acknowledged"
    REDELIVERED = "redelivered"  # the server delivers it again after ``delay`` seconds
    RELEASED = "released"  # likewise at once, and without a failure: the handler was cancelled, or never ran
    DEAD_LETTERED = "dead-lettered"  # the dead letter is stored, and the message terminated
    TERMINATED = "terminated"  # likewise without a dead letter: the consumer has no subject for them
    UNSETTLED = "unsettled"  # the server could not be told, and delivers it again after ``ack_wait``
    SETTLED = "settled"  # by the program itself, with a method of nats-py's message
    PUBLISHED = "published"  # a stream has it
    REFUSED = "refused"  # the server refused it, or no stream listens: it is not stored
    UNACKNOWLEDGED = "unacknowledged"  # no acknowledgement came: it may be stored

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class MessageOutcome:
    """
    What became of a message.

    Attributes:
        kind: What.
        subject: The message's subject.
        message: nats-py's message for a consumer, a :class:`~ce_nats.NatsMessage` for a publisher.
        delivery: The delivery; None for a publisher.
        event: The event that was given to the publisher; None for a consumer, whose ``delivery`` has it.
        error: What the handler raised, why there is no event in the message, or why it was not published; else None.
        seconds: How long the handler took, None where none ran; for a publisher, how long it took until the
            acknowledgement.
        delay: Seconds until the message is delivered again, for ``REDELIVERED``.
        reason: Why, for ``DEAD_LETTERED`` and ``TERMINATED``.
        ack: The acknowledgement of the stream, for ``PUBLISHED``.
        template: The template that the subject was made from, where the publisher was given one; else ``""``.
    """

    kind: OutcomeKind
    subject: str
    message: Msg | NatsMessage | None
    delivery: Delivery | None = None
    event: Any = None
    error: BaseException | None = None
    seconds: float | None = None
    delay: float | None = None
    reason: Reason | None = None
    ack: PubAck | None = None
    template: str = ""


OnOutcome: TypeAlias = Callable[[MessageOutcome], object]


class Operation(Protocol):
    """One message that is being sent or handled, as an instrumentation sees it."""

    @property
    def trace(self) -> TraceContext | None:
        """What is sent along with a message."""

    def leave(self) -> None:
        """The handler has ended; called in the task that it ran in, before the message is settled."""

    def end(self, outcome: MessageOutcome | None, error: BaseException | None) -> None:
        """
        The last call.

        Args:
            outcome: What became of the message; None where it was not sent.
            error: What the handler raised, or why the message was not sent.
        """


class Instruments(Protocol):
    """What consumers and publishers tell: see :class:`ce_nats.otel.Instrumentation`."""

    def send(self, event: Any, subject: str, template: str) -> Operation:
        """
        An event is being published.

        Args:
            event: The event, unchecked.
            subject: Its subject, ``""`` where it is made from a template.
            template: The template, or ``""``.
        """

    def process(self, received: Received) -> Operation:
        """A handler begins, in the task that this is called in."""

    def record(self, outcome: MessageOutcome) -> None:
        """What became of a message; called once for each, after ``end()`` where there was an operation."""


class Observer:
    """
    Tells what becomes of messages.

    Args:
        on_outcome: The hook, or None.
        instruments: The instrumentation, or None.
    """

    def __init__(self, on_outcome: OnOutcome | None, instruments: Instruments | None) -> None:
        self._instruments = instruments
        self._hooks: list[OnOutcome] = [] if on_outcome is None else [on_outcome]
        if instruments is not None:
            self._hooks.append(instruments.record)

    @classmethod
    def of(cls, on_outcome: OnOutcome | None, instruments: Instruments | None) -> Observer | None:
        """An observer, or None where nobody looks."""
        return None if on_outcome is None and instruments is None else cls(on_outcome, instruments)

    def begin(self, delivery: Delivery) -> Handling:
        """A handler begins."""
        instruments = self._instruments
        operation = None if instruments is None else guarded(lambda: instruments.process(delivery))
        return Handling(self, delivery, operation)

    def send(self, event: Any, subject: str | SubjectTemplate) -> Sending:
        """
        An event is being published.

        Raises:
            EncodeError: ``invalid-message``: it is not an event.
        """
        attributes_and_data(event)
        plain, template = ("", subject.template) if isinstance(subject, SubjectTemplate) else (subject, "")
        instruments = self._instruments
        operation = None if instruments is None else guarded(lambda: instruments.send(event, plain, template))
        return Sending(self, event, template, operation)

    def record(self, outcome: MessageOutcome) -> None:
        """Say what became of a message."""
        for hook in self._hooks:
            guarded(partial(hook, outcome))


class Handling:
    """
    A handler that runs.

    What became of its message is told when the handler has ended, even where it has settled the message earlier.
    """

    __slots__ = ("_began", "_delivery", "_observer", "_operation", "_outcome", "_seconds")

    def __init__(self, observer: Observer, delivery: Delivery, operation: Operation | None) -> None:
        self._observer = observer
        self._delivery = delivery
        self._operation = operation
        self._outcome = MessageOutcome(OutcomeKind.UNSETTLED, delivery.subject, delivery.message, delivery)
        self._began = time.perf_counter()
        self._seconds = 0.0

    def settled(self, outcome: MessageOutcome) -> None:
        """What became of the message."""
        self._outcome = outcome

    def leave(self) -> None:
        """The handler has ended."""
        self._seconds = time.perf_counter() - self._began
        if self._operation is not None:
            guarded(self._operation.leave)

    def end(self, error: BaseException | None) -> None:
        """The message is settled, or never will be."""
        own = self._outcome.error
        outcome = replace(self._outcome, error=error if own is None else own, seconds=self._seconds)
        operation = self._operation
        if operation is not None:
            guarded(lambda: operation.end(outcome, error))
        self._observer.record(outcome)


class Sending:
    """An event on its way to a stream."""

    __slots__ = ("_began", "_event", "_observer", "_operation", "_template")

    def __init__(self, observer: Observer, event: Any, template: str, operation: Operation | None) -> None:
        self._observer = observer
        self._event = event
        self._template = template
        self._operation = operation
        self._began = time.perf_counter()

    @property
    def trace(self) -> TraceContext | None:
        """What is sent along."""
        return None if self._operation is None else self._operation.trace

    def done(self, message: NatsMessage, result: PubAck | DeliveryError) -> None:
        """The acknowledgement came, or will not come."""
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
        """The event was not sent, and its publisher gets the error."""
        operation = self._operation
        if operation is not None:
            guarded(lambda: operation.end(None, error))


def kind_of(error: DeliveryError) -> OutcomeKind:
    """What became of a message whose publisher has got an error."""
    return OutcomeKind.REFUSED if error.code in _REFUSED else OutcomeKind.UNACKNOWLEDGED


def guarded(call: Callable[[], T]) -> T | None:
    """Call something of the program's; an exception is logged."""
    try:
        return call()
    except Exception:
        _log.exception("a hook or an instrumentation must not raise")
        return None
