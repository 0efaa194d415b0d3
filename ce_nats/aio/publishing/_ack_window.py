"""
Bounded set of unacknowledged messages, for JetStream and NATS Streaming.

Each message has a separate reply subject in one inbox, so that each reply identifies its message, also a no-responders
status of the server.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from ...errors import CeNatsError, DeliveryError
from .._errors import delivery_errors
from .._natspy import SEES_RAW_MESSAGES, RawMessageHook, set_raw_message_hook, subscription_id
from .._permissions import ConnectionWatch, Denial

_TICK_SECONDS: Final = 0.1
_NO_RESPONDERS: Final = "503"
_NO_RESPONDERS_LINE: Final = b"NATS/1.0 503"


class Pending(msgspec.Struct, eq=False):
    """
    An unacknowledged message.

    It is a struct, because a dataclass takes three times as long to make, and there is one for each message.

    Attributes:
        subject: Subject that it was published to.
        ack: Future of the acknowledgement, or of a DeliveryError.
    """

    subject: str
    ack: asyncio.Future[Any]

    @property
    def was_sent(self) -> bool:
        """Whether it was sent; the server cannot have denied an unsent message."""
        return True


P = TypeVar("P", bound=Pending)


class AckWindow(ABC, Generic[P]):
    """
    Bounded set of unacknowledged messages.

    Args:
        nc: An open connection.
        size: Maximum number of unacknowledged messages.

    Attributes:
        pending: Unacknowledged messages by the last token of their reply subjects; oldest first.
    """

    def __init__(self, nc: Client, size: int) -> None:
        self.nc = nc
        self.pending: dict[str, P] = {}
        self._size = size
        self._prefix = ""
        self._prefix_length = 0
        self._number = 0
        self._changed = asyncio.Event()
        self._denied: DeliveryError | None = None
        self._subscription: Subscription | None = None
        self._checker: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        return self._checker is not None

    @property
    def is_full(self) -> bool:
        return len(self.pending) >= self._size

    async def open(self, inbox: str) -> None:
        """
        Subscribe to acknowledgements.

        Args:
            inbox: First tokens of the reply subjects, without the last dot.

        Raises:
            DeliveryError: ``connection-closed``.
        """
        self._prefix = f"{inbox}."
        ConnectionWatch.of(self.nc).add(self._on_denial)
        self._prefix_length = len(self._prefix.encode())
        with delivery_errors("acknowledgements", self.nc):
            self._subscription = await subscribe_raw(self.nc, f"{self._prefix}*", self._on_reply)
        self._checker = asyncio.create_task(self._keep_checking())

    async def close(self) -> None:
        """Unsubscribe, and cancel the futures of pending messages."""
        checker, self._checker = self._checker, None
        if checker is not None:
            checker.cancel()
            await asyncio.gather(checker, return_exceptions=True)
        ConnectionWatch.of(self.nc).remove(self._on_denial)
        if self._subscription is not None:
            await unsubscribe_raw(self.nc, self._subscription)
        for item in self.pending.values():
            item.ack.cancel()

    async def wait_for_slot(self) -> None:
        """Wait until a message may be added."""
        while self.is_full:
            await self._wait()

    async def drain(self) -> None:
        """Wait until nothing is pending."""
        while self.pending:
            await self._wait()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            await self._check()
            if not self.is_full:
                self._changed.set()

    def _on_reply(self, subject: bytes, reply: bytes, data: bytes, block: bytes | None) -> None:
        token = subject[self._prefix_length :].decode("latin-1")
        if token in self.pending:  # else it was acknowledged or has failed
            self._receive(token, data, block or b"")

    # --- For subclasses -----------------------------------------------------------------------------------------------

    @abstractmethod
    def _receive(self, token: str, data: bytes, block: bytes) -> None:
        """
        Process a reply.

        Args:
            token: Token of the pending message that it is for.
            data: Its payload.
            block: Its header block, or ``b""``.
        """

    @abstractmethod
    async def _check(self) -> None:
        """Resend or fail messages that have waited too long; called ten times a second."""

    def _acknowledged(self, item: P, ack: Any) -> None:
        """Process an acknowledged message."""

    def _failed(self, item: P, error: DeliveryError) -> None:
        """Process a message that will not be acknowledged."""

    def _as_own(self, error: DeliveryError) -> DeliveryError:
        """Convert the error of a denied permission to the class that callers expect."""
        return error

    def _add(self, item: P) -> str:
        """Add a message, and return its token, the last one of its reply subject."""
        self._number += 1
        token = str(self._number)
        self.pending[token] = item
        return token

    def _drop(self, token: str) -> None:
        """Remove an unsent message; the caller gets the error."""
        item = self.pending.pop(token, None)
        if item is not None:
            item.ack.cancel()
            self._changed.set()

    def _finish(self, token: str, ack: Any) -> None:
        item = self.pending.pop(token)
        if not item.ack.done():
            item.ack.set_result(ack)
        self._acknowledged(item, ack)
        self._wake()

    def _fail(self, token: str, error: DeliveryError) -> None:
        item = self.pending.pop(token)
        if not item.ack.done():
            item.ack.set_exception(error)
            item.ack.exception()  # suppress "exception was never retrieved": _failed() reports it
        self._failed(item, error)
        self._wake()

    def _wake(self) -> None:
        """Wake those who wait for a slot, when half of the window is free: one by one, each wakes for one message."""
        if len(self.pending) <= self._size // 2:
            self._changed.set()

    def _fail_all(self, error: DeliveryError) -> None:
        for token in list(self.pending):
            self._fail(token, error)

    def _on_denial(self, denial: Denial) -> bool:
        """Fail the message that was denied, or all messages if acknowledgements cannot arrive."""
        inbox = f"{self._prefix}*"
        if denial.is_subscription(inbox):
            self._denied = self._as_own(denial.error(inbox))
            self._fail_all(self._denied)
            return True
        for token, item in self.pending.items():
            if item.was_sent and denial.is_publish(item.subject):
                self._fail(token, self._as_own(denial.error(item.subject)))
                return True
        return False


async def subscribe_raw(nc: Client, subject: str, hook: RawMessageHook) -> Subscription:
    """
    Subscribe, and call a function with each message as received, which takes a tenth of the time of a ``Msg``.

    Raises:
        nats.errors.Error: As ``nc.subscribe()`` does.
    """
    if SEES_RAW_MESSAGES:
        subscription = await nc.subscribe(subject, pending_msgs_limit=0, pending_bytes_limit=0)

        def count_and_call(subject: bytes, reply: bytes, data: bytes, block: bytes | None) -> None:
            nc.stats["in_msgs"] += 1
            nc.stats["in_bytes"] += len(data)
            hook(subject, reply, data, block)

        set_raw_message_hook(nc, subscription_id(subscription), count_and_call)
        return subscription

    async def receive(message: Msg) -> None:
        block = _NO_RESPONDERS_LINE if is_no_responders(message) else None
        hook(message.subject.encode(), message.reply.encode(), message.data, block)

    return await nc.subscribe(subject, cb=receive, pending_msgs_limit=0, pending_bytes_limit=0)


async def unsubscribe_raw(nc: Client, subscription: Subscription) -> None:
    """End a subscription of :func:`subscribe_raw`. Never raises."""
    if SEES_RAW_MESSAGES:
        set_raw_message_hook(nc, subscription_id(subscription), None)
    with suppress(nats.errors.Error, CeNatsError):
        await subscription.unsubscribe()


def is_no_responders(message: Msg) -> bool:
    """Return whether a reply is a no-responders status, which nats-py returns as a message without data."""
    return not message.data and (message.headers or {}).get("Status") == _NO_RESPONDERS


def reports_no_responders(data: bytes, block: bytes) -> bool:
    """Return whether payload and header block of a reply are a no-responders status."""
    return not data and block.startswith(_NO_RESPONDERS_LINE)
