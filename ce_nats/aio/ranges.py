"""
Read a range of a stream's sequences, fast, and report what is missing in it.

Messages are fetched through a pull consumer without acknowledgements, which is kept in the server's memory and deleted
at the end; the server deletes it after 30 idle seconds where the reader was killed. Between two batches no request is
pending, so the reader may take any time. A range ends where its last sequence was passed, or where the stream itself
says that no further message is in it, so that nothing is waited for that cannot come.

nats-py parses the headers of every message into a dict, which costs more than all else together and loses repeated
names and malformed bytes; :class:`~ce_nats.aio._nats.RawClient` takes messages before that. Where that does not work
with the installed nats-py, messages are read one by one through the API, which is also the way for streams that delete
what a consumer has acknowledged.
"""

from __future__ import annotations

import asyncio
import math
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from ..errors import ApiError, DataLossError, DecodeError, DeliveryError, ErrorCode
from ..message import StoredMessage
from ..ranges import StreamRange, StreamState
from ..subjects import covers
from ..wire.ack_subject import AckSubject, ack_subject, parse_ack_subject
from ..wire.nats import write_header_block
from ._nats import SEES_RAW_MESSAGES, RawClient, subscription_id
from .connect import disconnect
from .jetstream import read_stream
from .nats_errors import delivery_error, delivery_errors
from .pausing import pause
from .streams import DEFAULT_PREFIX, StreamApi, is_final, nanoseconds
from .watch import denial

__all__ = ["Connect", "RangeClient", "RawBatch", "RawMessage", "read_range", "refuse_loss"]

# Subject, reply subject, payload, header block; all as they stand on the wire. The reply subject of a message from a
# consumer says which message it is: see metadata().
RawMessage: TypeAlias = tuple[bytes, bytes, bytes, "bytes | None"]
# Connects the client that it is given, with the caller's credentials.
Connect: TypeAlias = Callable[[Client], Awaitable[object]]

# Limits of one request, and so of a batch. The first request is small, because it is not known how many sequences a
# number of messages spans where many were deleted or filtered out.
_FIRST_MESSAGES: Final = 1_000
_MAX_MESSAGES: Final = 10_000
_MAX_BYTES: Final = 8 * 2**20
# How long the server keeps an idle consumer.
_INACTIVE_SECONDS: Final = 30.0
_DELETE_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class RawBatch:
    """
    Messages of a stream, in ascending order.

    Attributes:
        stream: Name of the stream.
        messages: At least one.
        first: Sequence of the first one.
        last: Sequence up to which the range is read: that of the last message, or a later one.
    """

    stream: str
    messages: list[RawMessage]
    first: int
    last: int


def refuse_loss(error: DataLossError) -> None:
    """Raise the error: what is done about lost messages by default."""
    raise error


async def read_range(
    connect: Connect,
    wanted: StreamRange,
    *,
    prefix: str = DEFAULT_PREFIX,
    on_loss: Callable[[DataLossError], None] = refuse_loss,
    request_timeout: float = 5.0,
    retry_timeout: float = 30.0,
) -> AsyncGenerator[RawBatch, None]:
    """
    Read a range of a stream.

    After a broken connection, or the loss of the consumer, reading continues behind the last batch.

    Args:
        connect: Connects a client; called for every attempt.
        wanted: The range, which ends at or before the stream's last message.
        prefix: First tokens of the subjects of JetStream's API.
        on_loss: Called with an error for messages that the stream removed before they were read, by a purge or its
            limits, as far as that is known. Returns to continue, raises to end.
        request_timeout: Seconds without a message after which an attempt fails.
        retry_timeout: Seconds to try again without any progress.

    Yields:
        Batches of at most 10,000 messages or about 8 MiB.

    Raises:
        DeliveryError: ``stream-not-found``; ``permission-denied``; where there was no progress for ``retry_timeout``,
            the last attempt's error; :class:`~ce_nats.DataLossError` where ``on_loss`` raises it.
    """
    rest = wanted
    failing_since: float | None = None
    while len(rest):
        try:
            attempt = _Attempt(connect, rest, prefix, on_loss, request_timeout)
            async with aclosing(attempt.batches()) as batches:
                async for batch in batches:
                    yield batch
                    failing_since = None
                    rest = _behind(rest, batch.last)
            return
        except (DeliveryError, nats.errors.Error, OSError) as error:
            if isinstance(error, DataLossError) or is_final(error):
                raise
            now = time.monotonic()
            failing_since = failing_since or now
            if now - failing_since >= retry_timeout:
                target = f"stream {wanted.stream}, from message {rest.first} on"
                if isinstance(error, DeliveryError):
                    raise DeliveryError(error.code, f"{target}: {error.message}") from error
                raise delivery_error(target, error) from error
            await pause(_RETRY_SECONDS)


