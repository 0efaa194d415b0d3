"""
Messages under way to streams: each one is kept until its acknowledgement is there.

At most ``window`` of them at a time, on a connection that somebody else keeps. What is lost with a broken connection,
message or acknowledgement, is sent again where a ``Nats-Msg-Id`` lets the server tell a message from its copy.
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
from nats.aio.subscription import Subscription
from nats.js.api import PubAck
from nats.js.errors import APIError

from ..errors import DeliveryError, ErrorCode, NoStreamError
from ..message import Headers, NatsMessage
from .jetstream import MSG_ID, NO_ACKNOWLEDGEMENT
from .listening import IN_PROCESS, PAUSE_SECONDS, Listeners
from .nats_errors import delivery_errors
from .publish import as_nats_headers
from .watch import ConnectionWatch, Denial

__all__ = ["Outbox", "Sending", "header_block", "was_there", "write"]

_TICK_SECONDS: Final = 0.1
_NO_RESPONDERS: Final = "503"
_EXPECTATION: Final = b"\r\nNats-Expected-Last-"
_ERROR_MEMBERS: Final = ("code", "err_code", "description")


@dataclass(slots=True, eq=False)
class Sending:
    """
    A message under way.

    Attributes:
        message: What is sent.
        block: Its header block.
        ack: The acknowledgement, or a DeliveryError: ``no-responders``, ``permission-denied``,
            ``publish-refused``, ``unexpected-answer``, or ``timeout``, where it may have been stored.
        tag: Whatever the sender wants to find here again.
        give_up: When it is not sent again any more, in seconds of ``time.monotonic()``.
        due: When something has to be done unless an acknowledgement comes, likewise.
        attempts: How often it was sent, but for what is known not to have been stored.
        fault: What came of it when it was sent last, where that is no reason to give up.
    """

    message: NatsMessage
    block: bytes
    ack: asyncio.Future[PubAck]
    tag: Any
    give_up: float
    due: float
    attempts: int = 0
    fault: DeliveryError | None = None


class _Ack(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    duplicate: bool | None = None
    domain: str | None = None
    val: str | None = None
    error: dict[str, Any] | None = None


_decode: Final = msgspec.json.Decoder(_Ack).decode


class Outbox:
    """
    The messages that are under way on a connection, as an asynchronous context manager.

    Leaving the block waits for nothing: see :meth:`drain`.

    Args:
        nc: An open connection.
        done: Called with each message and what became of it.
        window: Most messages under way.
        ack_timeout: Seconds to wait for an acknowledgement before a message is sent again.
        retry_timeout: Seconds to go on sending a message.
        api_prefix: First tokens of the subjects of JetStream's API.

    Attributes:
        nc: The connection.
        has_stream: Whether a stream has acknowledged anything. One that has may be away for a while; before that, the
            server is asked whether there is one.
        under_way: Messages under way, by the last token of their reply subjects.
    """

    def __init__(
        self,
        nc: Client,
        done: Callable[[Sending, PubAck | DeliveryError], object],
        *,
        window: int,
        ack_timeout: float,
        retry_timeout: float,
        api_prefix: str = "$JS.API",
    ) -> None:
        self.nc = nc
        self.has_stream = False
        self.under_way: dict[str, Sending] = {}
        self._done = done
        self._window = window
        self._ack_timeout = ack_timeout
        self._retry_timeout = retry_timeout
        self._prefix = ""
        self._number = 0
        self._listeners = Listeners(nc, api_prefix)
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._denied: DeliveryError | None = None
        self._subscription: Subscription | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Outbox:
        self._prefix = f"{self.nc.new_inbox()}."
        ConnectionWatch.of(self.nc).add(self._hear)
        with delivery_errors("acknowledgements"):
            self._subscription = await self.nc.subscribe(f"{self._prefix}*", cb=self._receive)
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._watcher is not None:
            tasks = [self._watcher, *self._looking.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._watcher = None
        ConnectionWatch.of(self.nc).remove(self._hear)
        if self._subscription is not None:
            with suppress(nats.errors.Error):
                await self._subscription.unsubscribe()
        for sending in self.under_way.values():
            sending.ack.cancel()

    async def send(self, message: NatsMessage, block: bytes, tag: Any = None, *, attempts: int = 0) -> Sending:
        """
        Send a message once there is room for it.

        Args:
            message: Its subject is valid, and its size has been checked; its ``reply`` is not used.
            block: Its headers as bytes, ``b""`` without any, valid too: see :func:`header_block`.
            tag: Whatever the sender wants to find in :class:`Sending`.
            attempts: How often it was sent before, elsewhere.

        Raises:
            DeliveryError: ``connection-closed``: it is closed or being drained; ``not-open``: called outside of the
                block; ``permission-denied``: no acknowledgement can come.
        """
        await self.room()
        if self._denied is not None:
            raise self._denied
        if self._watcher is None:
            raise DeliveryError(
                ErrorCode.NOT_OPEN, f"{message.subject}: the publisher must be entered first, and not have been left"
            )
        now = time.monotonic()
        ack: asyncio.Future[PubAck] = asyncio.get_running_loop().create_future()
        sending = Sending(message, block, ack, tag, now + self._retry_timeout, now + self._ack_timeout, attempts)
        self._number += 1
        token = str(self._number)
        self.under_way[token] = sending
        try:
            await self._publish(token, sending)
        except BaseException:
            self.under_way.pop(token, None)
            ack.cancel()
            with delivery_errors(message.subject):
                raise
        return sending

    @property
    def is_full(self) -> bool:
        return len(self.under_way) >= self._window

    async def room(self) -> None:
        """Wait until there is room in the window."""
        while self.is_full:
            await self._wait()

    async def drain(self) -> None:
        """Wait until nothing is under way any more; each message takes ``retry_timeout`` at most."""
        while self.under_way:
            await self._wait()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _publish(self, token: str, sending: Sending) -> None:
        try:
            await write(self.nc, sending.message, sending.block, self._prefix + token)
            sending.attempts += 1
            sending.fault = None
        except nats.errors.OutboundBufferLimitError:
            # The connection is broken, and what nats-py keeps meanwhile is enough. Later.
            sending.due = time.monotonic() + PAUSE_SECONDS

    async def _receive(self, answer: Msg) -> None:
        token = answer.subject[len(self._prefix) :]
        sending = self.under_way.get(token)
        if sending is None:
            return
        subject = sending.message.subject
        if not answer.data and answer.headers and answer.headers.get("Status") == _NO_RESPONDERS:
            self._bear(sending, DeliveryError(ErrorCode.NO_RESPONDERS, f"{subject}: no stream listens"))
            self._look(subject)
            return
        try:
            ack = _decode(answer.data)
        except msgspec.MsgspecError:
            ack = _Ack()
        if ack.error:
            is_in_process = ack.error.get("err_code") == IN_PROCESS
            code = ErrorCode.TIMEOUT if is_in_process else ErrorCode.PUBLISH_REFUSED
            fault = DeliveryError(code, f"{subject}: {ack.error.get('description', ack.error)}")
            fault.__cause__ = _api_error(ack.error)
            if is_in_process:
                self._bear(sending, fault)
            else:
                self._fail(token, fault)
        elif not ack.stream:
            self._fail(token, DeliveryError(ErrorCode.UNEXPECTED_ANSWER, f"{subject}: {NO_ACKNOWLEDGEMENT}"))
        else:
            self.has_stream = True
            self._finish(token, PubAck(ack.stream, ack.seq, ack.domain, ack.duplicate, val=ack.val))

    def _hear(self, denial: Denial) -> bool:
        """Fail the message that is denied, or all of them where no acknowledgement can come."""
        inbox = f"{self._prefix}*"
        if denial.is_subscription(inbox):
            self._denied = denial.error(inbox)
            for token in list(self.under_way):
                self._fail(token, self._denied)
            return True
        for token, sending in self.under_way.items():
            if sending.attempts and denial.is_publish(sending.message.subject):
                self._fail(token, denial.error(sending.message.subject))
                return True
        return False

    def _bear(self, sending: Sending, fault: DeliveryError) -> None:
        """Send again after a pause what was not stored this time."""
        sending.fault = fault
        sending.attempts = max(0, sending.attempts - 1)
        sending.due = min(sending.due, time.monotonic() + PAUSE_SECONDS)

    def _look(self, subject: str) -> None:
        """Ask whether a stream listens, unless that is known or being asked."""
        if subject not in self._looking and (not self.has_stream or self._listeners.was_missed(subject)):
            self._looking[subject] = asyncio.create_task(self._look_for_stream(subject))

    async def _look_for_stream(self, subject: str) -> None:
        try:
            await self._listeners.look(subject, self._ack_timeout)
        except NoStreamError as error:
            for token, sending in list(self.under_way.items()):
                fault = sending.fault
                if sending.message.subject == subject and fault and fault.code is ErrorCode.NO_RESPONDERS:
                    self._fail(token, error)
        finally:
            del self._looking[subject]

    def _finish(self, token: str, ack: PubAck) -> None:
        sending = self.under_way.pop(token)
        if not sending.ack.done():
            sending.ack.set_result(ack)
        self._done(sending, ack)
        self._changed.set()

    def _fail(self, token: str, error: DeliveryError) -> None:
        sending = self.under_way.pop(token)
        if not sending.ack.done():
            sending.ack.set_exception(error)
            sending.ack.exception()  # not everybody looks at every future, and `done` is told
        self._done(sending, error)
        self._changed.set()

    async def _watch(self) -> None:
        """Send again, or give up, what is due."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = time.monotonic()
            for token, sending in [item for item in self.under_way.items() if item[1].due <= now or self.nc.is_closed]:
                if token in self.under_way:
                    await self._look_after(token, sending, now)

    async def _look_after(self, token: str, sending: Sending, now: float) -> None:
        subject = sending.message.subject
        if self.nc.is_closed:
            # It may have been stored, as with every other acknowledgement that does not come.
            self._fail(token, DeliveryError(ErrorCode.TIMEOUT, f"{subject}: the connection was closed too early"))
        elif now >= sending.give_up or not _may_be_repeated(sending):
            late = DeliveryError(ErrorCode.TIMEOUT, f"{subject}: no acknowledgement came in time")
            self._fail(token, sending.fault or late)
        else:
            sending.due = now + self._ack_timeout
            if self.nc.is_connected:
                with suppress(nats.errors.Error, OSError):
                    await self._publish(token, sending)


