"""
Messages published to streams, kept until they are acknowledged.

A message that is lost with a broken connection, or whose acknowledgement is, is sent again where a ``Nats-Msg-Id`` lets
the server recognize the copy.
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
    A message without an acknowledgement.

    Attributes:
        message: What is sent.
        block: Its header block.
        tag: An object of the sender's.
        give_up: When retries end, in seconds of ``time.monotonic()``.
        due: When it is sent again, or fails, unless an acknowledgement comes; in seconds of ``time.monotonic()``.
        attempts: How often it was sent, not counting attempts that are known not to have been stored.
        last_error: Why the last attempt failed, where the message is to be sent again; else None.
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
    Messages without an acknowledgement of a stream, as an asynchronous context manager.

    Leaving the block waits for nothing: see :meth:`drain`. A message's ``ack`` gets a PubAck, or a DeliveryError:
    ``no-responders``, ``permission-denied``, ``publish-refused``, ``unexpected-answer``, ``payload-too-large``, if the
    server's ``max_payload`` was lowered meanwhile, or ``timeout``, where it may have been stored.

    Args:
        nc: An open connection.
        done: Called with each message, and its acknowledgement or error.
        window: Most messages without an acknowledgement.
        ack_timeout: Seconds to wait for an acknowledgement before a message is sent again.
        retry_timeout: Seconds to keep sending a message.
        api_prefix: First tokens of the subjects of JetStream's API.

    Attributes:
        has_stream: Whether a stream has acknowledged anything. One that has may be without a leader for a while; before
            that, the server is asked whether there is one.
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
        Send a message once there is room for it.

        Args:
            message: Its subject is valid, and its size has been checked; its ``reply`` is not used.
            block: Its headers as bytes, ``b""`` without any, valid too.
            tag: An object that is kept with the message.
            attempts: How often it was sent before, elsewhere.

        Raises:
            DeliveryError: ``connection-closed``: it is closed or being drained; ``not-open``: called outside of the
                block; ``permission-denied``: no acknowledgement can come.
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
            # The connection is broken, and nats-py's buffer is full. Later.
            item.due = time.monotonic() + PAUSE_SECONDS

    async def _receive(self, answer: Msg) -> None:
        token = self._token(answer)
        if token is None:
            return
        item = self.pending[token]
        subject = item.subject
        if is_no_responders(answer):
            self._send_later(item, DeliveryError(ErrorCode.NO_RESPONDERS, f"{subject}: no stream listens"))
            self._look_for_stream(subject)
            return
        try:
            ack = _decode(answer.data)
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
                self._send_later(item, error)
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

    def _send_later(self, item: PendingMessage, error: DeliveryError) -> None:
        """Send again after a pause what was not stored this time."""
        item.last_error = error
        item.attempts = max(0, item.attempts - 1)
        item.due = min(item.due, time.monotonic() + PAUSE_SECONDS)

    def _look_for_stream(self, subject: str) -> None:
        """Ask whether a stream listens, unless that is known or being asked."""
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
                await self._send_again(token, item, now)

    async def _send_again(self, token: str, item: PendingMessage, now: float) -> None:
        """Send again what is due, or fail it where it may not be sent again."""
        if self.nc.is_closed:
            # It may have been stored, as with every other acknowledgement that does not come.
            loss = ConnectionWatch.of(self.nc).loss
            text = f"{item.subject}: the connection was closed before the acknowledgement came"
            self._fail(token, DeliveryError(ErrorCode.TIMEOUT, f"{text}: {loss}" if loss else text))
        elif (size := len(item.block) + len(item.message.data)) > self.nc.max_payload:
            limit = f"max_payload was lowered to {self.nc.max_payload} bytes, and the message has {size}"
            text = f"{item.subject}: no acknowledgement came, and {limit}"
            self._fail(token, DeliveryError(ErrorCode.PAYLOAD_TOO_LARGE, text))
        elif now >= item.give_up or not _may_be_repeated(item):
            violation = ConnectionWatch.of(self.nc).violation_since(item.give_up - self._retry_timeout)
            late = DeliveryError(ErrorCode.TIMEOUT, f"{item.subject}: no acknowledgement came in time{violation}")
            self._fail(token, item.last_error or late)
        else:
            item.due = now + self._ack_timeout
            if self.nc.is_connected:
                with suppress(nats.errors.Error, OSError):
                    await self._publish(token, item)


def is_duplicate(item: PendingMessage, ack: PubAck) -> bool:
    """Whether the stream had a message before it was first sent here; a copy sent again is a duplicate, too."""
    return bool(ack.duplicate and item.attempts == 1)


def _may_be_repeated(item: PendingMessage) -> bool:
    # From 2.12 on nats-server checks Nats-Expected-Last-... before it checks for a duplicate, so it refuses the copy of
    # a message that it has stored.
    return item.attempts == 0 or (MSG_ID in item.message.headers and _EXPECTATION not in item.block)


def _api_error(error: dict[str, Any]) -> Exception | None:
    """What nats-py's own ``js.publish()`` would raise."""
    try:
        APIError.from_error({"code": 0, **{name: error[name] for name in error if name in _ERROR_MEMBERS}})
    except APIError as known:
        return known
    return None
