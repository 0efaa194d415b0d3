"""
Acknowledgements of numbered messages, counted without an object for each.

The number of a message is the last token of its reply subject. Ordinary acknowledgements are found in the received
bytes, many at once; every other reply is parsed by nats-py, and handled one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from .._errors import delivery_errors
from .._natspy import set_chunk_hook, subscription_id
from .._permissions import ConnectionWatch, Denial
from ._ack_window import NO_RESPONDERS, is_no_responders

# A PubAck as nats-server writes it. Groups: number of the message, size of the payload, payload, duplicate.
_DOMAIN: Final = rb'(?:, ?"domain": ?"[^"\\\r\n]*")?'
_ACK: Final = (
    rb'MSG %s([0-9]{1,18}) %d ([0-9]{1,5})\r\n(\{"stream": ?"[^"\\\r\n]+"'
    + _DOMAIN
    + rb', ?"seq": ?[0-9]+'
    + _DOMAIN
    + rb'(, ?"duplicate": ?true)?\})\r\n'
)
_MAX_PART: Final = 1024
_MAX_DIGITS: Final = 18


class TokenAcks:
    """Replies to numbered messages on one connection."""

    def __init__(
        self,
        nc: Client,
        prefix: str,
        *,
        acknowledged: Callable[[list[int], list[int]], None],
        replied: Callable[[int, bytes, bytes], None],
        denied: Callable[[Denial], bool],
    ) -> None:
        self._nc = nc
        self._prefix = prefix
        self._acknowledged = acknowledged
        self._replied = replied
        self._denied = denied
        self._subscription: Subscription | None = None

    async def open(self) -> None:
        """
        Subscribe to the replies.

        Raises:
            DeliveryError: ``connection-closed``.
        """
        ConnectionWatch.of(self._nc).add(self._denied)
        with delivery_errors("acknowledgements", self._nc):
            self._subscription = await self._nc.subscribe(
                f"{self._prefix}*", cb=self._receive, pending_msgs_limit=0, pending_bytes_limit=0
            )
        ack = _ACK % (re.escape(self._prefix.encode()), subscription_id(self._subscription))
        self._find = re.compile(ack).findall
        self._match_all = re.compile(b"(?:%s)*" % ack).match
        self._begin = f"MSG {self._prefix}".encode()
        set_chunk_hook(self._nc, self._take)

    async def close(self) -> None:
        """Unsubscribe."""
        ConnectionWatch.of(self._nc).remove(self._denied)
        if self._subscription is not None:
            with suppress(nats.errors.Error):
                await self._subscription.unsubscribe()

    def _take(self, data: bytes) -> tuple[bytes, bool]:
        """Process the acknowledgements that received bytes begin with; as the hook of ``set_chunk_hook``."""
        matched = self._match_all(data)
        end = matched.end() if matched else 0
        if end:
            found = self._find(data[:end])
            if any(len(payload) != int(size) for _, size, payload, _ in found):
                return data, False
            numbers = [int(number) for number, _, _, _ in found]
            self._acknowledged(numbers, [number for number, row in zip(numbers, found) if row[3]])
        rest = data[end:]
        return rest, bool(rest) and self._is_beginning(rest)

    def _is_beginning(self, rest: bytes) -> bool:
        """Return whether bytes are the beginning of a reply, so that the next bytes belong to it."""
        is_reply = rest.startswith(self._begin) or (len(rest) < len(self._begin) and self._begin.startswith(rest))
        return is_reply and len(rest) < _MAX_PART and rest.count(b"\r\n") < 2

    async def _receive(self, message: Msg) -> None:
        number = message.subject[len(self._prefix) :]
        if number.isascii() and number.isdigit() and len(number) <= _MAX_DIGITS:
            self._replied(int(number), message.data, NO_RESPONDERS if is_no_responders(message) else b"")
