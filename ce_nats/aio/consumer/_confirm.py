"""Acknowledgements that the server confirms (``double_ack``): many at once, with one subscription for the answers."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack, suppress
from typing import Final

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext

from ...errors import DecodeError, DeliveryError, ErrorCode
from ...wire.nats import read_header_block
from .._errors import delivery_errors
from .._natspy import (
    RawMessage,
    api_timeout,
    check_writable,
    client_of,
    receive_raw,
    subscribe_raw,
    subscription_id,
    write_publish_frame,
)
from .._permissions import ConnectionWatch, Denial
from ._entry import Entry
from ._running import Running

# Maximum number of acknowledgements that are not confirmed, for handlers that do not wait for their own.
WINDOW: Final = 256
_NO_RESPONDERS: Final = 503


class Confirmations:
    """Acknowledgements that are not confirmed."""

    def __init__(self, js: JetStreamContext, running: Running) -> None:
        self._js = js
        self._nc: Client = client_of(js)
        self._running = running
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._number = 0
        # By number, in order: the result, its message, and the time at which it is too late.
        self._waiting: dict[int, tuple[asyncio.Future[None], Entry, float]] = {}
        self._unsent: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._watching = ExitStack()

    async def open(self) -> None:
        """
        Subscribe to the answers.

        Raises:
            DeliveryError: ``connection-closed``.
        """
        self._inbox = self._nc.new_inbox()
        watch = ConnectionWatch.of(self._nc)
        with delivery_errors(self._running.target, self._nc):
            self._subscription = await subscribe_raw(self._nc, f"{self._inbox}.*", self._receive)
        watch.add(self._on_denial)
        closed = self._watching.enter_context(watch.until_closed(self._running.target))
        closed.add_done_callback(self._note_close)

    async def close(self) -> None:
        """Wait for the answers that are still expected, and unsubscribe."""
        subscription, self._subscription = self._subscription, None
        if subscription is None:
            return
        await self.confirmed()
        ConnectionWatch.of(self._nc).remove(self._on_denial)
        self._watching.close()
        with suppress(nats.errors.Error):
            await subscription.unsubscribe()
        receive_raw(self._nc, subscription_id(subscription), None)

    @property
    def has_room(self) -> bool:
        """Whether a handler may continue before its acknowledgement is confirmed."""
        return len(self._waiting) < WINDOW

    async def confirmed(self) -> None:
        """Wait until each acknowledgement is confirmed, or has failed."""
        while self._waiting:
            await asyncio.wait([result for result, _, _ in self._waiting.values()])

    def request(self, entry: Entry) -> asyncio.Future[None]:
        """
        Acknowledge a message, and return the future result: None, or a DeliveryError.

        Raises:
            nats.errors.Error: The acknowledgement cannot be written, as for ``nc.publish()``.
        """
        check_writable(self._nc, len(entry.raw[1]))
        self._number += 1
        loop = asyncio.get_running_loop()
        result: asyncio.Future[None] = loop.create_future()
        seconds = api_timeout(self._js)
        self._waiting[self._number] = result, entry, time.monotonic() + seconds
        if not self._unsent:
            loop.call_soon(self._write)
        self._unsent.append(b"PUB %s %s.%d 0\r\n\r\n" % (entry.raw[1], self._inbox.encode(), self._number))
        if self._timer is None:
            self._timer = loop.call_later(seconds, self._check_time)
        return result

    def _write(self) -> None:
        """Write what was requested in this iteration of the loop."""
        frames, count = b"".join(self._unsent), len(self._unsent)
        self._unsent.clear()
        # Without an answer they fail, as those that were written to a connection that was lost.
        with suppress(nats.errors.Error):
            write_publish_frame(self._nc, frames, 0, count)

    def _receive(self, messages: list[RawMessage]) -> None:
        for subject, _, _, block in messages:
            number = subject.rpartition(b".")[2]
            waiting = self._waiting.pop(int(number), None) if number.isdigit() else None
            if waiting is None:
                continue
            if block and _has_no_responders(block):
                text = f"{self._running.target}: an acknowledgement has reached no server with the consumer"
                _fail(waiting[0], DeliveryError(ErrorCode.NO_RESPONDERS, text))
            elif not waiting[0].done():
                waiting[0].set_result(None)

    def _check_time(self) -> None:
        """Fail the acknowledgements that were not confirmed in time."""
        self._timer = None
        now = time.monotonic()
        for number, (result, _, end) in list(self._waiting.items()):
            if end > now:
                self._timer = asyncio.get_running_loop().call_later(end - now, self._check_time)
                return
            del self._waiting[number]
            text = f"{self._running.target}: an acknowledgement was not confirmed in time"
            _fail(result, DeliveryError(ErrorCode.TIMEOUT, text))

    def _note_close(self, closed: asyncio.Future[DeliveryError]) -> None:
        if not closed.cancelled():
            self._fail_all(closed.result())

    def _on_denial(self, denial: Denial) -> bool:
        """Fail the acknowledgement that was denied, or all of them if no answers can arrive."""
        if denial.is_subscription(f"{self._inbox}.*"):
            self._fail_all(denial.error())
            return True
        for number, (result, entry, _) in list(self._waiting.items()):
            if denial.is_publish(entry.raw[1].decode()):
                del self._waiting[number]
                _fail(result, denial.error())
        return False  # the consumer ends, too

    def _fail_all(self, error: DeliveryError) -> None:
        waiting = list(self._waiting.values())
        self._waiting.clear()
        for result, _, _ in waiting:
            _fail(result, error)


def _has_no_responders(block: bytes) -> bool:
    try:
        status = read_header_block(block, "surrogateescape").status
    except DecodeError:
        return False
    return status is not None and status.code == _NO_RESPONDERS


def _fail(result: asyncio.Future[None], error: DeliveryError) -> None:
    if not result.done():
        result.set_exception(error)
