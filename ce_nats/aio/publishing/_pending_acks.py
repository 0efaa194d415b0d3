"""
Publish messages to streams, and await their acknowledgements.

If a message or its acknowledgement is lost with a broken connection, the message is resent, provided that the server
can detect the copy by its ``Nats-Msg-Id``.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, cast

import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import PubAck

from ..._settings import DEFAULT_PREFIX
from ...errors import DeliveryError, ErrorCode, NoStreamError
from ...message import NatsMessage
from .._errors import delivery_errors
from .._reply_inbox import ReplyInbox
from ..link._client import api_prefix, client_of
from ..link._permissions import Denial
from ..link._writing import send_buffer
from ._fast_ingest import FastIngest
from ._lane import Lane
from ._outbox import Outbox
from ._pending_message import PendingMessage, has_copy_detection, is_not_stored, read_reply, uncertain
from ._routes import UNKNOWN
from ._stream_lookup import PAUSE_SECONDS, find_reason, late_error

# Messages between two turns of the event loop, in which nats-py sends and receives while the server works.
_YIELD_MESSAGES: Final = 64
# Size of nats-py's buffer at which publishers wait until it is sent.
_BUFFER_BYTES: Final = 2**21


class PendingAcks:
    """
    Unacknowledged messages to streams, as an asynchronous context manager.

    Leaving the block does not wait for acknowledgements: see :meth:`drain`. The ``ack`` of a message gets a PubAck, or
    a DeliveryError: ``no-responders``, ``permission-denied``, ``publish-refused``, ``unexpected-answer``;
    ``payload-too-large``, if the server's ``max_payload`` was lowered in the meantime; or ``timeout``, if the message
    may be stored.

    Attributes:
        nc: The connection.
        pending: Unacknowledged messages by token, oldest first.
        tally: Acknowledged messages, counted.
    """

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
        self.nc = nc
        self._outbox = Outbox(
            nc,
            done,
            size=window,
            ack_timeout=ack_timeout,
            retry_timeout=retry_timeout,
            api_prefix=api_prefix,
            read=self._read,
            check=self._check,
            denied=self._on_denial,
            absent=self._fail_unsent,
        )
        self.tally = self._outbox.tally
        self._window = self._outbox.window
        self.pending = self._window.unacknowledged.items
        self._search = self._outbox.search
        self._denials = self._outbox.denials
        self._unyielded = 0
        # Under another prefix, subjects and replies may be mapped between accounts.
        may_batch = fast_ingest and api_prefix == DEFAULT_PREFIX
        self._fast = FastIngest(self._outbox, window) if may_batch else None

    async def __aenter__(self) -> PendingAcks:
        await self._window.open(ReplyInbox.of(self.nc))
        if self._fast is not None:
            self._fast.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        try:
            if self._fast is not None:
                self._fast.close()
        finally:
            for item in self.pending.values():
                item.ack.cancel()
            await self._window.close()

    @property
    def is_full(self) -> bool:
        return self._window.is_full

    async def wait_for_slot(self) -> None:
        """Wait until a message may be added, or the block is left."""
        await self._window.wait_for_slot()

    async def drain(self) -> None:
        """Wait until nothing is pending."""
        if self._fast is not None:
            self._fast.commit()
        await self._window.drain()

    async def send(self, message: NatsMessage, block: bytes, tag: Any = None, *, attempts: int = 0) -> PendingMessage:
        """
        Send a message as soon as the window has a free slot.

        Raises:
            DeliveryError: ``connection-closed``: the connection is closed or being drained; ``not-open``: called
                outside of the block; ``permission-denied``: acknowledgements cannot arrive.
        """
        subject = message.subject
        fast = self._fast if self._window.is_open else None
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
            if fast is not None and is_batched and self._window.is_open:
                lane = fast.routes.get(subject, UNKNOWN)
                if lane is UNKNOWN:
                    await fast.look_up(subject)
                    continue
            if not self._window.is_full or not self._window.is_open:
                break
            await self.wait_for_slot()
        if self._window.unacknowledged.failure is not None:
            raise self._window.unacknowledged.failure
        if not self._window.is_open:
            raise DeliveryError(ErrorCode.NOT_OPEN, f"{subject}: the publisher must be used inside of its block")
        return self._start(subject, message.data, block, tag, attempts, lane if isinstance(lane, Lane) else None)

    def send_now(self, subject: str, data: bytes, block: bytes, tag: Any) -> PendingMessage | None:
        """
        Send a message that the server detects a copy of, as :meth:`send` does, or return None if that has to wait.

        It saves a coroutine for each message. Every 64th message waits, so that nats-py sends and receives.
        """
        window, nc = self._window, self.nc
        if self._unyielded + 1 >= _YIELD_MESSAGES or window.is_full:
            return None
        lane = None if self._fast is None else self._fast.routes.get(subject, UNKNOWN)
        if lane is UNKNOWN or window.unacknowledged.failure is not None or not window.is_open:
            return None
        if not nc.is_connected or nc.pending_data_size > _BUFFER_BYTES:
            return None
        self._unyielded += 1
        return self._start(subject, data, block, tag, 0, cast("Lane | None", lane))

    def _start(
        self, subject: str, data: bytes, block: bytes, tag: Any, attempts: int, lane: Lane | None
    ) -> PendingMessage:
        """Send a message now, or in a batch."""
        now, nc, token = time.monotonic(), self.nc, self._window.unacknowledged.new_token()
        ack: asyncio.Future[PubAck] = asyncio.get_running_loop().create_future()
        outbox = self._outbox
        give_up, due = now + outbox.retry_timeout, now + outbox.ack_timeout
        item = self.pending[token] = PendingMessage(token, subject, due, ack, data, block, tag, give_up, attempts)
        if lane is not None and not lane.is_ordinary and (nc.is_connected or not (nc.is_closed or nc.is_draining_pubs)):
            item.is_batched = True
            lane.add(item, now)
            return item
        if self._denials.counts and self._denials.holds(item.subject):
            item.due = now  # not sent, and fails with the denied ones
            return item
        try:
            outbox.publish(item)
        except Exception:
            self._window.drop(item)
            with delivery_errors(subject, nc):  # not around the call: it takes as long as the call
                raise
        return item

    def _read(self, item: PendingMessage, data: bytes, block: bytes) -> PubAck | DeliveryError | None:
        """Return the outcome in a reply, or None if the message is to be resent."""
        outcome = read_reply(item.subject, data, block)
        if isinstance(outcome, PubAck):
            self._search.note_stored(item.subject)
        elif is_not_stored(outcome):
            item.last_error = outcome
            item.attempts = max(0, item.attempts - 1)
            item.due = min(item.due, time.monotonic() + PAUSE_SECONDS)
            if outcome.code is ErrorCode.NO_RESPONDERS:
                self._search.look(item.subject, may_lack_jetstream=self._fast is not None and self._fast.has_found)
            return None
        return outcome

    # --- Denied permissions -------------------------------------------------------------------------------------------

    def _on_denial(self, denial: Denial) -> bool:
        """Fail the messages on a denied subject, sent or not, except those that the server has received before."""
        if self._denials.add(denial):
            return True
        batched = [] if self._fast is None else list(self._fast.sent())
        alone = [item for item in self.pending.values() if item.was_sent and not item.is_batched]
        sent = [item for item in (*alone, *batched) if denial.is_publish(item.subject)]
        if not sent:
            return False
        self._denials.begin(denial, sent)
        self._window.start_task(self._settle(denial))
        return True

    async def _settle(self, denial: Denial) -> None:
        """Wait until the server has processed all messages, and fail the denied ones."""
        try:
            await send_buffer(self.nc)
            if self._window.is_open:  # nats-py ignores a cancellation
                await self.nc.flush(max(1, math.ceil(self._outbox.ack_timeout)))
        except (nats.errors.Error, asyncio.TimeoutError, OSError):
            self._denials.forget(denial)  # the server denies the messages again when they are resent
            return
        accepted, denied = self._denials.end(denial)
        for item in denied:
            item.attempts -= 1
        waiting = {id(item) for item in accepted}
        for item in list(self.pending.values()):
            if denial.is_publish(item.subject) and id(item) not in waiting:
                self._fail_unstored(item, denial.error(item.subject))
        if self._fast is not None:
            self._fast.after_denial(denial)

    def _fail_unstored(self, item: PendingMessage, error: DeliveryError) -> None:
        """Fail a message whose last attempt was not stored."""
        self._outbox.fail(item, uncertain(item.subject, error) if item.attempts else error)

    # --- Failures -----------------------------------------------------------------------------------------------------

    def _fail_unsent(self, error: NoStreamError, subject: str | None) -> None:
        """Fail the messages to a subject without a stream; all messages if it is None."""
        for item in list(self._unsent()):
            if subject is None:
                self._fail_unstored(item, NoStreamError(error.code, f"{item.subject}: {error.message}"))
            elif item.subject == subject:
                self._fail_unstored(item, error)

    def _unsent(self) -> Iterator[PendingMessage]:
        """Yield the messages to whose last attempt no stream listened, and those that wait for them."""
        waiting = set() if self._fast is None else {item.token for item in self._fast.waiting()}
        for token, item in self.pending.items():
            last = item.last_error
            if token in waiting or (last is not None and last.code is ErrorCode.NO_RESPONDERS):
                yield item

    def _check(self, now: float) -> None:
        """Resend or fail messages that are due."""
        if self._fast is not None:
            self._fast.check()
        is_closed = self.nc.is_closed
        items = self.pending.values()
        if self.nc.is_connected:
            late = now + self._outbox.ack_timeout / 2
            self._search.explain(
                {item.subject for item in items if item.was_sent and item.due < late and not item.last_error}
            )
        for item in list(items) if is_closed else self._window.unacknowledged.due(now):
            if item.token in self.pending and not item.is_batched:
                self._resend(item, now)

    def _resend(self, item: PendingMessage, now: float) -> None:
        """Resend a message that is due, or fail it if it must not be resent."""
        is_late = now >= item.give_up or not (item.attempts == 0 or has_copy_detection(item.block))
        outbox = self._outbox
        if self.nc.is_closed:
            outbox.fail_late(item)
        elif self._denials and self._denials.holds(item.subject):
            pass
        elif outbox.is_too_large(item):
            outbox.fail_too_large(item)
        elif is_late:
            outbox.fail_late(item)
        else:
            item.due = now + outbox.ack_timeout
            if self.nc.is_connected:
                with suppress(nats.errors.Error):
                    outbox.publish(item)


async def publish_one(js: JetStreamContext, message: NatsMessage, block: bytes, timeout: float) -> PubAck:
    """
    Publish a message, and wait for its acknowledgement.

    Raises:
        DeliveryError: As :func:`ce_nats.aio.jetstream.publish` does.
    """
    nc, prefix = client_of(js), api_prefix(js)
    try:
        async with PendingAcks(
            nc, lambda *_: None, window=1, ack_timeout=timeout, retry_timeout=timeout, api_prefix=prefix
        ) as acks:
            return await (await acks.send(message, block)).ack
    except DeliveryError as error:
        if error.message != late_error(message.subject).message:
            raise
        # The timeout was too short to look for a reason.
        raise late_error(message.subject, await find_reason(nc, prefix, message.subject, timeout)) from error
