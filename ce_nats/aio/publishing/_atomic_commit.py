"""
Send an atomic batch, and find out whether it is stored.

If the reply to the last message is lost, with the connection or the leader of the stream, the batch is stored or not.
Then the stream is searched for the id of the batch, and the batch is resent under another id if the stream would refuse
a copy: :mod:`._atomic_policy` decides.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar
from uuid import uuid4

import msgspec
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import PubAck

from ...errors import ApiError, AtomicBatchError, DeliveryError, EncodeError, ErrorCode, NoStreamError, preview
from ...message import MSG_ID, NatsMessage
from .. import _server_codes as codes
from .._errors import delivery_errors
from .._reply_inbox import ReplyInbox, reports_no_responders
from .._reply_window import Pending, ReplyWindow, set_outcome
from .._util.pausing import pause
from ..core._publish import publish_with_block
from ..link._client import api_prefix, client_of
from ..link._link import Link
from ._atomic_lookup import (
    BATCH_COMMIT,
    BATCH_ID,
    BATCH_SEQUENCE,
    EXPECTED_SEQUENCE,
    EXPECTED_SUBJECT,
    EXPECTED_SUBJECT_SEQUENCE,
    AtomicLookup,
    BatchStream,
    not_allowed,
)
from ._atomic_policy import MIN_PAUSE_SECONDS, UNAVAILABLE, Fail, Failed, History, Look, Looked, Resend, decide
from ._pending_message import refusal
from ._stream_lookup import Listeners

_log: Final = logging.getLogger(__name__)

# Limits of messages without a reply. The server drops messages if more than 128 MB wait for a stream.
_MAX_PARTS: Final = 200
_MAX_BYTES: Final = 8 * 2**20
# Codes of replies to the commit by which the stream has not stored the batch, besides those of an ApiError.
_CONCLUSIVE: Final = (ErrorCode.NO_RESPONDERS, ErrorCode.PERMISSION_DENIED, ErrorCode.INCOMPATIBLE_CONFIG)
_NO_ID: Final = "0" * 32


@dataclass(frozen=True, slots=True)
class BatchAck:
    """
    Acknowledgement of an atomic batch.

    Attributes:
        stream: Name of the stream.
        first: Stream sequence of the first event.
        last: Stream sequence of the last event. The sequences between are those of the other events, in order.
        batch_id: Value of the header ``Nats-Batch-Id`` of the messages.
        domain: JetStream domain of the stream, or None.
    """

    stream: str
    first: int
    last: int
    batch_id: str
    domain: str | None = None

    @property
    def count(self) -> int:
        """Number of events."""
        return self.last - self.first + 1

    def of(self, position: int) -> PubAck:
        """Return the acknowledgement of the event at a position, from 0."""
        return PubAck(self.stream, self.first + position, self.domain)


class _Part(Pending, eq=False):
    """
    A message of a batch that has no reply. The attempt fails when it is due.

    Attributes:
        ack: Future that is done when it has a reply: the acknowledgement for the last message, None for others.
        position: Position in the batch, from 0.
        size: Size in bytes.
    """

    ack: asyncio.Future[BatchAck | None]
    position: int
    size: int


class _Reply(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    batch: str = ""
    count: int = 0
    domain: str | None = None
    error: dict[str, Any] | None = None


_decode: Final = msgspec.json.Decoder(_Reply).decode


class Attempt:
    """
    One attempt to store a batch, under a new id.

    Attributes:
        batch_id: The id.
    """

    def __init__(self, nc: Client, batch: Sequence[tuple[NatsMessage, bytes]], stream: str, ack_timeout: float) -> None:
        self.batch_id = uuid4().hex
        self._nc = nc
        self._batch = batch
        self._stream = stream
        self._ack_timeout = ack_timeout
        self._window: ReplyWindow[_Part] = ReplyWindow(
            _MAX_PARTS, name="atomic batch", read=self._read, check=self._check, done=self._end
        )
        self._bytes = 0
        self._failed: Failed | None = None

    async def run(self) -> BatchAck | Failed:
        """Send the batch, and return its acknowledgement, or the failure."""
        try:
            await self._window.open(ReplyInbox.of(self._nc))
            return await self._send_all()
        except DeliveryError as error:  # of this client; the commit, which is the last message, was not sent
            return Failed(error)
        finally:
            await self._window.close()

    async def _send_all(self) -> BatchAck | Failed:
        last = len(self._batch) - 1
        for position in range(last):
            part = await self._send(position)
            # The first reply tells whether the server knows batches.
            await (asyncio.wait((part.ack,)) if position == 0 else self._window.wait_while(self._is_full))
            if self._failed is not None:
                return self._failed
        part = await self._send(last)
        await asyncio.wait((part.ack,))
        error = part.ack.exception()
        if error is None:
            ack = part.ack.result()
            assert ack is not None
            return ack
        assert isinstance(error, DeliveryError)
        has_failed = self._window.unacknowledged.failure is not None
        is_final = isinstance(error, ApiError) or (error.code in _CONCLUSIVE and not has_failed)
        return (self._failed or Failed(error)) if is_final else Failed(error, may_be_stored=True)

    def _is_full(self) -> bool:
        return self._window.is_full or self._bytes >= _MAX_BYTES

    def _is_last(self, position: int) -> bool:
        return position == len(self._batch) - 1

    async def _send(self, position: int) -> _Part:
        parts = self._window.unacknowledged
        if parts.failure is not None:
            raise parts.failure
        message, block = self._batch[position]
        block = block[:-2] + batch_lines(self.batch_id, position, is_last=self._is_last(position)) + b"\r\n"
        ack: asyncio.Future[BatchAck | None] = asyncio.get_running_loop().create_future()
        due, size = time.monotonic() + self._ack_timeout, len(block) + len(message.data)
        part = parts.add(_Part(parts.new_token(), message.subject, due, ack, position, size))
        self._bytes += size
        try:
            with delivery_errors(message.subject, self._nc):
                await publish_with_block(self._nc, message, block, self._window.prefix + part.token)
        except BaseException:
            self._window.drop(part)
            raise
        return part

    def _read(self, part: _Part, data: bytes, block: bytes) -> BatchAck | DeliveryError | Literal[True] | None:
        """Return the outcome in a reply; True for a message before the last one."""
        is_commit = self._is_last(part.position)
        if reports_no_responders(data, block):
            return DeliveryError(ErrorCode.NO_RESPONDERS, f"{part.subject}: no stream listens")
        if not data and not is_commit:
            return True
        try:
            found = _decode(data)
        except msgspec.MsgspecError:
            return None  # of another subscriber of the subject, which may reply first
        if found.error:
            error = refusal(part.subject, found.error)
            if found.stream not in ("", self._stream):
                text = f"{part.subject}: the event was sent to stream {found.stream}"
                error = _with_number(ApiError(ErrorCode.INVALID_BATCH, text), error)
            return error
        if is_commit and found.batch == self.batch_id and found.count == len(self._batch):
            first = found.seq - found.count + 1
            return BatchAck(found.stream, first, found.seq, self.batch_id, found.domain)
        if found.stream and not found.batch:
            which = f"the event at position {part.position}"
            text = f"stream {found.stream} has stored {which} at once, with sequence {found.seq}"
            return DeliveryError(ErrorCode.INCOMPATIBLE_CONFIG, text)
        return None

    def _end(self, part: _Part, outcome: BatchAck | DeliveryError | Literal[True]) -> None:
        """Note the outcome of a message; the first failure is that of the attempt."""
        self._bytes -= part.size
        set_outcome(part.ack, None if outcome is True else outcome)
        if isinstance(outcome, DeliveryError) and self._failed is None:
            is_of_batch = self._is_last(part.position) and outcome.code is not ErrorCode.INVALID_BATCH
            self._failed = Failed(outcome, None if is_of_batch else part.position)

    def _check(self, now: float) -> None:
        ending, parts = Link.of(self._nc).ending, self._window.unacknowledged
        if self._nc.is_closed:
            for part in list(parts.items.values()):
                self._window.finish(part, ending.closed_error(part.subject))
        for part in parts.due(now):
            text = f"{part.subject}: no acknowledgement arrived in time"
            violation = ending.violation_since(part.due - self._ack_timeout)
            self._window.finish(part, DeliveryError(ErrorCode.TIMEOUT, text + violation))


E = TypeVar("E", bound=ApiError)


def _with_number(error: E, other: ApiError) -> E:
    error.err_code = other.err_code
    return error


class AtomicCommit:
    """
    Stores a batch of messages atomically.

    Attributes:
        was_sent: Whether a message was sent.
    """

    def __init__(
        self,
        js: JetStreamContext,
        batch: Sequence[tuple[NatsMessage, bytes]],
        *,
        stream: str | None,
        ack_timeout: float,
        retry_timeout: float,
    ) -> None:
        self._nc = client_of(js)
        self._batch = batch
        self._stream_name = stream
        self._ack_timeout = ack_timeout
        self._retry_timeout = retry_timeout
        self._lookup = AtomicLookup(js, retry_timeout)
        self._listeners = Listeners(self._nc, api_prefix(js))
        self.was_sent = False

    async def run(self) -> BatchAck:
        """Store the batch."""
        stream = await self._look_up_stream()
        self._check_sizes(stream)
        history = self._begin(stream)
        while True:
            await self._until_connected(stream, history)
            attempt = Attempt(self._nc, self._batch, stream.name, self._ack_timeout)
            self.was_sent = True
            result = await attempt.run()
            if isinstance(result, BatchAck):
                return result
            if result.may_be_stored:
                history = history._replace(unknown=(*history.unknown, attempt.batch_id))
            if ack := await self._follow(stream, history, result):
                return ack
            history = history._replace(resent=history.resent + 1)

    def _begin(self, stream: BatchStream) -> History:
        now = time.monotonic()
        has_id = any(MSG_ID in message.headers for message, _ in self._batch)
        return History(
            now,
            now + self._retry_timeout,
            self._ack_timeout,
            # A stream that deletes consumed messages forgets the last sequence of a subject.
            refuses_copies=stream.state.retention == "limits" and any(map(_refuses_copies, self._batch)),
            copies_until=now + stream.duplicate_window if has_id else 0.0,
        )

    async def _follow(self, stream: BatchStream, history: History, failed: Failed) -> BatchAck | None:
        """Take the steps after an attempt; return the acknowledgement if the batch is stored, None to send it again."""
        looked, cause = Looked.NOT_YET, failed.error
        while True:
            step = decide(failed, history, time.monotonic(), looked=looked, is_closed=self._nc.is_closed)
            if isinstance(step, Resend):
                await self._pause(stream, history, failed.error, step.pause)
                return None
            if isinstance(step, Fail):
                raise await self._error(stream, failed, step) from cause
            try:
                if ack := await self._find(stream, history, step):
                    return ack
                is_final = step.is_final and await self._lookup.is_complete(stream)
                looked = Looked.NEVER if is_final else Looked.ABSENT
            except DeliveryError as error:
                looked, cause = Looked.UNREADABLE, error

    async def _pause(self, stream: BatchStream, history: History, error: DeliveryError, seconds: float) -> None:
        """
        Wait before the next attempt.

        Raises:
            DeliveryError: No stream listens.
        """
        if not (history.resent or isinstance(error, ApiError)):  # a conflict with another client is usual
            _log.warning("%s; resending the batch for up to %g seconds", error.message, self._retry_timeout)
        await pause(seconds)
        if error.code is ErrorCode.NO_RESPONDERS:
            try:
                await self._listeners.look(self._batch[-1][0].subject, self._ack_timeout)
            except NoStreamError as absent:
                raise self._lost(stream, history, absent) from absent

    async def _look_up_stream(self) -> BatchStream:
        try:
            return await self._lookup.stream(self._stream_name, [message.subject for message, _ in self._batch])
        except DeliveryError as error:
            if error.code is not ErrorCode.TIMEOUT:
                raise
            text = f"{self._text}: {error.message}; no event is stored"
            raise DeliveryError(ErrorCode.TEMPORARILY_UNAVAILABLE, text) from error

    @property
    def _text(self) -> str:
        count = len(self._batch)
        return f"atomic batch of {count} event{'s' if count > 1 else ''}"

    def _check_sizes(self, stream: BatchStream) -> None:
        limit = stream.max_message_bytes
        for position, (message, block) in enumerate(self._batch):
            is_last = position == len(self._batch) - 1
            size = len(block) + len(message.data) + len(batch_lines(_NO_ID, position, is_last=is_last))
            if 0 <= limit < size:
                raise EncodeError(
                    ErrorCode.PAYLOAD_TOO_LARGE,
                    f"event at position {position} on {message.subject}: headers and payload must have at most "
                    f"{limit} bytes for stream {stream.name}, got {size}",
                )

    async def _until_connected(self, stream: BatchStream, history: History) -> None:
        """
        Wait for a reconnect: messages that nats-py buffers would be sent after the attempt has failed.

        Raises:
            DeliveryError: The connection was not restored in time.
        """
        while not (self._nc.is_connected or self._nc.is_closed):
            if time.monotonic() >= history.give_up:
                raise self._lost(stream, history, DeliveryError(ErrorCode.TIMEOUT, "the connection was lost"))
            await pause(MIN_PAUSE_SECONDS)

    async def _find(self, stream: BatchStream, history: History, step: Look) -> BatchAck | None:
        """
        Return the acknowledgement of the batch if one of the attempts is stored.

        Raises:
            DeliveryError: The stream cannot be read.
        """
        subject = None if step.is_everywhere else self._batch[0][0].subject
        found = await self._lookup.find(stream, history.unknown, subject)
        if found is None:
            return None
        first, batch_id = found
        return BatchAck(stream.name, first, first + len(self._batch) - 1, batch_id)

    async def _error(self, stream: BatchStream, failed: Failed, reason: Fail) -> DeliveryError:
        """Return the error of a batch after its last attempt."""
        error, position = failed.error, failed.position
        if reason is Fail.UNKNOWN:
            return self._unknown(stream, error)
        if reason is Fail.REFUSED and isinstance(error, ApiError):
            if position is None:
                position = await self._lookup.cause(stream, error, [message for message, _ in self._batch])
            return self._refusal(stream, error, position)
        return self._unstored(stream, error)

    def _lost(self, stream: BatchStream, history: History, error: DeliveryError) -> DeliveryError:
        """Return the error of a batch that cannot be resent."""
        return self._unknown(stream, error) if history.unknown else self._unstored(stream, error)

    def _unknown(self, stream: BatchStream, error: DeliveryError) -> DeliveryError:
        text = "no acknowledgement arrived in time; either all events are stored, or none"
        return DeliveryError(ErrorCode.TIMEOUT, f"{self._text} for stream {stream.name}: {text}: {error.message}")

    def _unstored(self, stream: BatchStream, error: DeliveryError) -> DeliveryError:
        if isinstance(error, ApiError):
            return self._refusal(stream, error, None)
        if error.code is ErrorCode.INCOMPATIBLE_CONFIG:
            return DeliveryError(error.code, f"{not_allowed(stream.name).message}; {error.message}")
        kind = NoStreamError if isinstance(error, NoStreamError) else DeliveryError
        # A timeout means that the outcome is unknown.
        code = ErrorCode.TEMPORARILY_UNAVAILABLE if error.code is ErrorCode.TIMEOUT else error.code
        return kind(code, f"{self._text} for stream {stream.name}: {error.message}; no event is stored")

    def _refusal(self, stream: BatchStream, error: ApiError, position: int | None) -> DeliveryError:
        target = f"{self._text} for stream {stream.name}"
        code, text = error.code, error.message.partition(": ")[2]
        if position is not None:
            message = self._batch[position][0]
            target = f"{target}: event at position {position} on {message.subject}"
            if identifier := message.headers.get(MSG_ID):
                target = f"{target} with Nats-Msg-Id {preview(identifier, 200)}"
        if error.err_code == codes.ATOMIC_DISABLED:
            code = ErrorCode.INCOMPATIBLE_CONFIG
        elif error.err_code == codes.DUPLICATE_IN_PROCESS:
            code = ErrorCode.PUBLISH_REFUSED
        elif error.err_code in UNAVAILABLE and code is not ErrorCode.INVALID_BATCH:
            code = ErrorCode.TEMPORARILY_UNAVAILABLE
        refused = _with_number(AtomicBatchError(code, f"{target}: {text}; no event is stored"), error)
        refused.position = position
        if position is not None:
            refused.subject = self._batch[position][0].subject
        return refused


def batch_lines(batch_id: str, position: int, *, is_last: bool) -> bytes:
    """Return the header lines that a batch adds to a message."""
    commit = f"{BATCH_COMMIT}: 1\r\n" if is_last else ""
    return f"{BATCH_ID}: {batch_id}\r\n{BATCH_SEQUENCE}: {position + 1}\r\n{commit}".encode()


def _refuses_copies(part: tuple[NatsMessage, bytes]) -> bool:
    """Return whether a stream that has stored a message refuses a copy, for its expected sequence."""
    headers = part[0].headers
    return EXPECTED_SEQUENCE in headers or (
        EXPECTED_SUBJECT_SEQUENCE in headers and headers.get(EXPECTED_SUBJECT) in ("", part[0].subject)
    )