class RangeClient(RawClient):
    """nats-py's client, with messages of pull requests as they stand on the wire; it does not reconnect."""

    def __init__(self) -> None:
        super().__init__()
        self._pull_inbox = ""
        self._pull_sid = 0
        self._pulls = 0
        self._pull_reply = b""
        self._pull_wanted = 0
        self._pulled: list[RawMessage] = []
        self._pull_status = b""
        self._pull_ended = asyncio.Event()

    async def connect(self, *args: Any, **options: Any) -> None:
        """As nats-py does, but a lost connection is closed at once, which ends :meth:`pull`."""

        async def closed() -> None:
            self._pull_ended.set()

        await super().connect(*args, **{**options, "allow_reconnect": False, "closed_cb": closed})

    async def pull(self, subject: str, request: dict[str, Any], timeout: float) -> tuple[list[RawMessage], str]:
        """
        Send a pull request, and wait until it was answered in full.

        Args:
            subject: Of the API's ``CONSUMER.MSG.NEXT`` for a consumer.
            request: ``batch`` and more.
            timeout: Seconds without a message after which the request fails.

        Returns:
            Messages, and the status line that ended them without its version, or ``""`` where all of them came.

        Raises:
            DeliveryError: ``timeout``, ``connection-closed``, ``permission-denied``.
        """
        if not self._pull_inbox:
            self._pull_inbox = self.new_inbox()
            self._pull_sid = subscription_id(await self.subscribe(f"{self._pull_inbox}.*"))
        self._pulls += 1
        # A subject for each request, because the server also ends one that was answered in full with a status.
        reply = f"{self._pull_inbox}.{self._pulls}"
        self._pull_reply, self._pull_wanted = reply.encode(), request["batch"]
        self._pulled, self._pull_status = [], b""
        self._pull_ended.clear()
        with denial(self, subject, f"{self._pull_inbox}.*") as denied, delivery_errors(subject):
            denied.add_done_callback(self._end_if_denied)
            await self.publish(subject, msgspec.json.encode(request), reply=reply)
            await self._wait_for_messages(timeout)
            if denied.done():
                raise denied.result()
        if self.is_closed:
            raise DeliveryError(ErrorCode.CONNECTION_CLOSED, f"the connection was closed: {self.last_error}")
        status = self._pull_status.partition(b"\r\n")[0].partition(b" ")[2]
        return self._pulled, status.decode("utf-8", "replace")

    def _end_if_denied(self, denied: asyncio.Future[DeliveryError]) -> None:
        if not denied.cancelled():
            self._pull_ended.set()

    async def _wait_for_messages(self, timeout: float) -> None:
        seen = -1
        while not self._pull_ended.is_set():
            if seen == len(self._pulled):
                raise DeliveryError(ErrorCode.TIMEOUT, f"no messages and no status in {timeout} seconds")
            seen = len(self._pulled)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._pull_ended.wait(), timeout)

    def take(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> bool:
        """Keep messages of pull requests as they are."""
        if sid != self._pull_sid:
            return False
        if reply:
            self._pulled.append((subject, reply, data, headers))
            if len(self._pulled) == self._pull_wanted:
                self._pull_ended.set()
        elif subject == self._pull_reply:
            self._pull_status = headers or b""
            self._pull_ended.set()
        return True


class _Attempt:
    """The reading of a range on one connection."""

    def __init__(
        self,
        connect: Connect,
        wanted: StreamRange,
        prefix: str,
        on_loss: Callable[[DataLossError], None],
        timeout: float,
    ) -> None:
        self._connect = connect
        self._rest = wanted
        self._on_loss = on_loss
        self._timeout = timeout
        self._client = RangeClient()
        self._api = StreamApi(self._client, prefix, timeout)

    async def batches(self) -> AsyncGenerator[RawBatch, None]:
        try:
            await self._connect(self._client)
            state = await self._api.state(self._rest.stream)
            ways = [self._through_api]
            # A consumer's interest keeps messages in an interest stream, and a work queue shares its messages out.
            if SEES_RAW_MESSAGES and state.retention == "limits":
                ways.insert(0, self._through_consumer)
            for way in ways:
                try:
                    async with aclosing(way()) as batches:
                        async for batch in batches:
                            yield batch
                            self._rest = _behind(self._rest, batch.last)
                    return
                except _NoConsumerError:
                    continue
        finally:
            await disconnect(self._client)

    async def _through_consumer(self) -> AsyncGenerator[RawBatch, None]:
        async with self._consumer() as subject:
            if not await self._check_beginning():
                return
            pulls = _Pulls(self._rest)
            while len(self._rest):
                messages, status = await self._client.pull(subject, pulls.request(self._rest), self._timeout)
                if messages:
                    batch = pulls.batch(self._rest, messages)
                    await self._check_gaps(batch)
                    if batch.messages:
                        yield batch
                    self._rest = _behind(self._rest, batch.last)
                if not pulls.goes_on(messages, status) and len(self._rest) and await self._is_at_end():
                    await self._check_tail()
                    return

    @asynccontextmanager
    async def _consumer(self) -> AsyncIterator[str]:
        """Create a consumer that begins with the range; gives the subject of its pull requests."""
        rest = self._rest
        name = f"ce-nats-{self._client.new_inbox().rpartition('.')[2]}"
        config = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": max(1, rest.first),
            "ack_policy": "none",
            "inactive_threshold": int(_INACTIVE_SECONDS * 1e9),
            "mem_storage": True,
            "num_replicas": 1,
        }
        if rest.subjects:
            config["filter_subjects"] = list(rest.subjects)
        try:
            await self._api.create_consumer(rest.stream, name, config)
        except ApiError as error:
            if error.is_temporary:
                raise
            raise _NoConsumerError from error
        try:
            yield f"{self._api.prefix}.CONSUMER.MSG.NEXT.{rest.stream}.{name}"
        finally:
            with suppress(Exception):
                await asyncio.wait_for(self._api.delete_consumer(rest.stream, name), _DELETE_SECONDS)

    async def _through_api(self) -> AsyncGenerator[RawBatch, None]:
        if not await self._check_beginning():
            return
        rest = self._rest
        # The API takes one pattern.
        subject = rest.subjects[0] if len(rest.subjects) == 1 else ">"
        js: JetStreamContext = self._client.jetstream(prefix=self._api.prefix, timeout=self._timeout)
        async with aclosing(read_stream(js, rest.stream, subject=subject, start=rest.first, end=rest.last)) as batches:
            async for stored in batches:
                messages = [_as_raw(message) for message in stored if _is_wanted(message, rest)]
                if messages:
                    batch = RawBatch(rest.stream, messages, metadata(messages[0][1])[0], metadata(messages[-1][1])[0])
                    await self._check_gaps(batch)
                    yield batch
                    self._rest = _behind(self._rest, batch.last)
        await self._check_tail()

    async def _is_at_end(self) -> bool:
        """
        Whether the stream has no further message of the range.

        The stream is asked itself: what a consumer counts as pending has been wrong at times.
        """
        rest = self._rest
        following = await self._api.next_sequence(rest.stream, rest.first, rest.subjects)
        if following is not None and following <= rest.last:
            raise DeliveryError(ErrorCode.UNEXPECTED_ANSWER, f"the consumer stopped in front of message {following}")
        return True

    async def _check_beginning(self) -> bool:
        """
        Check that the stream is the expected one, and where it begins; returns whether anything is left to read.

        Done after the consumer was created: the stream that exists now is then the one that the consumer belongs to, or
        the consumer was deleted.
        """
        rest = self._rest
        state = await self._state()
        if state is None:
            return False
        if state.first > rest.first and not rest.from_beginning:
            self._on_loss(DataLossError.gone(rest.stream, rest.first, min(state.first - 1, rest.last), state.first))
        self._rest = replace(rest, first=max(rest.first, state.first))
        return len(self._rest) > 0

    async def _check_gaps(self, batch: RawBatch) -> None:
        """Report messages that the stream removed in front of, or among, those of a batch."""
        start = batch.first if self._rest.from_beginning else self._rest.first
        if batch.first == start and batch.last - start + 1 == len(batch.messages):
            return
        state = await self._state()
        if state is None or state.first <= start:
            return
        # The stream begins behind these numbers now. Of a number that is missing here it cannot be known any more
        # whether its message was deleted long ago, or had another subject, or was lost just now.
        there = {metadata(message[1])[0] for message in batch.messages}
        missing = [number for number in range(start, min(state.first, batch.last + 1)) if number not in there]
        if missing:
            self._on_loss(DataLossError.gone(batch.stream, missing[0], missing[-1], state.first))

    async def _check_tail(self) -> None:
        """The same for what follows the last batch."""
        rest = self._rest
        state = await self._state() if len(rest) else None
        if state is None:
            return
        if state.last < rest.last:
            self._on_loss(DataLossError.shortened(rest.stream, rest.last, state.last))
        if state.first > rest.first and not rest.from_beginning:
            gone = min(state.first - 1, rest.last)
            self._on_loss(DataLossError.gone(rest.stream, rest.first, gone, state.first))

    async def _state(self) -> StreamState | None:
        """State of the stream; None where another stream has its name now, and on_loss() continues."""
        state = await self._api.state(self._rest.stream)
        if self._rest.created and state.created != self._rest.created:
            self._on_loss(DataLossError.recreated(self._rest.stream, self._rest.created, state.created))
            return None
        return state


