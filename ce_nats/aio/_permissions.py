"""
Match permission errors of a connection to the operations that caused them, and detect lost connections.

A server reports a denied PUB or SUB only by an error with the subject: without this module a request waits until its
timeout, and an acknowledgement or a publish seems to have been sent. nats-py passes such errors only to ``error_cb``.
Here they are matched to pending operations, which then fail with ``permission-denied``. Other errors are passed to
``error_cb``.

nats-py fails neither a request nor a ``flush()`` when the connection is closed, and does not notice if its read loop
ends. Here the connection is closed then, and pending operations fail at once with the reason.

nats-py converts error texts to lower case. The subject in its original case is read from nats-py's buffer; if that is
not possible, subjects are compared case-insensitively.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeAlias, TypeVar, cast

import nats.errors
from nats.aio.client import Client

from ..errors import DeliveryError, ErrorCode, preview
from ._natspy import (
    accept_late_pongs,
    accept_malformed_messages,
    closed_callback,
    error_callback,
    error_line,
    is_reading,
    on_closed,
    on_error,
    on_reading_end,
    on_reconnect,
    reconnect_callback,
    request_inbox,
    set_last_error,
)
from ._util.supervising import supervise

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)

# "nats: permissions violation for publish to "orders.paid"", "... for subscription to "a.*" using queue "q"".
_VIOLATION: Final = re.compile(r'permissions violation for (publish|subscription)[a-z ]* "((?:[^"\\]|\\.)*)"')
_ESCAPE: Final = re.compile(r'\\(["\\])')
_ANY_VIOLATION: Final = "permissions violation"
# The server closes the connection after this error. If a reload has lowered the limit, the client did not know it.
PAYLOAD_VIOLATION: Final = "maximum payload violation"
# No error is reported for a task that is cancelled because the event loop ends.
_CANCELLED_SECONDS: Final = 0.1
_CLOSE_SECONDS: Final = 2.0


class Denial(NamedTuple):
    """
    Operation that the server refused because the user lacks permission.

    Attributes:
        operation: ``publish`` or ``subscription``.
        subject: Subject in the server's error, in lower case.
        original: The subject in its original case; ``""`` if that is unknown.
    """

    operation: str
    subject: str
    original: str = ""

    def is_publish(self, subject: str) -> bool:
        """Return whether publishing to a subject was denied."""
        return self.operation == "publish" and self._is_on(subject)

    def is_subscription(self, subject: str) -> bool:
        """Return whether subscribing to a subject was denied."""
        return self.operation == "subscription" and self._is_on(subject)

    def _is_on(self, subject: str) -> bool:
        return self.original == subject if self.original else self.subject == subject.lower()

    def error(self, subject: str = "") -> DeliveryError:
        """Return the error of the operation."""
        verb = "publish" if self.operation == "publish" else "subscribe"
        known = subject or self.original or self.subject
        return DeliveryError(ErrorCode.PERMISSION_DENIED, f"the server denies permission to {verb} to {known!r}")


# Returns True if it has handled the denial, so that error_cb is not called.
Listener: TypeAlias = Callable[[Denial], bool]


class ConnectionWatch:
    """Errors of one connection; created by :meth:`of`."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._listeners: dict[Listener, None] = {}
        # Denied publishes that no operation awaits, until flush() raises: the first one, and their number.
        self._first_denied: Denial | None = None
        self._number_denied = 0
        self._denied_inbox = ("", 0)
        self._dropped: dict[int, int] = {}  # by number of the subscription
        # nats-py keeps the last error after a reconnect.
        self._past_error = None if nc.is_closed else nc.last_error
        # Operations that fail when the connection is closed, with the target for the error text.
        self._waiting: dict[asyncio.Future[DeliveryError], str] = {}
        self._closing: asyncio.Task[None] | None = None
        self._shared: dict[object, object] = {}
        # The last violation after which the connection was restored, and its time.
        self._violation: Exception | None = None
        self._violated_at = 0.0
        self._error_cb = error_callback(nc)
        self._reconnected_cb = reconnect_callback(nc)
        self._closed_cb = closed_callback(nc)
        on_error(nc, self._receive_error)
        on_reconnect(nc, self._note_reconnect)
        on_closed(nc, self._note_close)
        accept_malformed_messages(nc)
        accept_late_pongs(nc)
        on_reading_end(nc, self._note_reading_end)

    @classmethod
    def of(cls, nc: Client) -> ConnectionWatch:
        """Return the watch of a connection. It replaces the connection's ``error_cb``, and calls it."""
        owner = getattr(error_callback(nc), "__self__", None)
        return owner if isinstance(owner, cls) else cls(nc)

    def shared(self, kind: Callable[[Client], T]) -> T:
        """Return the object of a class that all operations of the connection share."""
        if kind not in self._shared:
            self._shared[kind] = kind(self._nc)
        return cast(T, self._shared[kind])

    def add(self, listener: Listener) -> None:
        """Call a listener with each denial, until it is removed."""
        self._listeners[listener] = None

    def remove(self, listener: Listener) -> None:
        """Remove a listener. Has no effect if it was not added."""
        self._listeners.pop(listener, None)

    def check_publishes(self) -> None:
        """
        Raise each denial of a publish that no operation awaits, once.

        Raises:
            DeliveryError: ``permission-denied``.
        """
        if self._first_denied is None:
            return
        error, further = self._first_denied.error(), self._number_denied - 1
        self._first_denied, self._number_denied = None, 0
        raise DeliveryError(error.code, f"{error.message} (and {further} more)") if further else error

    def check_inbox(self) -> None:
        """
        Raise if replies to requests cannot arrive, because the inbox is denied.

        Raises:
            DeliveryError: ``permission-denied``.
        """
        inbox, reconnects = self._denied_inbox
        if inbox and inbox == self.inbox.lower() and reconnects == self._nc.stats["reconnects"]:
            raise Denial("subscription", inbox).error(self.inbox)

    def dropped(self, sid: int) -> int:
        """Return how many messages of a subscription nats-py has dropped, because too many waited."""
        return self._dropped.get(sid, 0)

    @property
    def loss(self) -> Exception | None:
        """Error by which the connection was lost permanently; None if it is open, or the program has closed it."""
        error = self._nc.last_error
        if not self._nc.is_closed or error is None or error is self._past_error:
            return None
        return None if _ANY_VIOLATION in str(error) else error

    @property
    def inbox(self) -> str:
        """Subject that nats-py has subscribed to for replies to requests, or ``""``."""
        return request_inbox(self._nc)

    def violation_since(self, moment: float) -> str:
        """Return a text for an error if the server ended the connection for a violation since a moment, or ``""``."""
        return f"; the connection was lost: {self._violation}" if self._violated_at > moment else ""

    def closed_error(self, target: str) -> DeliveryError:
        """Return the error of an operation on a closed connection."""
        loss = self.loss
        text = f"{target}: the connection was closed" + (f": {loss}" if loss else "")
        error = DeliveryError(ErrorCode.CONNECTION_CLOSED, text)
        error.__cause__ = loss
        return error

    @contextmanager
    def until_closed(self, target: str) -> Iterator[asyncio.Future[DeliveryError]]:
        """Yield a future that gets :meth:`closed_error` if the connection is closed during the block."""
        failed: asyncio.Future[DeliveryError] = asyncio.get_running_loop().create_future()
        self._waiting[failed] = target
        try:
            yield failed
        finally:
            del self._waiting[failed]
            failed.cancel()

    async def _receive_error(self, error: Exception) -> None:
        text = str(error)
        found = _VIOLATION.search(text)
        if PAYLOAD_VIOLATION in text:
            self._violation, self._violated_at = error, time.monotonic()
        if isinstance(error, nats.errors.SlowConsumerError):
            self._note_dropped(error)
        if found is None:
            await self._call_back(error)
            return
        original = self._original(text, found)
        denial = Denial(found[1], _unquoted(found[2]), _unquoted(original))
        if original:
            error = nats.errors.Error(f"{text[: found.start(2)]}{original}{text[found.end(2) :]}")
        if self._notify(denial):
            return
        if denial.operation == "publish":
            self._first_denied = self._first_denied or denial
            self._number_denied += 1
        await self._call_back(error)

    def _note_dropped(self, error: nats.errors.SlowConsumerError) -> None:
        self._dropped[error.sid] = count = self.dropped(error.sid) + 1
        if str(count).strip("0") == "1":  # the first one, the tenth, and so on
            _log.warning(
                "subscription on %s: %d messages are lost so far: the program receives them too slowly, and more wait "
                "than nats-py keeps, by default 524288 or 128 MiB",
                preview(error.sub.subject),
                count,
            )

    def _original(self, text: str, found: re.Match[str]) -> str:
        """Return the subject of a violation in its original case; ``""`` if that is unknown."""
        original = f"nats: {error_line(self._nc)}"
        # Some characters have a lower case of another length.
        return (
            original[found.start(2) : found.end(2)] if original.lower() == text and len(original) == len(text) else ""
        )

    async def _call_back(self, error: Exception) -> None:
        try:
            await self._error_cb(error)
        except (Exception, asyncio.CancelledError) as failure:  # would end nats-py's read loop
            if isinstance(failure, asyncio.CancelledError) and _is_cancelled():
                raise
            _log.exception("error_cb must not raise")

    def _notify(self, denial: Denial) -> bool:
        """Call listeners until one handles a denied publish; a denied subscription may concern several of them."""
        if denial.is_subscription(self.inbox):
            self._denied_inbox = (denial.subject, self._nc.stats["reconnects"])
        is_handled = False
        # The latest first: a request is part of the operation of an earlier listener.
        for listener in reversed(list(self._listeners)):
            is_handled |= listener(denial)
            if is_handled and denial.operation == "publish":
                break
        return is_handled

    async def _note_reconnect(self) -> None:
        self._past_error = self._nc.last_error
        if self._reconnected_cb is not None:
            await self._reconnected_cb()

    async def _note_close(self) -> None:
        self._fail_waiting()
        if self._closed_cb is not None:
            await self._closed_cb()

    def _fail_waiting(self) -> None:
        for failed, target in self._waiting.items():
            if not failed.done():
                failed.set_result(self.closed_error(target))

    def _note_reading_end(self, cause: Exception | None) -> None:
        """Close a connection whose read loop has ended, which nats-py does not notice."""
        reason = "its task was cancelled" if cause is None else f"{type(cause).__name__}: {cause}"
        error = nats.errors.Error(f"nats: reading the connection ended: {reason}")
        error.__cause__ = cause

        def close() -> None:
            if self._nc.is_connected and not is_reading(self._nc):
                self._closing = supervise(self._close(error), "a connection", self._fail_closing)

        asyncio.get_running_loop().call_later(_CANCELLED_SECONDS if cause is None else 0, close)

    async def _close(self, error: Exception) -> None:
        set_last_error(self._nc, error)
        await self._call_back(error)
        try:
            await asyncio.wait_for(self._nc.close(), _CLOSE_SECONDS)
        except Exception as failure:
            _log.debug("the connection could not be closed: %s", failure)
            self._fail_waiting()

    def _fail_closing(self, error: DeliveryError) -> None:
        self._fail_waiting()