def was_there(sending: Sending, ack: PubAck) -> bool:
    """Whether the stream had a message already, and not from here: what was sent again is a duplicate too."""
    return bool(ack.duplicate and sending.attempts == 1)


def header_block(headers: Headers) -> bytes:
    """The header block that nats-py would write for headers that have been checked; ``b""`` without any."""
    pairs = headers.items()
    if not pairs:
        return b""
    return "".join(["NATS/1.0\r\n", *[f"{name}: {value}\r\n" for name, value in pairs], "\r\n"]).encode()


async def write(nc: Client, message: NatsMessage, block: bytes, reply: str) -> None:
    """
    As ``nc.publish()``, for what has been checked.

    nats-py looks at every character of every header, which takes longer than all the rest of publishing.

    Raises:
        nats.errors.Error: As ``nc.publish()`` does.
    """
    if not nc.is_connected or nc._flush_queue is None:
        await nc.publish(message.subject, message.data, reply, headers=as_nats_headers(message.headers))
        return
    payload = message.data
    total = len(block) + len(payload)
    sizes = (
        f"HPUB {message.subject} {reply} {len(block)} {total}" if block else f"PUB {message.subject} {reply} {total}"
    )
    nc.stats["out_msgs"] += 1
    nc.stats["out_bytes"] += len(payload)
    await nc._send_command(b"".join((sizes.encode(), b"\r\n", block, payload, b"\r\n")))
    if nc._flush_queue.empty():
        await nc._flush_pending()


def _may_be_repeated(sending: Sending) -> bool:
    # From 2.12 on nats-server looks at what a message expects before it looks for a duplicate: it would refuse the copy
    # of a message that it has stored.
    return sending.attempts == 0 or (MSG_ID in sending.message.headers and _EXPECTATION not in sending.block)


def _api_error(error: dict[str, Any]) -> Exception | None:
    """What nats-py's own ``js.publish()`` would raise."""
    try:
        APIError.from_error({"code": 0, **{name: error[name] for name in error if name in _ERROR_MEMBERS}})
    except APIError as known:
        return known
    return None
