"""A connection of one process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from nats.aio.client import Client
from nats.js import JetStreamContext

from .. import aio
from ..aio._connect import disconnect
from ..aio.core._publish import check_size, prepare, send
from ..aio.publishing._publisher import raise_failures
from ..codec.event import EventLike
from ..codec.subject_template import SubjectTemplate
from ..errors import DeliveryError, ErrorCode, Failure
from ..message import NatsMessage
from ._loop import Loop, SendQueue

# Messages of publish() that may wait for the loop.
_MAX_WAITING: Final = 1000

P = ParamSpec("P")
T = TypeVar("T")


class Linked(Protocol):
    """A connection, whatever process asks."""

    @property
    def link(self) -> Link:
        """The connection of this process."""


class Link:
    """
    A connection of one process.

    Attributes:
        loop: The loop of that process.
        client: The connection of nats-py.
        js: JetStream on it.
    """

    def __init__(self, loop: Loop, client: Client) -> None:
        self.loop = loop
        self.client = client
        self.js: JetStreamContext = client.jetstream()
        self._failures: list[Failure] = []
        self._is_confirmed = True  # all that was published so far
        self._queue: SendQueue[tuple[NatsMessage, EventLike]] = SendQueue(loop, self._send, _MAX_WAITING)

    @classmethod
    def open(cls, loop: Loop, servers: str | Sequence[str] | None, options: dict[str, Any]) -> Link:
        link = cls(loop, loop.run(aio.connect, servers, **options))
        loop.opened[link] = None
        return link

    def run(self, function: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        """As :meth:`Loop.run`; what was published before is sent before."""
        result: T = self.loop.run(self._after_sending, function, *args, **options)
        return result

    async def _after_sending(self, function: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        await self._queue.emptied()
        return await function(*args, **options)

    def publish(self, event: EventLike, subject: str | SubjectTemplate, options: dict[str, Any]) -> None:
        client = self.client
        if client.is_closed or client.is_draining:
            self.run(aio.publish, client, event, subject, **options)  # which says why not
            return
        message = prepare(client, event, subject, **{"mode": "binary", **options})
        check_size(message, client.max_payload)
        if self._failures:
            self.loop.run(self._raise_failures)
        self._queue.put((message, event))

    async def _send(self, sent: tuple[NatsMessage, EventLike]) -> None:
        message, event = sent
        self._is_confirmed = False
        try:
            await send(self.client, message)
        except DeliveryError as error:
            self._failures.append(Failure(event, message.subject, error))

    async def _raise_failures(self) -> None:
        raise_failures(self._failures)

    async def flush(self) -> None:
        """As :meth:`Connection.flush`."""
        await self._queue.emptied()
        await self._raise_failures()
        await aio.flush(self.client)
        self._is_confirmed = True

    async def end(self, seconds: float | None = None) -> None:
        """Send what waits, and close the connection."""
        self.loop.opened.pop(self, None)
        try:
            await asyncio.wait_for(self._queue.emptied(), seconds)
            if not self._is_confirmed:
                await asyncio.wait_for(self.flush(), seconds)
        except asyncio.TimeoutError:
            text = "the connection was closed before the server had everything that was published"
            raise DeliveryError(ErrorCode.TIMEOUT, text) from None
        finally:
            await self._queue.close()
            await disconnect(self.client)
