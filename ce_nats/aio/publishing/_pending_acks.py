"""
Publish messages to streams, and await their acknowledgements.

If a message or its acknowledgement is lost with a broken connection, the message is resent, provided that the server
can detect the copy by its ``Nats-Msg-Id``.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, cast

import nats.errors
from nats.aio.client import Client
from nats.js.api import PubAck

from ..._settings import DEFAULT_PREFIX
from ...errors import DeliveryError, ErrorCode, NoStreamError
from ...message import NatsMessage
from .._errors import delivery_errors
from .._natspy import FrameBuffer, send_buffer
from .._permissions import ConnectionWatch, Denial
from ._ack_window import AckWindow
from ._denials import Denials
from ._fast_ingest import FastIngest
from ._lane import Lane
from ._pending_message import PendingMessage, has_copy_detection, is_not_stored, read_reply, uncertain
from ._routes import UNKNOWN
from ._stream_lookup import PAUSE_SECONDS, Listeners, find_reason, late_error
from ._tally import Tally

# Messages between two turns of the event loop, in which nats-py sends and receives while the server works.
_YIELD_MESSAGES: Final = 64
# Size of nats-py's buffer at which publishers wait until it is sent.
_BUFFER_BYTES: Final = 2**21
# Interval of lookups whether JetStream is enabled.
_LOOK_SECONDS: Final = 1.0
# Subjects of messages that are not acknowledged, whose streams are looked up.
_MAX_REASONS: Final = 16


class PendingAcks(AckWindow[PendingMessage]):
    """
    Unacknowledged messages to streams, as an asynchronous context manager.

    Leaving the block does not wait for acknowledgements: see :meth:`drain`. The ``ack`` of a message gets a PubAck, or
    a DeliveryError: ``no-responders``, ``permission-denied``, ``publish-refused``, ``unexpected-answer``;
    ``payload-too-large``, if the server's ``max_payload`` was lowered in the meantime; or ``timeout``, if the message
    may be stored.

    Attributes:
        tally: Acknowledged messages, counted.
        has_stream: Whether a stream has acknowledged a message. No responders then mean that it has no leader. Before
            that, JetStream's API is asked whether a stream listens.
    """

    _name = "publisher"

    def __init__(
        self,
        nc: Client,
        done: Callable[[PendingMessage, PubAck | DeliveryError], object],
        *,
        window: int,
        ack_timeout: float,
        retry_timeout: float,
        api_prefix: str = DEFAULT_PREFIX,
        fast_ingest: bool = False,
    ) -> None:
        super().__init__(nc, window)
        self.tally = Tally()
        self.has_stream = False
        self._done = done
        self._ack_timeout = ack_timeout
        self._retry_timeout = retry_timeout
        self._api_prefix = api_prefix
        self._listeners = Listeners(nc, api_prefix)
        self._lookups: set[str] = set()
        self._look_again = 0.0
        self._reasons: dict[str, str] = {}  # why messages are not acknowledged, by subject
        self._unyielded = 0
        self._loop: asyncio.AbstractEventLoop
        self._frames = FrameBuffer(nc)
        self._denials = Denials()
        self._fast: FastIngest | None = None
        # Under another prefix, subjects and replies may be mapped between accounts.
        self._may_batch = fast_ingest and api_prefix == DEFAULT_PREFIX

    async def __aenter__(self) -> PendingAcks:
        self._loop = asyncio.get_running_loop()
        await self.open(self.nc.new_inbox())
        if self._may_batch:
            self._fast = FastIngest(
                self, window=self._size, ack_timeout=self._ack_timeout, retry_timeout=self._retry_timeout
            )
        return self

    async def __aexit__(self, *error: object) -> None:
        try:
            if self._fast is not None:
                await self._fast.close()
        finally:
            await self.close()

    async def drain(self) -> None:
        """Wait until nothing is pending."""
        if self._fast is not None:
            self._fast.commit()
        await super().drain()

    async def send(self, message: NatsMessage, block: bytes, tag: Any = None, *, attempts: int = 0) -> PendingMessage:
        """
        Send a message as soon as the window has a free slot.

        Raises:
            DeliveryError: ``connection-closed``: the connection is closed or being drained; ``not-open``: called
                outside of the block; ``permission-denied``: acknowledgements cannot arrive.
        """
        subject = message.subject
        fast = self._fast if self._is_open else None
        is_batched = fast is not None and has_copy_detection(block)
        if fast is not None and not is_batched:
            await fast.emptied(subject)
        self._unyielded += 1
        if self._unyielded >= _YIELD_MESSAGES:
            self._unyielded = 0
            await asyncio.sleep(0)
        if self.nc.pending_data_size > _BUFFER_BYTES:
            await send_buffer(self.nc)
        lane = None
        while True:  # while it waits, the subject may move to another stream, or the window be filled
            if fast is not None and is_batched and self._is_open:
                lane = fast.routes.get(subject, UNKNOWN)
                if lane is UNKNOWN:
                    await fast.look_up(subject)
                    continue
            if len(self.pending) < self._size or not self._is_open:
                break
            await self.wait_for_slot()
        if self._failure is not None:
            raise self._failure
        if not self._is_open:
            raise DeliveryError(ErrorCode.NOT_OPEN, f"{subject}: the publisher must be used inside of its block")
        return self._start(subject, message.data, block, tag, attempts, lane if isinstance(lane, Lane) else None)

    def send_now(self, subject: str, data: bytes, block: bytes, tag: Any) -> PendingMessage | None:
        """
        Send a message that the server detects a copy of, as :meth:`send` does, or return None if that has to wait.

        It saves a coroutine for each message. Every 64th message waits, so that nats-py sends and receives.
        """
        if self._unyielded + 1 >= _YIELD_MESSAGES or len(self.pending) >= self._size:
            return None
        lane = None if self._fast is None else self._fast.routes.get(subject, UNKNOWN)
        nc = self.nc
        if lane is UNKNOWN or self._failure is not None or not self._is_open:
            return None
        if not nc.is_connected or nc.pending_data_size > _BUFFER_BYTES:
            return None
        self._unyielded += 1
        return self._start(subject, data, block, tag, 0, cast("Lane | None", lane))

    def _start(
        self, subject: str, data: bytes, block: bytes, tag: Any, attempts: int, lane: Lane | None
    ) -> PendingMessage:
        """Send a message now, or in a batch."""
        now = time.monotonic()
        ack: asyncio.Future[PubAck] = asyncio.Future(loop=self._loop)
        give_up, due = now + self._retry_timeout, now + self._ack_timeout
        item = PendingMessage(subject, ack, data, block, tag, give_up, due, attempts)
        item.token = self._add(item)
        nc = self.nc
        if lane is not None and not lane.is_disabled and (nc.is_connected or not (nc.is_closed or nc.is_draining_pubs)):
            item.is_batched = True
            lane.add(item)
            return item
        if self._denials.counts and self._denials.holds(item.subject):
            item.due = now  # not sent, and fails with the denied ones
            return item
        try:
            self._publish(item)
        except Exception:
            self._drop(item.token)
            with delivery_errors(subject, nc):  # not around the call: it takes as long as the call
                raise
        return item

    def _publish(self, item: PendingMessage) -> None:
        data, block = item.data, item.block
        # As wire.nats.write_publish() does, without a frame for each message.
        sizes = f"{len(block)} {len(block) + len(data)}" if block else len(data)
        line = f"{'HPUB' if block else 'PUB'} {item.subject} {self._prefix}{item.token} {sizes}\r\n"
        try:
            self._frames.write(line.encode(), block, data)
        except nats.errors.OutboundBufferLimitError:
            # The connection is lost, and nats-py's buffer is full. Retry later.
            item.due = time.monotonic() + PAUSE_SECONDS
        else:
            item.attempts += 1
            item.last_error = None

    def _receive(self, token: str, data: bytes, block: bytes) -> None:
        item = self.pending[token]
        outcome = read_reply(item.subject, data, block)
        if isinstance(outcome, PubAck):
            self.has_stream = True
            self._listeners.note_stream(item.subject)
            self._finish(token, outcome)
        elif not is_not_stored(outcome):
            self._fail(token, outcome)
        else:
            self._retry_later(item, outcome)
            if outcome.code is ErrorCode.NO_RESPONDERS:
                self.look_for_stream(item.subject)

    # --- Denied permissions -------------------------------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        """Whether batches wait until it is known which messages were denied."""
        return bool(self._denials)

    def _on_denial(self, denial: Denial) -> bool:
        """Fail the messages on a denied subject, sent or not, except those that the server has received before."""
        if denial.operation != "publish":
            return super()._on_denial(denial)
        if self._denials.add(denial):
            return True
        batched = [] if self._fast is None else list(self._fast.sent())
        alone = [item for item in self.pending.values() if item.was_sent and not item.is_batched]
        sent = [item for item in (*alone, *batched) if denial.is_publish(item.subject)]
        if not sent:
            return False
        self._denials.begin(denial, sent)
        self.start_task(self._settle(denial))
        return True

    async def _settle(self, denial: Denial) -> None:
        """Wait until the server has processed all messages, and fail the denied ones."""
        try:
            await send_buffer(self.nc)
            if self._is_open:  # nats-py ignores a cancellation
                await self.nc.flush(max(1, math.ceil(self._ack_timeout)))
        except (nats.errors.Error, asyncio.TimeoutError, OSError):
            self._denials.forget(denial)  # the server denies the messages again when they are resent
            return
        accepted, denied = self._denials.end(denial)
        for item in denied:
            item.attempts -= 1
        waiting = {id(item) for item in accepted}
        for token, item in list(self.pending.items()):
            if denial.is_publish(item.subject) and id(item) not in waiting:
                self._fail_unstored(token, denial.error(item.subject))
        if self._fast is not None:
            self._fast.after_denial(denial)

    def _fail_unstored(self, token: str, error: DeliveryError) -> None:
        """Fail a message whose last attempt was not stored."""
        item = self.pending[token]
        self._fail(token, uncertain(item.subject, error) if item.attempts else error)

    def _acknowledged(self, item: PendingMessage, ack: Any) -> None:
        self.tally.add(ack, item.attempts)
        self._done(item, ack)

    def _failed(self, item: PendingMessage, error: DeliveryError) -> None:
        self._done(item, error)

    def _retry_later(self, item: PendingMessage, error: DeliveryError) -> None:
        """Resend a message that was not stored, after a pause."""
        item.last_error = error
        item.attempts = max(0, item.attempts - 1)
        item.due = min(item.due, time.monotonic() + PAUSE_SECONDS)

    # --- For batches --------------------------------------------------------------------------------------------------

    def finish_all(self, items: Sequence[PendingMessage], ack: PubAck) -> int:
        """
        Process the acknowledgement of messages, some of which may have failed meanwhile.

        Returns the number of the messages that this acknowledgement leaves open, and that were sent once.
        """
        self.has_stream = True
        done, pop, tally = self._done, self.pending.pop, self.tally
        if self._listeners.has_absent:
            for item in items:
                self._listeners.note_stream(item.subject)
        is_known = ack.seq > 0 or bool(ack.duplicate)
        count = once = 0
        for item in items:
            if pop(item.token, None) is not None:
                if not item.ack.done():
                    item.ack.set_result(ack)
                if is_known:
                    tally.add(ack, item.attempts, in_batch=not ack.seq)
                else:
                    count += 1
                    once += item.attempts == 1
                done(item, ack)
        tally.add_batch(count)
        self._wake()
        return once

    def fail(self, token: str, error: DeliveryError) -> None:
        """Process the failure of a message."""
        self._fail(token, error)

    def send_alone(self, items: Iterable[PendingMessage]) -> None:
        """Publish messages of a batch in the ordinary way."""
        for item in items:
            item.is_batched = False
            item.due = time.monotonic() + self._ack_timeout
            with suppress(nats.errors.Error):
                self._publish(item)

    def fail_late(self, item: PendingMessage) -> None:
        """Fail a message that is not acknowledged in time, or before the connection was closed; it may be stored."""
        if self.nc.is_closed:
            loss = ConnectionWatch.of(self.nc).loss
            text = f"{item.subject}: the connection was closed before the acknowledgement arrived"
            self._fail(item.token, DeliveryError(ErrorCode.TIMEOUT, f"{text}: {loss}" if loss else text))
            return
        violation = ConnectionWatch.of(self.nc).violation_since(item.give_up - self._retry_timeout)
        late = late_error(item.subject, self._reasons.get(item.subject) or violation)
        self._fail(item.token, item.last_error or late)

    def fail_if_too_large(self, item: PendingMessage) -> bool:
        """Fail a message if the server's ``max_payload`` was lowered below its size; return whether it failed."""
        size = len(item.block) + len(item.data)
        if size <= self.nc.max_payload:
            return False
        limit = f"max_payload was lowered to {self.nc.max_payload} bytes, and the message has {size}"
        text = f"{item.subject}: no acknowledgement arrived, and {limit}"
        self._fail(item.token, DeliveryError(ErrorCode.PAYLOAD_TOO_LARGE, text))
        return True

    def look_for_stream(self, subject: str) -> None:
        """Look up whether a stream listens, unless that is known or being looked up; if it is, look for JetStream."""
        if not self.has_stream or self._listeners.was_absent(subject):
            if subject not in self._lookups:
                self._lookups.add(subject)
                self.start_task(self._look_up(subject))
        elif self._fast is not None and self._fast.has_found and time.monotonic() >= self._look_again:
            self._look_again = time.monotonic() + _LOOK_SECONDS
            self.start_task(self._look_for_jetstream(subject))

    async def _look_up(self, subject: str) -> None:
        try:
            await self._listeners.look(subject, self._ack_timeout)
        except NoStreamError as error:
            for item in [item for item in self._unsent() if item.subject == subject]:
                self._fail_unstored(item.token, error)
        finally:
            self._lookups.discard(subject)

    async def _look_for_jetstream(self, subject: str) -> None:
        try:
            await self._listeners.look_for_jetstream(subject, self._ack_timeout)
        except NoStreamError as error:
            for item in list(self._unsent()):
                self._fail_unstored(item.token, NoStreamError(error.code, f"{item.subject}: {error.message}"))

    def _unsent(self) -> Iterator[PendingMessage]:
        """Yield the messages to whose last attempt no stream listened, and those that wait for them."""
        waiting = set() if self._fast is None else {item.token for item in self._fast.waiting()}
        for token, item in self.pending.items():
            last = item.last_error
            if token in waiting or (last is not None and last.code is ErrorCode.NO_RESPONDERS):
                yield item

    async def _check(self) -> None:
        if self._fast is not None:
            self._fast.check()
        now = time.monotonic()
        is_closed = self.nc.is_closed
        self._find_reasons(now)
        for item in [item for item in self.pending.values() if item.due <= now or is_closed]:
            if item.token in self.pending and not item.is_batched:
                self._resend(item, now)

    def _find_reasons(self, now: float) -> None:
        """Begin to look up why messages are not acknowledged, before they fail."""
        if not self.nc.is_connected:
            return
        items, late = self.pending.values(), now + self._ack_timeout / 2
        for subject in {item.subject for item in items if item.was_sent and item.due < late and not item.last_error}:
            if subject not in self._reasons and len(self._reasons) < _MAX_REASONS:
                self._reasons[subject] = ""
                self.start_task(self._find_reason(subject))

    async def _find_reason(self, subject: str) -> None:
        self._reasons[subject] = await find_reason(self.nc, self._api_prefix, subject, self._ack_timeout)

    def _resend(self, item: PendingMessage, now: float) -> None:
        """Resend a message that is due, or fail it if it must not be resent."""
        is_late = now >= item.give_up or not (item.attempts == 0 or has_copy_detection(item.block))
        if self.nc.is_closed:
            self.fail_late(item)
        elif (self._denials and self._denials.holds(item.subject)) or self.fail_if_too_large(item):
            pass
        elif is_late:
            self.fail_late(item)
        else:
            item.due = now + self._ack_timeout
            if self.nc.is_connected:
                with suppress(nats.errors.Error):
                    self._publish(item)
