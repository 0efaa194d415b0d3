"""Messages whose replies are awaited: which ones, how many there may be, and what a reply means to them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Generic, TypeVar

import msgspec

from ..errors import DeliveryError
from ._reply_inbox import Replies, ReplyInbox
from ._util.supervising import failure, supervise
from .link._frame_splitter import RawMessage
from .link._permissions import Denial

_log: Final = logging.getLogger(__name__)

_TICK_SECONDS: Final = 0.1


class Pending(msgspec.Struct, eq=False):
    """
    A message whose reply is awaited.

    It is a struct, because a dataclass takes three times as long to make, and there is one for each message.

    Attributes:
        token: Last token of its reply subject.
        subject: Subject that it was published to.
        due: Time at which the message is due without a reply, in seconds of ``time.monotonic()``.
    """

    token: str
    subject: str
    due: float

    @property
    def was_sent(self) -> bool:
        """Whether it was sent; the server cannot have denied an unsent message."""
        return True


P = TypeVar("P", bound=Pending)
T = TypeVar("T")


class Unacknowledged(Generic[P]):
    """
    Messages whose replies are awaited, at most ``size``.

    Attributes:
        items: The messages by token, oldest first.
        failure: Error of each further message: replies cannot arrive, or this package has a fault.
    """

    def __init__(self, size: int) -> None:
        self.items: dict[str, P] = {}
        self.failure: DeliveryError | None = None
        self._size = size
        self._number = 0

    def new_token(self) -> str:
        """Return the token of the next message."""
        self._number += 1
        return str(self._number)

    def add(self, item: P) -> P:
        """Add a message."""
        self.items[item.token] = item
        return item

    @property
    def room(self) -> int:
        """Number of messages that may be added."""
        return self._size - len(self.items)

    @property
    def is_half_free(self) -> bool:
        """Whether there is room for half of all messages: one by one, each sender would wake for one message."""
        return len(self.items) <= self._size // 2

    def due(self, now: float) -> list[P]:
        """Return the messages that are due."""
        return [item for item in self.items.values() if item.due <= now]

    def denied(self, denial: Denial) -> P | None:
        """Return the oldest message that a denial may refer to; the server has received the others before."""
        return next((item for item in self.items.values() if item.was_sent and denial.is_publish(item.subject)), None)


class ReplyWindow(Generic[P]):
    """
    Messages whose replies are awaited, with the replies that arrive for them.

    If replies cannot arrive, or one of the functions or a background task raises an exception, then all messages fail,
    and so does each later one.

    ``read`` returns what a reply means to a message: its outcome, or None to wait for a further reply. ``check`` is
    called ten times a second with the time, to resend or finish messages that are due. ``done`` is called with each
    outcome. ``denied`` replaces :meth:`deny`.

    Attributes:
        unacknowledged: The messages.
        is_open: Whether replies are received.
    """

    def __init__(
        self,
        size: int,
        *,
        name: str,
        read: Callable[[P, bytes, bytes], Any],
        check: Callable[[float], None],
        done: Callable[[P, Any], None],
        denied: Callable[[Denial], bool] | None = None,
    ) -> None:
        self.unacknowledged: Unacknowledged[P] = Unacknowledged(size)
        self.is_open = False
        self._name = name
        self._read = read
        self._check = check
        self._done = done
        self._denied = denied or self.deny
        self._replies: Replies | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def prefix(self) -> str:
        """Beginning of the reply subjects, before the token."""
        return "" if self._replies is None else self._replies.prefix

    @property
    def is_full(self) -> bool:
        return self.unacknowledged.room <= 0

    async def open(self, inbox: ReplyInbox) -> None:
        """
        Begin to receive replies.

        Raises:
            DeliveryError: ``connection-closed``.
        """
        self._replies = Replies(inbox, self._name, self._receive, denied=self._denied, fail=self.fail)
        await self._replies.open()
        self.is_open = True
        self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)

    async def close(self) -> None:
        """Receive no further replies, and end background tasks; messages without a reply stay as they are."""
        self.is_open = False
        if self._replies is not None:
            self._replies.close()
        if self._timer is not None:
            self._timer.cancel()
        self._changed.set()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    async def wait_while(self, condition: Callable[[], object]) -> None:
        """Wait as long as a condition is true, which is checked when messages have ended, or until it is closed."""
        while condition() and self.is_open:
            self._changed.clear()
            await self._changed.wait()

    async def wait_for_slot(self) -> None:
        """Wait until a message may be added, or the window is closed."""
        await self.wait_while(lambda: self.is_full)

    async def drain(self) -> None:
        """Wait until all messages have ended, or the window is closed."""
        await self.wait_while(lambda: self.unacknowledged.items)

    # --- Messages -----------------------------------------------------------------------------------------------------

    def finish(self, item: P, outcome: Any) -> None:
        """End a message, unless it has ended."""
        if self.unacknowledged.items.pop(item.token, None) is not None:
            self._done(item, outcome)
            self.wake()

    def drop(self, item: P) -> None:
        """Remove an unsent message; its sender gets the error."""
        if self.unacknowledged.items.pop(item.token, None) is not None:
            self._changed.set()

    def wake(self) -> None:
        """Wake those who wait, if there is room for many."""
        if self.unacknowledged.is_half_free:
            self._changed.set()

    def deny(self, denial: Denial) -> bool:
        """Fail the message that was denied; return whether there is one."""
        item = self.unacknowledged.denied(denial)
        if item is not None:
            self.finish(item, denial.error(item.subject))
        return item is not None

    def fail(self, error: DeliveryError) -> None:
        """Fail all messages, and each later one. Never raises."""
        self.unacknowledged.failure = error
        self.finish_all(error)

    def finish_all(self, error: DeliveryError) -> None:
        """Fail all messages; there may be later ones. Never raises."""
        for item in list(self.unacknowledged.items.values()):
            try:
                self.finish(item, error)
            except (Exception, asyncio.CancelledError):
                _log.exception("%s: a failed message could not be reported", self._name)
        self._changed.set()

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a background task until it ends, or the window is closed."""
        task = supervise(work, self._name, self.fail)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def guard(self, call: Callable[[], None]) -> bool:
        """Call a function for the event loop; return whether it has succeeded: its exception fails all messages."""
        try:
            call()
        except (Exception, asyncio.CancelledError) as error:
            self.fail(failure(self._name, error))
            return False
        return True

    def _receive(self, messages: list[RawMessage]) -> None:
        items, read, length = self.unacknowledged.items, self._read, len(self.prefix.encode())
        for subject, _, data, block in messages:
            item = items.get(subject[length:].decode("latin-1"))
            if item is None:  # it has an outcome
                continue
            outcome = read(item, data, block or b"")
            if outcome is not None:
                self.finish(item, outcome)

    def _tick(self) -> None:
        if not self.guard(partial(self._check, time.monotonic())):
            return
        if not self.is_full:
            self._changed.set()
        if self.is_open:
            self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)


def set_outcome(future: asyncio.Future[T], outcome: T | DeliveryError) -> None:
    """Set the outcome of a message, unless its future was cancelled; an error need not be awaited."""
    if future.done():
        return
    if isinstance(outcome, DeliveryError):
        future.set_exception(outcome)
        future.exception()  # otherwise asyncio logs it if the future is not awaited
    else:
        future.set_result(outcome)
