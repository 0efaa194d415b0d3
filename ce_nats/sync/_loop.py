"""
The event loop of this process. It runs in a separate thread, from its first use to the end of the program.

(Spark's data sources use ``ce_nats.spark.connector._blocking``, which has no thread: its loop runs only during a call.)
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

from ..aio._util.supervising import supervise
from ..errors import DeliveryError, ErrorCode

_log: Final = logging.getLogger(__name__)

# Time to send waiting messages when the program ends.
_EXIT_SECONDS: Final = 5.0
_MIN_SECONDS: Final = 0.1
# Items that are sent before other tasks of the loop run.
_BATCH: Final = 100

T = TypeVar("T")


class Closable(Protocol):
    """An object that is closed when the program ends."""

    async def _end(self, seconds: float | None) -> None:
        """Close in the loop; wait at most ``seconds`` for unsent messages, or without a limit."""


class Loop:
    """
    An event loop in a separate thread.

    Attributes:
        lock: Lock for objects that are created once per process.
        opened: Objects to close when the program ends, in the order in which they were opened.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self.opened: dict[Closable, None] = {}
        started: Future[tuple[BlockingPortal, asyncio.AbstractEventLoop]] = Future()
        self._thread = Thread(target=_run, args=[started], name="ce_nats.sync", daemon=True)
        self._thread.start()
        self._portal, self._native = started.result()

    @property
    def belongs_to_this_process(self) -> bool:
        """Whether it is the loop of this process, not of the parent of a fork, and still runs."""
        return not self.is_inherited and not _process.is_closed

    @property
    def is_inherited(self) -> bool:
        """Whether it is the loop of the parent of a fork. Its thread does not exist in this process."""
        return _process.loop is not self

    def run(self, function: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        """
        Call an asynchronous function in the loop, and wait for its result. If the wait is interrupted, by Ctrl-C for
        instance, the function is cancelled.

        Raises:
            RuntimeError: The caller runs in the loop's own thread, which would wait for itself.
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
            raise _ending() from error

    def close(self) -> None:
        """Close all open objects, log errors, and end the thread."""
        self.run(self._close_all)
        self._portal.call(partial(self._portal.stop, cancel_remaining=True))
        self._thread.join()

    async def _close_all(self) -> None:
        give_up = time.monotonic() + _EXIT_SECONDS
        for item in reversed(list(self.opened)):
            try:
                await item._end(max(_MIN_SECONDS, give_up - time.monotonic()))
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
        elif not (_process.is_closed and isinstance(error, RuntimeError)):
            raise
        # Otherwise all objects are closed. asyncio now ends its threads for blocking calls, such as name look-ups; it
        # needs another thread for that, and Python 3.12 starts no threads at the end of a program.


# --- The loop of this process ----------------------------------------------------------------------------------------


class _Process:
    """State of this process: its loop, once that is used, and whether the program is ending."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.loop: Loop | None = None
        self.is_closed = False


_process = _Process()
# Loops of parent processes: their threads do not exist in this process, and closing them would disturb the parent.
_inherited: Final[list[_Process]] = []


def current() -> Loop:
    """
    Return the loop of this process, which the first call starts.

    Raises:
        DeliveryError: ``not-open``: the program is ending.
    """
    process = _process
    if process.loop is not None and not process.is_closed:
        return process.loop
    with process.lock:
        if process.is_closed:
            raise _ending()
        if process.loop is None:
            process.loop = Loop()
            _close_at_exit()
        return process.loop


def _ending() -> DeliveryError:
    return DeliveryError(ErrorCode.NOT_OPEN, "the program is ending, and its connections are closed")


def _close() -> None:
    process = _process
    with process.lock:
        loop = process.loop if not process.is_closed else None
        process.is_closed = True
    if loop is not None:
        loop.close()


def _close_at_exit() -> None:
    """Close at the end of a process of multiprocessing, which calls its own finalizers and not those of ``atexit``."""
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
    Passes items from threads to the loop, in order.

    Only the first item wakes the loop, which then sends all items that wait: a switch of threads for each one would
    cost several times as much as sending it.

    ``send``: Called in the loop with each item.

    ``fail``: Called in the loop with an item, and the error, if ``send`` has raised an exception. Must not raise.
    """

    def __init__(
        self,
        loop: Loop,
        send: Callable[[T], Awaitable[object]],
        fail: Callable[[T, DeliveryError], object],
        limit: int,
    ) -> None:
        self._loop = loop
        self._send = send
        self._fail = fail
        self._limit = max(1, limit)
        self._waiting: deque[T] = deque()  # with the item that is being sent
        self._is_awake = False
        self._task: asyncio.Task[None] | None = None

    def put(self, item: T) -> None:
        """Add an item; may be called in any thread."""
        self._waiting.append(item)
        if not self._is_awake:
            self._is_awake = True
            self._loop.call_soon(self._start)
        if len(self._waiting) >= self._limit:
            self._loop.run(self.emptied)

    async def emptied(self) -> None:
        """Wait until everything so far is sent, or has failed."""
        if self._waiting:
            self._start()
        while (task := self._task) is not None:
            await asyncio.wait([task])  # which is not cancelled with this caller: others wait for it as well
            if self._task is task:
                return  # close() has cancelled it

    async def close(self) -> list[T]:
        """Stop sending, and return the unsent items."""
        while (task := self._task) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if self._task is task:
                self._task = None
        left = list(self._waiting)
        self._waiting.clear()
        return left

    def _start(self) -> None:
        if self._task is None:
            self._task = supervise(self._send_all(), "sending from threads", self._fail_first)

    def _fail_first(self, error: DeliveryError) -> None:
        """Fail the item whose sending has raised an exception, and continue with the next one."""
        self._fail(self._waiting.popleft(), error)
        self._task = None
        self._start()

    async def _send_all(self) -> None:
        # An item that is put while the flag is set is sent by the next round.
        while self._waiting:
            self._is_awake = True
            try:
                for _ in range(min(_BATCH, len(self._waiting))):
                    await self._send(self._waiting[0])
                    self._waiting.popleft()
            finally:
                self._is_awake = False
            await asyncio.sleep(0)  # let other tasks run
        self._task = None
