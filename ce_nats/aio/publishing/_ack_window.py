"""
Published messages without an acknowledgement, at most so many at a time: what JetStream and NATS Streaming share.

Each message has a reply subject of its own below one inbox, so that every answer names its message, that of NATS itself
to a message without a receiver included.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from ...errors import CeNatsError, DeliveryError
from .._errors import delivery_errors
from .._permissions import ConnectionWatch, Denial

_TICK_SECONDS: Final = 0.1
_NO_RESPONDERS: Final = "503"


@dataclass(slots=True, eq=False)
class Pending:
    """
    A published message without an acknowledgement.

    Attributes:
        subject: What it was published to.
        ack: Gets what the acknowledgement says, or a DeliveryError.
    """

    subject: str
    ack: asyncio.Future[Any]

    @property
    def was_sent(self) -> bool:
        """Whether it left; one that has not cannot have been denied."""
        return True


P = TypeVar("P", bound=Pending)


class AckWindow(ABC, Generic[P]):
    """
    At most so many messages without an acknowledgement.

    Args:
        nc: An open connection.
        size: Most messages without an acknowledgement.

    Attributes:
        pending: Messages without an acknowledgement, by the last token of their reply subjects; oldest first.
    """

    def __init__(self, nc: Client, size: int) -> None:
        self.nc = nc
        self.pending: dict[str, P] = {}
        self._size = size
        self._prefix = ""
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
            inbox: First tokens of their subjects, without the last dot.

        Raises:
            DeliveryError: ``connection-closed``.
        """
        self._prefix = f"{inbox}."
        ConnectionWatch.of(self.nc).add(self._on_denial)
        with delivery_errors("acknowledgements", self.nc):
            self._subscription = await self.nc.subscribe(
                f"{self._prefix}*", cb=self._receive, pending_msgs_limit=0, pending_bytes_limit=0
            )
        self._checker = asyncio.create_task(self._keep_checking())

    async def close(self) -> None:
        """Unsubscribe; the futures of what is still pending are cancelled."""
        checker, self._checker = self._checker, None
        if checker is not None:
            checker.cancel()
            await asyncio.gather(checker, return_exceptions=True)
        ConnectionWatch.of(self.nc).remove(self._on_denial)
        if self._subscription is not None:
            with suppress(nats.errors.Error, CeNatsError):
                await self._subscription.unsubscribe()
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

    # --- For classes derived from this --------------------------------------------------------------------------------

    @abstractmethod
    async def _receive(self, answer: Msg) -> None:
        """Called with every answer."""

    @abstractmethod
    async def _check(self) -> None:
        """Called ten times a second: what waits for too long is sent again, or fails."""

    def _acknowledged(self, item: P, ack: Any) -> None:
        """Called with each message that was acknowledged."""

    def _failed(self, item: P, error: DeliveryError) -> None:
        """Called with each message that will not be acknowledged."""

    def _as_own(self, error: DeliveryError) -> DeliveryError:
        """A denied permission, as an error of the class that callers expect."""
        return error

    def _add(self, item: P) -> str:
        """Add a message; returns its token, which follows the prefix in its reply subject."""
        self._number += 1
        token = str(self._number)
        self.pending[token] = item
        return token

    def _drop(self, token: str) -> None:
        """Take back a message that could not be sent; its sender gets the error."""
        item = self.pending.pop(token, None)
        if item is not None:
            item.ack.cancel()
            self._changed.set()

    def _token(self, answer: Msg) -> str | None:
        """The token of the message that an answer is for; None where it is not pending any more."""
        token = answer.subject[len(self._prefix) :]
        return token if token in self.pending else None

    def _finish(self, token: str, ack: Any) -> None:
        item = self.pending.pop(token)
        if not item.ack.done():
            item.ack.set_result(ack)
        self._acknowledged(item, ack)
        self._changed.set()

    def _fail(self, token: str, error: DeliveryError) -> None:
        item = self.pending.pop(token)
        if not item.ack.done():
            item.ack.set_exception(error)
            item.ack.exception()  # not everybody looks at every future, and _failed() is called
        self._failed(item, error)
        self._changed.set()

    def _fail_all(self, error: DeliveryError) -> None:
        for token in list(self.pending):
            self._fail(token, error)

    def _on_denial(self, denial: Denial) -> bool:
        """Fail the message that is denied, or all of them where no acknowledgement can come."""
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


def is_no_responders(message: Msg) -> bool:
    """Whether this is NATS's own answer to a message without a receiver, of which nats-py makes one without data."""
    return not message.data and (message.headers or {}).get("Status") == _NO_RESPONDERS