class _NoConsumerError(Exception):
    """The stream refuses consumers."""


class _Pulls:
    """Requests for the messages of a range, and the batches in the answers."""

    def __init__(self, wanted: StreamRange) -> None:
        self._start = wanted.first
        self._delivered = 0
        self._asked = 0
        self._max_bytes = _MAX_BYTES

    def request(self, rest: StreamRange) -> dict[str, Any]:
        """A request for about as many messages as the rest of the range has."""
        self._asked = min(len(rest), _FIRST_MESSAGES)
        if self._delivered:
            expected = len(rest) * self._delivered / (rest.first - self._start)
            self._asked = min(len(rest), _MAX_MESSAGES, math.ceil(expected * 1.1) + 100)
        return {"batch": self._asked, "max_bytes": self._max_bytes, "no_wait": True}

    def batch(self, rest: StreamRange, messages: list[RawMessage]) -> RawBatch:
        """
        The messages that are in the range, which may be none.

        Raises:
            DeliveryError: ``unexpected-answer``: some did not arrive.
        """
        first, number = metadata(messages[0][1])
        last, last_number = metadata(messages[-1][1])
        if number != self._delivered + 1 or last_number - number + 1 != len(messages) or first < rest.first:
            raise DeliveryError(ErrorCode.UNEXPECTED_ANSWER, "messages were lost on the way, or came twice")
        self._delivered = last_number
        if last > rest.last:
            messages = messages[: bisect_right(messages, rest.last, key=lambda message: metadata(message[1])[0])]
        return RawBatch(rest.stream, messages, first, min(last, rest.last))

    def goes_on(self, messages: list[RawMessage], status: str) -> bool:
        """
        Whether the consumer may have more.

        Raises:
            DeliveryError: ``consumer-not-found``, ``temporarily-unavailable`` or ``unexpected-answer``: the consumer
                cannot be used any more.
        """
        if len(messages) == self._asked or status == "409 Batch Completed":
            return True
        if status.startswith("409 Message Size Exceeds MaxBytes"):
            if not messages:
                self._max_bytes *= 2
            return True
        if status.startswith(("404", "408")):
            return False
        raise DeliveryError(_status_code(status), f"the server answered {status or 'without a status'}")


