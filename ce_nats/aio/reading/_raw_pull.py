"""
Send pull requests to a consumer, and receive raw messages.

nats-py parses the headers of each message into a dict, which takes longer than everything else together, and loses
repeated names and malformed bytes. Here messages are taken before that, on any connection.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any, Final

import msgspec
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from ...errors import DeliveryError, ErrorCode
from .._errors import delivery_errors
from ..link._client import subscription_id
from ..link._frame_splitter import RawMessage
from ..link._link import Link, denial

# Interval for checking the connection while no message arrives: nats-py does not notify waiting tasks of a loss.
_CHECK_SECONDS: Final = 0.2


class RawPull:
    """Pull requests on a connection, one after another."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._subscription: Subscription | None = None
        self._inbox = ""
        self._pulls = 0
        self._reply = b""
        self._wanted = 0
        self._messages: list[RawMessage] = []
        self._status = b""
        self._ended = asyncio.Event()

    async def pull(self, subject: str, request: dict[str, Any], timeout: float) -> tuple[list[RawMessage], str]:
        """
        Send a pull request, and wait until it is complete.

        Returns the messages, and the final status line without its version, or ``""`` if all messages arrived. The
        reply subject of a message contains its sequence.

        Raises:
            DeliveryError: ``timeout``, ``permission-denied``; ``connection-closed``, also after a reconnect.
        """
        if self._subscription is None:
            self._inbox = self._nc.new_inbox()
            self._subscription = await Link.of(self._nc).reading.subscribe(f"{self._inbox}.*", self._on_messages)
        self._pulls += 1
        # A separate subject for each request: the server also sends a status after a complete one.
        reply = f"{self._inbox}.{self._pulls}"
        self._reply, self._wanted = reply.encode(), request["batch"]
        self._messages, self._status = [], b""
        self._ended.clear()
        with denial(self._nc, subject, f"{self._inbox}.*") as denied, delivery_errors(subject, self._nc):
            denied.add_done_callback(self._end_if_denied)
            reconnects = self._nc.stats["reconnects"]
            await self._nc.publish(subject, msgspec.json.encode(request), reply=reply)
            await self._wait(timeout, reconnects)
            if denied.done():
                raise denied.result()
        status = self._status.partition(b"\r\n")[0].partition(b" ")[2]
        return self._messages, status.decode("utf-8", "replace")

    async def close(self) -> None:
        """Stop receiving messages; the connection stays open. Never raises."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            Link.of(self._nc).reading.receive(subscription_id(subscription), None)
            with suppress(Exception):
                await subscription.unsubscribe()

    def _end_if_denied(self, denied: asyncio.Future[DeliveryError]) -> None:
        if not denied.cancelled():
            self._ended.set()

    async def _wait(self, timeout: float, reconnects: int) -> None:
        seen, since = 0, time.monotonic()
        while not self._ended.is_set():
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ended.wait(), min(timeout, _CHECK_SECONDS))
                return
            if self._nc.is_closed:
                text = f"the connection was closed: {self._nc.last_error}"
                raise DeliveryError(ErrorCode.CONNECTION_CLOSED, text)
            if self._nc.stats["reconnects"] != reconnects:
                text = "the connection was lost, with messages in flight"
                raise DeliveryError(ErrorCode.CONNECTION_CLOSED, text)
            if seen != len(self._messages):
                seen, since = len(self._messages), time.monotonic()
            elif time.monotonic() - since >= timeout:
                raise DeliveryError(ErrorCode.TIMEOUT, f"no messages and no status in {timeout} seconds")

    def _on_messages(self, messages: list[RawMessage]) -> None:
        """Process raw messages: those of the request, and statuses, which have no reply subject."""
        self._messages += [message for message in messages if message[1]]
        for subject, reply, _, block in messages:
            if not reply and subject == self._reply:
                self._status = block or b""
                self._ended.set()
        if len(self._messages) == self._wanted:
            self._ended.set()
