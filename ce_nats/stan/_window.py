"""Messages that were published to a channel and not acknowledged yet."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg

from ..aio._errors import delivery_errors
from ..aio.publishing._ack_window import AckWindow, Pending, is_no_responders
from ..errors import DecodeError, DeliveryError, ErrorCode, StanError
from ._session import new_id
from .wire import PubAck

_log: Final = logging.getLogger(__name__)

_PREFIX: Final = "_STAN.acks"


@dataclass(slots=True, eq=False)
class _PendingMessage(Pending):
    """
    A message without an acknowledgement.

    Attributes:
        guid: The message's own id.
        give_up: When it fails without an acknowledgement, in seconds of ``time.monotonic()``.
        on_failure: Called with the StanError too.
    """

    guid: str
    give_up: float
    on_failure: Callable[[StanError], object]


class Window(AckWindow[_PendingMessage]):
    """
    At most ``size`` messages without an acknowledgement; a message's ``ack`` gets its guid, or a StanError.

    Each has a reply subject of its own, so that an acknowledgement without a guid, which refuses, can be attributed.

    Args:
        nc: An open connection.
        size: Most messages without an acknowledgement.
        ack_timeout: Seconds to wait for an acknowledgement.
    """

    def __init__(self, nc: Client, *, size: int, ack_timeout: float) -> None:
        super().__init__(nc, size)
        self._ack_timeout = ack_timeout

    async def start(self) -> None:
        """
        Subscribe to acknowledgements.

        Raises:
            DeliveryError: ``connection-closed``: that of NATS.
        """
        await self.open(f"{_PREFIX}.{new_id()}")

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
            DeliveryError: ``connection-closed``: that of NATS; ``buffer-full``; ``permission-denied``: no
                acknowledgement can come.
        """
        if self._denied is not None:
            raise self._denied
        ack: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        token = self._add(_PendingMessage(subject, ack, guid, time.monotonic() + self._ack_timeout, on_failure))
        try:
            with delivery_errors(subject, self.nc):
                await self.nc.publish(subject, message, self._prefix + token)
        except BaseException:
            self._drop(token)
            raise
        return ack

    def fail_all(self, text: str) -> None:
        """Fail what is pending: no more acknowledgements come, and each message may have been stored."""
        self._fail_all(StanError(ErrorCode.TIMEOUT, text))

    async def _receive(self, answer: Msg) -> None:
        token = self._token(answer)
        if token is None:
            return
        if is_no_responders(answer):
            self._fail(token, StanError(ErrorCode.NO_RESPONDERS, "stan: no server listens"))
            return
        try:
            ack = PubAck.decode(answer.data)
        except DecodeError as error:
            _log.warning("A malformed acknowledgement was dropped: %s", error)
            return
        if ack.error:
            self._fail(token, StanError(ErrorCode.PUBLISH_REFUSED, ack.error))
        elif ack.guid == self.pending[token].guid:
            self._finish(token, ack.guid)
        else:
            _log.warning("An acknowledgement of another message was dropped: %r", ack.guid)

    def _failed(self, item: _PendingMessage, error: DeliveryError) -> None:
        assert isinstance(error, StanError)
        item.on_failure(error)

    def _as_own(self, error: DeliveryError) -> DeliveryError:
        return StanError(error.code, error.message)

    async def _check(self) -> None:
        while (token := next(iter(self.pending), None)) and self.pending[token].give_up <= time.monotonic():
            # It may have been stored.
            self._fail(token, StanError(ErrorCode.TIMEOUT, "stan: publish ack timeout"))
