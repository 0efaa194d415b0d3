"""
Many messages into JetStream, with a bounded number of acknowledgements outstanding.

A message counts as sent when its stream has acknowledged it. What was not acknowledged, because the server went away
say, is sent again on a new connection; ``Nats-Msg-Id`` keeps the stream from storing it twice within its duplicate
window.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js.client import JetStreamContext

from ..errors import DeliveryError, ErrorCode
from ..message import NatsMessage
from .jetstream import MOST_HEADER_BYTES
from .publish import as_nats_headers, check_size, flush

__all__ = ["BulkPublisher", "Sent"]

_PAUSE_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Sent:
    """
    What became of messages.

    Attributes:
        messages: How many there were.
        duplicates: How many of them the stream had already, by their ``Nats-Msg-Id``.
    """

    messages: int = 0
    duplicates: int = 0

    def __add__(self, other: Sent) -> Sent:
        return Sent(self.messages + other.messages, self.duplicates + other.duplicates)


class BulkPublisher:
    """
    Publishes messages on a connection of its own, as an asynchronous context manager.

    Args:
        connect: Connects a client that never was connected; raises DeliveryError.
        prefix: First tokens of the subjects of JetStream's API.
        acknowledged: False publishes to core NATS: nobody says whether a message was stored, or by whom.
        window: Most acknowledgements outstanding.
        ack_timeout: Seconds to wait for an acknowledgement.
        retry_timeout: Seconds to try again without any progress.
    """

    def __init__(
        self,
        connect: Callable[[Client], Awaitable[None]],
        *,
        prefix: str = "$JS.API",
        acknowledged: bool = True,
        window: int = 500,
        ack_timeout: float = 5.0,
        retry_timeout: float = 30.0,
    ) -> None:
        self._connect = connect
        self._prefix = prefix
        self._acknowledged = acknowledged
        self._window = window
        self._ack_timeout = ack_timeout
        self._retry_timeout = retry_timeout
        self._client: Client | None = None
        self._js: JetStreamContext | None = None
        self._was_acknowledged = False

    async def __aenter__(self) -> BulkPublisher:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._disconnect()

    async def publish(self, messages: Sequence[NatsMessage]) -> Sent:
        """
        Send messages, in their order as far as nothing has to be sent again.

        Raises:
            EncodeError: ``payload-too-large`` or ``headers-too-large``; nothing of the window it is in was sent.
            DeliveryError: ``delivery-failed``: a stream refused a message, none listens on its subject, or nothing was
                acknowledged for ``retry_timeout`` seconds.
        """
        sent = Sent()
        for first in range(0, len(messages), self._window):
            sent += await self._publish_window(list(messages[first : first + self._window]))
        return sent

    async def _publish_window(self, messages: list[NatsMessage]) -> Sent:
        total, duplicates = len(messages), 0
        give_up = time.monotonic() + self._retry_timeout
        while messages:
            js = await self._connected(give_up)
            for message in messages:
                self._check(message, js._nc.max_payload)
            if not self._acknowledged:
                await self._send_plainly(js._nc, messages)
                break
            outstanding, found, reason = await self._send(js, messages)
            duplicates += found
            if len(outstanding) < len(messages):
                give_up = time.monotonic() + self._retry_timeout
            elif time.monotonic() >= give_up:
                raise DeliveryError(ErrorCode.DELIVERY_FAILED, f"{outstanding[0].subject}: {reason}")
            messages = outstanding
            if messages:
                await self._disconnect()
                await asyncio.sleep(_PAUSE_SECONDS)
        return Sent(total, duplicates)

    def _check(self, message: NatsMessage, max_payload: int) -> None:
        check_size(message, max_payload, MOST_HEADER_BYTES if self._acknowledged else None)

    async def _send(self, js: JetStreamContext, messages: list[NatsMessage]) -> tuple[list[NatsMessage], int, str]:
        """Messages that were not acknowledged, the number of duplicates among the others, and why not."""
        futures: list[asyncio.Future[Any]] = []
        reason = "no acknowledgement came in time"
        try:
            for message in messages:
                headers = as_nats_headers(message.headers)
                futures.append(await js.publish_async(message.subject, message.data, headers=headers))
        except (nats.errors.Error, OSError) as error:
            reason = str(error) or type(error).__name__
        if futures:
            await asyncio.wait(futures, timeout=self._ack_timeout)
        outstanding = messages[len(futures) :]
        duplicates = 0
        for message, future in zip(messages, futures):
            if not future.done():
                future.cancel()
                outstanding.append(message)
            elif (refusal := future.exception()) is None:
                duplicates += bool(future.result().duplicate)
                self._was_acknowledged = True
            elif self._may_pass(refusal):
                outstanding.append(message)
                reason = "no stream listens"
            else:
                raise DeliveryError(ErrorCode.DELIVERY_FAILED, f"{message.subject}: {refusal}") from refusal
        return outstanding, duplicates, reason

    def _may_pass(self, error: BaseException) -> bool:
        """A server that has just come back has no stream for a while; one that never had one will not have it later."""
        return self._was_acknowledged and isinstance(error, nats.js.errors.NoStreamResponseError)

    async def _send_plainly(self, client: Client, messages: list[NatsMessage]) -> None:
        try:
            for message in messages:
                await client.publish(message.subject, message.data, headers=as_nats_headers(message.headers))
        except nats.errors.Error as error:
            raise DeliveryError(ErrorCode.DELIVERY_FAILED, f"core NATS: {error}") from error
        await flush(client)

    async def _connected(self, give_up: float) -> JetStreamContext:
        while self._js is None or self._client is None or not self._client.is_connected:
            await self._disconnect()
            client = Client()
            try:
                await self._connect(client)
            except DeliveryError:
                if time.monotonic() >= give_up:
                    raise
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            self._client = client
            self._js = client.jetstream(prefix=self._prefix, publish_async_max_pending=self._window)
        return self._js

    async def _disconnect(self) -> None:
        if self._client is not None:
            with suppress(nats.errors.Error, OSError, asyncio.TimeoutError):
                await self._client.close()
        self._client = self._js = None
