"""
Read a range of sequences of a stream in batches, and report lost messages.

Messages are fetched through a pull consumer without acknowledgements, in the server's memory, which is deleted at the
end; if the reader was killed, the server deletes it after 30 idle seconds. No request is pending between two batches,
so the reader may pause. A range ends when its last sequence was passed, or when the stream reports that it has no
further message of the range, so that the reader never waits for messages that do not exist.

Messages are read one by one through the API if the installed nats-py gives no access to raw messages, if the stream
deletes messages that a consumer has acknowledged, and for small ranges.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import nats.errors
from nats.aio.client import Client

from ..._ranges import OLD_STATE_SECONDS, StreamRange, StreamState
from ..._settings import DEFAULT_PREFIX
from ...codec.timestamp import Timestamp
from ...errors import ApiError, DataLossError, DeliveryError, ErrorCode
from ...subjects import covers
from ...wire._ack_subject import AckSubject, ack_subject
from ...wire.nats import write_publish
from .._connect import disconnect
from .._errors import delivery_error
from .._jetstream_api import Stored, StreamApi, is_final, nanoseconds
from .._pull_status import PullStatus, parse_pull_status
from .._util.finishing import finish
from .._util.patience import RETRY_SECONDS, Patience
from ..link._frame_splitter import RawMessage
from ..link._writing import write_publish_frame
from ._raw_pull import RawPull
from ._stored_messages import metadata, read_one_by_one

_log: Final = logging.getLogger(__name__)

# Connects a client with the caller's credentials.
Connect: TypeAlias = Callable[[Client], Awaitable[object]]
# Called with an error for messages that were removed before they were read. Returns to continue, raises to end.
OnLoss: TypeAlias = Callable[[DataLossError], object]

# Limits of one request, and so of a batch. The first request is small: if many messages were deleted or filtered out,
# it is unknown how many sequences a number of messages spans.
_FIRST_MESSAGES: Final = 1_000
_MAX_MESSAGES: Final = 10_000
_MAX_BYTES: Final = 8 * 2**20
# Size of batches that are read one by one.
_ONE_BY_ONE: Final = 1_000
# Up to this number of sequences are read one by one on the caller's connection: in 40 ms, and without a consumer.
_FEW: Final = 256
# Time for which the server keeps an idle consumer.
_INACTIVE_SECONDS: Final = 30.0
_DELETE_SECONDS: Final = 2.0
# The same if the creation was not answered: the consumer may exist, or the server does not answer at all.
_LATE_SECONDS: Final = 0.1
_REFUSALS: Final = (ErrorCode.PERMISSION_DENIED, ErrorCode.NO_RESPONDERS, ErrorCode.INCOMPATIBLE_CONFIG)
_POLL_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class RawBatch:
    """
    Messages of a stream, in ascending order.

    Attributes:
        stream: Name of the stream.
        messages: The messages, at least one.
        first: Sequence of the first message.
        last: Sequence up to which the range is read: that of the last message, or a later one.
    """

    stream: str
    messages: list[RawMessage]
    first: int
    last: int


def refuse_loss(error: DataLossError) -> None:
    """Raise the error; the default for lost messages."""
    raise error


class OpenConsumer:
    """The consumer through which a range is read on an existing connection."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._deletion = ""  # subject of the request
        self._loop: asyncio.AbstractEventLoop | None = None

    def set(self, deletion: str) -> None:
        """Set the subject of the request that deletes the consumer; ``""`` if there is no consumer."""
        self._deletion = deletion
        self._loop = asyncio.get_running_loop()

    def delete(self) -> None:
        """Send the request without waiting, which also works directly before the connection is closed."""
        with suppress(RuntimeError):  # without a running loop
            if self._deletion and asyncio.get_running_loop() is self._loop and self._nc.is_connected:
                write_publish_frame(self._nc, write_publish(self._deletion, b"", b""), 0)


async def read_range(
    connect: Connect,
    wanted: StreamRange,
    *,
    prefix: str = DEFAULT_PREFIX,
    on_loss: OnLoss = refuse_loss,
    request_timeout: float = 5.0,
    retry_timeout: float = RETRY_SECONDS,
) -> AsyncGenerator[RawBatch, None]:
    """
    Read a range of a stream.

    After a lost connection or consumer, reading continues after the last batch.

    ``on_loss``: Called with an error for messages that the stream removed before they were read, by a purge or its
    limits, if that can be detected. Returns to continue, raises to end.

    Yields batches of at most 10,000 messages or about 8 MiB.

    Raises:
        DeliveryError: ``stream-not-found``; ``permission-denied``; the error of the last attempt after
            ``retry_timeout`` seconds without progress; :class:`~ce_nats.DataLossError` if ``on_loss`` raises it.
    """

    @asynccontextmanager
    async def connected() -> AsyncIterator[Client]:
        client = RangeClient()
        try:
            await connect(client)
            yield client
        finally:
            await disconnect(client)

    def attempt(client: Client, rest: StreamRange, timeout: float) -> _Attempt:
        return _Attempt(client, rest, prefix, on_loss, timeout)

    patience = Patience(request_timeout, retry_timeout)
    async with aclosing(_read(connected, attempt, wanted, patience, lambda: False)) as batches:
        async for batch in batches:
            yield batch


