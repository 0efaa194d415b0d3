"""
An event loop for code that is not asynchronous: it runs while somebody waits for it, and at no other time.

Spark calls its data sources from ordinary code, in threads and processes of its own. Between two calls nothing runs
here, so a connection that is kept must be able to bear silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator
from types import TracebackType
from typing import Any, TypeVar

__all__ = ["Blocking"]

T = TypeVar("T")


class Blocking:
    """
    Runs coroutines of one event loop to their ends, one by one, as a context manager.

    One thread at a time may use it, and none with a running loop. Leaving the ``with`` block cancels the tasks that
    coroutines left behind.
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
        """What the coroutine returns."""
        return self._loop.run_until_complete(coroutine)

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """The items, one step of the generator for each; it is closed when the iteration ends, wherever that is."""
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
        """Cancel what still runs, and close the loop; nothing to do where that has happened."""
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
