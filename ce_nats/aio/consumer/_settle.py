"""Settle deliveries: acknowledge, request redelivery, or store a dead letter and terminate the original."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from nats.aio.msg import Msg
from nats.js import JetStreamContext

from ...errors import CeNatsError, DataLossError, DeliveryError, EncodeError, ErrorCode, text_of
from ...redelivery import Action, DeadLetter, Decision, Outcome, Reason, RetryPolicy, decide
from .._errors import delivery_errors
from .._natspy import api_timeout, client_of
from .._observer import Handling, MessageOutcome, Observer, OutcomeKind
from .._permissions import answered
from .._util.pausing import random_number
from ..core._publish import round_trip
from ._dead_letters import store
from ._delivery import Delivery
from ._record import Recorder


class Gate(Protocol):
    """Keeps the order of keys: see :class:`~ce_nats.aio.consumer._keyed.KeyGate`."""

    def hold(self, delivery: Delivery, delay: float) -> None: ...

    def remember(self, delivery: Delivery) -> None: ...

    def settle(self, delivery: Delivery) -> None: ...

    def end_block(self, delivery: Delivery) -> None: ...


Report = Callable[[Exception, "Delivery | None"], None]


class Settler:
    """
    Settles the deliveries of a consumer.

    Args:
        js: From ``nc.jetstream()``.
        stream: Name of the stream.
        consumer: Name of the consumer.
        policy: Number of deliveries, and delays between them.
        dead_letter: Subject for dead letters, or None.
        double_ack: Wait until the server confirms each acknowledgement.
        report: Called with errors from which the consumer recovers.
        on_unhandled: Called with a message that is terminated without having been handled, and the way it ends, unless
            its dead letter contains this information.
        on_settled: Called with each delivery before the server is notified.
        on_denied: Called if the server denies acknowledgements.
        recorder: Notes the end of suspects.
        observer: Reports outcomes of deliveries; or None.

    Attributes:
        policy: As the argument.
        gate: Keeps the order of keys; or None.
    """

    def __init__(
        self,
        js: JetStreamContext,
        stream: str,
        consumer: str,
        *,
        policy: RetryPolicy,
        dead_letter: str | None,
        double_ack: bool,
        report: Report,
        on_unhandled: Callable[[CeNatsError, Delivery, str], None],
        on_settled: Callable[[Delivery], None],
        on_denied: Callable[[DeliveryError], None],
        recorder: Recorder,
        observer: Observer | None = None,
    ) -> None:
        self.policy = policy
        self.gate: Gate | None = None
        self._report = report
        self._js = js
        self._nc = client_of(js)
        self._consumer = consumer
        self._target = f"consumer {consumer} of stream {stream}"
        self._dead_letter = dead_letter
        self._double_ack = double_ack
        self._on_unhandled = on_unhandled
        self._on_settled = on_settled
        self._on_denied = on_denied
        self._recorder = recorder
        self._observer = observer

    def begin(self, delivery: Delivery) -> Handling | None:
        """Begin to handle a delivery; return None if there is no observer."""
        return None if self._observer is None else self._observer.begin(delivery)

    def decide(self, delivery: Delivery, outcome: Outcome) -> Decision:
        """Return the decision of the policy for a delivery."""
        return decide(outcome, delivery.deliveries, self.policy, random_number())

    def delay(self, delivery: Delivery) -> float:
        """Return the policy's delay before the redelivery, in seconds."""
        return self.policy.delay(delivery.deliveries, random_number())

    def report(self, error: Exception, delivery: Delivery | None, /) -> None:
        """Report an error from which the consumer recovers."""
        self._report(error, delivery)

    def end_block(self, delivery: Delivery) -> None:
        """Note the end of a delivery's block."""
        if self.gate is not None:
            self.gate.end_block(delivery)

    async def settle(
        self,
        delivery: Delivery,
        decision: Decision,
        error: BaseException | None,
        *,
        acknowledged: OutcomeKind = OutcomeKind.ACKNOWLEDGED,
    ) -> None:
        """
        Settle a delivery. Has no effect if it is already settled.

        Args:
            delivery: The delivery.
            decision: The decision.
            error: Error for the dead letter; or None.
            acknowledged: Outcome to report if the decision is to acknowledge.

        Raises:
            DeliveryError: As :meth:`Delivery.ack` does.
        """
        if delivery.is_settled:
            return
        if delivery.message.is_acked:
            self._record_outcome(delivery, OutcomeKind.SETTLED, None, error)
            self._end(delivery)
            return
        if decision.action is Action.DEAD_LETTER and not await self._store(delivery, decision, error):
            decision = Decision(Action.RETRY, delay=self.delay(delivery))
        if decision.action is Action.RETRY:
            await self._recorder.release({delivery.sequence: delivery._known.deliveries})
        else:
            self._recorder.settle(delivery.sequence)
        if self.gate is not None:
            if decision.action is Action.RETRY:
                delivery.is_settled = True
                self.gate.hold(delivery, decision.delay)
                self._record_outcome(delivery, self._kind(decision, error, acknowledged), decision, error)
                return
            self.gate.remember(delivery)
        self._end(delivery)
        self._report_unhandled(delivery, decision)
        message = delivery.message
        try:
            with delivery_errors(self._target, self._nc):
                if decision.action is Action.RETRY:
                    await message.nak(decision.delay)
                elif decision.action is Action.DEAD_LETTER:
                    await message.term()
                elif self._double_ack:
                    await self._ack_and_wait(message)
                else:
                    await message.ack()
        except BaseException as failure:
            self._record_outcome(delivery, OutcomeKind.UNSETTLED, None, failure)
            raise
        if self._observer is not None:
            self._record_outcome(delivery, self._kind(decision, error, acknowledged), decision, error)

    def _report_unhandled(self, delivery: Delivery, decision: Decision) -> None:
        """Report a message that is terminated without a handler, and without a dead letter that contains the reason."""
        error = delivery.error
        if decision.action is not Action.DEAD_LETTER or delivery._has_started or error is None:
            return
        if self._dead_letter is None:
            self._on_unhandled(error, delivery, "terminated without a dead letter")
        elif decision.reason is Reason.PROCESS_ENDED:
            self._on_unhandled(error, delivery, f"dead-lettered to {self._dead_letter}")

    async def settle_quietly(
        self, delivery: Delivery, wanted: Outcome | Decision, error: BaseException | None = None
    ) -> None:
        """Settle a delivery by a decision, or by that of the policy for an outcome; errors are reported, not raised."""
        decision = wanted if isinstance(wanted, Decision) else self.decide(delivery, wanted)
        acknowledged = OutcomeKind.EXPIRED if wanted is Outcome.EXPIRED else OutcomeKind.ACKNOWLEDGED
        try:
            await self.settle(delivery, decision, error, acknowledged=acknowledged)
        except DeliveryError as failure:
            self.report(failure, delivery)

    async def release(self, deliveries: list[Delivery]) -> None:
        """Release deliveries to other clients at once, and wait until the server has received this."""
        for delivery in deliveries:
            await self.settle_quietly(delivery, Outcome.RELEASED)
        if self._nc.is_connected:
            with suppress(CeNatsError):
                await round_trip(self._nc)

    def _kind(self, decision: Decision, error: BaseException | None, acknowledged: OutcomeKind) -> OutcomeKind:
        if decision.action is Action.RETRY:
            is_failure = decision.delay or isinstance(error, Exception)
            return OutcomeKind.REDELIVERED if is_failure else OutcomeKind.RELEASED
        if decision.action is Action.DEAD_LETTER:
            return OutcomeKind.TERMINATED if self._dead_letter is None else OutcomeKind.DEAD_LETTERED
        return acknowledged

    def _record_outcome(
        self, delivery: Delivery, kind: OutcomeKind, decision: Decision | None, error: BaseException | None
    ) -> None:
        """Report the outcome of a delivery: now, or at the end of its block."""
        if self._observer is None:
            return
        outcome = MessageOutcome(
            kind,
            delivery.subject,
            delivery.message,
            delivery,
            error=error,
            delay=decision.delay if decision is not None and kind is OutcomeKind.REDELIVERED else None,
            reason=None if decision is None else decision.reason,
        )
        if isinstance(delivery._handling, Handling):
            delivery._handling.settled(outcome)
        else:
            self._observer.record(outcome)

    def _end(self, delivery: Delivery) -> None:
        delivery.is_settled = True
        self._on_settled(delivery)
        if self.gate is not None:
            self.gate.settle(delivery)

    async def _ack_and_wait(self, message: Msg) -> None:
        try:
            await answered(self._nc, message.reply, lambda: message.ack_sync(timeout=api_timeout(self._js)))
        except DeliveryError as error:
            if error.code is ErrorCode.PERMISSION_DENIED:
                self._on_denied(error)
            raise

    async def _store(self, delivery: Delivery, decision: Decision, error: BaseException | None) -> bool:
        """Store the dead letter; return False if that failed."""
        if self._dead_letter is None:
            return True
        assert decision.reason is not None
        dead_letter = DeadLetter(
            reason=decision.reason,
            error=_code(error),
            text=_text(error),
            subject=delivery.subject,
            stream=delivery.stream,
            consumer=self._consumer,
            sequence=delivery.sequence,
            deliveries=delivery.deliveries,
        )
        try:
            kept = await store(
                self._js, self._dead_letter, dead_letter, delivery.message, timeout=api_timeout(self._js)
            )
        except (DeliveryError, EncodeError) as failure:
            self.report(failure, delivery)
            return False
        if not kept.is_copied and not kept.is_reference:
            self.report(DataLossError.not_copied(kept.stream, kept.sequence), delivery)
        return True


def _code(error: BaseException | None) -> str:
    if error is None:
        return ""
    return str(error.code) if isinstance(error, CeNatsError) else type(error).__name__


def _text(error: BaseException | None) -> str:
    if error is None:
        return ""
    return error.message if isinstance(error, CeNatsError) else text_of(error)
