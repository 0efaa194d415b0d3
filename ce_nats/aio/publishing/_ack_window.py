"""
Bounded set of unacknowledged messages, for JetStream and NATS Streaming.

Each message has a separate reply subject in one inbox, so that each reply identifies its message, also a no-responders
status of the server.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from ...errors import CeNatsError, DeliveryError
from .._errors import delivery_errors
from .._natspy import RawMessage, Receive, receive_raw, subscribe_raw, subscription_id
from .._permissions import ConnectionWatch, Denial
from .._util.supervising import failure, supervise

_log: Final = logging.getLogger(__name__)

_TICK_SECONDS: Final = 0.1
_NO_RESPONDERS_CODE: Final = "503"
# Header block of a no-responders status, as far as it is read.
NO_RESPONDERS: Final = b"NATS/1.0 503"


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

    If a background task fails, or the processing of a reply, then all messages fail, and so does each later one.

    Attributes:
        pending: Unacknowledged messages by the last token of their reply subjects; oldest first.
    """

    # Name of the owner, for errors of background tasks.
    _name: ClassVar[str] = "acknowledgements"

    def __init__(self, nc: Client, size: int) -> None:
        self.nc = nc
        self.pending: dict[str, P] = {}
        self._size = size
        self._prefix = ""
        self._prefix_length = 0
        self._number = 0
        self._changed = asyncio.Event()
        # Error of each further message: acknowledgements cannot arrive, or a background task has failed.
        self._failure: DeliveryError | None = None
        self._subscription: Subscription | None = None
        self._is_open = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def is_full(self) -> bool:
        return len(self.pending) >= self._size

    async def open(self, inbox: str) -> None:
        """
        Subscribe to acknowledgements.

        ``inbox``: First tokens of the reply subjects, without the last dot.

        Raises:
            DeliveryError: ``connection-closed``.
        """
        self._prefix = f"{inbox}."
        self._prefix_length = len(self._prefix.encode())
        watch = ConnectionWatch.of(self.nc)
        watch.add(self._on_denied)
        try:
            with delivery_errors("acknowledgements", self.nc):
                self._subscription = await subscribe_replies(self.nc, f"{self._prefix}*", self._on_replies)
        except BaseException:
            watch.remove(self._on_denied)
            raise
        self._is_open = True
        self.start_task(self._keep_checking())

    async def close(self) -> None:
        """Unsubscribe, and cancel the futures of pending messages."""
        self._is_open = False
        ConnectionWatch.of(self.nc).remove(self._on_denied)
        for item in self.pending.values():
            item.ack.cancel()
        self._changed.set()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        # All of the above was done before this task can be cancelled, and so is the first part of the following.
        if self._subscription is not None:
            await unsubscribe_replies(self.nc, self._subscription)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def wait_for_slot(self) -> None:
        """Wait until a message may be added, or the window is closed."""
        while self.is_full and self._is_open:
            await self._wait()

    async def drain(self) -> None:
        """Wait until nothing is pending, or the window is closed."""
        while self.pending and self._is_open:
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

    # --- Failures -----------------------------------------------------------------------------------------------------

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a background task until it ends, or the window is closed."""
        task = supervise(work, self._name, self._abort)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def guard(self, call: Callable[[], None]) -> None:
        """
        Call a function that the event loop or nats-py has called.

        An exception would end nats-py's reading task, or only be logged.
        """
        try:
            call()
        except (Exception, asyncio.CancelledError) as error:
            self._abort(failure(self._name, error))

    def _abort(self, error: DeliveryError) -> None:
        """Fail all messages, and each later one, after a fault of this program."""
        self._failure = self._as_own(error)
        for token in list(self.pending):
            try:
                self._fail(token, self._failure)
            except (Exception, asyncio.CancelledError):
                _log.exception("%s: a failed message could not be reported", self._name)
        self._changed.set()

    def _on_replies(self, messages: list[RawMessage]) -> None:
        pending, length = self.pending, self._prefix_length
        try:  # as guard() does; after an error nothing is pending any more
            for subject, _, data, block in messages:
                token = subject[length:].decode("latin-1")
                if token in pending:  # else it was acknowledged or has failed
                    self._receive(token, data, block or b"")
        except (Exception, asyncio.CancelledError) as error:
            self._abort(failure(self._name, error))

    def _on_denied(self, denial: Denial) -> bool:
        try:
            return self._on_denial(denial)
        except (Exception, asyncio.CancelledError) as error:
            self._abort(failure(self._name, error))
            return True

    # --- For subclasses -----------------------------------------------------------------------------------------------

    @abstractmethod
    def _receive(self, token: str, data: bytes, block: bytes) -> None:
        """Process a reply."""

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
            self._failure = self._as_own(denial.error(inbox))
            self._fail_all(self._failure)
            return True
        for token, item in self.pending.items():
            if item.was_sent and denial.is_publish(item.subject):
                self._fail(token, self._as_own(denial.error(item.subject)))
                return True
        return False


async def subscribe_replies(nc: Client, subject: str, receive: Receive) -> Subscription:
    """
    Subscribe, and call a function with all messages as received, many at once.

    If the caller is cancelled, the subscription is ended. nats-py ignores a cancellation, and leaves it open.

    ``receive``: The function. It must not raise, because nats-py's reading task calls it.
    """
    opening = asyncio.ensure_future(subscribe_raw(nc, subject, receive))
    try:
        await asyncio.wait((opening,))
    except BaseException:
        opening.add_done_callback(partial(_abandon, nc))
        opening.cancel()
        raise
    return opening.result()


# References to tasks that end abandoned subscriptions: the event loop has none.
_endings: Final[set[asyncio.Task[None]]] = set()


def _abandon(nc: Client, opening: asyncio.Task[Subscription]) -> None:
    """End a subscription that the caller did not wait for."""
    if not opening.cancelled() and opening.exception() is None:
        ending = asyncio.ensure_future(unsubscribe_replies(nc, opening.result()))
        _endings.add(ending)
        ending.add_done_callback(_endings.discard)


async def unsubscribe_replies(nc: Client, subscription: Subscription) -> None:
    """End a subscription of :func:`subscribe_replies`; nats-py drops what arrives later. Never raises."""
    receive_raw(nc, subscription_id(subscription), None)
    with suppress(nats.errors.Error, CeNatsError):
        await subscription.unsubscribe()


def is_no_responders(message: Msg) -> bool:
    """Return whether a reply is a no-responders status, which nats-py returns as a message without data."""
    return not message.data and (message.headers or {}).get("Status") == _NO_RESPONDERS_CODE


def reports_no_responders(data: bytes, block: bytes) -> bool:
    """Return whether payload and header block of a reply are a no-responders status."""
    return not data and block.startswith(NO_RESPONDERS)
