"""
The messages to one stream, in batches of fast ingest, one batch at a time.

The server (2.15) also counts duplicates of messages that it has proposed to its replicas and not stored yet, which it
refuses outside of batches. A leader without replicas never stores them. So the end of a batch is only believed if it
has a stream sequence: the server has stored a message of the batch, and what it proposed before. Otherwise all messages
were duplicates, and the last one is sent again in a batch of its own, whose reply states whether it is stored. It
expects a sequence that no stream reaches: a leader that has lost it refuses it, instead of storing it before others.
Acknowledgements within a batch do not have a sequence, and are believed after such an end, until messages are resent.

A batch ends when the program pauses, with the last message. Messages that the program publishes while the
acknowledgement is on its way form the next batch.

If the stream does not know the batch, or another one replies, the lane is suspended: it sends nothing until it is known
which of its messages still belong to the stream. If these were resent at once, to a stream that has only some of their
subjects, each attempt would fail at the first message for the other stream.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.js.api import PubAck

from ...errors import DeliveryError, ErrorCode
from ...wire.nats import write_publish
from .. import _server_codes as codes
from .._natspy import write_publish_frame
from .._reply_inbox import reports_no_responders
from ._atomic_lookup import EXPECTED_SEQUENCE
from ._pending_message import PendingMessage, is_not_stored, message_id, refusal, uncertain
from ._prepare import MAX_HEADER_BYTES
from ._stream_lookup import PAUSE_SECONDS
from ._tally import Tally

# Messages after which a batch is kept open until the program pauses for longer; also how many are written at once.
BURST: Final = 32
_PAUSE_SECONDS: Final = 0.002
_PING_SECONDS: Final = 0.5
# Size of payloads that are not collected before they are written.
LARGE_BYTES: Final = 2**16
# First batches without an acknowledgement after which a stream gets ordinary messages.
_MAX_FAILURES: Final = 3

_START, _APPEND, _COMMIT, _END, PING = range(5)
_NOT_POSSIBLE: Final = frozenset({codes.FAST_INVALID_PATTERN, codes.FAST_INVALID_ID, codes.FAST_TOO_MANY})
# A message with it is not stored. Duplicates are detected before, so this header does not affect them.
_IMPOSSIBLE: Final = f"{EXPECTED_SEQUENCE}: {2**63 - 1}\r\n\r\n".encode()


class _Reply(msgspec.Struct):
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


_decode: Final = msgspec.json.Decoder(_Reply).decode


class Owner(Protocol):
    """The window of unacknowledged messages: see :class:`~._pending_acks.PendingAcks`."""

    nc: Client
    pending: dict[str, PendingMessage]
    tally: Tally

    def start_task(self, work: Coroutine[Any, Any, None]) -> None: ...

    def guard(self, call: Callable[[], None]) -> None: ...

    def finish_all(self, items: Sequence[PendingMessage], ack: PubAck) -> int: ...

    def fail(self, item: PendingMessage, error: DeliveryError) -> None: ...

    def fail_all(self, error: DeliveryError) -> None: ...

    def fail_late(self, item: PendingMessage) -> None: ...

    @property
    def is_held(self) -> bool: ...

    def fail_if_too_large(self, item: PendingMessage) -> bool: ...

    def look_for_stream(self, subject: str) -> None: ...

    def send_alone(self, items: Iterable[PendingMessage]) -> None: ...


class Lane:
    """
    The messages to one stream, in order: those of the current batch, and those that wait for the next one.

    Attributes:
        stream: Name of the stream.
        batch: Id of the current batch, or ``""``.
        is_disabled: Whether the messages of the stream are published in the ordinary way from now on.
    """

    def __init__(
        self,
        owner: Owner,
        inbox: str,
        stream: str,
        last: int,
        refused: Callable[[Lane], None],
        *,
        flow: int,
        ack_timeout: float,
    ) -> None:
        self._owner = owner
        self._nc = owner.nc
        self._pending = owner.pending
        self._inbox = inbox
        self.stream = stream
        self._last = last
        self._refused = refused
        self._flow = flow
        self._ack_timeout = ack_timeout
        self._loop = asyncio.get_running_loop()
        # An id of a batch is unique in its stream: a name that nats-py makes, and a number.
        self._name = owner.nc.new_inbox().rpartition(".")[2]
        self._batches = 0
        self.batch = ""
        self.is_disabled = False
        self._queue: deque[PendingMessage] = deque()
        # Messages of the batch after the acknowledged ones, oldest first. The number of the last one is _number.
        self._sent: deque[PendingMessage] = deque()
        # _received of these are acknowledged, and _acked are known to be stored.
        self._number = self._received = self._acked = 0
        # Acknowledged messages of the batch that were sent once, and may be duplicates.
        self._open_count = 0
        # Whether acknowledgements within a batch are believed.
        self._is_proven = False
        # Number of duplicates, if the batch only asks whether the last one of them is stored; else 0.
        self._unconfirmed = 0
        self._allowed = flow
        self._is_ending = False
        self._is_suspended = False
        # Set when the batch has ended.
        self._ended = asyncio.Event()
        # Names of streams whose replies are expected: that of the lane, and one that the server maps subjects to.
        self._names = {stream}
        # Refused batches in a row after which all messages belonged to the stream as before.
        self._futile = 0
        self._refused_subject = ""
        self._is_answered = False
        # Whether the server has reported that the stream, or another one, accepts no batches.
        self._was_refused = False
        self._errors: dict[int, DeliveryError] = {}
        self._reconnects = 0
        self._subject = ""
        self._failures = 0
        # Whether replies to a batch have arrived.
        self._is_possible = False
        # Whether the first message of the next batch is sent alone, because the last batch stored nothing.
        self._is_cautious = False
        # Times: the last acknowledgement, the beginning of the batch, the last ping, the end of a pause.
        self._progress_at = self._begun_at = self._pinged_at = self._resume_at = 0.0
        self._is_scheduled = False
        self._number_at_pause = 0
        self._pause: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()

    # --- From the owner -----------------------------------------------------------------------------------------------

    def add(self, item: PendingMessage) -> None:
        """Send a message after those before it: now, or at the end of this iteration of the loop, or later."""
        if not self._queue and not self._sent:
            self._progress_at = time.monotonic()
        self._queue.append(item)
        if len(self._queue) >= BURST or len(item.data) >= LARGE_BYTES:
            self._send()
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._owner.guard, self._send_soon)

    def commit(self) -> None:
        """Send the messages that wait, and end the batch with the last one, if the server allows as many."""
        self._send(ends=True, is_last=True)
        is_open = self.batch and self._number and not (self._is_ending or self._is_suspended)
        if is_open and not self._queue:
            self._end_without_message()

    async def emptied(self) -> None:
        """Wait until no message waits or is unacknowledged."""
        while (self._queue or self._sent) and not self.is_disabled:
            self.commit()
            self._emptied.clear()
            await self._emptied.wait()

    def close(self) -> None:
        """End the batch, without waiting for its acknowledgement."""
        self._queue.clear()
        self.commit()
        self.batch = ""
        self.is_disabled = True
        if self._pause is not None:
            self._pause.cancel()

    def write_all(self) -> None:
        """
        Write all messages that wait, and end the batch: the connection is about to be closed.

        No acknowledgement can arrive any more, so it does not wait for those of earlier messages, nor for the end of
        the batch before. Nothing is written if the messages must not be sent now, for instance during a denial.
        """
        is_paused = self._is_suspended or self.is_disabled or self._owner.is_held or self._resume_at
        if is_paused or not self._nc.is_connected:
            return
        items = self._take(len(self._queue))
        if items:
            if not self.batch or self._is_ending:
                self._begin()
            self._write(items, commits=True)
            self.batch = ""  # its acknowledgements would be taken for those of the batch before
        elif self.batch and self._number and not self._is_ending:
            self._end_without_message()
        self._is_ending = True

    def disable(self) -> None:
        """Publish all messages in the ordinary way, from now on."""
        if not self.is_disabled:
            self.is_disabled = True
            items = [item for item in (*self._sent, *self._queue) if item.token in self._pending]
            self._sent.clear()
            self._queue.clear()
            self.batch = ""
            self._emptied.set()
            self._owner.send_alone(items)

    def check(self) -> None:
        """Resend, fail or ask for messages that have waited too long."""
        if self._owner.is_held and not self._nc.is_closed:
            return
        now = time.monotonic()
        is_waiting = self.batch and (self._sent or self._is_ending) and not self._is_suspended
        if self._nc.is_connected and is_waiting:
            waited = now - max(self._progress_at, self._begun_at)
            if self._reconnects != self._nc.stats["reconnects"]:
                self._restart()
            elif waited >= self._ack_timeout:
                self._restart(is_failure=not self._acked)
            elif min(waited, now - self._pinged_at) >= _PING_SECONDS:
                self._pinged_at = now
                self._control(PING, self._number)
        self._fail_late(now)
        if self._nc.is_closed:
            self._sent.clear()
            self._queue.clear()
        self._send(ends=True)
        if not self._sent and not self._queue:
            self._emptied.set()

    def _fail_late(self, now: float) -> None:
        is_closed = self._nc.is_closed
        is_stalled = now - self._progress_at >= self._ack_timeout
        if not (is_closed or is_stalled or self._resume_at):
            return
        items = [item for item in (*self._sent, *self._queue) if item.token in self._pending]
        reason = next((item.last_error for item in items if item.last_error is not None), None)
        for item in items:
            if is_closed or (now >= item.give_up and (is_stalled or item.last_error is not None)):
                if not item.attempts and item.last_error is None and reason is not None:
                    item.last_error = DeliveryError(reason.code, f"{item.subject}: not sent: {reason.message}")
                self._owner.fail_late(item)

    # --- Sending ------------------------------------------------------------------------------------------------------

    def _send_soon(self) -> None:
        self._is_scheduled = False
        self._send(ends=True)

    def _send(self, *, ends: bool = False, is_last: bool = False) -> None:
        """
        Send waiting messages, as many as the server allows.

        The last one is kept back while the batch is open, so that the batch ends with a message. A message that only
        ends it would be received by other subscribers of the subject as well.
        """
        if not self._queue or not self._nc.is_connected:
            return
        if self._is_ending or self._is_suspended or self.is_disabled or self._owner.is_held:
            return
        if self._resume_at:
            if time.monotonic() < self._resume_at:
                return
            self._resume_at = 0.0
        if not self.batch:
            self._begin()
        room = max(self._received, self._acked) + self._allowed - self._number
        commits = len(self._queue) <= room and (is_last or (ends and self._number + len(self._queue) < BURST))
        items = self._take(room if commits else min(room, len(self._queue) - 1))
        if items:
            self._write(items, commits=commits)
            self._is_ending = commits
        self._watch_for_pause()

    def _begin(self) -> None:
        self._batches += 1
        self.batch = f"{self._name}-{self._batches}"
        self._prefix = f"{self._inbox}.{self.batch}.{self._flow}.fail."
        self._number = self._received = self._acked = self._unconfirmed = self._open_count = 0
        # A server that refuses every first message would get all the others again each time.
        self._allowed = 1 if self._is_cautious else self._flow
        self._reconnects = self._nc.stats["reconnects"]
        self._begun_at = time.monotonic()

    def _take(self, room: int) -> list[PendingMessage]:
        """Remove messages from the queue, without those that have failed meanwhile."""
        items: list[PendingMessage] = []
        queue, pending, max_payload = self._queue, self._pending, self._nc.max_payload
        while queue and len(items) < room:
            item = queue.popleft()
            if item.token not in pending:
                continue
            if len(item.block) + len(item.data) <= max_payload or not self._owner.fail_if_too_large(item):
                items.append(item)
        return items

    def _write(self, items: list[PendingMessage], *, commits: bool) -> None:
        prefix, number, last = self._prefix, self._number, self._number + len(items)
        parts: list[bytes] = []
        add = parts.append
        total = 0
        for item in items:
            number += 1
            operation = _COMMIT if commits and number == last else _START if number == 1 else _APPEND
            data, block = item.data, item.block
            size = len(block) + len(data)
            # As wire.nats.write_publish() does; joined once for all frames.
            line = f"HPUB {item.subject} {prefix}{number}.{operation}.$FI {len(block)} {size}\r\n"
            add(line.encode())
            add(block)
            add(data)
            add(b"\r\n")
            total += size
            item.attempts += 1
            item.last_error = None
        self._sent.extend(items)
        self._number = number
        self._subject = items[-1].subject
        with suppress(nats.errors.Error):  # the connection was lost meanwhile; check() sends them again
            write_publish_frame(self._nc, b"".join(parts), total, len(items))

    def _control(self, operation: int, number: int) -> None:
        """Send a message that is not stored, on a subject of the stream."""
        frame = write_publish(self._subject, b"", b"", f"{self._prefix}{number}.{operation}.$FI")
        with suppress(nats.errors.Error):
            write_publish_frame(self._nc, frame, 0)

    def _end_without_message(self) -> None:
        self._is_ending = True
        self._control(_END, self._number + 1)

    def _watch_for_pause(self) -> None:
        if self._pause is None and not self._is_ending:
            self._number_at_pause = self._number
            self._pause = self._loop.call_later(_PAUSE_SECONDS, self._owner.guard, self._end_if_paused)

    def _end_if_paused(self) -> None:
        self._pause = None
        if not self.batch or self._is_ending or self._is_suspended:
            return
        if self._number == self._number_at_pause:
            self.commit()
        self._watch_for_pause()

    # --- Replies ------------------------------------------------------------------------------------------------------

    def receive(self, number: int, data: bytes, block: bytes, *, is_ping: bool = False) -> None:
        """Process a reply to a message of the batch."""
        if reports_no_responders(data, block):
            self._lose_stream(number + is_ping)
            return
        try:
            reply = _decode(data)
        except msgspec.MsgspecError:
            return  # of another subscriber
        if reply.type == "ack":
            self._allowed = 2 * max(1, reply.msgs)
            if reply.seq > self._received:
                self._received = reply.seq
                self._progress_at = time.monotonic()
            if self._is_proven and not self._unconfirmed:
                self._acknowledge(reply.seq)
            self._send()
        elif reply.type == "gap":
            self._is_ending = True  # the PubAck follows
        elif reply.error is not None:
            self._refuse(number, reply)
        elif reply.batch == self.batch:
            self._end(reply)
        elif reply.stream:
            self.disable()  # an older server, which has stored the message

    def _acknowledge(self, number: int, ack: PubAck | None = None) -> None:
        """Finish messages up to a number; by default with an acknowledgement without a sequence."""
        count = min(number, self._number) - self._acked
        if count <= 0:
            return
        ack = ack or PubAck(self.stream, 0)
        self._open_count += self._owner.finish_all([self._sent.popleft() for _ in range(count)], ack)
        self._acked += count
        self._is_possible = True
        self._is_cautious = False
        self._progress_at = time.monotonic()

    def _refuse(self, number: int, reply: _Reply) -> None:
        """Process an error. All but the first one end the batch: the server stores nothing after the message."""
        assert reply.error is not None
        code = reply.error.get("err_code")
        if code in _NOT_POSSIBLE:
            self.disable()
        elif code in (codes.FAST_UNKNOWN_ID, codes.FAST_DISABLED):
            if not self._is_suspended:
                self._was_refused = code == codes.FAST_DISABLED
                self._suspend(self._subject_of(number))
            elif number > self._number:  # the answer to end_batch(): it had ended before
                self._ended.set()
        elif self._unconfirmed:
            error = None if code == codes.WRONG_LAST_SEQUENCE else refusal(self.stream, reply.error)
            self._end_confirmation(_Reply(), error)
        elif number == 1 and reply.type != "err":
            self._errors[1] = refusal(self._sent[0].subject if self._sent else self.stream, reply.error)
            self._end(_Reply())
        else:
            number = reply.seq if reply.type == "err" else number
            index = number - self._acked - 1
            if 0 <= index < len(self._sent):
                self._errors.setdefault(number, refusal(self._sent[index].subject, reply.error))
            if reply.type != "err" and not (self._is_ending or self._is_suspended):
                self._end_without_message()  # the gap makes the server end the batch
            self._is_ending = True

    def _end(self, reply: _Reply) -> None:
        """Process the end of the batch: ``count`` messages are stored, the others are not."""
        if self._unconfirmed:
            self._end_confirmation(reply)
            return
        if reply.batch and not reply.seq:  # the server has stored nothing of the batch
            self._owner.tally.note_duplicates(self._open_count)
            self._open_count = 0
        duplicates = min(reply.count, self._number) - self._acked
        if duplicates > 0 and not reply.seq and not self._is_suspended:
            self._confirm(duplicates)
            return
        self._is_proven = reply.seq > 0
        if duplicates > 0 and reply.seq:
            is_single = self._number == 1
            duplicate = reply.duplicate if is_single else None
            ack = PubAck(reply.stream, reply.seq if is_single else 0, reply.domain, duplicate)
            self._acknowledge(reply.count, ack)
            # A refused batch can have stored some messages, too.
            if not (self._sent or self._is_suspended):
                self._futile = 0
        self._is_cautious = not self._acked
        if not self._acked and not self._errors:
            self._failures += 1
        for number, item in enumerate(self._sent, self._acked + 1):
            if not self._errors:
                break  # a new leader: messages that it does not know of yet may be stored
            item.attempts -= 1
            if number in self._errors and item.token in self._pending:
                self._process_error(item, self._errors[number])
        self._requeue()
        if reply.stream and reply.stream not in self._names and not self._is_suspended:
            self._names.add(reply.stream)
            self._suspend(self._subject)
        self._send(ends=True)

    def _confirm(self, count: int) -> None:
        """Ask whether the first messages of the batch are stored, of which all were duplicates."""
        last = self._sent[count - 1]
        self._begin()
        self._is_possible = True
        self._number, self._unconfirmed, self._is_ending = 1, count, True
        block = last.block[:-2] + _IMPOSSIBLE
        size = len(block) + len(last.data)
        if size > self._nc.max_payload or len(block) > MAX_HEADER_BYTES:
            block, size = last.block, len(last.block) + len(last.data)
        frame = write_publish(last.subject, last.data, block, f"{self._prefix}1.{_COMMIT}.$FI")
        with suppress(nats.errors.Error):  # the connection was lost meanwhile; check() sends all of them again
            write_publish_frame(self._nc, frame, size)

    def _end_confirmation(self, reply: _Reply, error: DeliveryError | None = None) -> None:
        """Finish messages if the last one is stored; resend the others, and all after a refusal."""
        if reply.duplicate:
            self._number, self._is_proven = self._unconfirmed, True
            self._acknowledge(self._unconfirmed, PubAck(reply.stream, 0, reply.domain, True))
        elif reply.count:  # it had no room for another header, and a leader that has lost those before has stored it
            last = self._sent[self._unconfirmed - 1]
            self._sent.remove(last)
            self._owner.finish_all([last], PubAck(reply.stream, reply.seq, reply.domain))
        else:
            self._sent[0].last_error = error
            self._resume_at = time.monotonic() + PAUSE_SECONDS
        self._requeue()
        self._send(ends=True)

    def _process_error(self, item: PendingMessage, error: DeliveryError) -> None:
        if is_not_stored(error):
            item.last_error = error
            self._resume_at = time.monotonic() + PAUSE_SECONDS
        else:
            self._owner.fail(item, error if not item.attempts else uncertain(item.subject, error))
            self._progress_at = time.monotonic()

    def _restart(self, *, is_failure: bool = False) -> None:
        """Send all unacknowledged messages again, in a new batch; it is unknown which of them are stored."""
        self._failures += is_failure
        self._is_cautious |= is_failure
        self._requeue()
        # Later failures end, as an election does, and ordinary messages would lose the order of those that are resent.
        if self._failures >= _MAX_FAILURES and not self._is_possible:
            self.disable()
        else:
            self._send(ends=True)

    # --- Other streams ------------------------------------------------------------------------------------------------

    def _suspend(self, subject: str, *, is_answered: bool = True) -> None:
        """Send nothing until :meth:`resume` is called. Replies to the batch are still processed."""
        self._is_suspended = True
        self._refused_subject, self._is_answered = subject, is_answered
        self._refused(self)

    def _subject_of(self, number: int) -> str:
        """Return the subject of a message of the batch; ``""`` if it is acknowledged."""
        index = number - self._acked - 1
        return self._sent[index].subject if 0 <= index < len(self._sent) else ""

    @property
    def mapped_subject(self) -> str:
        """
        Subject that has another stream than JetStream's API reports, or ``""``: the server maps it to another subject.

        Streams have replied to its messages repeatedly, and refused them, although JetStream's API reports another
        stream, or none. Once is not enough: the subject may just have moved there, or have moved back meanwhile.
        """
        return self._refused_subject if self._is_answered and self._futile >= _MAX_FAILURES - 1 else ""

    @property
    def subjects(self) -> list[str]:
        """Subjects of all messages that are not acknowledged, in their order."""
        return _subjects((*self.sent, *self.waiting))

    @property
    def sent_subjects(self) -> list[str]:
        """Subjects of the messages of the batch that are not acknowledged."""
        return _subjects(self.sent)

    def note_stored(self, subject: str, sequence: int, block: bytes) -> None:
        """Finish the messages up to one that the stream has stored."""
        identifier = message_id(block)
        if sequence <= self._last or not identifier:
            return  # stored before the first message of this lane
        for number, item in enumerate(self._sent, self._acked + 1):
            if item.subject == subject and message_id(item.block) == identifier:
                self._acknowledge(number)
                return

    async def end_batch(self, subject: str) -> None:
        """End the batch of a suspended lane, and wait for the reply, which says how many messages are stored."""
        if self.batch and self._sent:
            self._ended.clear()
            self._subject = subject
            self._end_without_message()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ended.wait(), self._ack_timeout)

    def resume(self, found: Mapping[str, Lane | None]) -> list[PendingMessage]:
        """Resend the messages of a suspended lane, without those that belong to another one, and return the latter."""
        self._is_suspended, was_refused = False, self._was_refused
        self._was_refused = False
        self._requeue()
        leaving: list[PendingMessage] = []
        staying: deque[PendingMessage] = deque()
        for item in self._queue:
            if item.token in self._pending:
                (staying if found.get(item.subject, self) is self else leaving).append(item)
        self._queue = staying
        if not staying:
            self._emptied.set()
        if leaving:
            self._names = {self.stream}
            self._futile, self._resume_at = 0, 0.0
        elif was_refused:
            self.disable()
        elif self._is_answered:
            self._futile += 1
            if self._futile > 1:
                self._resume_at = time.monotonic() + PAUSE_SECONDS
        is_failure = not (leaving or self._acked)
        self._is_cautious |= is_failure
        # Without a stream it is the lookup that decides, and subjects may come and go any number of times.
        self._restart(is_failure=is_failure and self.stream != "")
        return leaving

    @property
    def sent(self) -> list[PendingMessage]:
        """Messages of the batch that are not acknowledged, in order."""
        return [item for item in self._sent if item.token in self._pending]

    @property
    def waiting(self) -> list[PendingMessage]:
        """Messages that are not in the batch."""
        return [item for item in self._queue if item.token in self._pending]

    def suspend_at_denial(self) -> bool:
        """
        Suspend the lane if the server has denied the last messages of the batch, and not all before are acknowledged.

        The server does not report this: it waits for the rest of the batch. If a message of the batch was sent later,
        the server ends the batch at the gap.
        """
        if not self.batch or self._is_suspended or not self._sent or self._sent[-1].token in self._pending:
            return False
        if not self.sent:
            self._requeue()
            return False
        self._is_suspended, self._is_answered, self._refused_subject = True, False, ""
        return True

    def send(self) -> None:
        """Send the messages that wait, after a pause."""
        self._send(ends=True)

    def adopt(self, items: Iterable[PendingMessage]) -> None:
        """Send messages that have left another lane, in the order in which all were published, with later ones."""
        if not self._queue and not self._sent:
            self._progress_at = time.monotonic()
        self._queue = deque(sorted([*self._queue, *items], key=lambda item: int(item.token)))
        self._send(ends=True)

    def _lose_stream(self, number: int) -> None:
        """No stream has received a message, nor stored any after it: look for the streams, and resend after a pause."""
        if self._is_suspended:
            return
        lost = list(self._sent)[max(0, number - self._acked - 1) :]
        for item in lost:
            item.last_error = DeliveryError(ErrorCode.NO_RESPONDERS, f"{item.subject}: no stream listens")
            item.attempts -= 1
        self._is_cautious = True
        self._resume_at = time.monotonic() + PAUSE_SECONDS
        self._suspend(self._subject_of(number), is_answered=False)
        for subject in _subjects(lost):
            self._owner.look_for_stream(subject)

    def _requeue(self) -> None:
        self._is_proven = self._is_proven and not self._sent
        self._unconfirmed = 0
        self._queue.extendleft(reversed(self._sent))
        self._sent.clear()
        self._errors.clear()
        self.batch = ""
        self._is_ending = False
        self._ended.set()
        if not self._queue:
            self._emptied.set()


def _subjects(items: Iterable[PendingMessage]) -> list[str]:
    return list(dict.fromkeys(item.subject for item in items))
