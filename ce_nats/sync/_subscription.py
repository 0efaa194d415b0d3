"""Receive events from subscriptions."""

from __future__ import annotations

from types import TracebackType
from typing import Final

from .. import aio, cesql
from .._numbers import check_optional_seconds
from ..aio._util.thread_queue import ThreadQueue
from ..codec.attributes import ExtensionTypes
from ..codec.binary import Dialect
from ..codec.binding import DialectName, Mode
from ..schemas import Validate
from ._bridge import ThreadBridge, check_fork
from ._link import Linked

# Messages of a subscription that are decoded ahead; nats-py has its own limits for the others.
_MAX_AHEAD: Final = 256


class Subscription:
    """
    Iterator over the messages of a subscription; returned by :meth:`Connection.subscribe`.

    Items are those of ``aio``: :class:`ce_nats.aio.Received`, with ``event``, ``error``, ``message``, ``subject`` and
    so on. Iteration ends when the subscription or the connection is closed, and raises when the connection is lost
    permanently, or the server denies the permission. If there is no message for ``timeout`` seconds, an iteration ends,
    and another one may begin. As a context manager it unsubscribes at the end of the block.
    """

    def __init__(
        self,
        nc: Linked,
        subject: str,
        *,
        timeout: float | None = None,
        queue: str = "",
        mode: Mode | None = None,
        dialect: DialectName = Dialect.SPEC,
        parse_data: bool = True,
        extension_types: ExtensionTypes | None = None,
        filter: str | cesql.Expression | None = None,
        validate: Validate | None = None,
    ) -> None:
        check_optional_seconds("timeout", timeout)
        link = nc._link
        self._loop = link.loop
        self._bridge: ThreadBridge[aio.Received] = ThreadBridge(self._loop, ThreadQueue(), _MAX_AHEAD, subject)
        self._timeout = timeout
        self._subject = subject

        async def open_it() -> aio.Events:
            events = await aio.subscribe(
                link.client,
                subject,
                queue=queue,
                mode=mode,
                dialect=dialect,
                parse_data=parse_data,
                extension_types=extension_types,
                filter=filter,
                validate=validate,
            )
            self._bridge.start(events)
            self._loop.opened[self] = None
            return events

        self._events = link.run(open_it)

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> aio.Received:
        """
        Return the next message.

        Raises:
            DeliveryError: ``connection-closed``: the connection was lost permanently; ``permission-denied``;
                ``not-open``: the parent process has subscribed, and this one is a fork.
        """
        check_fork(self._loop, self._subject)  # at the end of the program, the iteration ends as usual
        hand = self._bridge.take(self._timeout)
        item = hand[0]
        del hand[0]  # no call follows: see take()
        return item

    @property
    def dropped(self) -> int:
        """Number of messages that are lost, because more of them waited for the iteration than nats-py keeps."""
        return self._events.dropped

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unsubscribe, and end the iterations; does nothing if closed already."""
        if self in self._loop.opened and self._loop.belongs_to_this_process:
            self._loop.run(self._end)

    async def _end(self, seconds: float | None = None) -> None:
        self._loop.opened.pop(self, None)
        await self._bridge.stop()
        await self._events.stop()
