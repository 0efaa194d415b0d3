"""
Publish many messages to JetStream, with a bounded number of unacknowledged messages.

A message counts as sent when its stream has acknowledged it. Unacknowledged messages, for instance because the server
was lost, are resent on a new connection; by their ``Nats-Msg-Id`` the stream stores each of them once within its
duplicate window.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from nats.aio.client import Client

from ...errors import DeliveryError, ErrorCode, NoStreamError
from ...message import NatsMessage
from ...wire.nats import encode_header_block
from .._connect import disconnect
from .._errors import delivery_error, delivery_errors
from .._util.pausing import pause
from ..core._publish import check_size, flush, publish_with_block
from ._pending_acks import PendingAcks, PendingMessage, PublishResult, is_duplicate
from ._prepare import MAX_HEADER_BYTES

_PAUSE_SECONDS: Final = 0.2

# A message, its header block, and the number of earlier attempts.
Framed: TypeAlias = tuple[NatsMessage, bytes, int]


class BulkPublisher:
    """
    Publisher of many messages on a separate connection, as an asynchronous context manager.

    Args:
        connect: Function that connects a new client; raises DeliveryError.
        acknowledged: False publishes to core NATS, which does not confirm delivery.
        window: Maximum number of unacknowledged messages.
        ack_timeout: Seconds to wait for an acknowledgement.
        retry_timeout: Seconds to retry without progress.
        api_prefix: First tokens of the subjects of JetStream's API.
    """

    def __init__(
        self,
        connect: Callable[[Client], Awaitable[None]],
        *,
        acknowledged: bool = True,
        window: int = 500,
        ack_timeout: float = 5.0,
        retry_timeout: float = 30.0,
        api_prefix: str = "$JS.API",
    ) -> None:
        self._connect = connect
        self._acknowledged = acknowledged
        self._window = window
        self._ack_timeout = ack_timeout
        self._retry_timeout = retry_timeout
        self._api_prefix = api_prefix
        self._client: Client | None = None
        self._acks: PendingAcks | None = None
        self._has_stream = False

    async def __aenter__(self) -> BulkPublisher:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._disconnect()

    async def publish(self, messages: Sequence[NatsMessage]) -> PublishResult:
        """
        Publish messages, in order unless some are resent.

        Raises:
            EncodeError: ``payload-too-large``, ``headers-too-large``, ``invalid-header-name``,
                ``invalid-header-value`` or ``invalid-subject``; no message of the same window was sent.
            DeliveryError: ``no-responders``: no stream listens according to the server, or there were no responders for
                ``retry_timeout`` seconds; ``permission-denied``; ``publish-refused``; ``timeout`` or
                ``connection-closed``: nothing was acknowledged for that time.
        """
        sent = PublishResult()
        for first in range(0, len(messages), self._window):
            sent += await self._publish_window(list(messages[first : first + self._window]))
        return sent

    async def _publish_window(self, messages: list[NatsMessage]) -> PublishResult:
        total, duplicates = len(messages), 0
        give_up = time.monotonic() + self._retry_timeout
        outstanding: list[Framed] = [
            (message, encode_header_block(message.headers) if message.headers else b"", 0) for message in messages
        ]
        while outstanding:
            client = await self._connected(give_up)
            for message, block, _ in outstanding:
                limit = MAX_HEADER_BYTES if self._acknowledged else None
                check_size(message, client.max_payload, limit, len(block))
            if self._acks is None:
                await self._publish_without_acks(client, outstanding)
                break
            before = len(outstanding)
            outstanding, found, last_error = await self._send(self._acks, outstanding)
            duplicates += found
            if len(outstanding) < before:
                give_up = time.monotonic() + self._retry_timeout
            elif time.monotonic() >= give_up:
                raise last_error
            if outstanding:
                await self._disconnect()
                await pause(_PAUSE_SECONDS)
        return PublishResult(total, duplicates)

    async def _send(self, acks: PendingAcks, messages: list[Framed]) -> tuple[list[Framed], int, DeliveryError]:
        """Send once, and return unacknowledged messages, the number of duplicates, and the last error."""
        items: list[PendingMessage] = []
        first = messages[0][0].subject
        last_error = DeliveryError(ErrorCode.TIMEOUT, f"{first}: no acknowledgement arrived in time")
        try:
            for message, block, attempts in messages:
                items.append(await acks.send(message, block, attempts=attempts))
        except DeliveryError as error:
            if error.code is ErrorCode.PERMISSION_DENIED:
                raise
            last_error = error
        except OSError as error:
            last_error = delivery_error(first, error)
        await acks.drain()
        outstanding = []
        duplicates = 0
        for (message, block, _), item in zip(messages, items):
            failure = item.ack.exception()
            if failure is None:
                duplicates += is_duplicate(item, item.ack.result())
            elif isinstance(failure, DeliveryError) and _is_temporary(failure):
                outstanding.append((message, block, item.attempts))
                last_error = failure
            else:
                raise failure
        self._has_stream = acks.has_stream
        return outstanding + messages[len(items) :], duplicates, last_error

    async def _publish_without_acks(self, client: Client, messages: list[Framed]) -> None:
        for message, block, _ in messages:
            with delivery_errors(message.subject, client):
                await publish_with_block(client, message, block)
        await flush(client)

    async def _connected(self, give_up: float) -> Client:
        while self._client is None or not self._client.is_connected:
            await self._disconnect()
            client = Client()
            try:
                await self._connect(client)
                self._client = client
                if self._acknowledged:
                    # This class resends unacknowledged messages, on a new connection.
                    timeout = self._ack_timeout
                    acks = PendingAcks(
                        client,
                        lambda *_: None,
                        window=self._window,
                        ack_timeout=timeout,
                        retry_timeout=min(timeout, self._retry_timeout),
                        api_prefix=self._api_prefix,
                    )
                    acks.has_stream = self._has_stream
                    self._acks = await acks.__aenter__()
            except DeliveryError:
                if time.monotonic() >= give_up:
                    raise
                await self._disconnect()
                await pause(_PAUSE_SECONDS)
        return self._client

    async def _disconnect(self) -> None:
        if self._acks is not None:
            await self._acks.__aexit__()
        if self._client is not None:
            await disconnect(self._client)
        self._client = self._acks = None


def _is_temporary(error: DeliveryError) -> bool:
    """Return whether a retry may help: the server was lost, or the stream has no leader."""
    return error.code is ErrorCode.TIMEOUT or (
        error.code is ErrorCode.NO_RESPONDERS and not isinstance(error, NoStreamError)
    )
