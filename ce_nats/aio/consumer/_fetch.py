"""
Fetch messages from a pull consumer: one pending request, as long as there are free slots for its messages.

Requests are the same as those of nats-py, but responses are processed here: nats-py's ``fetch()`` takes a message that
was published with a header ``Status`` for a status of the server, and drops it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from ...errors import ApiError, CeNatsError, DecodeError, DeliveryError, ErrorCode
from ...wire._ack_subject import AckSubject, parse_ack_subject
from ...wire.nats import read_header_block
from .._errors import delivery_errors
from .._pull_status import PullStatus, parse_pull_status
from .._util.supervising import failure, supervise
from ..core._publish import round_trip
from ..link._client import subscription_id
from ..link._frame_splitter import RawMessage
from ..link._link import Link
from ..link._permissions import Denial
from ..link._queue import on_drain, unsubscribe_and_drain
from ._acks import AckWriter
from ._binding import Binding
from ._entry import Entry
from ._intake import Intake
from ._ledger import Ledger
from ._running import Running

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


@dataclass(slots=True)
class _Answers:
    """
    Answers to earlier requests.

    Attributes:
        not_before: Time before which no other request is sent, because the last one was refused.
        is_unanswered: Whether the last request had no responders, or the consumer was deleted.
        has_too_large: Whether a message was too large.
    """

    not_before: float = 0.0
    is_unanswered: bool = False
    has_too_large: bool = False


class Fetcher:
    """Requests for the messages of a consumer."""

    def __init__(
        self,
        nc: Client,
        binding: Binding,
        ledger: Ledger,
        acks: AckWriter,
        running: Running,
        intake: Intake,
        end: Callable[[], Awaitable[None]],
    ) -> None:
        self._nc = nc
        self._binding = binding
        self._ledger = ledger
        self._acks = acks
        self._running = running
        self._intake = intake
        self._end_consumer = end
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._request: _Request | None = None
        self._number = 0
        self._answers = _Answers()

    async def open(self) -> None:
        """
        Begin to fetch with the first :meth:`wake`: a program that does not want messages yet takes none from others.

        Raises:
            DeliveryError: ``connection-closed``.
        """
        self._inbox = f"{self._nc.new_inbox()}.*"
        Link.of(self._nc).permissions.add(self._on_denial)
        with delivery_errors(self._binding.target, self._nc):
            self._subscription = await Link.of(self._nc).reading.subscribe(self._inbox, self._receive)
        on_drain(self._subscription, self._end_consumer)
        self._task = supervise(self._keep_requesting(), self._binding.target, self._running.fail)

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
            Link.of(self._nc).reading.receive(subscription_id(subscription), None)
        Link.of(self._nc).permissions.remove(self._on_denial)

    def wake(self) -> None:
        """Check whether another request can be sent."""
        if self._request is None:
            self._wanted.set()

    # --- Requests -----------------------------------------------------------------------------------------------------

    async def _keep_requesting(self) -> None:
        loop = asyncio.get_running_loop()
        await self._wanted.wait()
        while self._running.error is None:
            if self._nc.is_closed:
                self._running.cut_off(Link.of(self._nc).ending.closed_error(self._binding.target))
                return
            batch = self._ledger.free_slots(time.monotonic()) if self._is_due() else 0
            if batch:
                if self._answers.is_unanswered or self._open_request is not None:
                    # No heartbeat came. Some servers (2.10.25) do not answer a request to a deleted consumer.
                    await self._look_for_consumer()
                try:
                    await self._send_request(batch)
                except nats.errors.Error as error:
                    _log.debug("%s: %s", self._binding.target, error)
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
        return self._nc.is_connected and now >= self._answers.not_before

    def _subject(self) -> str:
        binding = self._binding
        return f"{binding.api.prefix}.CONSUMER.MSG.NEXT.{binding.stream}.{binding.name}"

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
        limits = self._binding.limits
        batch = int(min(batch, limits.messages))
        reply = f"{self._inbox.removesuffix('*')}{self._number}"
        self._request = _Request(reply, batch, batch, self._reconnects, time.monotonic())
        # While the event loop is blocked for longer, the server would send the same messages several times.
        expires = min(_EXPIRES_SECONDS, limits.seconds, *self._binding.waits)
        request = {
            "batch": batch,
            "max_bytes": int(min(max(_MAX_BYTES, 2 * self._nc.max_payload), limits.octets)),
            "expires": int(expires * 1e9),
            "idle_heartbeat": int(min(_HEARTBEAT_SECONDS, expires / 2) * 1e9),
        }
        self._acks.flush()
        await self._nc.publish(self._subject(), msgspec.json.encode(request), reply)

    def _end_request(self) -> None:
        self._request = None
        self._wanted.set()

    # --- Answers ------------------------------------------------------------------------------------------------------

    def _receive(self, messages: list[RawMessage]) -> None:
        """Process messages, and statuses of requests. An exception must not end nats-py's read loop."""
        try:
            self._process(messages)
        except Exception as error:
            self._running.fail(failure(self._binding.target, error))

    def _process(self, messages: list[RawMessage]) -> None:
        request, match = self._request, self._binding.is_ack_subject
        if request is not None:
            request.last_answer = time.monotonic()
        arrived: list[Entry] = []
        for raw in messages:
            # Only the reply subject distinguishes them: any client can publish a message with a header "Status".
            found = match(raw[1])
            if found is not None:
                arrived.append(Entry(int(found[2]), int(found[1]), raw))
            elif (origin := _origin(raw[1])) is not None:
                arrived.append(Entry(origin.sequence, origin.deliveries, raw))
            else:
                self._note_arrivals(arrived)  # the order of messages and statuses counts
                arrived = []
                self._receive_status(raw)
        self._note_arrivals(arrived)

    def _note_arrivals(self, arrived: list[Entry]) -> None:
        if not arrived:
            return
        request = self._request
        if request is not None:
            request.left -= len(arrived)
            if request.left <= 0:
                self._end_request()
        self._intake.receive(arrived)

    def _receive_status(self, raw: RawMessage) -> None:
        request = self._request
        if request is None or request.reply.encode() != raw[0]:
            return
        code, text = _status(raw[3])
        status = parse_pull_status(code, text)
        if status in (PullStatus.HEARTBEAT, PullStatus.COMPLETED):
            return
        if status is PullStatus.REFUSED:
            self._end(ErrorCode.INCOMPATIBLE_CONFIG, f"{text}; limits that were changed apply when it is entered again")
        elif status in (PullStatus.DELETED, PullStatus.NO_RESPONDERS):
            self._answers.is_unanswered = True  # it may have been created again
        elif status is PullStatus.TOO_LARGE and request.left == request.batch and not self._answers.has_too_large:
            self._answers.has_too_large = True
            text = "%s: the next message is larger than max_bytes of the consumer, %s, and cannot be delivered"
            _log.error(text, self._binding.target, self._binding.limits.octets)
        if status is not PullStatus.NO_MESSAGES and request.left == request.batch:
            self._answers.not_before = time.monotonic() + _TICK_SECONDS
        self._end_request()

    async def _look_for_consumer(self) -> None:
        """After no-responders, or no answer: the server is still starting, or the consumer was deleted."""
        self._answers.is_unanswered = False
        try:
            await self._binding.api.without_retries().consumer(self._binding.stream, self._binding.name)
        except ApiError as error:
            if error.code in (ErrorCode.CONSUMER_NOT_FOUND, ErrorCode.STREAM_NOT_FOUND):
                self._end(ErrorCode.CONSUMER_NOT_FOUND, "it was deleted", error)
        except DeliveryError:
            pass

    def _on_denial(self, denial: Denial) -> bool:
        if not (denial.is_publish(self._subject()) or denial.is_subscription(self._inbox)):
            return False
        error = denial.error()
        self._end(error.code, error.message)
        return True

    def _end(self, code: ErrorCode, text: str, cause: Exception | None = None) -> None:
        error = DeliveryError(code, f"{self._binding.target}: {text}")
        error.__cause__ = cause
        self._running.fail(error)


def _origin(reply: bytes) -> AckSubject | None:
    """Parse a reply subject; return None if it is not an ack subject."""
    try:
        return parse_ack_subject(reply.decode())
    except (DecodeError, UnicodeDecodeError):
        return None


def _status(block: bytes | None) -> tuple[str, str]:
    """Return the code and the description of the status in a header block."""
    try:
        status = read_header_block(block or b"", "surrogateescape").status
    except DecodeError:
        status = None
    return ("", "") if status is None else (f"{status.code:03}", status.description)
