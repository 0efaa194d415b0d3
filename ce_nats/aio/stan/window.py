"""Messages that were published and not acknowledged yet."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from ...errors import DecodeError, ErrorCode, StanError
from ...wire.stan import PubAck
from ..nats_errors import delivery_errors
from ..watch import ConnectionWatch, Denial
from .session import listen, new_id, nobody_listens, silence

__all__ = ["Window"]

_log: Final = logging.getLogger(__name__)

_PREFIX: Final = "_STAN.acks"
_TICK_SECONDS: Final = 0.1


@dataclass(slots=True, eq=False)
class _Pending:
    """
    A message under way.

    Attributes:
        guid: The message's own id.
        subject: Subject of NATS that it was published to.
        ack: Gets the guid, or a StanError.
        give_up: When nobody waits any more, in seconds of ``time.monotonic()``.
        on_failure: Told of the StanError too.
    """

    guid: str
    subject: str
    ack: asyncio.Future[str]
    give_up: float
    on_failure: Callable[[StanError], object]


class Window:
    """
    At most ``size`` messages without an acknowledgement.

    Each has a reply subject of its own, so that what the server cannot say a guid for, and what nobody listens to, is
    known by it.

    Args:
        nc: An open connection.
        size: Most messages under way.
        ack_timeout: Seconds to wait for an acknowledgement.
    """

    def __init__(self, nc: Client, *, size: int, ack_timeout: float) -> None:
        self._nc = nc
        self._size = size
        self._ack_timeout = ack_timeout
        self._prefix = f"{_PREFIX}.{new_id()}."
        self._number = 0
        self._under_way: dict[str, _Pending] = {}  # oldest first
        self._changed = asyncio.Event()
        self._denied: StanError | None = None
        self._listener: NatsSubscription | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """
        Listen for acknowledgements.

        Raises:
            DeliveryError: ``connection-closed``: that of NATS.
        """
        ConnectionWatch.of(self._nc).add(self._hear)
        self._listener = await listen(self._nc, f"{self._prefix}*", self._receive)
        self._watcher = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Stop listening. What is still under way has been failed before."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        ConnectionWatch.of(self._nc).remove(self._hear)
        if self._listener is not None:
            await silence(self._listener)

    async def room(self) -> None:
        """Wait until a message may be added."""
        while len(self._under_way) >= self._size:
            await self._wait()

    async def drain(self) -> None:
        """Wait until nothing is under way; that takes ``ack_timeout`` at most."""
        while self._under_way:
            await self._wait()

    async def send(
        self, guid: str, subject: str, message: bytes, on_failure: Callable[[StanError], object]
    ) -> asyncio.Future[str]:
        """
        Publish a message for which there is room.

        Args:
            guid: The message's own id.
            subject: Subject of NATS.
            message: A PubMsg.
            on_failure: Called where it is not acknowledged.

        Returns:
            A future of the guid, once it is acknowledged, or of a StanError.

        Raises:
            DeliveryError: ``connection-closed``: that of NATS; ``buffer-full``;
                ``permission-denied``: no acknowledgement can come.
        """
        if self._denied is not None:
            raise self._denied
        self._number += 1
        token = str(self._number)
        ack: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._under_way[token] = _Pending(guid, subject, ack, time.monotonic() + self._ack_timeout, on_failure)
        try:
            with delivery_errors(subject):
                await self._nc.publish(subject, message, self._prefix + token)
        except BaseException:
            if self._under_way.pop(token, None) is not None:
                ack.cancel()
                self._changed.set()
            raise
        return ack

    def fail_all(self, text: str) -> None:
        """No more acknowledgements come for what is under way; all of it may have been stored."""
        for token in list(self._under_way):
            self._fail(token, StanError(ErrorCode.TIMEOUT, text))

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _receive(self, message: Msg) -> None:
        token = message.subject[len(self._prefix) :]
        if token not in self._under_way:
            return
        if nobody_listens(message):
            self._fail(token, StanError(ErrorCode.NO_RESPONDERS, "stan: no server listens"))
            return
        try:
            ack = PubAck.decode(message.data)
        except DecodeError as fault:
            _log.warning("A malformed acknowledgement was dropped: %s", fault)
            return
        if ack.error:
            self._fail(token, StanError(ErrorCode.PUBLISH_REFUSED, ack.error))
        elif ack.guid == self._under_way[token].guid:
            self._finish(token)
        else:
            _log.warning("An acknowledgement of another message was dropped: %r", ack.guid)

    def _hear(self, denial: Denial) -> bool:
        """Fail the message that is denied, or all of them where no acknowledgement can come."""
        inbox = f"{self._prefix}*"
        if denial.is_subscription(inbox):
            self._denied = StanError(ErrorCode.PERMISSION_DENIED, denial.error(inbox).message)
            for token in list(self._under_way):
                self._fail(token, self._denied)
            return True
        for token, pending in self._under_way.items():
            if denial.is_publish(pending.subject):
                self._fail(token, StanError(ErrorCode.PERMISSION_DENIED, denial.error(pending.subject).message))
                return True
        return False

    def _finish(self, token: str) -> None:
        pending = self._under_way.pop(token)
        if not pending.ack.done():
            pending.ack.set_result(pending.guid)
        self._changed.set()

    def _fail(self, token: str, error: StanError) -> None:
        pending = self._under_way.pop(token)
        if not pending.ack.done():
            pending.ack.set_exception(error)
            pending.ack.exception()  # not everybody looks at every future, and `on_failure` is told
        pending.on_failure(error)
        self._changed.set()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            while (token := next(iter(self._under_way), None)) and self._under_way[token].give_up <= time.monotonic():
                # It may have been stored.
                self._fail(token, StanError(ErrorCode.TIMEOUT, "stan: publish ack timeout"))