def metadata(reply: bytes) -> tuple[int, int]:
    """
    Stream sequence and consumer sequence, from the reply subject of a message.

    Raises:
        DeliveryError: ``unexpected-answer``: the reply subject has another form.
    """
    try:
        message = parse_ack_subject(reply.decode("utf-8", "replace"))
    except DecodeError as error:
        raise DeliveryError(ErrorCode.UNEXPECTED_ANSWER, error.message) from error
    return message.sequence, message.consumer_sequence


def _status_code(status: str) -> ErrorCode:
    """The code for a status that ends a consumer, or leaves it without a leader."""
    if not status:
        return ErrorCode.UNEXPECTED_ANSWER
    if status.startswith("503") or status.lower() == "409 consumer deleted":
        return ErrorCode.CONSUMER_NOT_FOUND
    return ErrorCode.TEMPORARILY_UNAVAILABLE


def _behind(rest: StreamRange, sequence: int) -> StreamRange:
    """The rest of a range, behind a sequence."""
    return StreamRange(rest.stream, sequence + 1, rest.last, rest.created, rest.subjects)


def _is_wanted(message: StoredMessage, wanted: StreamRange) -> bool:
    return not wanted.subjects or any(covers(pattern, message.subject) for pattern in wanted.subjects)


def _as_raw(message: StoredMessage) -> RawMessage:
    """A message from the API as a consumer would deliver it."""
    block = write_header_block(message.headers) if message.headers else None
    sequence, at = message.sequence, nanoseconds(message.timestamp)
    reply = ack_subject(AckSubject(message.stream, "-", 1, sequence, sequence, at, 0))
    return message.subject.encode(), reply.encode(), message.data, block
