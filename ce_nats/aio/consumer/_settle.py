"""Settle messages: acknowledge, request redelivery, or store a dead letter and terminate the original."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import nats.errors
from nats.js import JetStreamContext

from ...errors import CeNatsError, DataLossError, DeliveryError, EncodeError, ErrorCode
from ...redelivery import Action, Blame, Decision, Outcome, Reason
from .._errors import delivery_errors
from .._observer import MessageOutcome, Observer, OutcomeKind
from ..core._publish import round_trip
from ..link._client import client_of, mark_acked
from ._acks import AckWriter, is_acked
from ._attempt import Attempt
from ._background import Background
from ._confirm import Confirmations
from ._decisions import Decisions, Delays
from ._entry import Entry, Place
from ._ledger import Effect, Ledger
from ._letters import Letters
from ._outage import Outage
from ._record import Recorder
from ._running import Reporter, Running

_log: Final = logging.getLogger(__name__)

AttemptT = TypeVar("AttemptT", bound=Attempt)

_ACKNOWLEDGED: Final = OutcomeKind.ACKNOWLEDGED
# Outcomes of messages that are acknowledged without a handler.
_SKIPPED: Final[dict[Outcome, OutcomeKind]] = {
    Outcome.EXPIRED: OutcomeKind.EXPIRED,
    Outcome.FILTERED: OutcomeKind.FILTERED,
}
_ACK: Final = Action.ACK
_TAKEN: Final = Place.TAKEN


class Settler:
    """
    Settles the messages of a consumer.

    Attributes:
        nc: The connection.
        background: Settles messages beside handlers.
        decisions: Decides how messages are settled.
        reporter: Reports errors.
    """

    def __init__(
        self,
        js: JetStreamContext,
        *,
        decisions: Decisions,
        letters: Letters,
        confirmations: Confirmations | None,
        ledger: Ledger,
        acks: AckWriter,
        running: Running,
        recorder: Recorder,
        reporter: Reporter,
        outage: Outage,
        delays: Delays,
        observer: Observer | None = None,
    ) -> None:
        self.nc = client_of(js)
        self.decisions = decisions
        self.reporter = reporter
        self.background = Background(running)
        self._letters = letters
        self._confirmations = confirmations
        self._ledger = ledger
        self._acks = acks
        self._running = running
        self._recorder = recorder
        self._outage = outage
        self._delays = delays
        self._observer = observer
        self._loop = asyncio.get_running_loop()

    # --- Blocks -------------------------------------------------------------------------------------------------------

    def begin(self, attempt: Attempt) -> None:
        """Begin a block."""
        self._ledger.begin(attempt._entry)
        if self._observer is not None and not attempt.is_settled:
            attempt._handling = self._observer.begin(attempt)

    async def end(
        self, attempt: Attempt, outcome: Outcome, error: BaseException | None, decision: Decision | None = None
    ) -> None:
        """
        End a block, and settle its message, unless it has settled it.

        Raises:
            DeliveryError: As :meth:`Delivery.nak` does, if the block has no exception; it is reported otherwise.
        """
        if error is None and self.acknowledge(attempt, waits=True):
            return
        handling = attempt._handling
        try:
            decision = decision or self.judge(attempt, outcome, error)
            if decision is not None:
                await self.settle(attempt, decision, error)
        except DeliveryError as failure:
            if error is None:
                raise
            self.reporter.report(failure, attempt)
        except asyncio.CancelledError:
            # A dead letter was being stored. If it was stored, its id prevents that it is stored again.
            await self.settle(attempt, self.decisions.decide(attempt, Outcome.RELEASED), None)
            raise
        finally:
            self._end_block(attempt)
            if handling is not None:
                attempt._handling = None
                handling.end(error)

    def _end_block(self, attempt: Attempt) -> None:
        """Note the end of a block."""
        if self._ledger.end_block(attempt._entry, attempt._turn, time.monotonic()):
            self._running.wake()

    @property
    def is_observed(self) -> bool:
        """Whether outcomes are reported, so that no message can be acknowledged at once."""
        return self._observer is not None

    @property
    def keeps_order(self) -> bool:
        """Whether the order of keys is kept."""
        return self._ledger.keys is not None

    def out_of_turn(self, attempts: Sequence[AttemptT]) -> set[AttemptT]:
        """Return those that are not settled, and must wait for others of their keys, which are not among them."""
        if self._ledger.keys is None:
            return set()
        handled = [each for each in attempts if each._entry.is_settled or each._entry.is_current(each._turn)]
        found = self._ledger.out_of_turn([attempt._entry for attempt in handled])
        return {each for each in handled if each._entry in found and not (each.is_settled or is_acked(each._entry))}

    async def put_back(self, attempt: Attempt) -> None:
        """End the block of a message that is handled again, after others of its key."""
        self._ledger.hold(attempt._entry, is_first=True)
        self._record_outcome(attempt, OutcomeKind.RELEASED, None, None)
        await self.end(attempt, Outcome.DONE, None)

    def drop(self, entry: Entry, turn: int) -> None:
        """Note that the program has dropped an unsettled delivery; may be called in any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._drop, entry, turn)

    def _drop(self, entry: Entry, turn: int) -> None:
        if not self._ledger.drop(entry, turn):
            return
        if is_acked(entry):
            self._remove(entry, is_final=False)
            return
        if not self._running.stopped.is_set():
            self.reporter.report_dropped(Attempt(self.nc, entry, entry.event))
        self._running.wake()

    def note_batch(self, attempts: Sequence[Attempt], seconds: float, error: BaseException | None) -> None:
        """Report a call of a handler of batches."""
        if self._observer is not None:
            first = attempts[0]
            self._observer.batch(first.stream, first.consumer, len(attempts), seconds, error)

    # --- Decisions ----------------------------------------------------------------------------------------------------

    def delay(self, attempt: Attempt) -> float:
        """Return the policy's delay before the redelivery, in seconds."""
        return self.decisions.delay(attempt)

    def is_outage(self, error: BaseException | None) -> bool:
        """Return whether an exception of a handler declares an outage, or was raised during one."""
        return error is not None and self._outage.covers(error)

    def acknowledge(self, attempt: Attempt, *, waits: bool = False) -> bool:
        """Acknowledge a message after its block, if that needs nothing else; return whether it was settled."""
        if not self._is_plain(attempt):
            return False
        confirmations = self._confirmations
        if confirmations is not None and (waits or not confirmations.has_room):
            return False
        entry = attempt._entry
        if entry.arrival > 1:
            self._recorder.settle(entry.sequence)
            self.decisions.forget(entry.sequence)
        self._note_success(attempt)
        _, frees = self._ledger.settle(entry, _ACK, time.monotonic())
        if frees:
            self._running.wake()
        if confirmations is None:
            self._acks.schedule()
        else:
            confirmations.request(entry).add_done_callback(partial(self._report_unconfirmed, attempt))
        return True

    def _note_success(self, attempt: Attempt) -> None:
        """Note that a handler has succeeded, if one was called."""
        if self._outage.breaker.failures and attempt._entry.has_started and not attempt._is_filtered:
            self._outage.succeed()

    def _is_plain(self, attempt: Attempt) -> bool:
        """Return whether a message can be acknowledged at once, and nothing else depends on it."""
        entry = attempt._entry
        return (
            entry.is_current(attempt._turn)
            and entry.message is None
            and self._observer is None
            and self._ledger.keys is None
            and self.nc.is_connected
        )

    def _report_unconfirmed(self, attempt: Attempt, result: asyncio.Future[None]) -> None:
        if not result.cancelled() and (error := result.exception()) is not None:
            assert isinstance(error, DeliveryError)
            self.reporter.report(error, attempt)

    async def finish(self) -> None:
        """Wait until dead letters are stored, and acknowledgements are confirmed, or have failed."""
        await self.background.finish()
        if self._confirmations is not None:
            await self._confirmations.confirmed()

    def is_acknowledged_later(self, attempt: Attempt) -> bool:
        """
        Return whether an acknowledgement is only collected and written later; may be called in any thread.

        If not, it may fail at once, others may wait for it, or its outcome is reported.
        """
        return self._confirmations is None and self._is_plain(attempt)

    async def settle(
        self,
        attempt: Attempt,
        decision: Decision,
        error: BaseException | None,
        *,
        acknowledged: OutcomeKind = _ACKNOWLEDGED,
    ) -> None:
        """Settle a message. Has no effect if it is already settled."""
        if attempt.is_settled:
            return
        entry = attempt._entry
        if is_acked(entry):
            self._record_outcome(attempt, OutcomeKind.SETTLED, None, error)
            attempt._ending = "settled by the handler"
            self._remove(entry, is_final=False)  # it may have requested a redelivery
            return
        if decision.action is Action.RETRY and self.decisions.is_last(entry):
            text = f"max_deliver is {self.decisions.max_deliver}, so the server does not deliver it again"
            attempt.error = DeliveryError(ErrorCode.INCOMPATIBLE_CONFIG, text)
            error = error if isinstance(error, Exception) else attempt.error
            decision = Decision(Action.DEAD_LETTER, reason=Reason.EXHAUSTED)
        if self.is_stored(decision):
            decision = await self._store_or_retry(attempt, decision, error)
        if decision.action is Action.RETRY:
            await self._recorder.release({entry.sequence: entry.deliveries})
        else:
            self._recorder.settle(entry.sequence)
            self.decisions.forget(entry.sequence)
        if attempt.is_settled:
            return
        if decision.action is Action.ACK:
            self._note_success(attempt)
        await self._carry_out(attempt, decision)
        if not attempt._ending:
            attempt._ending = self._ending(attempt, decision)
            self._report_unhandled(attempt, decision)
        if self._observer is not None:
            self._record_outcome(attempt, self._kind(attempt, decision, error, acknowledged), decision, error)

    async def _carry_out(self, attempt: Attempt, decision: Decision) -> None:
        """Notify the server of a decision; with a key the message is handled again without a redelivery."""
        if decision.delay:
            self._delays.note(decision.delay, time.monotonic())
        try:
            with delivery_errors(self._running.target, self.nc):
                await self._notify(attempt._entry, decision)
        except BaseException as failure:
            self._record_outcome(attempt, OutcomeKind.UNSETTLED, None, failure)
            raise

    def judge(self, attempt: Attempt, outcome: Outcome, error: BaseException | None) -> Decision | None:
        """Return the decision for the outcome of a handler; None if the message is settled, or held by an outage."""
        if attempt.is_settled or self._is_held(attempt, outcome, error):
            return None
        return self.decisions.decide(attempt, outcome)

    def is_stored(self, decision: Decision | None) -> bool:
        """Return whether a dead letter is stored, which takes long."""
        return decision is not None and decision.action is Action.DEAD_LETTER and self._letters.subject is not None

    def _is_held(self, attempt: Attempt, outcome: Outcome, error: BaseException | None) -> bool:
        """Note a failure; return whether it is due to an outage, so that the message is kept and handled again."""
        entry = attempt._entry
        if outcome is not Outcome.FAILED or entry.place is not _TAKEN or is_acked(entry):
            return False
        blame = self._outage.fail(entry.sequence, error)
        if blame is Blame.EVENT:
            return False
        self._ledger.hold(entry, is_first=blame is Blame.OUTAGE)
        attempt._is_held = True
        self._record_outcome(attempt, OutcomeKind.UNAVAILABLE, None, error)
        self._running.wake()
        return True

    async def settle_quietly(
        self,
        attempt: Attempt,
        wanted: Outcome | Decision,
        error: Exception | None = None,
        *,
        is_reported: bool = False,
    ) -> None:
        """Settle a message that no handler gets, if it is a dead letter beside handlers; errors are reported."""
        decision = wanted if isinstance(wanted, Decision) else self.judge(attempt, wanted, error)
        acknowledged = _ACKNOWLEDGED if isinstance(wanted, Decision) else _SKIPPED.get(wanted, _ACKNOWLEDGED)
        work = self._settle_quietly(attempt, decision, error, acknowledged, error if is_reported else None)
        if self.is_stored(decision):
            self._ledger.set_aside(attempt._entry)
            await self.background.run(work)
        else:
            await work

    async def _settle_quietly(
        self,
        attempt: Attempt,
        decision: Decision | None,
        error: Exception | None,
        acknowledged: OutcomeKind,
        reported: Exception | None,
    ) -> None:
        try:
            if decision is not None:
                await self.settle(attempt, decision, error, acknowledged=acknowledged)
        except DeliveryError as failure:
            self.reporter.report(failure, attempt)
        except asyncio.CancelledError:
            self._ledger.put_back(attempt._entry)
            raise
        if reported is not None:
            self.reporter.report(reported, attempt)

    async def release(self, attempts: Sequence[Attempt]) -> None:
        """
        Release messages to other clients at once, and wait until the server has received this.

        Those that would be suspects at their next delivery are recorded. If the connection is closed, all are
        redelivered after their ack deadlines.
        """
        if self.nc.is_closed:
            for attempt in attempts:
                self._remove(attempt._entry, is_final=False)
                self._record_outcome(attempt, OutcomeKind.UNSETTLED, None, None)
            return
        await self._recorder.release({attempt.sequence: attempt._entry.deliveries for attempt in attempts})
        for attempt in attempts:
            await self.settle_quietly(attempt, Outcome.RELEASED)
        if self.nc.is_connected:
            with suppress(CeNatsError):
                await round_trip(self.nc)

    # --- Notifying the server -----------------------------------------------------------------------------------------

    async def _notify(self, entry: Entry, decision: Decision) -> None:
        """Settle a message in the ledger, and notify the server."""
        if decision.action is _ACK and self._confirmations is None:
            self._check_acks(entry)
        effect = self._settle(entry, decision.action)
        if effect is Effect.ACK:
            self._acks.schedule()
        elif effect is Effect.CONFIRM:
            assert self._confirmations is not None
            await self._confirmations.request(entry)
        elif effect is Effect.TERM:
            await self._acks.write(entry, b"+TERM")
        elif effect is Effect.NAK:
            delay = int(decision.delay * 1e9)
            await self._acks.write(entry, b'-NAK {"delay": %d}' % delay if delay else b"-NAK")
        else:
            self._loop.call_later(decision.delay, self._end_delay, entry)

    def _check_acks(self, entry: Entry) -> None:
        """Remove a message whose acknowledgement can never be written."""
        try:
            self._acks.check()
        except nats.errors.Error:
            self._remove(entry)
            raise

    def _settle(self, entry: Entry, action: Action) -> Effect:
        """Settle a message in the ledger, and return how the server is notified."""
        effect, frees = self._ledger.settle(entry, action, time.monotonic())
        if entry.message is not None and effect is not Effect.DELAY:
            mark_acked(entry.message)
        if frees:
            self._running.wake()
        return effect

    def _remove(self, entry: Entry, *, is_final: bool = True) -> None:
        """Remove a message from the ledger."""
        if entry.message is not None:
            mark_acked(entry.message)
        if self._ledger.remove(entry, time.monotonic(), is_final=is_final):
            self._running.wake()

    def _end_delay(self, entry: Entry) -> None:
        self._ledger.end_delay(entry, time.monotonic())
        self._running.wake()

    # --- Outcomes and dead letters ------------------------------------------------------------------------------------

    def _ending(self, attempt: Attempt, decision: Decision) -> str:
        """Return the outcome of a message as a text for the log."""
        if decision.action is Action.DEAD_LETTER:
            return self._letters.ending
        if decision.action is Action.ACK:
            return "acknowledged"
        if self.decisions.is_last(attempt._entry):
            return "the server does not deliver it again"
        return f"redelivered in {decision.delay:.3g} s" if decision.delay else "redelivered at once"

    def _report_unhandled(self, attempt: Attempt, decision: Decision) -> None:
        """Report a message that was terminated without a handler."""
        error = attempt.error
        if decision.action is not Action.DEAD_LETTER or attempt._entry.has_started or error is None:
            return
        if decision.reason in (Reason.PROCESS_ENDED, Reason.EXHAUSTED):
            self.reporter.report(error, attempt, is_final=True)
            return
        self.reporter.count(error, attempt, is_warning=self._letters.subject is not None)

    def _kind(
        self, attempt: Attempt, decision: Decision, error: BaseException | None, acknowledged: OutcomeKind
    ) -> OutcomeKind:
        if decision.action is Action.RETRY:
            is_failure = decision.delay or isinstance(error, Exception)
            return OutcomeKind.REDELIVERED if is_failure else OutcomeKind.RELEASED
        if decision.action is Action.DEAD_LETTER:
            return self._letters.kind
        return OutcomeKind.FILTERED if attempt._is_filtered else acknowledged

    def _record_outcome(
        self, attempt: Attempt, kind: OutcomeKind, decision: Decision | None, error: BaseException | None
    ) -> None:
        """Report the outcome of a message: now, or at the end of its block."""
        if self._observer is None:
            return
        outcome = MessageOutcome(
            kind,
            attempt.subject,
            attempt.message,
            attempt,
            error=error,
            delay=decision.delay if decision is not None and kind is OutcomeKind.REDELIVERED else None,
            reason=None if decision is None else decision.reason,
        )
        if attempt._handling is not None:
            attempt._handling.settled(outcome)
        else:
            self._observer.record(outcome)

    async def _store_or_retry(self, attempt: Attempt, decision: Decision, error: BaseException | None) -> Decision:
        """Store the dead letter; return the decision to terminate the message, or to retry if that is not possible."""
        if self._letters.includes(attempt):
            return await self._end_loop(attempt, decision)
        assert decision.reason is not None
        try:
            kept = await self._letters.store(attempt, decision.reason, error)
        except (DeliveryError, EncodeError) as failure:
            retry = Decision(Action.RETRY, delay=self.delay(attempt))
            attempt._ending = self._ending(attempt, retry)
            self.reporter.report(failure, attempt, is_final=self.decisions.is_last(attempt._entry))
            return retry
        if not kept.is_copied and not kept.is_reference:
            self.reporter.report(DataLossError.not_copied(kept.stream, kept.sequence), attempt)
        return decision

    async def _end_loop(self, attempt: Attempt, decision: Decision) -> Decision:
        """Terminate a dead letter of this consumer; retry it later if it does not stay in the stream."""
        stays = await self._letters.keeps_terminated(attempt)
        decision = decision if stays else Decision(Action.RETRY, delay=self.delay(attempt))
        attempt._ending = "it stays in the stream" if stays else "redelivered later"
        subject = self._letters.subject
        text = f"the consumer reads its dead letters again: it must not read what is published to {subject!r}"
        self.reporter.count(DeliveryError(ErrorCode.INCOMPATIBLE_CONFIG, text), attempt)
        return decision
