"""A message delivered by a JetStream consumer, which is acknowledged, redelivered or dead-lettered once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Protocol, TypeAlias

from nats.aio.msg import Msg

from ..._numbers import check_optional_seconds
from ...codec.event import DecodedEvent
from ...errors import DecodeError, DeliveryError, ErrorCode, Reject
from ...redelivery import Action, Decision, Outcome, Reason
from ...wire._ack_subject import AckSubject
from ..core._received import Received

Resolve: TypeAlias = Callable[[DecodedEvent], Awaitable[DecodedEvent]]


class Handles(Protocol):
    """Observes a block: see :class:`~ce_nats.aio._observer.Handling`."""

    def leave(self) -> None: ...

    def end(self, error: BaseException | None) -> None: ...


class Settles(Protocol):
    """Settles deliveries: see :class:`~ce_nats.aio.consumer._settle.Settler`."""

    def begin(self, delivery: Delivery) -> Handles | None: ...

    def decide(self, delivery: Delivery, outcome: Outcome) -> Decision: ...

    def delay(self, delivery: Delivery) -> float: ...

    async def settle(self, delivery: Delivery, decision: Decision, error: BaseException | None) -> None: ...

    def report(self, error: Exception, delivery: Delivery | None, /) -> None: ...

    def end_block(self, delivery: Delivery) -> None: ...


class Delivery(Received):
    """
    A delivered message and its event.

    As a context manager it returns the event, and settles the message at the end of the block, unless the block has
    settled it: it is acknowledged; redelivered after the policy's delay if there was an exception; dead-lettered after
    :class:`~ce_nats.Reject`, ``data-mismatch`` of ``data_as()``, or too many deliveries; released to other clients at
    once if its task was cancelled. Exceptions always propagate.

    Attributes:
        message: Message of nats-py. A redelivery while it is queued or in its block replaces it.
        error: Error of decoding if the message has no event, else None. Iterations yield no such delivery; ``on_error``
            may receive one. On a consumer with ``headers_only``, the event's data is a
            :class:`~ce_nats.codec.event.NotDelivered`.
        is_settled: Whether it was acknowledged, redelivered, dead-lettered or released.
    """

    __slots__ = (
        "__weakref__",
        "_arrival",
        "_handling",
        "_has_started",
        "_invalid",
        "_known",
        "_resolve",
        "_retries",
        "_settler",
        "is_settled",
    )

    def __init__(self, message: Msg, origin: AckSubject, settler: Settles, arrival: int | None = None) -> None:
        super().__init__(message, None)
        self._known = origin
        self._settler = settler
        # Number of deliveries on arrival that the message may have caused, by ending a process; not increased by
        # redeliveries while it is in flight.
        self._arrival = origin.deliveries if arrival is None else arrival
        self._retries = 0  # earlier attempts since its arrival, without a redelivery
        self.is_settled = False
        self._has_started = False  # its block was entered
        self._resolve: Resolve | None = None
        self._invalid: DecodeError | None = None  # raised by resolve()
        self._handling: Handles | None = None  # the running block, if there is an observer

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self._known.stream

    @property
    def consumer(self) -> str:
        """Name of the consumer."""
        return self._known.consumer

    @property
    def deliveries(self) -> int:
        """Number of deliveries of the message, including this one, and of attempts without a redelivery."""
        return self._known.deliveries + self._retries

    @property
    def _origin(self) -> AckSubject:
        return self._known

    async def ack(self) -> None:
        """
        Acknowledge the message: the event was processed.

        Raises:
            DeliveryError: ``connection-closed`` or ``buffer-full``: the acknowledgement was not sent; with
                ``double_ack`` also ``timeout`` or ``no-responders``: the server did not confirm it.
        """
        await self._settler.settle(self, Decision(Action.ACK), None)

    async def nak(self, delay: float | None = None) -> None:
        """
        Request redelivery of the message.

        Args:
            delay: Seconds until the redelivery; by default the policy's delay.

        Raises:
            DeliveryError: ``connection-closed`` or ``buffer-full``: the request was not sent; the message is
                redelivered after ``ack_wait``.
            ValueError: ``delay`` is not a number of seconds, 0 or more. The delivery is not settled.
        """
        check_optional_seconds("delay", delay)
        seconds = self._settler.delay(self) if delay is None else delay
        await self._settler.settle(self, Decision(Action.RETRY, delay=seconds), None)

    async def reject(self, reason: str = "") -> None:
        """
        Dead-letter the message. If the dead letter cannot be stored, the message is redelivered later.

        Args:
            reason: Text for the dead letter.

        Raises:
            DeliveryError: As :meth:`nak` does.
        """
        await self._settler.settle(self, Decision(Action.DEAD_LETTER, reason=Reason.REJECTED), Reject(reason))

    async def resolve(self) -> DecodedEvent:
        """
        Return the event with its data, if that is in the object store of ``PullConsumer(claim_check=)``.

        Other events are returned unchanged, and so are all events of a consumer without ``claim_check``. The data is
        read once; then it also has :attr:`event`. Data that can never be read dead-letters the message at the end of
        the block, and so do other errors after the last delivery.

        Raises:
            DecodeError: As :meth:`ce_nats.aio.ClaimCheck.resolve` does.
            DeliveryError: As :meth:`ce_nats.aio.ClaimCheck.resolve` does.
        """
        if self._resolve is not None:
            try:
                self._event = await self._resolve(self.event)
            except DecodeError as error:
                self._invalid = error
                raise
        return self.event

    def _replace(self, message: Msg, origin: AckSubject) -> None:
        """Replace this delivery by a later one of the same message."""
        self.message, self._known = message, origin

    def _next_attempt(self) -> Delivery:
        """Return a delivery with the same message, for another attempt without a redelivery."""
        again = Delivery(self.message, self._known, self._settler, self._arrival)
        again._retries = self._retries + 1
        return again

    def _set_event(self, event: DecodedEvent, resolve: Resolve | None = None) -> None:
        """Set the event, and a function that returns it with the data that it refers to."""
        self._event, self._resolve = event, resolve

    async def __aenter__(self) -> DecodedEvent:
        return self._enter_block()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave_block()
        await self._settle_block(error)

    # A block in another thread calls these separately: the first two in its thread, in which an OpenTelemetry span is
    # the current one for the handler.

    def _enter_block(self) -> DecodedEvent:
        """Begin a block; the first part of the context manager."""
        self._has_started = True
        event = self.event
        if not self.is_settled:
            self._handling = self._settler.begin(self)
        return event

    def _leave_block(self) -> None:
        """End the code of the block; called in the same thread as :meth:`_enter_block`."""
        if self._handling is not None:
            self._handling.leave()

    async def _settle_block(self, error: BaseException | None) -> None:
        """
        Settle the message, unless the block has settled it; the last part of the context manager.

        Args:
            error: Exception of the block, or None.

        Raises:
            DeliveryError: As :meth:`nak` does.
        """
        handling, settler = self._handling, self._settler
        try:
            if not self.is_settled:
                await settler.settle(self, settler.decide(self, self._outcome(error)), error)
        except DeliveryError as failure:
            if error is None:
                raise
            settler.report(failure, self)
        except asyncio.CancelledError:
            # A dead letter was being stored. If it was stored, its id prevents that it is stored again.
            await settler.settle(self, settler.decide(self, Outcome.RELEASED), None)
            raise
        finally:
            settler.end_block(self)
            if handling is not None:
                self._handling = None
                handling.end(error)

    def _outcome(self, error: BaseException | None) -> Outcome:
        return Outcome.REJECTED if error is not None and error is self._invalid else _outcome(error)

    def _repr_html_(self) -> str:
        from ..._notebook import html_table

        numbers = [("sequence", self.sequence), ("deliveries", self.deliveries), ("settled", self.is_settled)]
        rows = [("stream", self.stream), *numbers, ("subject", self.subject), *self._rows()]
        return html_table("delivery", rows)

    def __repr__(self) -> str:
        return f"Delivery({self.stream!r}, {self.sequence}, deliveries={self.deliveries}, event={self._event!r})"


def _outcome(error: BaseException | None) -> Outcome:
    if error is None:
        return Outcome.DONE
    if isinstance(error, Reject) or (isinstance(error, DecodeError) and error.code is ErrorCode.DATA_MISMATCH):
        return Outcome.REJECTED
    return Outcome.FAILED if isinstance(error, Exception) or _is_from_within(error) else Outcome.RELEASED


def _is_from_within(error: BaseException) -> bool:
    """Return whether a block was cancelled by a task that it awaited, not by its own task; False before 3.11."""
    task: Any = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and hasattr(task, "cancelling") and not task.cancelling()
