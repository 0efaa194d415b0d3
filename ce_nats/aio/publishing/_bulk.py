"""
Publish many messages to JetStream, with a bounded number of unacknowledged messages.

A message counts as sent when its stream has acknowledged it. Unacknowledged messages, for instance because the server
was lost, are resent on a new connection; by their ``Nats-Msg-Id`` the stream stores each of them once within its
duplicate window. Messages are numbered, and written as frames in large pieces, so that none needs an object.
"""

from __future__ import annotations

import asyncio
import re
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.js.api import PubAck

from ...errors import DeliveryError, EncodeError, ErrorCode, NoStreamError
from ...message import NatsMessage
from ...subjects import check_subject
from ...wire._frames import Frames, frames_of
from ...wire.nats import encode_header_block
from .._connect import disconnect
from .._reply_inbox import Replies, ReplyInbox
from .._util.pausing import pause
from .._util.supervising import supervise
from ..core._publish import check_sizes
from ..link._frame_splitter import RawMessage
from ..link._link import Link
from ..link._permissions import Denial
from ..link._writing import send_publish
from ._pending_message import is_not_stored, read_reply
from ._prepare import MAX_HEADER_BYTES
from ._stream_lookup import PAUSE_SECONDS, StreamSearch, find_reason, late_error, unacknowledged_error
from ._tally import PublishResult

_PAUSE_SECONDS: Final = 0.2
_TICK_SECONDS: Final = 0.1
_PIECE_BYTES: Final = 2**18
# Frames that are kept until their messages are acknowledged, before those that are sent next.
_HELD_BYTES: Final = 2**25
# Frames that are made at once from a sequence of messages.
_PIECE_MESSAGES: Final = 500
# Whether a payload is an acknowledgement as nats-server writes it. Group: whether the message is a duplicate.
_DOMAIN: Final = rb'(?:, ?"domain": ?"[^"\\]*")?'
_match_ack: Final = re.compile(
    rb'\{"stream": ?"[^"\\]+"' + _DOMAIN + rb', ?"seq": ?[0-9]+' + _DOMAIN + rb'(, ?"duplicate": ?true)?\}'
).fullmatch
_MAX_DIGITS: Final = 18


