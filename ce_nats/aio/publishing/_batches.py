"""
The messages to one stream in batches of fast ingest, one batch at a time. A pure machine: no I/O, no tasks.

:meth:`Batches.on` gets each event with its time, and returns actions, which :mod:`._lane` performs. All changes of its
phase are in :data:`TRANSITIONS`.

The server (2.15) also counts duplicates of messages that it has proposed to its replicas and not stored yet, which it
refuses outside of batches. A leader without replicas never stores them. So the end of a batch is only believed if it
has a stream sequence: the server has stored a message of the batch, and what it proposed before. Otherwise all messages
were duplicates, and the last one is resent in a separate batch, whose reply states whether it is stored.
Acknowledgements within a batch do not have a sequence, and are believed after such an end, until messages are resent.

A batch ends when the program pauses, with the last message. Messages that the program publishes while the
acknowledgement is on its way form the next batch.

If the stream does not know the batch, or another one replies, nothing is sent until it is known which of the messages
still belong to the stream. If these were resent at once, to a stream that has only some of their subjects, each attempt
would fail at the first message for the other stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from nats.js.api import PubAck

from ...errors import DeliveryError, ErrorCode
from .. import _server_codes as codes
from .._reply_inbox import reports_no_responders
from ._pending_message import PendingMessage, is_not_stored, message_id, refusal, uncertain
from ._stream_lookup import PAUSE_SECONDS

# Messages after which a batch is kept open until the program pauses for longer; also how many are written at once.
BURST: Final = 32
# Size of payloads that are not collected before they are written.
LARGE_BYTES: Final = 2**16
# First batches without an acknowledgement after which a stream gets ordinary messages.
MAX_FAILURES: Final = 3
PING_SECONDS: Final = 0.5

# Operations of ADR-50, in the reply subjects of messages.
START, APPEND, COMMIT, END, PING = range(5)
_NOT_POSSIBLE: Final = frozenset({codes.FAST_INVALID_PATTERN, codes.FAST_INVALID_ID, codes.FAST_TOO_MANY})
_UNKNOWN_BATCH: Final = frozenset({codes.FAST_UNKNOWN_ID, codes.FAST_DISABLED})


# --- Phases -----------------------------------------------------------------------------------------------------------


class Phase(Enum):
    """Phase of the messages to a stream."""

    IDLE = "idle"
    """No batch is open; the next message begins one."""
    OPEN = "open"
    """The batch accepts messages."""
    ENDING = "ending"
    """The end of the batch is written, and its last reply is awaited."""
    CONFIRMING = "confirming"
    """A batch of one message asks whether the stream has stored its duplicates."""
    SUSPENDED = "suspended"
    """Nothing is sent while the streams of the messages are looked up; replies to the batch are processed."""
    PAUSED = "paused"
    """Nothing is sent for a while: the stream could not store a message."""
    ORDINARY = "ordinary"
    """Messages are published one by one from now on."""
    CLOSED = "closed"
    """Nothing is sent any more."""


class Cause(Enum):
    """Cause of a change of the phase."""

    BEGIN = "first message"
    END = "end is written, or server has ended it"
    DUPLICATES = "only duplicates"
    OVER = "last reply, or lost"
    PAUSE = "message could not be stored"
    CONTINUE = "pause is over"
    SUSPEND = "subjects may have moved"
    RESUME = "streams are known"
    DISABLE = "batches are not possible"
    CLOSE = "closed"


_FINAL: Final = (Phase.ORDINARY, Phase.CLOSED)

# By phase, the next phase for each cause that is possible; any other one is a fault of this package.
TRANSITIONS: Final[Mapping[Phase, Mapping[Cause, Phase]]] = {
    phase: {Cause.DISABLE: Phase.ORDINARY, Cause.CLOSE: Phase.CLOSED, **changes}
    for phase, changes in {
        Phase.IDLE: {
            Cause.BEGIN: Phase.OPEN,
            Cause.OVER: Phase.IDLE,
            Cause.PAUSE: Phase.PAUSED,
            Cause.SUSPEND: Phase.SUSPENDED,
        },
        Phase.OPEN: {
            Cause.END: Phase.ENDING,
            Cause.DUPLICATES: Phase.CONFIRMING,
            Cause.OVER: Phase.IDLE,
            Cause.SUSPEND: Phase.SUSPENDED,
        },
        Phase.ENDING: {
            Cause.END: Phase.ENDING,
            Cause.DUPLICATES: Phase.CONFIRMING,
            Cause.OVER: Phase.IDLE,
            Cause.SUSPEND: Phase.SUSPENDED,
        },
        Phase.CONFIRMING: {
            Cause.END: Phase.CONFIRMING,
            Cause.OVER: Phase.IDLE,
            Cause.SUSPEND: Phase.SUSPENDED,
        },
        Phase.PAUSED: {
            Cause.CONTINUE: Phase.IDLE,
            Cause.OVER: Phase.PAUSED,
            Cause.PAUSE: Phase.PAUSED,
            Cause.SUSPEND: Phase.SUSPENDED,
        },
        Phase.SUSPENDED: {
            Cause.END: Phase.SUSPENDED,
            Cause.OVER: Phase.SUSPENDED,
            Cause.RESUME: Phase.IDLE,
        },
        **{phase: dict.fromkeys(Cause, phase) for phase in _FINAL},
    }.items()
}


# --- Events and actions -----------------------------------------------------------------------------------------------


class Situation(NamedTuple):
    """
    Time of an event, and state of the connection.

    Attributes:
        now: Time, in seconds of ``time.monotonic()``.
        is_connected: Whether messages can be written.
        is_closed: Whether the connection is closed.
        is_held: Whether it is not known yet which messages the server has denied.
        reconnects: Number of reconnects.
        max_payload: Maximum size of messages in bytes.
    """

    now: float
    is_connected: bool = True
    is_closed: bool = False
    is_held: bool = False
    reconnects: int = 0
    max_payload: int = 2**20


class Signal(Enum):
    """Event without data."""

    SEND = auto()
    """Messages wait, and no others follow at once."""
    SEND_MORE = auto()
    """Messages wait, and others may follow."""
    COMMIT = auto()
    """The batch is to end with the messages that wait, because no others follow soon."""
    CHECK = auto()
    """Time has passed."""
    LAST_WRITE = auto()
    """The connection is about to be closed: no acknowledgement can arrive, so nothing waits for one."""
    DENIED = auto()
    """Denied messages have failed."""
    CLOSE = auto()
    """The publisher is closed."""


class Reply(NamedTuple):
    """Reply to message ``number`` of the batch, or to a ping with the number of the last message."""

    number: int
    data: bytes
    block: bytes = b""
    is_ping: bool = False


class Adopt(NamedTuple):
    """Messages have left another stream."""

    items: list[PendingMessage]


class EndSuspended(NamedTuple):
    """The batch is to end by a message to a subject, to learn how many of its messages are stored."""

    subject: str


class Stored(NamedTuple):
    """The stream has a message."""

    subject: str
    sequence: int
    block: bytes


class Resume(NamedTuple):
    """It is known which subjects have left the stream."""

    gone: Collection[str]


Event: TypeAlias = Signal | Reply | Adopt | EndSuspended | Stored | Resume


class Write(NamedTuple):
    """Write messages of the batch from number ``first`` on; the last one ends it if ``commits``."""

    batch: str
    first: int
    items: list[PendingMessage]
    commits: bool


class Control(NamedTuple):
    """Write a message that is not stored."""

    batch: str
    number: int
    operation: int
    subject: str


class Confirm(NamedTuple):
    """Write a message that the stream has, or refuses."""

    batch: str
    item: PendingMessage


class Finish(NamedTuple):
    """Messages are stored."""

    items: list[PendingMessage]
    ack: PubAck


class Fail(NamedTuple):
    """A message has failed."""

    item: PendingMessage
    error: DeliveryError


class FailLate(NamedTuple):
    """A message is not acknowledged in time."""

    item: PendingMessage


class FailTooLarge(NamedTuple):
    """The server does not accept messages of this size any more."""

    item: PendingMessage


class NoteDuplicates(NamedTuple):
    """``number`` finished messages were duplicates."""

    number: int


class FindStream(NamedTuple):
    """No stream has received a message: look for one."""

    subject: str


class SendAlone(NamedTuple):
    """Publish messages one by one."""

    items: list[PendingMessage]


Action: TypeAlias = (
    Write | Control | Confirm | Finish | Fail | FailLate | FailTooLarge | NoteDuplicates | FindStream | SendAlone
)


# --- State ------------------------------------------------------------------------------------------------------------


class _Answer(msgspec.Struct):
    """Acknowledgement, gap or error of a batch, or its final PubAck."""

    type: str = ""
    seq: int = 0
    msgs: int = 0
    stream: str = ""
    domain: str | None = None
    duplicate: bool | None = None
    batch: str = ""
    count: int = 0
    error: dict[str, Any] | None = None


_decode: Final = msgspec.json.Decoder(_Answer).decode


@dataclass(slots=True)
class Batch:
    """
    A batch. One without an id is the time between two batches.

    Attributes:
        id: Its id, which is unique in the stream.
        allowed: Number of messages that the server accepts after the last acknowledged one.
        began: Time at which it began.
        reconnects: Number of reconnects when it began.
        unconfirmed: Number of duplicates, if the batch asks whether the last one of them is stored; else 0.
        sent: Messages after the acknowledged ones, oldest first; also those that it asks about.
        subject: Subject of its last message.
        acked: Number of messages that are known to be stored.
        received: Number of messages that the server has acknowledged.
        uncounted: Acknowledged messages that were sent once, and may be duplicates.
        pinged: Time of the last ping.
        errors: Refusals by number of the message.
        is_forgotten: Whether the server did not know it any more when it was to end.
    """

    id: str = ""
    allowed: int = 0
    began: float = 0.0
    reconnects: int = 0
    unconfirmed: int = 0
    sent: deque[PendingMessage] = field(default_factory=deque)
    subject: str = ""
    acked: int = 0
    received: int = 0
    uncounted: int = 0
    pinged: float = 0.0
    errors: dict[int, DeliveryError] = field(default_factory=dict)
    is_forgotten: bool = False

    @property
    def number(self) -> int:
        """Number of the last message."""
        return 1 if self.unconfirmed else self.acked + len(self.sent)

    @property
    def room(self) -> int:
        """Number of messages that may be sent now."""
        return max(self.received, self.acked) + self.allowed - self.number

    def item(self, number: int) -> PendingMessage | None:
        """Return an unacknowledged message by its number."""
        index = number - self.acked - 1
        return self.sent[index] if 0 <= index < len(self.sent) else None

    def subject_of(self, number: int) -> str:
        """Return the subject of a message; ``""`` if it is acknowledged."""
        item = self.item(number)
        return "" if item is None else item.subject


class _History(NamedTuple):
    """
    Earlier batches.

    Attributes:
        failures: Number of batches without an acknowledgement.
        is_possible: Whether the stream has acknowledged a batch.
        is_proven: Whether acknowledgements within a batch are believed.
        is_cautious: Whether the first message of the next batch is sent alone, because the last batch stored nothing.
        futile: Refused batches in a row after which all messages belonged to the stream as before.
    """

    failures: int = 0
    is_possible: bool = False
    is_proven: bool = False
    is_cautious: bool = False
    futile: int = 0


class _Suspension(NamedTuple):
    """
    Why nothing is sent.

    Attributes:
        subject: Subject of the refused message.
        is_answered: Whether a stream has replied.
        was_refused: Whether the server has reported that the stream, or another one, accepts no batches.
    """

    subject: str = ""
    is_answered: bool = False
    was_refused: bool = False


class Batches:
    """
    The messages to one stream, in order: those of the current batch, and those that wait for the next one.

    ``name`` is unique; ids of batches begin with it. ``last`` is a sequence of the stream before the first message.
    ``flow`` is the number of messages after which the server acknowledges.

    Attributes:
        stream: Name of the stream; ``""`` for messages without one.
        phase: Their phase.
        batch: The current batch.
        queue: Messages that wait.
    """

    def __init__(self, stream: str, name: str, last: int, *, flow: int, ack_timeout: float) -> None:
        self.stream = stream
        self.phase = Phase.IDLE
        self.batch = Batch()
        self.queue: deque[PendingMessage] = deque()
        self._ids = (f"{name}-{number}" for number in count(1))
        self._last = last
        self._flow = flow
        self._ack_timeout = ack_timeout
        # Names of streams whose replies are expected: this one, and one that the server maps subjects to.
        self._names = {stream}
        self._history = _History()
        self._suspension = _Suspension()
        # Times: the last acknowledgement, and the end of a pause.
        self._progress_at = self._resume_at = 0.0
        self._actions: list[Action] = []

    @property
    def is_busy(self) -> bool:
        """Whether a message waits or is unacknowledged."""
        return bool(self.queue or self.batch.sent)

    @property
    def sent(self) -> list[PendingMessage]:
        """Messages of the batch that are not acknowledged and have not failed, in order."""
        return [item for item in self.batch.sent if not item.has_failed]

    @property
    def waiting(self) -> list[PendingMessage]:
        """Messages that are not in the batch."""
        return [item for item in self.queue if not item.has_failed]

    @property
    def unfinished(self) -> list[PendingMessage]:
        """All messages that are not acknowledged and have not failed, in order."""
        return [*self.sent, *self.waiting]

    @property
    def mapped_subject(self) -> str:
        """
        Subject that has another stream than JetStream's API reports, or ``""``: the server maps it to another subject.

        Streams have replied to its messages repeatedly, and refused them, although JetStream's API reports another
        stream, or none. Once is not enough: the subject may just have moved there, or have moved back meanwhile.
        """
        is_repeated = self._history.futile >= MAX_FAILURES - 1
        return self._suspension.subject if self._suspension.is_answered and is_repeated else ""

    def add(self, item: PendingMessage, now: float) -> bool:
        """Add a message after those before it; return whether to send it now, and not with those that follow soon."""
        queue, batch, phase = self.queue, self.batch, self.phase
        if not (queue or batch.sent):
            self._progress_at = now
        queue.append(item)
        if len(queue) < BURST and len(item.data) < LARGE_BYTES:
            return False
        return batch.room > 0 if phase is Phase.OPEN else phase is Phase.IDLE

    def on(self, event: Event, at: Situation) -> list[Action]:
        """Process an event, and return what it requires, in order."""
        actions = self._actions = []
        match event:
            case Signal():
                self._on_signal(event, at)
            case Reply():
                self._receive(event, at)
            case Adopt():
                self._adopt(event.items, at)
            case EndSuspended():
                self._end_suspended(event.subject)
            case Stored():
                self._note_stored(event, at)
            case Resume():
                self._resume(event.gone, at)
        return actions

    def _on_signal(self, signal: Signal, at: Situation) -> None:
        match signal:
            case Signal.SEND:
                self._send(at, ends=True)
            case Signal.SEND_MORE:
                self._send(at)
            case Signal.COMMIT:
                self._commit(at)
            case Signal.CHECK:
                self._check(at)
            case Signal.LAST_WRITE:
                self._write_last(at)
            case Signal.DENIED:
                self._suspend_at_denial()
            case Signal.CLOSE:
                self._close(at)

    def _move(self, cause: Cause) -> None:
        changes = TRANSITIONS[self.phase]
        if cause not in changes:
            raise AssertionError(f"{cause.name} is not possible in phase {self.phase.name}")
        self.phase = changes[cause]

    def _know(self, **changes: Any) -> None:
        self._history = self._history._replace(**changes)

    # --- Sending ------------------------------------------------------------------------------------------------------

    def _send(self, at: Situation, *, ends: bool = False, is_last: bool = False) -> None:
        """
        Send waiting messages, as many as the server allows.

        The last one is kept back while the batch is open, so that the batch ends with a message. A message that only
        ends it would be received by other subscribers of the subject as well.
        """
        if not self.queue or not at.is_connected or at.is_held:
            return
        if self.phase is Phase.PAUSED and at.now >= self._resume_at:
            self._resume_at = 0.0
            self._move(Cause.CONTINUE)
        if self.phase is Phase.IDLE:
            self._begin(at)
        if self.phase is not Phase.OPEN:
            return
        room = self.batch.room
        commits = len(self.queue) <= room and (is_last or (ends and self.batch.number + len(self.queue) < BURST))
        items = self._take(room if commits else min(room, len(self.queue) - 1), at.max_payload)
        if items:
            self._write(items, commits=commits)
            if commits:
                self._move(Cause.END)

    def _begin(self, at: Situation) -> None:
        # A server that refuses every first message would get all the others again each time.
        allowed = 1 if self._history.is_cautious else self._flow
        self.batch = Batch(next(self._ids), allowed, at.now, at.reconnects)
        self._move(Cause.BEGIN)

    def _take(self, room: int, max_payload: int) -> list[PendingMessage]:
        """Remove messages from the queue, without those that have failed meanwhile."""
        items: list[PendingMessage] = []
        queue = self.queue
        while queue and len(items) < room:
            item = queue.popleft()
            if item.has_failed:
                continue
            if len(item.block) + len(item.data) > max_payload:
                self._fail(FailTooLarge(item))
            else:
                items.append(item)
        return items

    def _write(self, items: list[PendingMessage], *, commits: bool) -> None:
        batch = self.batch
        self._actions.append(Write(batch.id, batch.number + 1, items, commits))
        for item in items:
            item.attempts += 1
            item.last_error = None
        batch.sent.extend(items)
        batch.subject = items[-1].subject

    def _end_without_message(self) -> None:
        batch = self.batch
        self._actions.append(Control(batch.id, batch.number + 1, END, batch.subject))
        self._move(Cause.END)

    def _commit(self, at: Situation) -> None:
        """End the batch with the messages that wait, if the server allows as many."""
        self._send(at, ends=True, is_last=True)
        if self.phase is Phase.OPEN and self.batch.number and not self.queue:
            self._end_without_message()

    def _write_last(self, at: Situation) -> None:
        """Write all messages that wait, unless they must not be sent now, for instance during a denial."""
        if self.phase in (Phase.SUSPENDED, Phase.PAUSED, *_FINAL) or at.is_held or not at.is_connected:
            return
        items = self._take(len(self.queue), at.max_payload)
        if not items and self.phase is Phase.OPEN and self.batch.number:
            self._end_without_message()
        elif items or self.phase in (Phase.IDLE, Phase.OPEN):
            before = self.batch.sent
            if items:
                if self.phase is not Phase.OPEN:
                    self.batch = Batch(next(self._ids))
                self._write(items, commits=True)
            # Without an id, because its acknowledgements would be taken for those of the batch before.
            self.batch = Batch(sent=before if before is self.batch.sent else before + self.batch.sent)
            self._move(Cause.CLOSE)

    def _disable(self) -> None:
        """Publish all messages in the ordinary way, from now on."""
        if self.phase not in _FINAL:
            items = self.unfinished
            self.queue.clear()
            self.batch = Batch()
            self._move(Cause.DISABLE)
            self._actions.append(SendAlone(items))

    def _close(self, at: Situation) -> None:
        """End the batch, without waiting for its acknowledgement."""
        self.queue.clear()
        self._commit(at)
        self.batch = Batch()
        self._move(Cause.CLOSE)

    # --- Time ---------------------------------------------------------------------------------------------------------

    def _check(self, at: Situation) -> None:
        """Resend, fail or ask for messages that have waited too long."""
        if at.is_held and not at.is_closed:
            return
        batch = self.batch
        is_waiting = bool(batch.sent) if self.phase is Phase.OPEN else self.phase in (Phase.ENDING, Phase.CONFIRMING)
        if at.is_connected and is_waiting:
            waited = at.now - max(self._progress_at, batch.began)
            if batch.reconnects != at.reconnects:
                self._restart(at)
            elif waited >= self._ack_timeout:
                self._restart(at, is_failure=not batch.acked)
            elif min(waited, at.now - batch.pinged) >= PING_SECONDS:
                batch.pinged = at.now
                self._actions.append(Control(batch.id, batch.number, PING, batch.subject))
        self._fail_late(at)
        if at.is_closed:
            self.queue.clear()
            self.batch = Batch()
            self._move(Cause.CLOSE)
        self._send(at, ends=True)

    def _fail_late(self, at: Situation) -> None:
        is_stalled = at.now - self._progress_at >= self._ack_timeout
        if not (at.is_closed or is_stalled or self._resume_at):
            return
        items = self.unfinished
        reason = next((item.last_error for item in items if item.last_error is not None), None)
        for item in items:
            if at.is_closed or (at.now >= item.give_up and (is_stalled or item.last_error is not None)):
                if not item.attempts and item.last_error is None and reason is not None:
                    item.last_error = DeliveryError(reason.code, f"{item.subject}: not sent: {reason.message}")
                self._fail(FailLate(item))

    def _fail(self, action: Fail | FailLate | FailTooLarge) -> None:
        action.item.has_failed = True
        self._actions.append(action)

    def _restart(self, at: Situation, *, is_failure: bool = False) -> None:
        """Send all unacknowledged messages again, in a new batch; it is unknown which of them are stored."""
        history = self._history
        failures = history.failures + is_failure
        self._know(failures=failures, is_cautious=history.is_cautious or is_failure)
        self._requeue()
        # Later failures end, as an election does, and ordinary messages would lose the order of those that are resent.
        if failures >= MAX_FAILURES and not history.is_possible:
            self._disable()
        else:
            self._send(at, ends=True)

    def _requeue(self) -> None:
        """End the batch; its messages wait for the next one."""
        batch = self.batch
        if batch.sent:
            self._know(is_proven=False)
            self.queue.extendleft(reversed(batch.sent))
        self.batch = Batch(acked=batch.acked)
        self._move(Cause.OVER)
        if self.phase is Phase.IDLE and self._resume_at:
            self._move(Cause.PAUSE)

    # --- Replies ------------------------------------------------------------------------------------------------------

    def _receive(self, reply: Reply, at: Situation) -> None:
        if reports_no_responders(reply.data, reply.block):
            self._lose_stream(reply.number + reply.is_ping, at)
            return
        try:
            answer = _decode(reply.data)
        except msgspec.MsgspecError:
            return  # of another subscriber
        batch = self.batch
        if answer.type == "ack":
            batch.allowed = 2 * max(1, answer.msgs)
            if answer.seq > batch.received:
                batch.received = answer.seq
                self._progress_at = at.now
            if self._history.is_proven and not batch.unconfirmed:
                self._acknowledge(answer.seq, at)
            self._send(at)
        elif answer.type == "gap":
            self._move(Cause.END)  # the PubAck follows
        elif answer.error is not None:
            self._refuse(reply.number, answer, answer.error, at)
        elif answer.batch == batch.id:
            self._end(answer, at)
        elif answer.stream:
            self._disable()  # an older server, which has stored the message

    def _acknowledge(self, number: int, at: Situation) -> None:
        """Finish messages up to a number, whose sequences are unknown."""
        self._finish(min(number, self.batch.number) - self.batch.acked, PubAck(self.stream, 0), at)

    def _finish(self, number: int, ack: PubAck, at: Situation) -> None:
        """Finish the first messages that are not acknowledged."""
        if number <= 0:
            return
        batch, history = self.batch, self._history
        items = [batch.sent.popleft() for _ in range(number)]
        batch.acked += number
        if not (ack.seq or ack.duplicate):
            batch.uncounted += len([item for item in items if item.attempts == 1 and not item.has_failed])
        if history.is_cautious or not history.is_possible:
            self._know(is_cautious=False, is_possible=True)
        self._progress_at = at.now
        self._actions.append(Finish(items, ack))

    def _refuse(self, number: int, answer: _Answer, error: dict[str, Any], at: Situation) -> None:
        """Process an error. All but the first one end the batch: the server stores nothing after the message."""
        code, batch = error.get("err_code"), self.batch
        if code in _NOT_POSSIBLE:
            self._disable()
        elif code in _UNKNOWN_BATCH:
            if self.phase is not Phase.SUSPENDED:
                self._suspend(batch.subject_of(number), is_answered=True, was_refused=code == codes.FAST_DISABLED)
            elif number > batch.number:  # the answer to its end: it had ended before
                batch.is_forgotten = True
        elif batch.unconfirmed:
            reason = None if code == codes.WRONG_LAST_SEQUENCE else refusal(self.stream, error)
            self._end_confirmation(_Answer(), at, reason)
        elif number == 1 and answer.type != "err":
            batch.errors[1] = refusal(batch.subject_of(1) or self.stream, error)
            self._end(_Answer(), at)
        else:
            number = answer.seq if answer.type == "err" else number
            item = batch.item(number)
            if item is not None:
                batch.errors.setdefault(number, refusal(item.subject, error))
            if answer.type != "err" and self.phase is Phase.OPEN:
                self._end_without_message()  # the gap makes the server end the batch
            else:
                self._move(Cause.END)

    def _end(self, answer: _Answer, at: Situation) -> None:
        """Process the end of the batch: ``count`` messages are stored, the others are not."""
        batch, is_suspended = self.batch, self.phase is Phase.SUSPENDED
        if batch.unconfirmed:
            self._end_confirmation(answer, at)
            return
        if answer.batch and not answer.seq and batch.uncounted:  # the server has stored nothing of the batch
            self._actions.append(NoteDuplicates(batch.uncounted))
            batch.uncounted = 0
        duplicates = min(answer.count, batch.number) - batch.acked
        if duplicates > 0 and not (answer.seq or is_suspended):
            self._confirm(duplicates, at)
            return
        self._know(is_proven=answer.seq > 0)
        if answer.seq:
            is_single = batch.number == 1
            duplicate = answer.duplicate if is_single else None
            ack = PubAck(answer.stream, answer.seq if is_single else 0, answer.domain, duplicate)
            self._finish(duplicates, ack, at)
            # A refused batch can have stored some messages, too.
            if duplicates > 0 and not (batch.sent or is_suspended):
                self._know(futile=0)
        is_failure = not (batch.acked or batch.errors)
        self._know(is_cautious=not batch.acked, failures=self._history.failures + is_failure)
        self._process_errors(batch, at)
        self._requeue()
        if answer.stream and answer.stream not in self._names and not is_suspended:
            self._names.add(answer.stream)
            self._suspend(batch.subject, is_answered=True)
        self._send(at, ends=True)

    def _process_errors(self, batch: Batch, at: Situation) -> None:
        """Process the refusals of a batch that has ended: nothing after the first refused message is stored."""
        if not batch.errors:
            return  # a new leader: messages that it does not know of yet may be stored
        for number, item in enumerate(batch.sent, batch.acked + 1):
            item.attempts -= 1
            error = batch.errors.get(number)
            if error is None or item.has_failed:
                continue
            if is_not_stored(error):
                item.last_error = error
                self._resume_at = at.now + PAUSE_SECONDS
            else:
                self._fail(Fail(item, error if not item.attempts else uncertain(item.subject, error)))
                self._progress_at = at.now

    def _confirm(self, number: int, at: Situation) -> None:
        """Ask whether the first messages of the batch are stored, of which all were duplicates."""
        sent, subject = self.batch.sent, self.batch.subject
        self._know(is_possible=True)
        self.batch = Batch(next(self._ids), 1, at.now, at.reconnects, number, sent, subject)
        self._move(Cause.DUPLICATES)
        self._actions.append(Confirm(self.batch.id, sent[number - 1]))

    def _end_confirmation(self, answer: _Answer, at: Situation, error: DeliveryError | None = None) -> None:
        """Finish messages if the last one is stored; resend the others, and all after a refusal."""
        batch = self.batch
        if answer.duplicate:
            self._know(is_proven=True)
            self._finish(batch.unconfirmed, PubAck(answer.stream, 0, answer.domain, True), at)
        elif answer.count:  # it had no room for another header, and a leader that has lost those before has stored it
            last = batch.sent[batch.unconfirmed - 1]
            batch.sent.remove(last)
            self._actions.append(Finish([last], PubAck(answer.stream, answer.seq, answer.domain)))
        else:
            batch.sent[0].last_error = error
            self._resume_at = at.now + PAUSE_SECONDS
        self._requeue()
        self._send(at, ends=True)

    # --- Other streams ------------------------------------------------------------------------------------------------

    def _suspend(self, subject: str, *, is_answered: bool, was_refused: bool = False) -> None:
        self._suspension = _Suspension(subject, is_answered, was_refused)
        self._move(Cause.SUSPEND)

    def _lose_stream(self, number: int, at: Situation) -> None:
        """No stream has received a message, nor stored any after it: look for the streams, and resend after a pause."""
        if self.phase is Phase.SUSPENDED:
            return
        batch = self.batch
        lost = list(batch.sent)[max(0, number - batch.acked - 1) :]
        for item in lost:
            item.last_error = DeliveryError(ErrorCode.NO_RESPONDERS, f"{item.subject}: no stream listens")
            item.attempts -= 1
        self._know(is_cautious=True)
        self._resume_at = at.now + PAUSE_SECONDS
        self._suspend(batch.subject_of(number), is_answered=False)
        self._actions.extend(map(FindStream, subjects_of(lost)))

    def _suspend_at_denial(self) -> None:
        """
        Suspend them if the server has denied the last messages of the batch, and not all before are acknowledged.

        The server does not report this: it waits for the rest of the batch. If a message of the batch was sent later,
        the server ends the batch at the gap.
        """
        sent = self.batch.sent
        if not self.batch.id or self.phase is Phase.SUSPENDED or not sent or not sent[-1].has_failed:
            return
        if self.sent:
            self._suspend("", is_answered=False)
        else:
            self._requeue()

    def _end_suspended(self, subject: str) -> None:
        if self.batch.id and self.batch.sent:
            self.batch.subject = subject
            self._end_without_message()

    def _note_stored(self, stored: Stored, at: Situation) -> None:
        """Finish the messages up to one that the stream has stored."""
        identifier = message_id(stored.block)
        if stored.sequence <= self._last or not identifier:
            return  # stored before the first message
        for number, item in enumerate(self.batch.sent, self.batch.acked + 1):
            if item.subject == stored.subject and message_id(item.block) == identifier:
                self._acknowledge(number, at)
                return

    def _resume(self, gone: Collection[str], at: Situation) -> None:
        """Resend messages, without those that belong to another stream."""
        acked, suspension = self.batch.acked, self._suspension
        self._requeue()
        self._move(Cause.RESUME)
        waiting = self.waiting
        self.queue = deque(item for item in waiting if item.subject not in gone)
        is_leaving = len(self.queue) < len(waiting)
        if is_leaving:
            self._names = {self.stream}
            self._know(futile=0)
            self._resume_at = 0.0
        elif suspension.was_refused:
            self._disable()
        elif suspension.is_answered:
            self._know(futile=self._history.futile + 1)
            if self._history.futile > 1:
                self._resume_at = at.now + PAUSE_SECONDS
        if self._resume_at:
            self._move(Cause.PAUSE)
        is_failure = not (is_leaving or acked)
        self._know(is_cautious=self._history.is_cautious or is_failure)
        # Without a stream it is the lookup that decides, and subjects may come and go any number of times.
        self._restart(at, is_failure=is_failure and self.stream != "")

    def _adopt(self, items: Iterable[PendingMessage], at: Situation) -> None:
        """Send messages that have left another stream, in the order in which all were published, with later ones."""
        if not self.is_busy:
            self._progress_at = at.now
        self.queue = deque(sorted([*self.queue, *items], key=lambda item: int(item.token)))
        self._send(at, ends=True)


def subjects_of(items: Iterable[PendingMessage]) -> list[str]:
    """Return the subjects of messages, each once, in their order."""
    return list(dict.fromkeys(item.subject for item in items))
