"""
Pull requests to a consumer, and their messages as they stand on the wire.

nats-py parses the headers of every message into a dict, which costs more than all else together and loses repeated
names and malformed bytes; here messages are taken before that, on any connection.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any, Final, TypeAlias

import msgspec
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from ...errors import DeliveryError, ErrorCode
from .._errors import delivery_errors
from .._natspy import set_raw_message_hook, subscription_id
from .._permissions import denial

# Subject, reply subject, payload, header block; all as they stand on the wire. The reply subject of a message from a
# consumer says which message it is.
RawMessage: TypeAlias = tuple[bytes, bytes, bytes, "bytes | None"]

# How often a connection is looked at while nothing comes: nats-py tells no waiting task that it was lost.
_LOOK_SECONDS: Final = 0.2


class RawPull:
    """
    Pull requests on a connection, one at a time.

    Args:
        nc: An open connection.
    """

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
        Send a pull request, and wait until it was answered in full.

        Args:
            subject: Of the API's ``CONSUMER.MSG.NEXT`` for a consumer.
            request: ``batch`` and more.
            timeout: Seconds without a message after which the request fails.

        Returns:
            Messages, and the status line that ended them without its version, or ``""`` where all of them came.

        Raises:
            DeliveryError: ``timeout``, ``permission-denied``; ``connection-closed``, also where it was made again.
        """
        if self._subscription is None:
            self._inbox = self._nc.new_inbox()
            self._subscription = await self._nc.subscribe(f"{self._inbox}.*")
            set_raw_message_hook(self._nc, subscription_id(self._subscription), self._on_message)
        self._pulls += 1
        # A subject for each request, because the server also ends one that was answered in full with a status.
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
        self._nc.stats["in_msgs"] += len(self._messages)
        self._nc.stats["in_bytes"] += sum(len(message[2]) for message in self._messages)
        status = self._status.partition(b"\r\n")[0].partition(b" ")[2]
        return self._messages, status.decode("utf-8", "replace")

    async def close(self) -> None:
        """Take no more messages; the connection stays open. Never raises."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            set_raw_message_hook(self._nc, subscription_id(subscription), None)
            with suppress(Exception):
                await subscription.unsubscribe()

    def _end_if_denied(self, denied: asyncio.Future[DeliveryError]) -> None:
        if not denied.cancelled():
            self._ended.set()

    async def _wait(self, timeout: float, reconnects: int) -> None:
        seen, since = 0, time.monotonic()
        while not self._ended.is_set():
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ended.wait(), min(timeout, _LOOK_SECONDS))
                return
            if self._nc.is_closed:
                text = f"the connection was closed: {self._nc.last_error}"
                raise DeliveryError(ErrorCode.CONNECTION_CLOSED, text)
            if self._nc.stats["reconnects"] != reconnects:
                text = "the connection was lost with the messages that were on their way"
                raise DeliveryError(ErrorCode.CONNECTION_CLOSED, text)
            if seen != len(self._messages):
                seen, since = len(self._messages), time.monotonic()
            elif time.monotonic() - since >= timeout:
                raise DeliveryError(ErrorCode.TIMEOUT, f"no messages and no status in {timeout} seconds")

    def _on_message(self, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        """Keep a message of the request as it is."""
        if reply:
            self._messages.append((subject, reply, data, headers))
            if len(self._messages) == self._wanted:
                self._ended.set()
        elif subject == self._reply:
            self._status = headers or b""
            self._ended.set()
