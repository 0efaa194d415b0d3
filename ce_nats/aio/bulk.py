"""
Many messages into JetStream, with a bounded number of acknowledgements outstanding.

A message counts as sent when its stream has acknowledged it. What was not acknowledged, because the server went away
say, is sent again on a new connection; ``Nats-Msg-Id`` keeps the stream from storing it twice within its duplicate
window.

nats-py's own ``publish_async`` never tells of a refusal (2.16 raises where it should hand over), so acknowledgements
are received here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from ..errors import DeliveryError, ErrorCode
from ..message import NatsMessage
from .jetstream import check_jetstream_size
from .publish import as_nats_headers, check_size, delivery, flush
from .streams import leave

__all__ = ["BulkPublisher", "Sent"]

_PAUSE_SECONDS: Final = 0.2
_NO_RESPONDERS: Final = "503"


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
        acknowledged: False publishes to core NATS: nobody says whether a message was stored, or by whom.
        window: Most acknowledgements outstanding.
        ack_timeout: Seconds without any acknowledgement after which those outstanding are given up.
        retry_timeout: Seconds to try again without any progress.
    """

    def __init__(
        self,
        connect: Callable[[Client], Awaitable[None]],
        *,
        acknowledged: bool = True,
        window: int = 500,
        ack_timeout: float = 5.0,
        retry_timeout: float = 30.0,
    ) -> None:
        self._connect = connect
        self._acknowledged = acknowledged
        self._window = window
        self._ack_timeout = ack_timeout
        self._retry_timeout = retry_timeout
        self._client: _AskingClient | None = None
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
                ``invalid-header-name``, which nats-py notices when it is the message's turn.
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
            client = await self._connected(give_up)
            for message in messages:
                self._check(message, client.max_payload)
            if not self._acknowledged:
                await self._send_plainly(client, messages)
                break
            answers, reason = await client.ask(messages, self._ack_timeout)
            found, outstanding, reason = self._read(messages, answers, reason)
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
        check_size(message, max_payload)
        if self._acknowledged:
            check_jetstream_size(message)

    def _read(
        self, messages: Sequence[NatsMessage], answers: Sequence[Msg | None], reason: str
    ) -> tuple[int, list[NatsMessage], str]:
        """The number of duplicates, messages that have to be sent again, and why."""
        outstanding, duplicates = [], 0
        for message, answer in zip(messages, answers):
            if answer is None:
                outstanding.append(message)
            elif answer.headers and answer.headers.get("Status") == _NO_RESPONDERS:
                # A server that has just come back has no stream for a while; one that never had one will have none.
                if not self._was_acknowledged:
                    raise DeliveryError(ErrorCode.DELIVERY_FAILED, f"{message.subject}: no stream listens")
                outstanding.append(message)
                reason = "no stream listens any more"
            else:
                duplicates += _is_duplicate(message.subject, answer)
                self._was_acknowledged = True
        return duplicates, outstanding, reason

    async def _send_plainly(self, client: Client, messages: list[NatsMessage]) -> None:
        with delivery("core NATS"):
            for message in messages:
                await client.publish(message.subject, message.data, headers=as_nats_headers(message.headers))
        await flush(client)

    async def _connected(self, give_up: float) -> _AskingClient:
        while self._client is None or not self._client.is_connected:
            await self._disconnect()
            client = _AskingClient()
            try:
                await self._connect(client)
            except DeliveryError:
                if time.monotonic() >= give_up:
                    raise
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            self._client = client
        return self._client

    async def _disconnect(self) -> None:
        if self._client is not None:
            await leave(self._client)
        self._client = None


class _AskingClient(Client):
    """nats-py's client, with the answers to what it publishes; it does not reconnect."""

    def __init__(self) -> None:
        super().__init__()
        self._ack_inbox = ""
        self._asked = 0
        self._answers: list[Msg | None] = []
        self._missing = 0
        self._is_over = asyncio.Event()

    async def connect(self, *args: Any, **options: Any) -> None:
        """As nats-py does; but a lost connection is closed at once, and whoever waits for answers learns of it."""

        async def closed() -> None:
            self._is_over.set()

        await super().connect(*args, **{**options, "allow_reconnect": False, "closed_cb": closed})

    async def ask(self, messages: Sequence[NatsMessage], silence: float) -> tuple[list[Msg | None], str]:
        """
        Publish messages, and wait for an answer to each.

        Args:
            messages: What to publish, all at once.
            silence: Seconds without any answer after which the rest is given up.

        Returns:
            For each message its answer, or None where there is none, and the reason for that.

        Raises:
            EncodeError: ``invalid-header-name``.
        """
        self._asked += len(self._answers)
        self._answers, self._missing = [None] * len(messages), len(messages)
        self._is_over.clear()
        with suppress(nats.errors.ConnectionClosedError):
            await self._publish_all(messages)
        seen = -1
        while not (self._is_over.is_set() or self.is_closed):
            if seen == self._missing:
                return self._answers, f"no acknowledgement came in {silence} seconds"
            seen = self._missing
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._is_over.wait(), silence)
        return self._answers, f"the connection was lost: {self.last_error}"

    async def _publish_all(self, messages: Sequence[NatsMessage]) -> None:
        if not self._ack_inbox:
            self._ack_inbox = self.new_inbox()
            await self.subscribe(f"{self._ack_inbox}.*", cb=self._take)
        for number, message in enumerate(messages, self._asked):
            reply, headers = f"{self._ack_inbox}.{number}", as_nats_headers(message.headers)
            try:
                await self.publish(message.subject, message.data, reply, headers=headers)
            except nats.errors.ConnectionClosedError:
                raise
            except nats.errors.Error:
                with delivery(message.subject):
                    raise

    async def _take(self, answer: Msg) -> None:
        index = int(answer.subject.rpartition(".")[2]) - self._asked
        if 0 <= index < len(self._answers) and self._answers[index] is None:
            self._answers[index] = answer
            self._missing -= 1
            if not self._missing:
                self._is_over.set()


class _Error(msgspec.Struct):
    description: str = ""
    err_code: int = 0


class _Ack(msgspec.Struct):
    """What a stream says to a message; without a name it was no stream."""

    stream: str = ""
    duplicate: bool = False
    error: _Error | None = None


def _is_duplicate(subject: str, answer: Msg) -> bool:
    """
    Whether the stream had the message already.

    Raises:
        DeliveryError: ``delivery-failed``: the stream refused it, or it was no stream that answered.
    """
    try:
        ack = msgspec.json.decode(answer.data, type=_Ack)
    except msgspec.MsgspecError:
        ack = _Ack()
    if ack.error is not None:
        reason = f"{ack.error.description} ({ack.error.err_code})"
    elif not ack.stream:
        reason = "what answered is no stream"
    else:
        return ack.duplicate
    raise DeliveryError(ErrorCode.DELIVERY_FAILED, f"{subject}: {reason}")
