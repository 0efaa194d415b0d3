"""Iterate in a thread over what the event loop yields, and in the event loop over what a thread yields."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import suppress
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

from ..errors import DeliveryError, ErrorCode
from ._loop import Loop, current

# Items that one call of a thread reads from an iterable.
_CHUNK: Final = 100
_END: Final = object()

T = TypeVar("T")


class ThreadBridge(Generic[T]):
    """
    Passes the items of an asynchronous iterator, which runs in the loop, to threads.

    Args:
        loop: The loop.
        limit: Maximum number of items that are read ahead.
    """

    def __init__(self, loop: Loop, limit: int) -> None:
        self._loop = loop
        self._limit = limit
        self._items: SimpleQueue[Any] = SimpleQueue()
        self._has_room = asyncio.Event()
        self._is_full = False
        self._error: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, items: AsyncIterator[T]) -> None:
        """Start to read an iterator; called in the loop."""
        self._task = asyncio.create_task(self._read_all(items))

    def end(self) -> None:
        """End the iterations of threads, and drop unread items; called in the loop."""
        if self._task is not None:
            self._task.cancel()
        with suppress(Empty):
            while True:
                self._items.get_nowait()
        self._items.put(_END)

    async def stop(self) -> None:
        """As :meth:`end`; returns when the iterator is no longer read."""
        self.end()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def next(self, timeout: float | None) -> T:
        """
        Return the next item; may be called in any thread.

        Raises:
            StopIteration: The iterator has ended, or there was no item for ``timeout`` seconds.
            Exception: The iterator has raised it.
        """
        try:
            item = self._items.get(timeout=timeout)
        except Empty:
            raise StopIteration from None
        if item is _END:
            self._items.put(_END)  # for other threads, and for later calls
            if self._error is not None:
                raise self._error
            raise StopIteration
        if self._is_full and self._items.qsize() <= self._limit // 2:
            self._is_full = False
            with suppress(DeliveryError):
                self._loop.call_soon(self._has_room.set)
        result: T = item
        return result

    async def _read_all(self, items: AsyncIterator[T]) -> None:
        try:
            async for item in items:
                self._items.put(item)
                if self._items.qsize() >= self._limit:
                    await self._wait_for_room()
        except Exception as error:
            self._error = error
        finally:
            self._items.put(_END)

    async def _wait_for_room(self) -> None:
        self._has_room.clear()
        self._is_full = True
        # A thread may have read the last item before it could see that flag.
        if self._items.qsize() > self._limit // 2:
            await self._has_room.wait()
        self._is_full = False


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

    Args:
        loop: The loop in which the object was opened.
        target: Name of the object.

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
