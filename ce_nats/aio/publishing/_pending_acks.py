"""
Publish messages to streams, and await their acknowledgements.

If a message or its acknowledgement is lost with a broken connection, the message is resent, provided that the server
can detect the copy by its ``Nats-Msg-Id``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import PubAck
from nats.js.errors import APIError

from ...errors import ApiError, DeliveryError, ErrorCode, NoStreamError
from ...message import MSG_ID, NatsMessage
from .._errors import delivery_errors
from .._permissions import ConnectionWatch
from ..core._publish import publish_with_block
from ._ack_window import AckWindow, Pending, is_no_responders
from ._prepare import NO_ACKNOWLEDGEMENT
from ._stream_lookup import IN_PROCESS, PAUSE_SECONDS, Listeners

_EXPECTATION: Final = b"\r\nNats-Expected-Last-"
_ERROR_MEMBERS: Final = ("code", "err_code", "description")


@dataclass(slots=True, eq=False)
class PendingMessage(Pending):
    """
    An unacknowledged message.

    Attributes:
        message: The message.
        block: Its header block.
        tag: Object of the caller.
        give_up: Time at which retries end, in seconds of ``time.monotonic()``.
        due: Time at which it is resent, or fails, without an acknowledgement; in seconds of ``time.monotonic()``.
        attempts: Number of attempts, without those known to be not stored.
        last_error: Error of the last attempt if the message is to be resent; else None.
    """

    message: NatsMessage
    block: bytes
    tag: Any
    give_up: float
    due: float
    attempts: int = 0
    last_error: DeliveryError | None = None

    @property
    def was_sent(self) -> bool:
        return self.attempts > 0


@dataclass(frozen=True, slots=True)
class PublishResult:
    """
    Number of published messages.

    Attributes:
        messages: Messages that were acknowledged, or, on core NATS, written.
        duplicates: How many of them the stream already had, according to their ``Nats-Msg-Id``. Messages that were
            resent after a lost acknowledgement are not counted.
    """

    messages: int = 0
    duplicates: int = 0

    def __add__(self, other: PublishResult) -> PublishResult:
        return PublishResult(self.messages + other.messages, self.duplicates + other.duplicates)


class _Ack(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    duplicate: bool | None = None
    domain: str | None = None
    val: str | None = None
    error: dict[str, Any] | None = None


_decode: Final = msgspec.json.Decoder(_Ack).decode


class PendingAcks(AckWindow[PendingMessage]):
    """
    Unacknowledged messages to streams, as an asynchronous context manager.

    Leaving the block does not wait for acknowledgements: see :meth:`drain`. The ``ack`` of a message gets a PubAck, or
    a DeliveryError: ``no-responders``, ``permission-denied``, ``publish-refused``, ``unexpected-answer``;
    ``payload-too-large``, if the server's ``max_payload`` was lowered in the meantime; or ``timeout``, if the message
    may be stored.

    Args:
        nc: An open connection.
        done: Called with each message, and its acknowledgement or error.
        window: Maximum number of unacknowledged messages.
        ack_timeout: Seconds to wait for an acknowledgement before a message is resent.
        retry_timeout: Seconds to retry a message.
        api_prefix: First tokens of the subjects of JetStream's API.

    Attributes:
        has_stream: Whether a stream has acknowledged a message. No responders then mean that it has no leader. Before
            that, JetStream's API is asked whether a stream listens.
    """

    def __init__(
        self,
        nc: Client,
        done: Callable[[PendingMessage, PubAck | DeliveryError], object],
        *,
        window: int,
        ack_timeout: float,
        retry_timeout: float,
        api_prefix: str = "$JS.API",
    ) -> None:
        super().__init__(nc, window)
        self.has_stream = False
        self._done = done
        self._ack_timeout = ack_timeout
        self._retry_timeout = retry_timeout
        self._listeners = Listeners(nc, api_prefix)
        self._lookups: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> PendingAcks:
        await self.open(self.nc.new_inbox())
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._lookups.values():
            task.cancel()
        await self.close()
        await asyncio.gather(*self._lookups.values(), return_exceptions=True)

    async def send(self, message: NatsMessage, block: bytes, tag: Any = None, *, attempts: int = 0) -> PendingMessage:
        """
        Send a message as soon as the window has a free slot.

        Args:
            message: Message whose subject and size were checked; its ``reply`` is not used.
            block: Header block, which was checked; ``b""`` without headers.
            tag: Object to keep with the message.
            attempts: Number of earlier attempts, on another connection.

        Raises:
            DeliveryError: ``connection-closed``: the connection is closed or being drained; ``not-open``: called
                outside of the block; ``permission-denied``: acknowledgements cannot arrive.
        """
        await self.wait_for_slot()
        if self._denied is not None:
            raise self._denied
        if not self.is_open:
            raise DeliveryError(
                ErrorCode.NOT_OPEN, f"{message.subject}: the publisher must be used inside of its block"
            )
        now = time.monotonic()
        ack: asyncio.Future[PubAck] = asyncio.get_running_loop().create_future()
        give_up, due = now + self._retry_timeout, now + self._ack_timeout
        item = PendingMessage(message.subject, ack, message, block, tag, give_up, due, attempts)
        token = self._add(item)
        try:
            with delivery_errors(message.subject, self.nc):
                await self._publish(token, item)
        except BaseException:
            self._drop(token)
            raise
        return item

    async def _publish(self, token: str, item: PendingMessage) -> None:
        try:
            await publish_with_block(self.nc, item.message, item.block, self._prefix + token)
            item.attempts += 1
            item.last_error = None
        except nats.errors.OutboundBufferLimitError:
            # The connection is lost, and nats-py's buffer is full. Retry later.
            item.due = time.monotonic() + PAUSE_SECONDS

    async def _receive(self, reply: Msg) -> None:
        token = self._token(reply)
        if token is None:
            return
        item = self.pending[token]
        subject = item.subject
        if is_no_responders(reply):
            self._retry_later(item, DeliveryError(ErrorCode.NO_RESPONDERS, f"{subject}: no stream listens"))
            self._look_for_stream(subject)
            return
        try:
            ack = _decode(reply.data)
        except msgspec.MsgspecError:
            ack = _Ack()
        if ack.error:
            is_in_process = ack.error.get("err_code") == IN_PROCESS
            code = ErrorCode.TIMEOUT if is_in_process else ErrorCode.PUBLISH_REFUSED
            number = ack.error.get("err_code", 0)
            error = ApiError(code, f"{subject}: {ack.error.get('description', ack.error)} ({number})")
            error.err_code = number if isinstance(number, int) else 0
            error.__cause__ = _api_error(ack.error)
            if is_in_process:
                self._retry_later(item, error)
            else:
                self._fail(token, error)
        elif not ack.stream:
            self._fail(token, DeliveryError(ErrorCode.UNEXPECTED_ANSWER, f"{subject}: {NO_ACKNOWLEDGEMENT}"))
        else:
            self.has_stream = True
            self._finish(token, PubAck(ack.stream, ack.seq, ack.domain, ack.duplicate, val=ack.val))

    def _acknowledged(self, item: PendingMessage, ack: Any) -> None:
        self._done(item, ack)

    def _failed(self, item: PendingMessage, error: DeliveryError) -> None:
        self._done(item, error)

    def _retry_later(self, item: PendingMessage, error: DeliveryError) -> None:
        """Resend a message that was not stored, after a pause."""
        item.last_error = error
        item.attempts = max(0, item.attempts - 1)
        item.due = min(item.due, time.monotonic() + PAUSE_SECONDS)

    def _look_for_stream(self, subject: str) -> None:
        """Look up whether a stream listens, unless that is known or being looked up."""
        if subject not in self._lookups and (not self.has_stream or self._listeners.was_absent(subject)):
            self._lookups[subject] = asyncio.create_task(self._look_up(subject))

    async def _look_up(self, subject: str) -> None:
        try:
            await self._listeners.look(subject, self._ack_timeout)
        except NoStreamError as error:
            for token, item in list(self.pending.items()):
                last = item.last_error
                if item.subject == subject and last and last.code is ErrorCode.NO_RESPONDERS:
                    self._fail(token, error)
        finally:
            del self._lookups[subject]

    async def _check(self) -> None:
        now = time.monotonic()
        for token, item in [pair for pair in self.pending.items() if pair[1].due <= now or self.nc.is_closed]:
            if token in self.pending:
                await self._resend(token, item, now)

    async def _resend(self, token: str, item: PendingMessage, now: float) -> None:
        """Resend a message that is due, or fail it if it must not be resent."""
        if self.nc.is_closed:
            # The message may have been stored, as with any missing acknowledgement.
            loss = ConnectionWatch.of(self.nc).loss
            text = f"{item.subject}: the connection was closed before the acknowledgement arrived"
            self._fail(token, DeliveryError(ErrorCode.TIMEOUT, f"{text}: {loss}" if loss else text))
        elif (size := len(item.block) + len(item.message.data)) > self.nc.max_payload:
            limit = f"max_payload was lowered to {self.nc.max_payload} bytes, and the message has {size}"
            text = f"{item.subject}: no acknowledgement arrived, and {limit}"
            self._fail(token, DeliveryError(ErrorCode.PAYLOAD_TOO_LARGE, text))
        elif now >= item.give_up or not _may_be_resent(item):
            violation = ConnectionWatch.of(self.nc).violation_since(item.give_up - self._retry_timeout)
            late = DeliveryError(ErrorCode.TIMEOUT, f"{item.subject}: no acknowledgement arrived in time{violation}")
            self._fail(token, item.last_error or late)
        else:
            item.due = now + self._ack_timeout
            if self.nc.is_connected:
                with suppress(nats.errors.Error, OSError):
                    await self._publish(token, item)


def is_duplicate(item: PendingMessage, ack: PubAck) -> bool:
    """Return whether the stream had the message before its first attempt; resent copies are duplicates as well."""
    return bool(ack.duplicate and item.attempts == 1)


def _may_be_resent(item: PendingMessage) -> bool:
    # Since 2.12 nats-server checks Nats-Expected-Last-... before it checks for duplicates, so it refuses the copy of a
    # stored message.
    return item.attempts == 0 or (MSG_ID in item.message.headers and _EXPECTATION not in item.block)


def _api_error(error: dict[str, Any]) -> Exception | None:
    """Return the error that nats-py's ``js.publish()`` would raise."""
    try:
        APIError.from_error({"code": 0, **{name: error[name] for name in error if name in _ERROR_MEMBERS}})
    except APIError as known:
        return known
    return None