def _is_cancelled() -> bool:
    """Return whether the current task was cancelled; True if it has no count of that, as before Python 3.11."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is None or cancelling() > 0


def _unquoted(subject: str) -> str:
    return _ESCAPE.sub(r"\1", subject)


@contextmanager
def denial(nc: Client, subject: str, inbox: str = "") -> Iterator[asyncio.Future[DeliveryError]]:
    """
    Yield a future that gets an error if the subject or the inbox of a request is denied, or the connection is closed.

    Raises:
        DeliveryError: ``permission-denied``: the inbox was denied before.
    """
    watch = ConnectionWatch.of(nc)
    if not inbox:
        watch.check_inbox()

    def error_of(denial: Denial) -> DeliveryError | None:
        replies = inbox or watch.inbox
        if denial.is_publish(subject):
            return denial.error(subject)
        return denial.error(replies) if denial.is_subscription(replies) else None

    with _denied(watch, subject, error_of) as failed:
        yield failed


@contextmanager
def _denied(
    watch: ConnectionWatch, target: str, error_of: Callable[[Denial], DeliveryError | None]
) -> Iterator[asyncio.Future[DeliveryError]]:
    """Yield a future that gets the first error that a function returns for a denial, or that of a closed connection."""

    def listen(denial: Denial) -> bool:
        error = None if failed.done() else error_of(denial)
        if error is not None:
            failed.set_result(error)
        return error is not None

    with watch.until_closed(target) as failed:
        watch.add(listen)
        try:
            yield failed
        finally:
            watch.remove(listen)


async def answered(nc: Client, subject: str, request: Callable[[], Awaitable[T]], inbox: str = "") -> T:
    """
    Send a request, and return its result; fail as soon as the server denies it, or the connection is closed.

    Raises:
        DeliveryError: ``permission-denied``: the subject, or the inbox for replies; ``connection-closed``; ``timeout``,
            if the server has closed the connection in the meantime.
        Exception: Any exception of ``request``.
    """
    began = time.monotonic()
    with denial(nc, subject, inbox) as failed:
        try:
            return await result_unless(failed, request)
        except asyncio.TimeoutError as error:
            violation = ConnectionWatch.of(nc).violation_since(began)
            if not violation:
                raise
            raise DeliveryError(ErrorCode.TIMEOUT, f"{subject}: no answer came in time{violation}") from error


async def result_unless(failed: asyncio.Future[DeliveryError], request: Callable[[], Awaitable[T]]) -> T:
    """
    Call a function and return its result, unless a future gets an error first.

    Raises:
        DeliveryError: The error of the future.
        Exception: Any exception of ``request``.
    """
    task = asyncio.ensure_future(request())
    try:
        await asyncio.wait((task, failed), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise failed.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        elif not task.cancelled():
            task.exception()  # otherwise it is logged, if this task was cancelled meanwhile
