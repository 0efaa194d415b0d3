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
from ..link._reading import Receive
from ..link._writing import send_publish
from ._numbered import Numbered, Piece
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


class _Connection:
    """
    The connection of a bulk publisher: a client until it is lost, and then another one.

    ``connect`` connects a client. ``receive`` and ``denied`` are those of :class:`~.._reply_inbox.Replies`; ``absent``
    is that of :class:`~._stream_lookup.StreamSearch`. ``fail`` is called if no reply can arrive any more.

    Attributes:
        client: The present client, or None.
        prefix: Beginning of the reply subjects, also of those on later connections; ``""`` before the first one.
        search: Lookups of streams, or None before the first connection.
    """

    def __init__(
        self,
        connect: Callable[[Client], Awaitable[None]],
        api_prefix: str,
        ack_timeout: float,
        *,
        receive: Receive,
        denied: Callable[[Denial], bool],
        absent: Callable[[NoStreamError, str | None], None],
        fail: Callable[[DeliveryError], None],
    ) -> None:
        self.client: Client | None = None
        self.prefix = ""
        self.search: StreamSearch | None = None
        self._connect = connect
        self._api_prefix = api_prefix
        self._ack_timeout = ack_timeout
        self._receive = receive
        self._denied = denied
        self._absent = absent
        self._fail = fail
        self._inbox = ""
        self._replies: Replies | None = None
        self._lookups: set[asyncio.Task[None]] = set()

    @property
    def is_open(self) -> bool:
        return self.client is not None and self.client.is_connected

    async def open(self) -> Client:
        """
        Connect, and receive replies.

        Raises:
            DeliveryError: It is not possible to connect.
        """
        client = Client()
        await self._connect(client)
        self.client = client
        has_stream = self.search is not None and self.search.has_stream
        self.search = StreamSearch(client, self._api_prefix, self._ack_timeout, self._start, self._absent)
        self.search.has_stream = has_stream
        # Acknowledgements of earlier connections may still arrive, so the subjects are the same.
        self._inbox = self._inbox or client.new_inbox()
        inbox = ReplyInbox(client, self._inbox)
        self._replies = Replies(inbox, "publisher", self._receive, denied=self._denied, fail=self._fail)
        await self._replies.open()
        self.prefix = self._replies.prefix
        return client

    async def close(self) -> None:
        """End lookups, and disconnect."""
        lookups = list(self._lookups)
        for task in lookups:
            task.cancel()
        await asyncio.gather(*lookups, return_exceptions=True)
        if self._replies is not None:
            self._replies.close()
        if self.client is not None:
            await disconnect(self.client)
        self.client = self._replies = None

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = supervise(work, "publisher", self._fail)
        self._lookups.add(task)
        task.add_done_callback(self._lookups.discard)

    async def late(self, subject: str, since: float) -> DeliveryError:
        """Return the error of a message that is not acknowledged in time."""
        client = self.client
        if client is None:
            return late_error(subject)
        violation = Link.of(client).ending.violation_since(since)
        return late_error(subject, violation or await find_reason(client, self._api_prefix, subject, self._ack_timeout))