class BulkPublisher:
    """
    Publisher of many messages on a separate connection, as an asynchronous context manager.

    ``connect``: Function that connects a new client; raises DeliveryError.

    Attributes:
        next_number: Number of the next message.
    """

    def __init__(
        self,
        connect: Callable[[Client], Awaitable[None]],
        *,
        window: int = 500,
        ack_timeout: float = 5.0,
        retry_timeout: float = 30.0,
        api_prefix: str = "$JS.API",
    ) -> None:
        self._connect = connect
        self._window = window
        self._ack_timeout = ack_timeout
        self._retry_timeout = retry_timeout
        self._api_prefix = api_prefix
        self.next_number = 0
        self._next_unsent = 0
        self._inbox = self._prefix = ""
        self._client: Client | None = None
        self._replies: Replies | None = None
        self._search: StreamSearch | None = None
        self._lookups: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._progress_at = self._active_until = 0.0
        self._messages = self._duplicates = 0
        self._forget()

    def _forget(self) -> None:
        """Forget all unacknowledged messages."""
        self._pending: set[int] = set()
        self._frames: deque[Frames] = deque()
        # Numbers from the first to below the second, and when they were sent; oldest first.
        self._sent: deque[tuple[int, int, float]] = deque()
        self._resent: set[int] = set()
        self._retries: dict[int, float] = {}
        self._no_responders: dict[int, str] = {}
        self._failure: Exception | None = None
        self._last_error: DeliveryError | None = None

    async def __aenter__(self) -> BulkPublisher:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._disconnect()

    async def publish(self, messages: Sequence[NatsMessage]) -> PublishResult:
        """
        Publish messages, in order unless some are resent, and wait for their acknowledgements.

        Raises:
            EncodeError: ``payload-too-large``, ``headers-too-large``, ``invalid-header-name``,
                ``invalid-header-value`` or ``invalid-subject``; earlier messages were sent.
        """
        messages_before, duplicates_before = self._messages, self._duplicates
        size = min(self._window, _PIECE_MESSAGES)
        for first in range(0, len(messages), size):
            prefix = await self.reply_prefix()
            try:
                framed = [(message, _block(message)) for message in messages[first : first + size]]
                await self.send(frames_of(framed, self.next_number, prefix))
            except EncodeError:
                await self.drain()
                raise
        await self.drain()
        return PublishResult(self._messages - messages_before, self._duplicates - duplicates_before)

    @property
    def max_payload(self) -> int:
        """Maximum number of bytes of a message, of the server of the last connection."""
        assert self._client is not None
        return self._client.max_payload

    async def reply_prefix(self) -> str:
        """
        Connect, and return the reply subjects of messages without the number, which is their last token.

        Raises:
            DeliveryError: ``connection-failed`` or ``authentication-failed``, repeatedly for ``retry_timeout`` seconds.
        """
        if not self._prefix:
            self._start_clock()
            await self._connected()
        return self._prefix

    async def send(self, frames: Frames) -> None:
        """
        Send frames, and return when all are written.

        Raises:
            EncodeError: ``payload-too-large``, ``headers-too-large`` or ``invalid-subject``; none of these frames was
                sent.
            DeliveryError: ``no-responders``: no stream listens according to the server, or there were no responders for
                ``retry_timeout`` seconds; ``permission-denied``; ``publish-refused``; ``timeout`` or
                ``connection-closed``: nothing was acknowledged for that time. Also for earlier frames; the outcome of
                unacknowledged ones is then unknown.
        """
        assert frames.first == self.next_number
        try:
            self._start_clock()
            self._check_sizes([frames], await self._connected())
            await self._send_in_window(frames)
        except EncodeError:
            raise
        except BaseException:
            self._forget()
            raise
        finally:
            self._active_until = time.monotonic()

    async def drain(self) -> PublishResult:
        """Wait until all frames are acknowledged, and return the number of messages so far."""
        self._start_clock()
        try:
            while self._pending:
                await self._connected()
                await self._wait()
        except BaseException:
            self._forget()
            raise
        self._frames.clear()
        return PublishResult(self._messages, self._duplicates)

    # --- Sending ------------------------------------------------------------------------------------------------------

    def _start_clock(self) -> None:
        """Exclude the time between calls, in which nothing is resent, from the time without progress."""
        now = time.monotonic()
        self._progress_at = self._progress_at + now - self._active_until if self._pending else now

    def _check_sizes(self, frames: Iterable[Frames], client: Client) -> None:
        for some in frames:
            try:
                check_sizes(*some.largest, client.max_payload, MAX_HEADER_BYTES)
            except EncodeError:
                for index, (header_size, size) in enumerate(zip(some.header_sizes, some.sizes)):
                    length = len(some.subject(index).encode())
                    check_sizes(header_size, size, length, client.max_payload, MAX_HEADER_BYTES)
                raise

    async def _send_in_window(self, frames: Frames) -> None:
        while self._pending and sum(len(some.octets) for some in self._frames) > _HELD_BYTES:
            await self._connected()
            await self._wait()
        self._frames.append(frames)
        self.next_number = frames.end
        start, total = 0, len(frames)
        enough = max(1, self._window // 4)
        while start < total:
            client = await self._connected()
            room = self._window - len(self._pending)
            if self._failure is not None or room < min(enough, total - start):
                await self._wait()
                continue
            stop = frames.fitting(start, min(total, start + room), _PIECE_BYTES)
            if not self._pending:
                self._progress_at = time.monotonic()
            first, end = frames.first + start, frames.first + stop
            self._pending.update(range(first, end))
            self._sent.append((first, end, time.monotonic()))
            self._next_unsent = end
            await self._write(client, frames, start, stop)
            await asyncio.sleep(0)  # nats-py writes and reads
            start = stop

    async def _write(self, client: Client, frames: Frames, start: int, stop: int) -> None:
        piece = frames.piece(start, stop)
        try:
            await send_publish(client, piece, len(piece), stop - start)
        except (nats.errors.Error, OSError):
            await self._disconnect()  # the messages are pending, and resent on the next connection

    async def _resend(self, numbers: Sequence[int]) -> None:
        """Send messages again, each run of consecutive numbers at once."""
        now = time.monotonic()
        firsts = [frames.first for frames in self._frames]
        position = 0
        while position < len(numbers) and self._client is not None:
            frames = self._frames[bisect_right(firsts, numbers[position]) - 1]
            first = end = numbers[position]
            while position < len(numbers) and numbers[position] == end < frames.end:
                position, end = position + 1, end + 1
            self._sent.append((first, end, now))
            await self._write(self._client, frames, first - frames.first, end - frames.first)

    # --- Acknowledgements ---------------------------------------------------------------------------------------------

    def _receive(self, messages: list[RawMessage]) -> None:
        numbers: list[int] = []
        duplicates: list[int] = []
        length = len(self._prefix)
        for subject, _, data, block in messages:
            token = subject[length:]
            if not token.isdigit() or len(token) > _MAX_DIGITS:
                continue  # of another client
            number, ack = int(token), _match_ack(data)
            if ack is None:
                self._reply(number, data, block or b"")
                continue
            numbers.append(number)
            if ack[1]:
                duplicates.append(number)
        if numbers:
            self._acknowledge(numbers, duplicates)

    def _acknowledge(self, numbers: list[int], duplicates: Iterable[int] = ()) -> None:
        for number in set(duplicates):
            # A copy that was resent does not count as a duplicate.
            self._duplicates += number in self._pending and number not in self._resent
        before = len(self._pending)
        self._pending.difference_update(numbers)
        if count := before - len(self._pending):
            assert self._search is not None
            self._search.has_stream = True
            self._messages += count
            self._progress_at = time.monotonic()
            self._changed.set()

    def _reply(self, number: int, data: bytes, block: bytes) -> None:
        if number not in self._pending:
            return
        subject = self._subject(number)
        outcome = read_reply(subject, data, block)
        if isinstance(outcome, PubAck):
            self._acknowledge([number], [number] if outcome.duplicate else [])
        elif not is_not_stored(outcome):
            self._fail(outcome)
        else:
            self._last_error = outcome
            self._retries[number] = time.monotonic() + PAUSE_SECONDS
            if outcome.code is ErrorCode.NO_RESPONDERS:
                assert self._search is not None
                self._no_responders[number] = subject
                self._search.look(subject)

    def _start_lookup(self, work: Coroutine[Any, Any, None]) -> None:
        task = supervise(work, "publisher", self._fail)
        self._lookups.add(task)
        task.add_done_callback(self._lookups.discard)

    def _fail_without_stream(self, error: NoStreamError, subject: str | None) -> None:
        """Fail if a message to a subject without a stream is still unacknowledged."""
        if any(number in self._pending and its == subject for number, its in self._no_responders.items()):
            self._fail(error)

    def _deny(self, denial: Denial) -> bool:
        """Fail if a message was denied."""
        for number in sorted(self._pending):
            subject = self._subject(number)
            if denial.is_publish(subject):
                self._fail(denial.error(subject))
                return True
        return False

    def _subject(self, number: int) -> str:
        frames = next(frames for frames in self._frames if frames.first <= number < frames.end)
        return frames.subject(number - frames.first)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._changed.set()

    # --- Waiting ------------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Wait for acknowledgements for a short time; resend messages, or disconnect, if they are overdue."""
        if self._failure is None:
            self._changed.clear()
            tick = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._changed.set)
            await self._changed.wait()
            tick.cancel()
        if self._failure is not None:
            raise self._failure
        self._forget_acknowledged()
        if not self._pending or self._client is None:
            return
        now = time.monotonic()
        if not self._client.is_connected:
            await self._give_up_connection(unacknowledged_error(self._client, self._subject(min(self._pending))))
        elif self._sent and now - self._sent[0][2] >= self._ack_timeout:
            await self._give_up_connection(await self._late(self._client))
        elif self._retries:
            due = sorted(number for number, at in self._retries.items() if at <= now)
            for number in due:
                del self._retries[number]
            await self._resend([number for number in due if number in self._pending])

    def _forget_acknowledged(self) -> None:
        if not self._pending:
            self._sent.clear()
            self._resent.clear()
            self._retries.clear()
            self._no_responders.clear()
        oldest = min(self._pending, default=self._next_unsent)
        while self._sent and self._pending.isdisjoint(range(*self._sent[0][:2])):
            self._sent.popleft()
        while self._frames and self._frames[0].end <= oldest:
            self._frames.popleft()

    async def _late(self, client: Client) -> DeliveryError:
        subject = self._subject(min(self._pending))
        violation = Link.of(client).ending.violation_since(self._progress_at)
        reason = violation or await find_reason(client, self._api_prefix, subject, self._ack_timeout)
        return late_error(subject, reason)

    async def _give_up_connection(self, reason: DeliveryError) -> None:
        """
        Disconnect, so that all unacknowledged messages are resent on a new connection.

        Raises:
            DeliveryError: Nothing was acknowledged for the time of retries.
        """
        if time.monotonic() - self._progress_at >= self._retry_timeout:
            raise self._last_error or reason
        await self._disconnect()
        await pause(_PAUSE_SECONDS)

    # --- Connections --------------------------------------------------------------------------------------------------

    async def _connected(self) -> Client:
        """
        Return an open connection; a new one gets all unacknowledged messages.

        Raises:
            EncodeError: An unacknowledged message is larger than this server accepts.
            DeliveryError: It is not possible to connect.
        """
        while self._client is None or not self._client.is_connected:
            await self._disconnect()
            client = Client()
            try:
                await self._connect(client)
                self._client = client
                await self._open_acks(client)
                self._check_sizes(self._frames if self._pending else (), client)
                # Those that wait for a retry were not stored.
                self._resent |= self._pending.difference(self._retries)
                self._retries.clear()
                await self._resend(sorted(self._pending))
            except EncodeError:
                await self._disconnect()
                self._forget()
                raise
            except DeliveryError:
                if time.monotonic() - self._progress_at >= self._retry_timeout:
                    raise
                await self._disconnect()
                await pause(_PAUSE_SECONDS)
        return self._client

    async def _open_acks(self, client: Client) -> None:
        self._sent.clear()
        has_stream = self._search is not None and self._search.has_stream
        self._search = StreamSearch(
            client, self._api_prefix, self._ack_timeout, self._start_lookup, self._fail_without_stream
        )
        self._search.has_stream = has_stream
        # Acknowledgements of earlier connections may still arrive, so the subjects are the same.
        self._inbox = self._inbox or client.new_inbox()
        inbox = ReplyInbox(client, self._inbox)
        self._replies = Replies(inbox, "publisher", self._receive, denied=self._deny, fail=self._fail)
        await self._replies.open()
        self._prefix = self._replies.prefix

    async def _disconnect(self) -> None:
        lookups = list(self._lookups)
        for task in lookups:
            task.cancel()
        await asyncio.gather(*lookups, return_exceptions=True)
        if self._replies is not None:
            self._replies.close()
        if self._client is not None:
            await disconnect(self._client)
        self._client = self._replies = None


def _block(message: NatsMessage) -> bytes:
    check_subject(message.subject)
    return encode_header_block(message.headers) if message.headers else b""
