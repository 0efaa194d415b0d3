"""
An event loop for synchronous code, which runs only while a caller waits for a result.

Spark calls data sources from synchronous code, in Spark's threads and processes. Between two calls the loop does not
run, so a connection that is kept open must tolerate idle periods.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class Blocking:
    """
    Run coroutines on one event loop, one after another, as a context manager.

    Only one thread at once may use it, and not inside a running loop. Leaving the ``with`` block cancels the tasks that
    coroutines have started.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Blocking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and return its result."""
        return self._loop.run_until_complete(coroutine)

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Iterate over an asynchronous generator, and close it when the iteration ends or is abandoned."""
        try:
            while True:
                try:
                    item = self.run(_next(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self.run(items.aclose())

    def close(self) -> None:
        """Cancel the running tasks, and close the loop. Further calls have no effect."""
        if self._loop.is_closed():
            return
        try:
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


async def _next(items: AsyncGenerator[T, None]) -> T:
    return await items.__anext__()


async def in_thread(items: Iterator[T]) -> AsyncGenerator[T, None]:
    """
    Iterate over items that another thread produces, one in advance, so that the event loop never waits for input.

    The thread ends with the iteration, or when the next item arrives after that; it is a daemon, because after an error
    of the caller that may never happen.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[T | None, BaseException | None]] = asyncio.Queue()
    wanted = threading.Semaphore(2)
    ended = threading.Event()

    def produce() -> None:
        last: tuple[None, BaseException | None] = (None, None)
        try:
            for item in items:
                loop.call_soon_threadsafe(queue.put_nowait, (item, None))
                wanted.acquire()
                if ended.is_set():
                    return
        except BaseException as error:
            last = (None, error)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(queue.put_nowait, last)

    threading.Thread(target=produce, name="ce-nats rows", daemon=True).start()
    try:
        while True:
            item, error = await queue.get()
            wanted.release()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        ended.set()
        wanted.release()
