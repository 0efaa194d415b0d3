"""Functions whose result can be awaited, or used in ``async with`` without ``await``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar


class Opened(Protocol):
    """An asynchronous context manager that is already open."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


P = ParamSpec("P")
T = TypeVar("T", bound=Opened)


# A Coroutine, and not only awaitable, so that asyncio.run() and asyncio.create_task() accept it.
class Opening(Coroutine[Any, Any, T]):
    """
    A connection or a subscription that is being opened.

    Awaiting it returns the open object. As a context manager it opens the object, and closes it when the block ends.
    """

    __slots__ = ("_opened", "_opening")

    def __init__(self, opening: Coroutine[Any, Any, T]) -> None:
        self._opening = opening

    def __await__(self) -> Generator[Any, Any, T]:
        return self._opening.__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._opening
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._opened.__aexit__(kind, error, traceback)

    def send(self, value: Any, /) -> Any:
        return self._opening.send(value)

    def throw(self, *error: Any) -> Any:
        return self._opening.throw(*error)

    def close(self) -> None:
        self._opening.close()


def opening(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Opening[T]]:
    """Decorate an asynchronous function so that it returns an :class:`Opening`."""

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> Opening[T]:
        return Opening(function(*args, **options))

    return call