async def read_range_on(
    nc: Client,
    wanted: StreamRange,
    *,
    prefix: str = DEFAULT_PREFIX,
    on_loss: OnLoss = refuse_loss,
    request_timeout: float = 5.0,
    retry_timeout: float = RETRY_SECONDS,
    opened: OpenConsumer | None = None,
    headers_only: bool = False,
) -> AsyncGenerator[RawBatch, None]:
    """
    Read a range of a stream on an existing connection; :func:`read_range` opens connections.

    A range of at most 256 sequences is read through the API, without a consumer; so is a longer one if the server
    denies permission to create a consumer.

    Yields batches of at most 10,000 messages or about 8 MiB.

    Raises:
        DeliveryError: As :func:`read_range` does; ``connection-closed``.
    """

    @asynccontextmanager
    async def connected() -> AsyncIterator[Client]:
        yield nc

    def attempt(client: Client, rest: StreamRange, timeout: float) -> _Attempt:
        return _Attempt(client, rest, prefix, on_loss, timeout, opened, headers_only, few=_FEW, needs_consumer=False)

    patience = Patience(request_timeout, retry_timeout)
    async with aclosing(_read(connected, attempt, wanted, patience, lambda: nc.is_closed)) as batches:
        async for batch in batches:
            yield batch


async def _read(
    connected: Callable[[], AbstractAsyncContextManager[Client]],
    begin: Callable[[Client, StreamRange, float], _Attempt],
    rest: StreamRange,
    patience: Patience,
    is_closed: Callable[[], bool],
) -> AsyncGenerator[RawBatch, None]:
    """Repeat attempts until the range is read, or the connection is closed permanently."""
    while len(rest):
        attempt = None
        try:
            async with connected() as client:
                attempt = begin(client, rest, patience.seconds)
                async with aclosing(attempt.batches()) as batches:
                    async for batch in batches:
                        patience.reset()
                        yield batch
            return
        except (DeliveryError, nats.errors.Error, OSError, asyncio.TimeoutError) as error:  # before 3.11 no OSError
            if isinstance(error, DataLossError) or is_final(error):
                raise
            if attempt is not None:
                rest = attempt.rest
            if is_closed() or not await patience.wait():
                target = f"stream {rest.stream}, from message {rest.first} on"
                if isinstance(error, DeliveryError):
                    raise DeliveryError(error.code, f"{target}: {error.message}") from error
                raise delivery_error(target, error) from error


class RangeClient(Client):
    """Client of nats-py that does not reconnect: a lost connection is closed at once, which ends a pull."""

    async def connect(self, *args: Any, **options: Any) -> None:
        """Connect without reconnects."""
        await super().connect(*args, **{**options, "allow_reconnect": False})


