"""Unacknowledged messages of NATS Streaming."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from nats.aio.client import Client

from ..aio._errors import delivery_errors
from ..aio._reply_inbox import ReplyInbox, reports_no_responders
from ..aio._reply_window import Pending, ReplyWindow, set_outcome
from ..errors import DecodeError, DeliveryError, ErrorCode, StanError
from ._session import new_id
from .wire import PubAck

_log: Final = logging.getLogger(__name__)

_PREFIX: Final = "_STAN.acks"


class _PendingMessage(Pending, eq=False):
    """
    An unacknowledged message. It fails when it is due.

    Attributes:
        guid: Id of the message.
        ack: Future of the guid, or of a StanError.
        on_failure: Called with the StanError.
    """

    guid: str
    ack: asyncio.Future[str]
    on_failure: Callable[[StanError], object]


class Window:
    """
    At most ``size`` unacknowledged messages.

    Each message has a separate reply subject, so that a refusal without a guid can be attributed.
    """

    def __init__(self, nc: Client, *, size: int, ack_timeout: float) -> None:
        self._nc = nc
        self._ack_timeout = ack_timeout
        self._inbox: ReplyInbox | None = None
        self._window: ReplyWindow[_PendingMessage] = ReplyWindow(
            size, name="stan: acknowledgements", read=_read, check=self._check, done=_end
        )
        self.wait_for_slot, self.drain = self._window.wait_for_slot, self._window.drain

    async def open(self) -> None:
        """
        Begin to receive acknowledgements, on a subject of the protocol.

        Raises:
            DeliveryError: ``connection-closed``: the NATS connection.
        """
        self._inbox = ReplyInbox(self._nc, f"{_PREFIX}.{new_id()}")
        await self._window.open(self._inbox)

    async def close(self) -> None:
        """Unsubscribe, and cancel the futures of pending messages."""
        for item in self._window.unacknowledged.items.values():
            item.ack.cancel()
        await self._window.close()
        if self._inbox is not None:
            await self._inbox.close()

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
        messages = self._window.unacknowledged
        if messages.failure is not None:
            raise _as_own(messages.failure)
        ack: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        due = time.monotonic() + self._ack_timeout
        item = messages.add(_PendingMessage(messages.new_token(), subject, due, guid, ack, on_failure))
        try:
            with delivery_errors(subject, self._nc):
                await self._nc.publish(subject, message, self._window.prefix + item.token)
        except BaseException:
            self._window.drop(item)
            raise
        return ack

    def fail_all(self, text: str) -> None:
        """Fail all pending messages, which can no longer be acknowledged; each may have been stored."""
        self._window.finish_all(StanError(ErrorCode.TIMEOUT, text))

    def _check(self, now: float) -> None:
        for item in self._window.unacknowledged.due(now):
            # It may have been stored.
            self._window.finish(item, StanError(ErrorCode.TIMEOUT, "stan: publish ack timeout"))


def _read(item: _PendingMessage, data: bytes, block: bytes) -> str | StanError | None:
    """Return the outcome in a reply."""
    if reports_no_responders(data, block):
        return StanError(ErrorCode.NO_RESPONDERS, "stan: no server listens")
    try:
        ack = PubAck.decode(data)
    except DecodeError as error:
        _log.warning("a malformed acknowledgement was dropped: %s", error)
        return None
    if ack.error:
        return StanError(ErrorCode.PUBLISH_REFUSED, ack.error)
    if ack.guid == item.guid:
        return ack.guid
    _log.warning("an acknowledgement of another message was dropped: %r", ack.guid)
    return None


def _end(item: _PendingMessage, outcome: str | DeliveryError) -> None:
    """Report the outcome of a message."""
    if isinstance(outcome, str):
        set_outcome(item.ack, outcome)
        return
    error = _as_own(outcome)
    set_outcome(item.ack, error)
    item.on_failure(error)


def _as_own(error: DeliveryError) -> StanError:
    if isinstance(error, StanError):
        return error
    own = StanError(error.code, error.message)
    own.__cause__ = error.__cause__
    return own
