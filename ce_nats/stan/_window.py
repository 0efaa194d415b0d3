"""Unacknowledged messages of NATS Streaming."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from nats.aio.client import Client

from ..aio._errors import delivery_errors
from ..aio.publishing._ack_window import AckWindow, Pending, reports_no_responders
from ..errors import DecodeError, DeliveryError, ErrorCode, StanError
from ._session import new_id
from .wire import PubAck

_log: Final = logging.getLogger(__name__)

_PREFIX: Final = "_STAN.acks"


class _PendingMessage(Pending, eq=False):
    """
    An unacknowledged message.

    Attributes:
        guid: Id of the message.
        give_up: Time at which it fails without an acknowledgement, in seconds of ``time.monotonic()``.
        on_failure: Called with the StanError, which the future gets as well.
    """

    guid: str
    give_up: float
    on_failure: Callable[[StanError], object]


class Window(AckWindow[_PendingMessage]):
    """
    At most ``size`` unacknowledged messages. The result of a message's ``ack`` is its guid, or a StanError.

    Each message has a separate reply subject, so that a refusal without a guid can be attributed.
    """

    _name = "stan: acknowledgements"

    def __init__(self, nc: Client, *, size: int, ack_timeout: float) -> None:
        super().__init__(nc, size)
        self._ack_timeout = ack_timeout

    async def start(self) -> None:
        """
        Subscribe to acknowledgements.

        Raises:
            DeliveryError: ``connection-closed``: the NATS connection.
        """
        await self.open(f"{_PREFIX}.{new_id()}")

    async def send(
        self, guid: str, subject: str, message: bytes, on_failure: Callable[[StanError], object]
    ) -> asyncio.Future[str]:
        """
        Publish a message for which there is room.

        Returns a future whose result is the guid after the acknowledgement, or a StanError.

        Raises:
            DeliveryError: ``connection-closed``: the NATS connection; ``buffer-full``; ``permission-denied``:
                acknowledgements cannot be received.
        """
        if self._failure is not None:
            raise self._failure
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
        """Fail all pending messages, which can no longer be acknowledged; each may have been stored."""
        self._fail_all(StanError(ErrorCode.TIMEOUT, text))

    def _receive(self, token: str, data: bytes, block: bytes) -> None:
        if reports_no_responders(data, block):
            self._fail(token, StanError(ErrorCode.NO_RESPONDERS, "stan: no server listens"))
            return
        try:
            ack = PubAck.decode(data)
        except DecodeError as error:
            _log.warning("a malformed acknowledgement was dropped: %s", error)
            return
        if ack.error:
            self._fail(token, StanError(ErrorCode.PUBLISH_REFUSED, ack.error))
        elif ack.guid == self.pending[token].guid:
            self._finish(token, ack.guid)
        else:
            _log.warning("an acknowledgement of another message was dropped: %r", ack.guid)

    def _failed(self, item: _PendingMessage, error: DeliveryError) -> None:
        assert isinstance(error, StanError)
        item.on_failure(error)

    def _as_own(self, error: DeliveryError) -> DeliveryError:
        own = StanError(error.code, error.message)
        own.__cause__ = error.__cause__
        return own

    async def _check(self) -> None:
        while (token := next(iter(self.pending), None)) and self.pending[token].give_up <= time.monotonic():
            # It may have been stored.
            self._fail(token, StanError(ErrorCode.TIMEOUT, "stan: publish ack timeout"))
