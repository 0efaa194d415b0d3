"""
Fetch messages from a pull consumer: one pending request, as long as there are free slots for its messages.

Requests are the same as those of nats-py, but responses are processed here: nats-py's ``fetch()`` takes a message that
was published with a header ``Status`` for a status of the server, and drops it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from ...errors import ApiError, CeNatsError, DecodeError, DeliveryError, ErrorCode
from ...wire._ack_subject import AckSubject, parse_ack_subject
from .._errors import delivery_errors
from .._jetstream_api import StreamApi
from .._natspy import unsubscribe_and_drain
from .._permissions import ConnectionWatch, Denial
from .._pull_status import PullStatus, parse_pull_status
from .._util.supervising import supervise
from ..core._publish import round_trip

_log: Final = logging.getLogger(__name__)

# Maximum lifetime of a request on the server, and interval of the server's heartbeats meanwhile.
_EXPIRES_SECONDS: Final = 30.0
_HEARTBEAT_SECONDS: Final = 5.0
_MAX_IDLE_SECONDS: Final = 2.5 * _HEARTBEAT_SECONDS
# Interval for detecting a reconnect, and before a refused request is repeated.
_TICK_SECONDS: Final = 0.2
# The server disconnects a client with more than 64 MiB of pending data.
_MAX_BYTES: Final = 16 * 2**20


@dataclass(slots=True)
class _Request:
    """
    An unfinished request for messages.

    Attributes:
        reply: Its reply subject, to which statuses are sent.
        batch: Number of requested messages.
        left: Number of them that have not arrived.
        reconnects: Number of reconnects before the request; a further reconnect ends it.
        last_answer: Time of the last message or status, in seconds of ``time.monotonic()``.
    """

    reply: str
    batch: int
    left: int
    reconnects: int
    last_answer: float


class Fetcher:
    """
    Requests for the messages of a consumer.

    Args:
        nc: An open connection.
        api: JetStream's API on it.
        stream: Name of the stream.
        consumer: Name of the consumer.
        free_slots: Returns the number of messages that may be fetched now.
        deliver: Called with each message.
        fail: Called once with the error after which no further messages arrive.
    """

    def __init__(
        self,
        nc: Client,
        api: StreamApi,
        stream: str,
        consumer: str,
        *,
        free_slots: Callable[[], int],
        deliver: Callable[[Msg, AckSubject], None],
        fail: Callable[[DeliveryError], None],
    ) -> None:
        self._nc = nc
        self._api = api
        self._stream = stream
        self._consumer = consumer
        self._target = f"consumer {consumer} of stream {stream}"
        self._subject = f"{api.prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._free_slots = free_slots
        self._deliver = deliver
        self._fail = fail
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._request: _Request | None = None
        self._number = 0
        self._expires = _EXPIRES_SECONDS
        self._not_before = 0.0

    async def open(self, ack_wait: float) -> None:
        """
        Begin to fetch.

        Args:
            ack_wait: Seconds until the server redelivers a message, also the maximum lifetime of a request: while the
                event loop is blocked, the server would otherwise send the same messages several times.

        Raises:
            DeliveryError: ``connection-closed``.
        """
        self._inbox = f"{self._nc.new_inbox()}.*"
        self._expires = min(_EXPIRES_SECONDS, ack_wait)
        ConnectionWatch.of(self._nc).add(self._on_denial)
        with delivery_errors(self._target, self._nc):
            # The number of requested messages bounds nats-py's queue, so it needs no limit at which it drops messages.
            self._subscription = await self._nc.subscribe(self._inbox, cb=self._receive, pending_bytes_limit=0)
        self._task = supervise(self._keep_requesting(), self._target, self._fail)

    def stop(self) -> None:
        """Stop sending requests."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stop sending requests, and receive the messages that the server has already sent."""
        self.stop()
        subscription = self._subscription
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        if subscription is not None:
            if self._nc.is_connected:
                with suppress(CeNatsError, nats.errors.Error):
                    await unsubscribe_and_drain(subscription, lambda: round_trip(self._nc))
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()
        ConnectionWatch.of(self._nc).remove(self._on_denial)

    def wake(self) -> None:
        """Check whether another request can be sent."""
        self._wanted.set()

    # --- Requests -----------------------------------------------------------------------------------------------------

    async def _keep_requesting(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._nc.is_closed:
                self._fail(ConnectionWatch.of(self._nc).closed_error(self._target))
                return
            batch = self._free_slots() if self._is_due() else 0
            if batch:
                if self._open_request is not None:
                    # No heartbeat came. Some servers (2.10.25) do not answer a request to a deleted consumer.
                    await self._look_for_consumer()
                try:
                    await self._send_request(batch)
                except nats.errors.Error as error:
                    _log.debug("%s: %s", self._target, error)
            self._wanted.clear()
            # Not wait_for(): before Python 3.12 it loses a cancellation that coincides with the event.
            tick = loop.call_later(_TICK_SECONDS, self._wanted.set)
            await self._wanted.wait()
            tick.cancel()

    def _is_due(self) -> bool:
        now = time.monotonic()
        request = self._open_request
        if request is not None and now - request.last_answer < _MAX_IDLE_SECONDS:
            return False
        return self._nc.is_connected and now >= self._not_before

    @property
    def _open_request(self) -> _Request | None:
        """The request that the server has not finished; a reconnect ends it."""
        request = self._request
        return request if request is not None and request.reconnects == self._reconnects else None

    @property
    def _reconnects(self) -> int:
        return self._nc.stats["reconnects"]

    async def _send_request(self, batch: int) -> None:
        self._number += 1
        reply = f"{self._inbox.removesuffix('*')}{self._number}"
        self._request = _Request(reply, batch, batch, self._reconnects, time.monotonic())
        request = {
            "batch": batch,
            "max_bytes": max(_MAX_BYTES, 2 * self._nc.max_payload),
            "expires": int(self._expires * 1e9),
            "idle_heartbeat": int(min(_HEARTBEAT_SECONDS, self._expires / 2) * 1e9),
        }
        await self._nc.publish(self._subject, msgspec.json.encode(request), reply)

    def _end_request(self) -> None:
        self._request = None
        self._wanted.set()

    # --- Answers ------------------------------------------------------------------------------------------------------

    async def _receive(self, message: Msg) -> None:
        """Process a message, or a status of a request."""
        request = self._request
        if request is not None:
            request.last_answer = time.monotonic()
        try:
            # Only the reply subject distinguishes them: any client can publish a message with a header "Status".
            origin = parse_ack_subject(message.reply)
        except DecodeError:
            await self._receive_status(message)
            return
        if request is not None:
            request.left -= 1
            if request.left <= 0:
                self._end_request()
        self._deliver(message, origin)

    async def _receive_status(self, message: Msg) -> None:
        request = self._request
        if request is None or request.reply != message.subject:
            return
        headers: dict[str, str] = message.headers or {}
        text = headers.get("Description", "")
        status = parse_pull_status(headers.get("Status", ""), text)
        if status in (PullStatus.HEARTBEAT, PullStatus.COMPLETED):
            return
        if status is PullStatus.DELETED:
            self._end(ErrorCode.CONSUMER_NOT_FOUND, text)
        elif status is PullStatus.REFUSED:
            self._end(ErrorCode.INCOMPATIBLE_CONFIG, text)
        elif status is PullStatus.NO_RESPONDERS:
            await self._look_for_consumer()
        if status is not PullStatus.NO_MESSAGES and request.left == request.batch:
            self._not_before = time.monotonic() + _TICK_SECONDS
        self._end_request()

    async def _look_for_consumer(self) -> None:
        """After no-responders, or no answer: the server is still starting, or the consumer was deleted."""
        try:
            await self._api.without_retries().consumer(self._stream, self._consumer)
        except ApiError as error:
            if error.code in (ErrorCode.CONSUMER_NOT_FOUND, ErrorCode.STREAM_NOT_FOUND):
                self._end(ErrorCode.CONSUMER_NOT_FOUND, "it was deleted", error)
        except DeliveryError:
            pass

    def _on_denial(self, denial: Denial) -> bool:
        if not (denial.is_publish(self._subject) or denial.is_subscription(self._inbox)):
            return False
        error = denial.error()
        self._end(error.code, error.message)
        return True

    def _end(self, code: ErrorCode, text: str, cause: Exception | None = None) -> None:
        error = DeliveryError(code, f"{self._target}: {text}")
        error.__cause__ = cause
        self._fail(error)