class _Attempt:
    """
    Attempt to read a range on one connection.

    Attributes:
        rest: Part of the range that is neither read nor reported as lost.
    """

    def __init__(
        self,
        client: Client,
        wanted: StreamRange,
        prefix: str,
        on_loss: OnLoss,
        timeout: float,
        opened: OpenConsumer | None = None,
        headers_only: bool = False,
        *,
        few: int = 0,
        needs_consumer: bool = True,
    ) -> None:
        self._client = client
        self.rest = wanted
        self._on_loss = on_loss
        self._timeout = timeout
        self._opened = opened or OpenConsumer(client)
        self._headers_only = headers_only
        self._few = 0 if headers_only else few
        self._needs_consumer = needs_consumer
        self._looks_ahead = False
        self._api = StreamApi(client, prefix, timeout, 0)

    async def batches(self) -> AsyncGenerator[RawBatch, None]:
        state = await self._api.state(self.rest.stream)
        has_gaps = bool(self.rest.subjects) or state.messages < state.last - state.first + 1
        self._looks_ahead = has_gaps and not self._needs_consumer
        methods = [self._through_api]
        # A consumer would keep messages in an interest stream, and would take messages from other consumers of a work
        # queue.
        if state.retention == "limits" and len(self.rest) > self._few:
            methods.insert(0, self._through_consumer)
        for method in methods:
            try:
                async with aclosing(method()) as batches:
                    async for batch in batches:
                        yield batch
                        self.rest = after(self.rest, batch.last)
                return
            except _NoConsumerError:
                continue

    async def _through_consumer(self) -> AsyncGenerator[RawBatch, None]:
        pull = RawPull(self._client)
        try:
            async with self._consumer() as subject:
                if not await self._check_beginning():
                    return
                requests = _Requests(self.rest)
                while len(self.rest):
                    with self._without_permission():
                        messages, status = await pull.pull(subject, requests.next(self.rest), self._timeout)
                    if messages:
                        batch = requests.batch(self.rest, messages)
                        loss, batch = await self._find_loss(batch), await self._with_gap_after(batch)
                        for part in self._parts(batch, loss):
                            yield part
                        self.rest = after(self.rest, batch.last)
                    if not requests.has_more(messages, status) and len(self.rest) and await self._is_at_end():
                        await self._check_tail()
                        return
        finally:
            await pull.close()

    @contextmanager
    def _without_permission(self) -> Iterator[None]:
        """Raise _NoConsumerError if consumers are denied or not imported, and the API may be used instead."""
        try:
            yield
        except DeliveryError as error:
            if error.code in (ErrorCode.PERMISSION_DENIED, ErrorCode.NO_RESPONDERS) and not self._needs_consumer:
                raise _NoConsumerError from error
            raise

    @asynccontextmanager
    async def _consumer(self) -> AsyncIterator[str]:
        """Create a consumer for the range, and yield the subject of its pull requests."""
        rest = self.rest
        name = f"ce-nats-{self._client.new_inbox().rpartition('.')[2]}"
        config = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": max(1, rest.first),
            "ack_policy": "none",
            "inactive_threshold": int(_INACTIVE_SECONDS * 1e9),
            "mem_storage": True,
            "num_replicas": 1,
            "headers_only": self._headers_only,
        }
        if rest.subjects:
            config["filter_subjects"] = list(rest.subjects)
        # In a task, because the server may still create the consumer if this one is cancelled.
        creation = asyncio.ensure_future(self._api.create_consumer(rest.stream, name, config))
        self._opened.set(f"{self._api.prefix}.CONSUMER.DELETE.{rest.stream}.{name}")
        try:
            await self._wait_for(creation)
            yield f"{self._api.prefix}.CONSUMER.MSG.NEXT.{rest.stream}.{name}"
        finally:
            self._opened.set("")
            if not _is_refused(creation):
                has_failed = creation.done() and creation.exception() is not None
                deletion = self._delete_consumer(rest.stream, name, creation)
                await finish(deletion, f"stream {rest.stream}", _LATE_SECONDS if has_failed else _DELETE_SECONDS)

    async def _wait_for(self, creation: asyncio.Future[Any]) -> None:
        """
        Wait until a consumer is created.

        Raises:
            _NoConsumerError: The server refuses consumers.
        """
        try:
            with self._without_permission():
                await asyncio.shield(creation)
        except DeliveryError as error:
            is_refused = isinstance(error, ApiError) and not error.is_temporary
            if is_refused or error.code is ErrorCode.INCOMPATIBLE_CONFIG:
                raise _NoConsumerError from error
            raise

    async def _delete_consumer(self, stream: str, name: str, creation: asyncio.Future[Any]) -> None:
        """Delete a consumer; if it does not exist yet, also after the answer to its creation."""
        while True:
            is_answered = creation.done()
            try:
                await self._api.delete_consumer(stream, name)
            except DeliveryError as error:
                _log.debug("consumer %s of stream %s could not be deleted: %s", name, stream, error)
                if is_answered:
                    return
                await asyncio.wait([creation])
                if _is_refused(creation):
                    return
            else:
                creation.add_done_callback(_is_refused)  # looks at the exception, which has no other reader
                return

    async def _through_api(self) -> AsyncGenerator[RawBatch, None]:
        if not await self._check_beginning():
            return
        rest = self.rest
        # The API accepts one pattern.
        subject = rest.subjects[0] if len(rest.subjects) == 1 else ">"
        found = read_one_by_one(self._client, self._api, rest.stream, subject, rest.first, rest.last)
        async with aclosing(found) as messages:
            async for raw in _gathered(messages, rest):
                batch = RawBatch(rest.stream, raw, _sequence(raw[0]), _sequence(raw[-1]))
                loss, batch = await self._find_loss(batch), await self._with_gap_after(batch)
                for part in self._parts(batch, loss):
                    yield part
        await self._check_tail()

    async def _is_at_end(self) -> bool:
        """
        Return whether the stream has no further message of the range.

        The stream is asked, because a consumer's count of pending messages is not always correct.
        """
        rest = self.rest
        following = await self._api.next_sequence(rest.stream, rest.first, rest.subjects)
        if following is not None and following <= rest.last:
            raise DeliveryError(ErrorCode.UNEXPECTED_ANSWER, f"the consumer stopped before message {following}")
        return True

    async def _check_beginning(self) -> bool:
        """
        Check identity and first sequence of the stream; return whether messages are left to read.

        This follows the creation of the consumer: the existing stream is then that of the consumer, or the consumer was
        deleted.
        """
        rest = self.rest
        state = await self._state()
        if state is None:
            return False
        if state.first > rest.first and not rest.from_beginning:
            self._lose(rest.first, min(state.first - 1, rest.last), state)
        self.rest = replace(rest, first=max(rest.first, state.first))
        return len(self.rest) > 0

    async def _find_loss(self, batch: RawBatch) -> DataLossError | None:
        """Return the error for messages that the stream removed before, or among, those of a batch."""
        start = batch.first if self.rest.from_beginning else self.rest.first
        if batch.first == start and batch.last - start + 1 == len(batch.messages):
            return None
        state = await self._state()
        if state is None or state.first <= start:
            return None
        # The stream now begins after these sequences. It is unknown whether the message of a missing sequence was
        # deleted long ago, had another subject, or was lost now.
        found = {_sequence(message) for message in batch.messages}
        missing = [number for number in range(start, min(state.first, batch.last + 1)) if number not in found]
        if not missing:
            return None
        first, last = missing[0], missing[-1]
        is_partial = last - first + 1 > len(missing)
        return DataLossError.gone(
            state.name, first, last, state.first, retention=state.retention, is_partial=is_partial
        )

    async def _with_gap_after(self, batch: RawBatch) -> RawBatch:
        """
        Extend a batch to the sequences after it that do not exist.

        The caller may delete messages that it has read: the stream then begins after such sequences, which would be
        reported as lost. (Spark's workers delete nothing, and may lack the permission for this request.)
        """
        rest = self.rest
        if not self._looks_ahead or batch.last >= rest.last:
            return batch
        following = await self._api.next_sequence(rest.stream, batch.last + 1, rest.subjects)
        state = await self._state()
        if state is None or state.first > batch.last + 1 or state.last < rest.last:
            return batch
        return replace(batch, last=rest.last if following is None else min(rest.last, following - 1))

    def _parts(self, batch: RawBatch, loss: DataLossError | None) -> Iterator[RawBatch]:
        """Yield the messages of a batch before a loss in it, and those after it, if the loss is accepted."""
        if loss is not None:
            at = bisect_left(batch.messages, loss.first, key=_sequence)
            if at:
                yield RawBatch(batch.stream, batch.messages[:at], batch.first, loss.first - 1)
            self._on_loss(loss)
            messages = batch.messages[at:]
            batch = RawBatch(batch.stream, messages, _sequence(messages[0]) if messages else batch.last, batch.last)
        if batch.messages:
            yield batch

    async def _check_tail(self) -> None:
        """Report messages that were lost after the last batch."""
        rest = self.rest
        state = await self._state() if len(rest) else None
        if state is None:
            return
        if state.last < rest.last:
            await self._check_age(state)
            self._on_loss(DataLossError.shortened(rest.stream, rest.last, state.last))
        if state.first > rest.first and not rest.from_beginning:
            self._lose(rest.first, min(state.first - 1, rest.last), state)

    async def _check_age(self, old: StreamState) -> None:
        """
        Check that the stream does not have the rest of the range after all.

        Raises:
            DeliveryError: ``temporarily-unavailable``: it has, and the state was that of a leader without its replicas.
        """
        end = time.monotonic() + OLD_STATE_SECONDS
        while time.monotonic() < end:
            await asyncio.sleep(_POLL_SECONDS)
            state = await self._api.state(old.name)
            if state.created == old.created and state.last >= self.rest.last:
                text = f"the server reported an old state of the stream, up to {old.last} instead of {state.last}"
                raise DeliveryError(ErrorCode.TEMPORARILY_UNAVAILABLE, text)

    def _lose(self, first: int, last: int, state: StreamState) -> None:
        self._on_loss(DataLossError.gone(state.name, first, last, state.first, retention=state.retention))

    async def _state(self) -> StreamState | None:
        """Return the state of the stream; None if it was recreated, and on_loss() returns."""
        state = await self._api.state(self.rest.stream)
        if self.rest.created and state.created != self.rest.created:
            self._on_loss(DataLossError.recreated(self.rest.stream, self.rest.created, state.created))
            return None
        return state


