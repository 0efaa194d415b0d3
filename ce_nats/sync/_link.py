"""The NATS connection of one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from nats.aio.client import Client
from nats.js import JetStreamContext

from .. import aio
from ..aio._connect import disconnect
from ..aio.core._publish import send
from ..aio.link._link import Link
from ..aio.publishing._publisher import raise_failures
from ..codec.event import EventLike
from ..errors import DeliveryError, ErrorCode, Failure
from ..message import NatsMessage
from ._bridge import check_process
from ._loop import Loop, SendQueue

# Messages of publish() that may wait for the loop.
_MAX_WAITING: Final = 1000
_END: Final = object()

P = ParamSpec("P")
T = TypeVar("T")


class Linked(Protocol):
    """A :class:`Connection`, which has a :class:`ProcessLink` in each process."""

    @property
    def _link(self) -> ProcessLink: ...


class ProcessLink:
    """
    The NATS connection of one process.

    Attributes:
        loop: The loop of that process.
        client: The connection of nats-py.
        js: JetStream on it, with the prefix of the API that the context has set.
    """

    def __init__(self, loop: Loop, client: Client) -> None:
        self.loop = loop
        self.client = client
        self.js: JetStreamContext = client.jetstream(prefix=Link.of(client).context_prefix)
        self._failures: list[Failure] = []
        self._is_confirmed = True  # the server has received everything so far
        self._queue: SendQueue[tuple[NatsMessage, EventLike]] = SendQueue(loop, self._send, self._fail, _MAX_WAITING)

    @classmethod
    def open(cls, loop: Loop, connect: Callable[[], Awaitable[Client]]) -> ProcessLink:
        link = cls(loop, loop.run(connect))
        loop.opened[link] = None
        return link

    def run(self, function: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        """Call an asynchronous function as :meth:`Loop.run` does, after sending what was published before."""
        result: T = self.loop.run(self._run_after_sending, function, *args, **options)
        return result

    async def _run_after_sending(self, function: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        await self._queue.emptied()
        return await function(*args, **options)

    def iterate(self, items: AsyncGenerator[T, None], target: str) -> Iterator[T]:
        """Iterate over an asynchronous generator, which is closed at the end of the iteration, early or not."""
        opened = _OpenGenerator(self.loop, items)
        self.loop.opened[opened] = None
        try:
            while True:
                check_process(self.loop, target)
                item: Any = self.run(_next, items)
                if item is _END:
                    return
                yield item
        finally:
            self.loop.opened.pop(opened, None)
            if self.loop.belongs_to_this_process:
                # In the loop's own thread, which may collect garbage, asyncio closes the generator itself.
                with suppress(RuntimeError):
                    self.loop.run(opened._end)

    def publish(self, message: NatsMessage, event: EventLike) -> None:
        """Send a message whose size was checked, without waiting: see :meth:`Connection.publish`."""
        if self.client.is_closed or self.client.is_draining:
            self.run(send, self.client, message)  # raises the reason
            return
        if self._failures:
            self.loop.run(self._raise_failures)
        self._queue.put((message, event))

    async def _send(self, sent: tuple[NatsMessage, EventLike]) -> None:
        self._is_confirmed = False
        try:
            await send(self.client, sent[0])
        except DeliveryError as error:
            self._fail(sent, error)

    def _fail(self, sent: tuple[NatsMessage, EventLike], error: DeliveryError) -> None:
        message, event = sent
        self._failures.append(Failure(event, message.subject, error))

    async def _raise_failures(self) -> None:
        raise_failures(self._failures)

    async def flush(self) -> None:
        """As :meth:`Connection.flush`."""
        await self._queue.emptied()
        await self._raise_failures()
        await aio.flush(self.client)
        self._is_confirmed = True

    async def _end(self, seconds: float | None = None) -> None:
        self.loop.opened.pop(self, None)
        try:
            await asyncio.wait_for(self._queue.emptied(), seconds)
            if not self._is_confirmed:
                await asyncio.wait_for(self.flush(), seconds)
        except asyncio.TimeoutError:
            text = "the connection was closed before the server had received everything that was published"
            raise DeliveryError(ErrorCode.TIMEOUT, text) from None
        finally:
            await self._queue.close()
            await disconnect(self.client)


class _OpenGenerator:
    """An asynchronous generator that is closed when the program ends."""

    def __init__(self, loop: Loop, items: AsyncGenerator[Any, None]) -> None:
        self._loop = loop
        self._items = items

    async def _end(self, seconds: float | None = None) -> None:
        self._loop.opened.pop(self, None)
        # A generator that is running was interrupted, and is closing; or another thread still waits for its next item.
        with suppress(RuntimeError):
            await asyncio.wait_for(self._items.aclose(), seconds)


async def _next(items: AsyncGenerator[Any, None]) -> Any:
    return await anext(items, _END)
