"""Acknowledgements that the server confirms (``double_ack``): many at once, whose answers arrive on one subject."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final, Literal

import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from ...errors import DeliveryError, ErrorCode
from .._reply_inbox import ReplyInbox, reports_no_responders
from .._reply_window import Pending, ReplyWindow, set_outcome
from ..link._client import api_timeout, client_of
from ..link._link import Link
from ..link._permissions import Denial
from ..link._writing import check_writable, write_publish_frame
from ._entry import Entry
from ._running import Running

# Maximum number of acknowledgements that are not confirmed, for handlers that do not wait for their own.
WINDOW: Final = 256


class _Ack(Pending, eq=False):
    """
    An acknowledgement without an answer. It fails when it is due.

    Attributes:
        result: Future of None, or of a DeliveryError.
    """

    result: asyncio.Future[None]


class Confirmations:
    """Acknowledgements that are not confirmed."""

    def __init__(self, js: JetStreamContext, running: Running) -> None:
        self._nc: Client = client_of(js)
        self._target = running.target
        self._seconds = api_timeout(js)
        self._window: ReplyWindow[_Ack] = ReplyWindow(
            WINDOW, name=self._target, read=self._read, check=self._check, done=_end, denied=self._deny
        )
        self._unsent: list[bytes] = []

    async def open(self) -> None:
        """
        Begin to receive answers.

        Raises:
            DeliveryError: ``connection-closed``.
        """
        await self._window.open(ReplyInbox.of(self._nc))

    async def close(self) -> None:
        """Wait for the answers that are still expected."""
        await self.confirmed()
        await self._window.close()

    @property
    def has_room(self) -> bool:
        """Whether a handler may continue before its acknowledgement is confirmed."""
        return not self._window.is_full

    async def confirmed(self) -> None:
        """Wait until each acknowledgement is confirmed, or has failed."""
        await self._window.drain()

    def request(self, entry: Entry) -> asyncio.Future[None]:
        """
        Acknowledge a message, and return the future result: None, or a DeliveryError.

        Raises:
            nats.errors.Error: The acknowledgement cannot be written, as for ``nc.publish()``.
        """
        subject = entry.raw[1]
        check_writable(self._nc, len(subject))
        acks, loop = self._window.unacknowledged, asyncio.get_running_loop()
        result: asyncio.Future[None] = loop.create_future()
        ack = _Ack(acks.new_token(), subject.decode(), time.monotonic() + self._seconds, result)
        if acks.failure is not None:
            _end(ack, acks.failure)
            return result
        acks.add(ack)
        if not self._unsent:
            loop.call_soon(self._write)
        self._unsent.append(b"PUB %s %s%s 0\r\n\r\n" % (subject, self._window.prefix.encode(), ack.token.encode()))
        return result

    def _write(self) -> None:
        """Write what was requested in this iteration of the loop."""
        frames, count = b"".join(self._unsent), len(self._unsent)
        self._unsent.clear()
        # Without an answer they fail, as those that were written to a connection that was lost.
        with suppress(nats.errors.Error):
            write_publish_frame(self._nc, frames, 0, count)

    def _read(self, ack: _Ack, data: bytes, block: bytes) -> DeliveryError | Literal[True]:
        """Return the outcome in an answer."""
        if not reports_no_responders(data, block):
            return True
        text = f"{self._target}: an acknowledgement has reached no server with the consumer"
        return DeliveryError(ErrorCode.NO_RESPONDERS, text)

    def _check(self, now: float) -> None:
        if self._nc.is_closed:
            self._window.finish_all(Link.of(self._nc).ending.closed_error(self._target))
        for ack in self._window.unacknowledged.due(now):
            text = f"{self._target}: an acknowledgement was not confirmed in time"
            self._window.finish(ack, DeliveryError(ErrorCode.TIMEOUT, text))

    def _deny(self, denial: Denial) -> bool:
        self._window.deny(denial)
        return False  # the consumer ends, too


def _end(ack: _Ack, outcome: DeliveryError | Literal[True]) -> None:
    """Set the result of an acknowledgement."""
    set_outcome(ack.result, None if outcome is True else outcome)