def _is_refused(creation: asyncio.Future[Any]) -> bool:
    """Return whether the server has answered that it does not create a consumer."""
    if not creation.done() or creation.cancelled():
        return False
    error = creation.exception()
    return isinstance(error, ApiError) or (isinstance(error, DeliveryError) and error.code in _REFUSALS)


class _NoConsumerError(Exception):
    """The stream refuses consumers."""


class _Requests:
    """Requests for the messages of a range, and the batches in their responses."""

    def __init__(self, wanted: StreamRange) -> None:
        self._start = wanted.first
        self._delivered = 0
        self._requested = 0
        self._max_bytes = _MAX_BYTES

    def next(self, rest: StreamRange) -> dict[str, Any]:
        """Return a request for about the number of messages in the rest of the range."""
        self._requested = min(len(rest), _FIRST_MESSAGES)
        if self._delivered:
            expected = len(rest) * self._delivered / (rest.first - self._start)
            self._requested = min(len(rest), _MAX_MESSAGES, math.ceil(expected * 1.1) + 100)
        return {"batch": self._requested, "max_bytes": self._max_bytes, "no_wait": True}

    def batch(self, rest: StreamRange, messages: list[RawMessage]) -> RawBatch:
        """
        Return the messages that are in the range, which may be none.

        Raises:
            DeliveryError: ``unexpected-answer``: some messages did not arrive, or arrived twice.
        """
        first, number = metadata(messages[0][1])
        last, last_number = metadata(messages[-1][1])
        if number != self._delivered + 1 or last_number - number + 1 != len(messages) or first < rest.first:
            raise DeliveryError(ErrorCode.UNEXPECTED_ANSWER, "messages of the consumer were lost or duplicated")
        self._delivered = last_number
        if last > rest.last:
            messages = messages[: bisect_right(messages, rest.last, key=_sequence)]
        return RawBatch(rest.stream, messages, first, min(last, rest.last))

    def has_more(self, messages: list[RawMessage], status: str) -> bool:
        """
        Return whether the consumer may have more messages.

        Raises:
            DeliveryError: ``consumer-not-found``, ``temporarily-unavailable`` or ``unexpected-answer``: the consumer
                cannot be used any more.
        """
        if len(messages) == self._requested:
            return True
        code, _, description = status.partition(" ")
        parsed = parse_pull_status(code, description)
        if parsed is PullStatus.TOO_LARGE and not messages:
            self._max_bytes *= 2
        if parsed in (PullStatus.COMPLETED, PullStatus.TOO_LARGE):
            return True
        if parsed is PullStatus.NO_MESSAGES:
            return False
        if not status:
            raise DeliveryError(ErrorCode.UNEXPECTED_ANSWER, "the server answered without a status")
        is_gone = parsed in (PullStatus.DELETED, PullStatus.NO_RESPONDERS)
        error = ErrorCode.CONSUMER_NOT_FOUND if is_gone else ErrorCode.TEMPORARILY_UNAVAILABLE
        raise DeliveryError(error, f"the server answered {status}")


