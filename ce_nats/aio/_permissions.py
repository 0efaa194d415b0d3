"""
Match errors of a connection with the operations that they concern, and tell a lost connection from a closed one.

A server answers a forbidden PUB or SUB only with an error that names the subject: a request waits until its timeout, an
acknowledgement or a plain publish seems to have been sent. nats-py gives such errors to ``error_cb`` only. Here they
are matched with the pending operations, which fail with ``permission-denied``. Other errors go to ``error_cb`` as
before.

nats-py fails neither a request nor a ``flush()`` when the connection is closed, and does not notice if its read loop
ends. Here the connection is closed then, and what waits for an answer fails at once with the reason.

nats-py has the text of errors in lower case, so subjects are compared without regard to case.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeAlias, TypeVar

import nats.errors
from nats.aio.client import Client

from ..errors import DeliveryError, ErrorCode
from ._natspy import (
    accept_late_pongs,
    accept_malformed_messages,
    closed_callback,
    error_callback,
    is_reading,
    on_closed,
    on_error,
    on_reading_end,
    on_reconnect,
    reconnect_callback,
    request_inbox,
    set_last_error,
)

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)

# "nats: permissions violation for publish to "orders.paid"", "... for subscription to "a.*" using queue "q"".
_VIOLATION: Final = re.compile(r'permissions violation for (publish|subscription)[a-z ]* "((?:[^"\\]|\\.)*)"')
_ANY_VIOLATION: Final = "permissions violation"
# The server closes the connection after it, although the client knew of no such limit, if a reload has lowered it.
PAYLOAD_VIOLATION: Final = "maximum payload violation"
# A task that is cancelled because the event loop ends needs no error.
_CANCELLED_SECONDS: Final = 0.1
_CLOSE_SECONDS: Final = 2.0


class Denial(NamedTuple):
    """
    An operation that the server refused because the user lacks permission.

    Attributes:
        operation: ``publish`` or ``subscription``.
        subject: The subject that the server named, in lower case.
    """

    operation: str
    subject: str

    def is_publish(self, subject: str) -> bool:
        """Whether publishing to a subject was denied."""
        return self.operation == "publish" and self.subject == subject.lower()

    def is_subscription(self, subject: str) -> bool:
        """Whether subscribing to a subject was denied."""
        return self.operation == "subscription" and self.subject == subject.lower()

    def error(self, subject: str = "") -> DeliveryError:
        """
        The error of the operation.

        Args:
            subject: The subject in its own case, where that is known.
        """
        verb = "publish" if self.operation == "publish" else "subscribe"
        return DeliveryError(
            ErrorCode.PERMISSION_DENIED, f"the server denies permission to {verb} to {(subject or self.subject)!r}"
        )


# Returns True where the denial concerns it, so that error_cb is not called.
Listener: TypeAlias = Callable[[Denial], bool]


class ConnectionWatch:
    """
    The errors of one connection; made by :meth:`of`.

    Args:
        nc: An open connection.
    """

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._listeners: dict[Listener, None] = {}
        # Denied publishes that no operation awaits, until flush() raises: the first one, and how many there are.
        self._first_denied: Denial | None = None
        self._number_denied = 0
        self._denied_inbox = ("", 0)
        # nats-py keeps the last error after a reconnect.
        self._past_error = None if nc.is_closed else nc.last_error
        # Operations that fail when the connection is closed, and what their errors are about.
        self._waiting: dict[asyncio.Future[DeliveryError], str] = {}
        self._closing: asyncio.Task[None] | None = None
        # The last violation after which the connection was restored, and when.
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
        """The watch of a connection. It replaces the connection's ``error_cb``, and calls it."""
        owner = getattr(error_callback(nc), "__self__", None)
        return owner if isinstance(owner, cls) else cls(nc)

    def add(self, listener: Listener) -> None:
        """Call a listener with each denial, until it is removed."""
        self._listeners[listener] = None

    def remove(self, listener: Listener) -> None:
        """Remove a listener; does nothing where it is not there."""
        self._listeners.pop(listener, None)

    def check_publishes(self) -> None:
        """
        Raise denials of publishes that no operation awaits, once.

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
        Raise where no answer to a request can arrive, because its inbox is denied.

        Raises:
            DeliveryError: ``permission-denied``.
        """
        inbox, reconnects = self._denied_inbox
        if inbox and inbox == self.inbox.lower() and reconnects == self._nc.stats["reconnects"]:
            raise Denial("subscription", inbox).error(self.inbox)

    @property
    def loss(self) -> Exception | None:
        """Why the connection was lost for good, or None: it is open, or the program has closed it."""
        error = self._nc.last_error
        if not self._nc.is_closed or error is None or error is self._past_error:
            return None
        return None if _ANY_VIOLATION in str(error) else error

    @property
    def inbox(self) -> str:
        """The subject that nats-py has subscribed to for answers to requests, or ``""``."""
        return request_inbox(self._nc)

    def violation_since(self, moment: float) -> str:
        """
        Why the server has closed the connection since a moment, as an addition to an error; else ``""``.

        Args:
            moment: In seconds of ``time.monotonic()``.
        """
        return f"; the connection was lost: {self._violation}" if self._violated_at > moment else ""

    def closed_error(self, target: str) -> DeliveryError:
        """
        The error of an operation on a closed connection.

        Args:
            target: A subject, stream or consumer, for the message.
        """
        loss = self.loss
        text = f"{target}: the connection was closed" + (f": {loss}" if loss else "")
        error = DeliveryError(ErrorCode.CONNECTION_CLOSED, text)
        error.__cause__ = loss
        return error

    @contextmanager
    def until_closed(self, target: str) -> Iterator[asyncio.Future[DeliveryError]]:
        """A future, for the length of the block, that gets :meth:`closed_error` when the connection is closed."""
        failed: asyncio.Future[DeliveryError] = asyncio.get_running_loop().create_future()
        self._waiting[failed] = target
        try:
            yield failed
        finally:
            del self._waiting[failed]
            failed.cancel()

    async def _receive_error(self, error: Exception) -> None:
        found = _VIOLATION.search(str(error))
        if PAYLOAD_VIOLATION in str(error):
            self._violation, self._violated_at = error, time.monotonic()
        if found is None:
            await self._call_back(error)
            return
        denial = Denial(found[1], found[2])
        if self._notify(denial):
            return
        if denial.operation == "publish":
            self._first_denied = self._first_denied or denial
            self._number_denied += 1
        await self._call_back(error)

    async def _call_back(self, error: Exception) -> None:
        try:
            await self._error_cb(error)
        except Exception:  # in nats-py's read loop it would end that
            _log.exception("error_cb must not raise")

    def _notify(self, denial: Denial) -> bool:
        """A denied publish concerns one listener; a denied subscription may concern several."""
        if denial.is_subscription(self.inbox):
            self._denied_inbox = (denial.subject, self._nc.stats["reconnects"])
        is_taken = False
        # The latest first: a request on a subject is part of what the earlier ones do.
        for listener in reversed(list(self._listeners)):
            is_taken |= listener(denial)
            if is_taken and denial.operation == "publish":
                break
        return is_taken

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
        """Close a connection that nats-py does not read any more, which nats-py itself does not notice."""
        reason = "its task was cancelled" if cause is None else f"{type(cause).__name__}: {cause}"
        error = nats.errors.Error(f"nats: reading the connection ended: {reason}")
        error.__cause__ = cause

        def close() -> None:
            if self._nc.is_connected and not is_reading(self._nc):
                self._closing = asyncio.get_running_loop().create_task(self._close(error))

        asyncio.get_running_loop().call_later(_CANCELLED_SECONDS if cause is None else 0, close)

    async def _close(self, error: Exception) -> None:
        set_last_error(self._nc, error)
        await self._call_back(error)
        try:
            await asyncio.wait_for(self._nc.close(), _CLOSE_SECONDS)
        except Exception as failure:
            _log.debug("the connection could not be closed: %s", failure)
            self._fail_waiting()