class BulkPublisher:
    """
    Publisher of many messages on a separate connection, as an asynchronous context manager.

    ``connect``: Function that connects a new client; raises DeliveryError.
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
        self._window = window
        self._ack_timeout = ack_timeout
        self._retry_timeout = retry_timeout
        self._messages = Numbered()
        self._connection = _Connection(
            connect,
            api_prefix,
            ack_timeout,
            receive=self._receive,
            denied=self._deny,
            absent=self._fail_without_stream,
            fail=self._fail,
        )
        self._changed = asyncio.Event()
        self._progress_at = self._active_until = 0.0
        self._failure: Exception | None = None
        self._last_error: DeliveryError | None = None

    def _forget(self) -> None:
        """Forget all unacknowledged messages."""
        self._messages.forget()
        self._failure = self._last_error = None

    async def __aenter__(self) -> BulkPublisher:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._connection.close()

    @property
    def next_number(self) -> int:
        """Number of the next message."""
        return self._messages.next

    async def publish(self, messages: Sequence[NatsMessage]) -> PublishResult:
        """
        Publish messages, in order unless some are resent, and wait for their acknowledgements.

        Raises:
            EncodeError: ``payload-too-large``, ``headers-too-large``, ``invalid-header-name``,
                ``invalid-header-value`` or ``invalid-subject``; earlier messages were sent.
        """
        before, duplicates_before = self._messages.acknowledged, self._messages.duplicates
        size = min(self._window, _PIECE_MESSAGES)
        for first in range(0, len(messages), size):
            prefix = await self.reply_prefix()
            try:
                framed = [(message, _block(message)) for message in messages[first : first + size]]
                await self.send(frames_of(framed, self.next_number, prefix))
            except EncodeError:
                await self.drain()
                raise
        result = await self.drain()
        assert result.duplicates is not None
        return PublishResult(result.messages - before, result.duplicates - duplicates_before)

    @property
    def max_payload(self) -> int:
        """Maximum number of bytes of a message, of the server of the last connection."""
        assert self._connection.client is not None
        return self._connection.client.max_payload

    async def reply_prefix(self) -> str:
        """
        Connect, and return the reply subjects of messages without the number, which is their last token.

        Raises:
            DeliveryError: ``connection-failed`` or ``authentication-failed``, repeatedly for ``retry_timeout`` seconds.
        """
        if not self._connection.prefix:
            self._start_clock()
            await self._connected()
        return self._connection.prefix

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
            while self._messages.pending:
                await self._connected()
                await self._wait()
        except BaseException:
            self._forget()
            raise
        self._messages.frames.clear()
        return PublishResult(self._messages.acknowledged, self._messages.duplicates)

    # --- Sending ------------------------------------------------------------------------------------------------------

    def _start_clock(self) -> None:
        """Exclude the time between calls, in which nothing is resent, from the time without progress."""
        now = time.monotonic()
        self._progress_at = self._progress_at + now - self._active_until if self._messages.pending else now

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
        messages = self._messages
        while messages.pending and messages.held > _HELD_BYTES:
            await self._connected()
            await self._wait()
        messages.add(frames)
        start, total = 0, len(frames)
        enough = max(1, self._window // 4)
        while start < total:
            client = await self._connected()
            room = self._window - len(messages.pending)
            if self._failure is not None or room < min(enough, total - start):
                await self._wait()
                continue
            stop = frames.fitting(start, min(total, start + room), _PIECE_BYTES)
            now = time.monotonic()
            if not messages.pending:
                self._progress_at = now
            piece = Piece(frames, start, stop)
            messages.send(piece, now)
            await self._write(client, piece)
            await asyncio.sleep(0)  # nats-py writes and reads
            start = stop

    async def _write(self, client: Client, piece: Piece) -> None:
        frames, start, stop = piece
        octets = frames.piece(start, stop)
        try:
            await send_publish(client, octets, len(octets), stop - start)
        except (nats.errors.Error, OSError):
            await self._connection.close()  # the messages are pending, and resent on the next connection

    async def _resend(self, numbers: Sequence[int]) -> None:
        for piece in self._messages.resend(numbers, time.monotonic()):
            if self._connection.client is None:
                return
            await self._write(self._connection.client, piece)

    # --- Acknowledgements ---------------------------------------------------------------------------------------------

    def _receive(self, messages: list[RawMessage]) -> None:
        numbers: list[int] = []
        duplicates: list[int] = []
        length = len(self._connection.prefix)
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
        if self._messages.acknowledge(numbers, duplicates):
            assert self._connection.search is not None
            self._connection.search.has_stream = True
            self._progress_at = time.monotonic()
            self._changed.set()

    def _reply(self, number: int, data: bytes, block: bytes) -> None:
        if number not in self._messages.pending:
            return
        subject = self._messages.subject(number)
        outcome = read_reply(subject, data, block)
        if isinstance(outcome, PubAck):
            self._acknowledge([number], [number] if outcome.duplicate else [])
        elif not is_not_stored(outcome):
            self._fail(outcome)
        else:
            self._last_error = outcome
            is_absent = outcome.code is ErrorCode.NO_RESPONDERS
            self._messages.retry(number, time.monotonic() + PAUSE_SECONDS, without_responders=is_absent)
            if is_absent:
                assert self._connection.search is not None
                self._connection.search.look(subject)

    def _fail_without_stream(self, error: NoStreamError, subject: str | None) -> None:
        """Fail if a message to a subject without a stream is still unacknowledged."""
        if self._messages.lacks_stream(subject):
            self._fail(error)

    def _deny(self, denial: Denial) -> bool:
        """Fail if a message was denied."""
        subject = self._messages.denied(denial)
        if subject:
            self._fail(denial.error(subject))
        return bool(subject)

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
        messages, client, now = self._messages, self._connection.client, time.monotonic()
        messages.forget_acknowledged()
        if not messages.pending or client is None:
            return
        if not client.is_connected:
            await self._give_up_connection(unacknowledged_error(client, messages.first_subject))
        elif messages.is_late(now, self._ack_timeout):
            await self._give_up_connection(await self._connection.late(messages.first_subject, self._progress_at))
        elif messages.retries:
            await self._resend(messages.due(now))

    async def _give_up_connection(self, reason: DeliveryError) -> None:
        """
        Disconnect, so that all unacknowledged messages are resent on a new connection.

        Raises:
            DeliveryError: Nothing was acknowledged for the time of retries.
        """
        if time.monotonic() - self._progress_at >= self._retry_timeout:
            raise self._last_error or reason
        await self._connection.close()
        await pause(_PAUSE_SECONDS)

    # --- Connections --------------------------------------------------------------------------------------------------

    async def _connected(self) -> Client:
        """
        Return an open connection; a new one gets all unacknowledged messages.

        Raises:
            EncodeError: An unacknowledged message is larger than this server accepts.
            DeliveryError: It is not possible to connect.
        """
        connection, messages = self._connection, self._messages
        while not connection.is_open:
            await connection.close()
            try:
                client = await connection.open()
                self._check_sizes(messages.frames if messages.pending else (), client)
                await self._resend(messages.begin_connection())
            except EncodeError:
                await connection.close()
                self._forget()
                raise
            except DeliveryError:
                if time.monotonic() - self._progress_at >= self._retry_timeout:
                    raise
                await connection.close()
                await pause(_PAUSE_SECONDS)
        assert connection.client is not None
        return connection.client


def _block(message: NatsMessage) -> bytes:
    check_subject(message.subject)
    return encode_header_block(message.headers) if message.headers else b""