def _sequence(message: RawMessage) -> int:
    return metadata(message[1])[0]


def after(rest: StreamRange, sequence: int) -> StreamRange:
    """Return the rest of a range after a sequence."""
    return StreamRange(rest.stream, sequence + 1, rest.last, rest.created, rest.subjects)


async def _gathered(messages: AsyncIterator[Stored], wanted: StreamRange) -> AsyncGenerator[list[RawMessage], None]:
    """Yield the messages of a range in lists."""
    raw: list[RawMessage] = []
    size = 0
    async for stored in messages:
        if not wanted.subjects or any(covers(pattern, stored.subject) for pattern in wanted.subjects):
            raw.append(_as_raw(wanted.stream, stored))
            size += len(stored.data)
            if len(raw) == _ONE_BY_ONE or size >= _MAX_BYTES:
                yield raw
                raw, size = [], 0
    if raw:
        yield raw


def _as_raw(stream: str, stored: Stored) -> RawMessage:
    """Convert a message from the API to the form in which a consumer delivers it."""
    at = nanoseconds(Timestamp.parse(stored.time))
    reply = ack_subject(AckSubject(stream, "-", 1, stored.seq, stored.seq, at, 0))
    return stored.subject.encode(), reply.encode(), stored.data, stored.hdrs or None
