"""Iterate in a thread over what the event loop yields, and in the event loop over what a thread yields."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, NoReturn, TypeVar

from ..aio._util.supervising import supervise
from ..errors import DeliveryError, ErrorCode
from ._loop import Loop, current

# Items that one call of a thread reads from an iterable.
_CHUNK: Final = 100
_END: Final = object()
_NO_ITEM: Final = object()

T = TypeVar("T")


def _nothing() -> None:
    return None


class _Hand(threading.local):
    """Items that a thread has taken and not returned: one at most."""

    def __init__(self) -> None:
        self.items: list[Any] = []


class ThreadBridge(Generic[T]):
    """
    Passes the items of an asynchronous iterator, which runs in the loop, to threads.

    Ctrl-C raises KeyboardInterrupt in the main thread after any call, also after one that has just removed an item from
    a queue. So an item moves within one call from the queue to a list of the thread, and leaves this list when it is
    returned to the program: see :meth:`take`.

    ``on_wake``: Called in the loop after :meth:`wake`, or when threads need items. If there is such a function, the
    first item is not read before a thread waits for it.

    Attributes:
        limit: Maximum number of items that are read ahead; ``on_wake`` may change it.
    """

    def __init__(self, loop: Loop, limit: int, name: str, on_wake: Callable[[], None] | None = None) -> None:
        self._loop = loop
        self.limit = limit
        self._name = name
        self._on_wake = on_wake
        self._received = 0
        self._items: SimpleQueue[Any] = SimpleQueue()
        self._ready = iter(self._items.get_nowait, _NO_ITEM)
        self._hand = _Hand()
        self._has_room = asyncio.Event()
        self._is_waiting = False  # the reader waits for room
        # How often the loop was woken, and after which of these times a thread has woken it again.
        self._wakes, self._woken = 0, -1
        self._is_ended = False
        self._error: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, items: AsyncIterator[T], take: Callable[[], T | None] = _nothing) -> None:
        """Start to read an iterator; called in the loop."""
        self._is_waiting = self._on_wake is not None
        self._task = supervise(self._read_all(items, take), self._name, self._fail)

    @property
    def taken(self) -> int:
        """Number of items that threads have taken."""
        return self._received - self._items.qsize()

    def count(self) -> int:
        """Return the number of items that no thread has taken; may be called in any thread."""
        return self._items.qsize()

    def refuse(self) -> None:
        """End the iterations of threads that do not wait; may be called in any thread. Then :meth:`end` is called."""
        self._is_ended = True

    def end(self) -> list[T]:
        """End the iterations of threads, and return the items that no thread has taken; called in the loop."""
        self._is_ended = True
        if self._task is not None:
            self._task.cancel()
        items = self.give_back()
        self._items.put(_END)
        return items

    def give_back(self) -> list[T]:
        """Return the items that no thread has taken; called in the loop. Iterations continue with later items."""
        items: list[T] = []
        with suppress(Empty):
            while True:
                item = self._items.get_nowait()
                if item is _END:
                    self._items.put(_END)
                    break
                items.append(item)
        self._received -= len(items)
        return items

    async def stop(self) -> list[T]:
        """As :meth:`end`; returns when the iterator is no longer read."""
        items = self.end()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        return items

    def take(self, timeout: float | None) -> list[T]:
        """
        Take the next item, and return it in a list; may be called in any thread.

        As long as the item is in the list, the next call in this thread returns it again. The caller removes it with
        ``del``, and returns it: Python raises KeyboardInterrupt after calls (of ``pop()``, for instance), function
        entries and jumps, so none of them may come between.

        Raises:
            StopIteration: The iterator has ended, or there was no item for ``timeout`` seconds.
            Exception: The iterator has raised it.
        """
        hand = self._hand.items
        if self._is_ended:
            hand.clear()
            self._raise_end()
        if not hand:
            try:
                hand.extend(islice(self._ready, 1))  # one call, which is not interrupted after get_nowait()
            except Empty:
                self._wait_for_item(hand, timeout)
        if hand[0] is _END:
            self._items.put(_END)  # for other threads, and for later calls
            hand.clear()
            self._raise_end()
        if self._is_waiting and self._woken != self._wakes:
            self._make_room()
        return hand

    def _raise_end(self) -> NoReturn:
        if self._error is not None:
            raise self._error
        raise StopIteration

    def _wait_for_item(self, hand: list[T], timeout: float | None) -> None:
        self._make_room()
        get = partial(self._items.get, timeout=timeout)
        try:
            hand.extend(islice(iter(get, _NO_ITEM), 1))
        except Empty:
            raise StopIteration from None

    def wake(self) -> None:
        """
        Wake the loop, if it is not being woken; may be called in any thread.

        Raises:
            DeliveryError: ``not-open``: the program is ending.
        """
        wakes = self._wakes
        if wakes != self._woken:
            self._loop.call_soon(self._end_wait)
            self._woken = wakes  # last: if the call is interrupted, the next one wakes the loop

    def _make_room(self) -> None:
        """Wake the reader if it waits and at most half of the items are left."""
        if self._is_waiting and self._items.qsize() <= self.limit // 2:
            with suppress(DeliveryError):
                self.wake()

    def _end_wait(self) -> None:
        self._wakes += 1
        if self._on_wake is not None:
            self._on_wake()
        if self._items.qsize() <= self.limit // 2:
            self._has_room.set()

    async def _read_all(self, items: AsyncIterator[T], take: Callable[[], T | None]) -> None:
        put, size = self._items.put, self._items.qsize
        try:
            if self._is_waiting:
                await self._has_room.wait()
                self._is_waiting = False
            async for first in items:
                item: T | None = first
                while item is not None:
                    self._received += 1
                    put(item)
                    if size() >= self.limit:
                        await self._wait_for_room()
                    item = take()
        except Exception as error:
            self._error = error
        self._items.put(_END)

    def _fail(self, error: DeliveryError) -> None:
        self._error = error
        self._items.put(_END)

    async def _wait_for_room(self) -> None:
        self._has_room.clear()
        self._is_waiting = True
        # A thread may have taken the last item before it could see this.
        if self._items.qsize() > self.limit // 2:
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
