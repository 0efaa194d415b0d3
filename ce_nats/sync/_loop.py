"""
The event loop of this process: it runs in a thread of its own, from its first use to the end of the program.

(Spark's data sources have ``ce_nats.spark.connector._blocking``: no thread, and a loop that runs only during a call.)
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from threading import RLock, Thread
from typing import Any, Final, Generic, Protocol, TypeVar

try:
    import anyio
    from anyio.from_thread import BlockingPortal
except ImportError as error:
    raise ImportError("ce_nats.sync needs anyio: pip install 'ce-nats[sync]'") from error

from ..errors import DeliveryError, ErrorCode

_log: Final = logging.getLogger(__name__)

# To send what waits, when the program ends.
_EXIT_SECONDS: Final = 5.0
_MIN_SECONDS: Final = 0.1
# Items that are sent before other tasks of the loop get a turn.
_BATCH: Final = 100

T = TypeVar("T")


class Closable(Protocol):
    """What is closed when the program ends."""

    async def end(self, seconds: float | None) -> None:
        """Close; wait for what was not sent yet for so many seconds at most."""


class Loop:
    """
    An event loop in a thread of its own.

    Attributes:
        lock: For what is made once in a process.
        opened: What has to be closed when the program ends, in the order in which it was opened.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self.opened: dict[Closable, None] = {}
        started: Future[tuple[BlockingPortal, asyncio.AbstractEventLoop]] = Future()
        self._thread = Thread(target=_run, args=[started], name="ce_nats.sync", daemon=True)
        self._thread.start()
        self._portal, self._native = started.result()

    @property
    def is_here(self) -> bool:
        """Whether it is the loop of this process, and still runs."""
        return _process.loop is self and not _process.is_over

    def run(self, function: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        """
        Call an asynchronous function in the loop, and wait for its result. Where the wait ends early, as by Ctrl-C, it
        is cancelled.

        Raises:
            RuntimeError: Called in the loop's own thread, which would wait for itself.
        """
        future: Future[T] = self._portal.start_task_soon(partial(function, *args, **options))
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function in the loop, without waiting for it."""
        try:
            self._native.call_soon_threadsafe(function)
        except RuntimeError as error:
            raise _is_over() from error

    def close(self) -> None:
        """Close all that is open, log what goes wrong, and end the thread."""
        self.run(self._close_all)
        self._portal.call(partial(self._portal.stop, cancel_remaining=True))
        self._thread.join()

    async def _close_all(self) -> None:
        give_up = time.monotonic() + _EXIT_SECONDS
        for item in reversed(list(self.opened)):
            try:
                await item.end(max(_MIN_SECONDS, give_up - time.monotonic()))
            except Exception as error:
                _log.error("not closed before the end of the program: %s", error)


def _run(started: Future[tuple[BlockingPortal, asyncio.AbstractEventLoop]]) -> None:
    async def serve() -> None:
        async with BlockingPortal() as portal:
            started.set_result((portal, asyncio.get_running_loop()))
            await portal.sleep_until_stopped()

    try:
        anyio.run(serve, backend="asyncio")
    except BaseException as error:
        if not started.done():
            started.set_exception(error)
        elif not (_process.is_over and isinstance(error, RuntimeError)):
            raise
        # Else all is closed, and asyncio would end the threads in which it has looked up names. It does that in another
        # thread, which Python 3.12 does not start any more at the end of a program.


# --- The one of this process -----------------------------------------------------------------------------------------


class _Process:
    """What this process has: a loop, unless it was not used yet or the program is ending."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.loop: Loop | None = None
        self.is_over = False


_process = _Process()
# Loops of parent processes. Their threads are not in this process, and to close them would disturb the parent.
_inherited: Final[list[_Process]] = []


def current() -> Loop:
    """
    The loop of this process, which is started where there is none.

    Raises:
        DeliveryError: ``not-open``: the program is ending.
    """
    process = _process
    if process.loop is not None and not process.is_over:
        return process.loop
    with process.lock:
        if process.is_over:
            raise _is_over()
        if process.loop is None:
            process.loop = Loop()
            _close_at_exit()
        return process.loop


def _is_over() -> DeliveryError:
    return DeliveryError(ErrorCode.NOT_OPEN, "the program is ending, and its connections are closed")


def _close() -> None:
    process = _process
    with process.lock:
        loop = process.loop if not process.is_over else None
        process.is_over = True
    if loop is not None:
        loop.close()


def _close_at_exit() -> None:
    """A process of multiprocessing ends without what ``atexit`` calls, and has finalizers of its own."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, _close, exitpriority=100)


def _in_child() -> None:
    global _process
    _inherited.append(_process)
    _process = _Process()


atexit.register(_close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


# --- Items for the loop to send --------------------------------------------------------------------------------------


class SendQueue(Generic[T]):
    """
    Hands items over to the loop, in their order. The loop is woken for the first one only, and takes all that is there
    then: a switch of threads for each one would cost several times as much as to send it.

    Args:
        loop: The loop.
        send: Called in the loop with each item; must not raise.
        limit: Items that may wait; a caller with more waits until they are sent.
    """

    def __init__(self, loop: Loop, send: Callable[[T], Awaitable[object]], limit: int) -> None:
        self._loop = loop
        self._send = send
        self._limit = max(1, limit)
        self._waiting: deque[T] = deque()
        self._is_awake = False
        self._task: asyncio.Task[None] | None = None

    def put(self, item: T) -> None:
        """Have an item sent; may be called in any thread."""
        self._waiting.append(item)
        if not self._is_awake:
            self._is_awake = True
            self._loop.call_soon(self._start)
        if len(self._waiting) >= self._limit:
            self._loop.run(self.emptied)

    async def emptied(self) -> None:
        """Wait until everything so far is sent."""
        if self._waiting:
            self._start()
        if self._task is not None:
            await asyncio.shield(self._task)  # others wait for it, too

    async def close(self) -> list[T]:
        """Send nothing more; returns what was not sent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        left = list(self._waiting)
        self._waiting.clear()
        return left

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send_all())

    async def _send_all(self) -> None:
        # What is put while this says that it is awake is sent by the next round.
        while self._waiting:
            self._is_awake = True
            try:
                for _ in range(min(_BATCH, len(self._waiting))):
                    await self._send(self._waiting.popleft())
            finally:
                self._is_awake = False
            await asyncio.sleep(0)  # for what else the loop has to do
