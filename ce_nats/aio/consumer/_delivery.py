"""A message delivered by a JetStream consumer, which is acknowledged, redelivered or dead-lettered once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Protocol, TypeAlias

from nats.aio.client import Client

from ..._numbers import check_optional_seconds
from ...codec.event import DecodedEvent
from ...errors import DecodeError, ErrorCode, Reject
from ...redelivery import Action, Decision, Outcome, Reason
from ._attempt import Attempt
from ._entry import Entry

_DONE: Final = Outcome.DONE
Resolve: TypeAlias = Callable[[DecodedEvent], Awaitable[DecodedEvent]]


class Settlement(Protocol):
    """
    What settles deliveries: a consumer, or a fake in the tests of a program.

    Attributes:
        nc: The connection.
    """

    nc: Client

    def begin(self, attempt: Attempt) -> None:
        """Begin a block."""

    async def end(
        self, attempt: Attempt, outcome: Outcome, error: BaseException | None, decision: Decision | None = None
    ) -> None:
        """End a block, and settle its message, unless it has settled it."""

    async def settle(self, attempt: Attempt, decision: Decision, error: BaseException | None) -> None:
        """Settle a message by a method of its delivery; as :meth:`end`."""

    def delay(self, attempt: Attempt) -> float:
        """Return the policy's delay before the redelivery, in seconds."""

    def drop(self, entry: Entry, turn: int) -> None:
        """Note that the program has dropped an unsettled delivery; may be called in any thread."""


class Delivery(Attempt):
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

    __slots__ = ("_invalid", "_resolve", "_settler")

    def __init__(
        self, settler: Settlement, entry: Entry, event: DecodedEvent | None, resolve: Resolve | None = None
    ) -> None:
        # As the base class does, without a call for each message.
        self._nc = settler.nc
        self._entry = entry
        self._event = event
        self._turn = entry.turn
        self._retries = entry.retries
        self._handling = None
        self._ending = ""
        self._is_held = self._is_filtered = False
        self.error = None
        self._settler = settler
        self._resolve = resolve
        self._invalid: DecodeError | None = None  # raised by resolve()

    def __del__(self) -> None:
        if self._entry.is_current(self._turn):
            self._settler.drop(self._entry, self._turn)

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

    async def __aenter__(self) -> DecodedEvent:
        return self._enter_block()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave_block()
        await self._end_block(error)

    # A block in another thread calls these separately: the first two in its thread, in which an OpenTelemetry span is
    # the current one for the handler.

    def _enter_block(self) -> DecodedEvent:
        """Begin a block; the first part of the context manager."""
        event = self._event
        if event is None:
            return self.event  # which raises the error
        self._settler.begin(self)
        return event

    def _leave_block(self) -> None:
        """End the code of the block; called in the same thread as :meth:`_enter_block`."""
        if self._handling is not None:
            self._handling.leave()

    def _end_block(self, error: BaseException | None, decision: Decision | None = None) -> Coroutine[Any, Any, None]:
        """Settle the message, unless the block has settled it; the last part of the context manager."""
        return self._settler.end(self, _DONE if error is None else self._outcome(error), error, decision)

    def _outcome(self, error: BaseException) -> Outcome:
        return Outcome.REJECTED if error is self._invalid else _outcome(error)

    def _repr_html_(self) -> str:
        from ..._notebook import html_table

        numbers = [("sequence", self.sequence), ("deliveries", self.deliveries), ("settled", self.is_settled)]
        rows = [("stream", self.stream), *numbers, ("subject", self.subject), *self._rows()]
        return html_table("delivery", rows)

    def __repr__(self) -> str:
        return f"Delivery({self.stream!r}, {self.sequence}, deliveries={self.deliveries}, event={self._event!r})"


def _outcome(error: BaseException) -> Outcome:
    if isinstance(error, Reject) or (isinstance(error, DecodeError) and error.code is ErrorCode.DATA_MISMATCH):
        return Outcome.REJECTED
    return Outcome.FAILED if isinstance(error, Exception) or _is_from_within(error) else Outcome.RELEASED


def _is_from_within(error: BaseException) -> bool:
    """Return whether a block was cancelled by a task that it awaited, not by its own task; False before 3.11."""
    task: Any = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and hasattr(task, "cancelling") and not task.cancelling()
