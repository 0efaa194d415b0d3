"""Iterate in a thread over what the event loop yields, and in the event loop over what a thread yields."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Final, Generic, TypeVar

from ..aio._util.supervising import supervise
from ..aio._util.thread_queue import ThreadQueue
from ..errors import DeliveryError, ErrorCode
from ._loop import Loop, current

# Items that one call of a thread reads from an iterable.
_CHUNK: Final = 100

T = TypeVar("T")


def _nothing() -> None:
    return None


class _Waker:
    """Wakes the loop from other threads, once at a time: it calls ``function`` then."""

    def __init__(self, loop: Loop, function: Callable[[], object]) -> None:
        self._loop = loop
        self._function = function
        # How often the loop was woken, and after which of these times a thread has woken it again.
        self._wakes, self._woken = 0, -1

    @property
    def is_waking(self) -> bool:
        """Whether a thread has woken the loop, and it has not run yet; may be called in any thread."""
        return self._woken == self._wakes

    def wake(self) -> None:
        """
        Wake the loop, if it is not being woken; may be called in any thread.

        Raises:
            DeliveryError: ``not-open``: the program is ending.
        """
        wakes = self._wakes
        if wakes != self._woken:
            self._loop.call_soon(self._call)
            self._woken = wakes  # last: if the call is interrupted, the next one wakes the loop

    def _call(self) -> None:
        self._wakes += 1
        self._function()


class ThreadBridge(Generic[T]):
    """
    Passes the items of an asynchronous iterator, which runs in the loop, to threads.

    ``queue``: Queue from which the threads take.

    ``on_wake``: Called in the loop after :meth:`wake`, or when threads need items. If there is such a function, the
    first item is not read before a thread waits for it.

    Attributes:
        limit: Maximum number of items that are read ahead; ``on_wake`` may change it.
        wake: Wakes the loop, if it is not being woken; may be called in any thread. Raises ``not-open`` if the program
            is ending.
    """

    def __init__(
        self,
        loop: Loop,
        queue: ThreadQueue[T],
        limit: int,
        name: str,
        on_wake: Callable[[], None] | None = None,
    ) -> None:
        self.limit = limit
        self._queue = queue
        self._name = name
        self._on_wake = on_wake
        self._waker = _Waker(loop, self._end_wait)
        self.wake = self._waker.wake
        self._has_room = asyncio.Event()
        self._is_waiting = False  # the reader waits for room
        self._task: asyncio.Task[None] | None = None

    def start(self, items: AsyncIterator[T], take: Callable[[], T | None] = _nothing) -> None:
        """Start to read an iterator; called in the loop."""
        self._is_waiting = self._on_wake is not None
        self._task = supervise(self._read_all(items, take), self._name, self._queue.end)

    def end(self) -> None:
        """End the iterations of threads; called in the loop. Items that no thread has taken stay in the queue."""
        self._queue.refuse()
        if self._task is not None:
            self._task.cancel()
        self._queue.end()

    async def stop(self) -> None:
        """As :meth:`end`; returns when the iterator is no longer read."""
        self.end()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def take(self, timeout: float | None) -> list[T]:
        """
        As :meth:`ThreadQueue.take`; wait until there is an item. May be called in any thread.

        Raises:
            StopIteration: The iterator has ended, or there was no item for ``timeout`` seconds.
            Exception: The iterator has raised it.
        """
        hand = self._queue.take()
        if not hand:
            self._make_room()
            hand = self._queue.wait(timeout)
        if self._is_waiting and not self._waker.is_waking:
            self._make_room()
        return hand

    def _make_room(self) -> None:
        """Wake the reader if it waits and at most half of the items are left."""
        if self._is_waiting and len(self._queue) <= self.limit // 2:
            with suppress(DeliveryError):
                self.wake()

    def _end_wait(self) -> None:
        if self._on_wake is not None:
            self._on_wake()
        if len(self._queue) <= self.limit // 2:
            self._has_room.set()

    async def _read_all(self, items: AsyncIterator[T], take: Callable[[], T | None]) -> None:
        queue = self._queue
        put = queue.put
        try:
            if self._is_waiting:
                await self._has_room.wait()
                self._is_waiting = False
            async for first in items:
                item: T | None = first
                while item is not None:
                    put(item)
                    if len(queue) >= self.limit:
                        await self._wait_for_room()
                    item = take()
        except Exception as error:
            queue.end(error)
        else:
            queue.end()

    async def _wait_for_room(self) -> None:
        self._has_room.clear()
        self._is_waiting = True
        # A thread may have taken the last item before it could see this.
        if len(self._queue) > self.limit // 2:
            await self._has_room.wait()
        self._is_waiting = False


async def read_in_thread(items: Iterable[T]) -> AsyncGenerator[T, None]:
    """
    Iterate over an iterable in another thread, so that it may block, and call ``ce_nats.sync`` itself.

    Raises:
        Exception: The iterable has raised it.
    """
    iterator = iter(items)
    while True:
        chunk: list[T] = []
        failure: Exception | None = None
        try:
            await asyncio.to_thread(_read_chunk, iterator, chunk)
        except Exception as error:
            failure = error
        for item in chunk:
            yield item
        if failure is not None:
            raise failure
        if not chunk:
            return


def _read_chunk(iterator: Iterable[T], chunk: list[T]) -> None:
    for item in islice(iterator, _CHUNK):
        chunk.append(item)  # noqa: PERF402


def check_fork(loop: Loop, target: str) -> None:
    """
    Check that an object belongs to this process, not to the parent of a fork.

    Raises:
        DeliveryError: ``not-open``.
    """
    if loop.is_inherited:
        raise DeliveryError(ErrorCode.NOT_OPEN, f"{target}: it was opened by the parent process, before a fork")


def check_process(loop: Loop, target: str) -> None:
    """
    As :func:`check_fork`; also check that the program is not ending.

    Raises:
        DeliveryError: ``not-open``.
    """
    check_fork(loop, target)
    current()
