"""Asynchronous generators whose iteration may be cancelled, by a timeout for instance, and resumed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Resumable(AsyncGenerator[T, None]):
    """
    Asynchronous generator that continues after a cancellation.

    Python ends a cancelled generator: the next iteration would end as if everything had been yielded.

    ``drop``: Called if the generator is deleted without having been closed, as after ``break``. It must not raise.
    asyncio closes such a generator later, possibly when the connection is closed already.
    """

    def __init__(self, generate: Callable[[], AsyncGenerator[T, None]], drop: Callable[[], object]) -> None:
        self._generate = generate
        self._drop = drop
        self._items: AsyncGenerator[T, None] | None = None
        self._is_closed = False

    async def __anext__(self) -> T:
        return await self.asend(None)

    async def asend(self, value: None) -> T:
        if self._is_closed:
            raise StopAsyncIteration
        if self._items is None:
            self._items = self._generate()
        try:
            return await self._items.asend(value)
        except asyncio.CancelledError:
            self._items = None
            raise

    async def athrow(self, *error: Any) -> T:
        if self._items is None:
            self._items = self._generate()
        return await self._items.athrow(*error)

    def __del__(self) -> None:
        if not self._is_closed:
            self._drop()

    async def aclose(self) -> None:
        self._is_closed = True
        if self._items is not None:
            await self._items.aclose()