@contextmanager
def denial(nc: Client, subject: str, inbox: str = "") -> Iterator[asyncio.Future[DeliveryError]]:
    """
    A future, for the length of the block, of the error for a denied subject or inbox of a request, or for a connection
    that is closed.

    Args:
        nc: An open connection.
        subject: What the request is published to.
        inbox: What was subscribed to for its answer; by default the inbox that nats-py's requests share.

    Raises:
        DeliveryError: ``permission-denied``: the inbox is known to be denied.
    """
    watch = ConnectionWatch.of(nc)
    if not inbox:
        watch.check_inbox()

    def listen(denial: Denial) -> bool:
        answers = inbox or watch.inbox
        if failed.done() or not (denial.is_publish(subject) or denial.is_subscription(answers)):
            return False
        failed.set_result(denial.error(subject if denial.operation == "publish" else answers))
        return True

    with watch.until_closed(subject) as failed:
        watch.add(listen)
        try:
            yield failed
        finally:
            watch.remove(listen)


async def answered(nc: Client, subject: str, request: Callable[[], Awaitable[T]], inbox: str = "") -> T:
    """
    Make a request; fails as soon as the server denies it, or the connection is closed.

    Args:
        nc: An open connection.
        subject: What the request is published to.
        request: Makes the request.
        inbox: As for :func:`denial`.

    Raises:
        DeliveryError: ``permission-denied``: the subject, or the inbox for answers; ``connection-closed``;
            ``timeout``, if the server has closed the connection meanwhile.
        Exception: What ``request`` raises.
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
    Call a function and return its result, unless a future gets an error before.

    Raises:
        DeliveryError: The error of the future.
        Exception: What ``request`` raises.
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
