"""
The connection of a program: one object for each, with all that this package adds to nats-py's.

nats-py passes errors that no operation raises to ``error_cb``. Here denied permissions are matched to pending
operations, which then fail with ``permission-denied``; other errors are passed on. nats-py does not notice if its read
loop ends; here the connection is closed then, and pending operations fail at once with the reason.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar, cast

import nats.errors
from nats.aio.client import Client

from ..._settings import DEFAULT_PREFIX
from ...errors import DeliveryError, ErrorCode, preview
from .._util.supervising import supervise
from ._ending import Closing, Ending
from ._messages import accept_malformed_messages
from ._permissions import Denial, Permissions, find_denial
from ._private import get, put
from ._reading import Reading, accept_late_pongs

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)

# The server closes the connection after this error. If a reload has lowered the limit, the client did not know it.
PAYLOAD_VIOLATION: Final = "maximum payload violation"
# No error is reported for a task that is cancelled because the event loop ends.
_CANCELLED_SECONDS: Final = 0.1
_CLOSE_SECONDS: Final = 2.0
# Attribute of nats-py's client.
_ATTRIBUTE: Final = "ce_nats_link"


class Link:
    """
    A connection; created by :meth:`of`.

    Attributes:
        nc: nats-py's client.
        reading: What it receives, before nats-py parses it.
        closing: What is called before it is closed.
        permissions: Denied operations.
        ending: Losses, and operations that fail when it is closed.
        dropped: How many messages nats-py has dropped, because too many waited, by number of the subscription.
        api_prefixes: Prefixes of JetStream's API that are used.
        context_prefix: The prefix of JetStream's API that the context of the connection has set, or the default.
    """

    def __init__(self, nc: Client) -> None:
        self.nc = nc
        self.api_prefixes: set[str] = set()
        self.context_prefix = DEFAULT_PREFIX
        # Replaced functions of nats-py, in this order.
        accept_malformed_messages(nc)
        accept_late_pongs(nc)
        self.reading = Reading(nc, self._note_reading_end)
        self.closing = Closing(nc)
        self._on_error = self._receive_error  # one object, by which it is recognized
        self._close_task: asyncio.Task[None] | None = None
        self._begin()
        setattr(nc, _ATTRIBUTE, self)

    def _begin(self) -> None:
        """Begin a connection: nats-py's ``connect()`` sets its callbacks, also if the client has connected before."""
        nc = self.nc
        self.permissions = Permissions(nc)
        self.ending = Ending(nc)
        self.dropped: dict[int, int] = {}
        self._shared: dict[object, object] = {}
        self._error_cb = get(nc, "_error_cb")
        self._reconnected_cb = get(nc, "_reconnected_cb")
        self._closed_cb = get(nc, "_closed_cb")
        put(nc, "_error_cb", self._on_error)
        put(nc, "_reconnected_cb", self._note_reconnect)
        put(nc, "_closed_cb", self._note_close)
        self.reading.watch()

    @classmethod
    def of(cls, nc: Client) -> Link:
        """Return that of a connection. It replaces the connection's callbacks, and calls them."""
        link = getattr(nc, _ATTRIBUTE, None)
        if link is None:
            return cls(nc)
        if get(nc, "_error_cb") is not link._on_error:
            link._begin()
        return cast(Link, link)

    def shared(self, kind: Callable[[Client], T]) -> T:
        """Return the object of a class that all operations of the connection share."""
        if kind not in self._shared:
            self._shared[kind] = kind(self.nc)
        return cast(T, self._shared[kind])

    async def _receive_error(self, error: Exception) -> None:
        text = str(error)
        if PAYLOAD_VIOLATION in text:
            self.ending.note_violation(error)
        if isinstance(error, nats.errors.SlowConsumerError):
            self._note_dropped(error)
        found = find_denial(text, self.reading.error_line)
        if found is not None:
            denial, original = found
            if self.permissions.notify(denial):
                return
            error = error if original == text else nats.errors.Error(original)
        await self._call_back(error)

    def _note_dropped(self, error: nats.errors.SlowConsumerError) -> None:
        self.dropped[error.sid] = count = self.dropped.get(error.sid, 0) + 1
        if str(count).strip("0") == "1":  # the first one, the tenth, and so on
            _log.warning(
                "subscription on %s: %d messages are lost so far: the program receives them too slowly, and more wait "
                "than nats-py keeps, by default 524288 or 128 MiB",
                preview(error.sub.subject),
                count,
            )

    async def _call_back(self, error: Exception) -> None:
        try:
            await self._error_cb(error)
        except (Exception, asyncio.CancelledError) as failure:  # would end nats-py's read loop
            if isinstance(failure, asyncio.CancelledError) and _is_cancelled():
                raise
            _log.exception("error_cb must not raise")

    async def _note_reconnect(self) -> None:
        self.ending.note_reconnect()
        self.reading.watch()
        if self._reconnected_cb is not None:
            await self._reconnected_cb()

    async def _note_close(self) -> None:
        self.ending.fail_waiting()
        if self._closed_cb is not None:
            await self._closed_cb()

    def _note_reading_end(self, cause: Exception | None) -> None:
        """Close a connection whose read loop has ended, which nats-py does not notice."""
        reason = "its task was cancelled" if cause is None else f"{type(cause).__name__}: {cause}"
        error = nats.errors.Error(f"nats: reading the connection ended: {reason}")
        error.__cause__ = cause

        def close() -> None:
            if self.nc.is_connected and not self.reading.is_running:
                self._close_task = supervise(self._close(error), "a connection", lambda _: self.ending.fail_waiting())

        asyncio.get_running_loop().call_later(_CANCELLED_SECONDS if cause is None else 0, close)

    async def _close(self, error: Exception) -> None:
        put(self.nc, "_err", error)
        await self._call_back(error)
        try:
            await asyncio.wait_for(self.nc.close(), _CLOSE_SECONDS)
        except Exception as failure:
            _log.debug("the connection could not be closed: %s", failure)
            self.ending.fail_waiting()


def _is_cancelled() -> bool:
    """Return whether the current task was cancelled; True if it has no count of that, as before Python 3.11."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is None or cancelling() > 0


@contextmanager
def denial(nc: Client, subject: str, inbox: str = "") -> Iterator[asyncio.Future[DeliveryError]]:
    """
    Yield a future that gets an error if the subject or the inbox of a request is denied, or the connection is closed.

    Raises:
        DeliveryError: ``permission-denied``: the inbox was denied before.
    """
    link = Link.of(nc)
    if not inbox:
        link.permissions.check_inbox()

    def error_of(denial: Denial) -> DeliveryError | None:
        replies = inbox or link.permissions.inbox
        if denial.is_publish(subject):
            return denial.error(subject)
        return denial.error(replies) if denial.is_subscription(replies) else None

    with _denied(link, subject, error_of) as failed:
        yield failed


@contextmanager
def _denied(
    link: Link, target: str, error_of: Callable[[Denial], DeliveryError | None]
) -> Iterator[asyncio.Future[DeliveryError]]:
    """Yield a future that gets the first error that a function returns for a denial, or that of a closed connection."""

    def listen(denial: Denial) -> bool:
        error = None if failed.done() else error_of(denial)
        if error is not None:
            failed.set_result(error)
        return error is not None

    with link.ending.until_closed(target) as failed:
        link.permissions.add(listen)
        try:
            yield failed
        finally:
            link.permissions.remove(listen)


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
            violation = Link.of(nc).ending.violation_since(began)
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
