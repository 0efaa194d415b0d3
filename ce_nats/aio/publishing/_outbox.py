"""Write a publisher's messages one by one, and report the outcome of each message."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import nats.errors
from nats.aio.client import Client
from nats.js.api import PubAck

from ...errors import DeliveryError, ErrorCode, NoStreamError
from .._reply_window import ReplyWindow, set_outcome
from ..link._link import Link
from ..link._permissions import Denial
from ..link._writing import FrameBuffer
from ._denials import Denials
from ._pending_message import PendingMessage
from ._stream_lookup import PAUSE_SECONDS, StreamSearch, late_error, unacknowledged_error
from ._tally import Tally


class Outbox:
    """
    The messages of a publisher, for those who send them: one by one, or in batches.

    ``done`` is called with each outcome. ``read``, ``check`` and ``denied`` are those of the window, which has room for
    ``size`` messages, and ``absent`` is that of the search.

    Attributes:
        nc: The connection.
        window: The unacknowledged messages.
        search: Lookups of streams.
        denials: Denied publishes whose messages are not known yet.
        tally: Acknowledged messages, counted.
        ack_timeout: Seconds after which a message is due.
        retry_timeout: Seconds for which a message is resent.
    """

    def __init__(
        self,
        nc: Client,
        done: Callable[[PendingMessage, PubAck | DeliveryError], object],
        *,
        size: int,
        ack_timeout: float,
        retry_timeout: float,
        api_prefix: str,
        read: Callable[[PendingMessage, bytes, bytes], PubAck | DeliveryError | None],
        check: Callable[[float], None],
        denied: Callable[[Denial], bool],
        absent: Callable[[NoStreamError, str | None], None],
    ) -> None:
        self.nc = nc
        self.window: ReplyWindow[PendingMessage] = ReplyWindow(
            size, name="publisher", read=read, check=check, done=self.report, denied=denied
        )
        self.search = StreamSearch(nc, api_prefix, ack_timeout, self.window.start_task, absent)
        self.denials = Denials()
        self.tally = Tally()
        self.ack_timeout: Final = ack_timeout
        self.retry_timeout: Final = retry_timeout
        self._done = done
        self._frames = FrameBuffer(nc)

    def publish(self, item: PendingMessage) -> None:
        """
        Write a message, or let it be due soon if nats-py's buffer is full while the connection is lost.

        Raises:
            nats.errors.Error: As nats-py's ``publish()`` does.
        """
        data, block = item.data, item.block
        # As wire.nats.write_publish() does, without a frame for each message.
        sizes = f"{len(block)} {len(block) + len(data)}" if block else len(data)
        line = f"{'HPUB' if block else 'PUB'} {item.subject} {self.window.prefix}{item.token} {sizes}\r\n"
        try:
            self._frames.write(line.encode(), block, data)
        except nats.errors.OutboundBufferLimitError:
            item.due = time.monotonic() + PAUSE_SECONDS
        else:
            item.attempts += 1
            item.last_error = None

    def publish_batched(self, items: Iterable[PendingMessage]) -> None:
        """Publish messages of a batch one by one."""
        for item in items:
            item.is_batched = False
            item.due = time.monotonic() + self.ack_timeout
            with suppress(nats.errors.Error):
                self.publish(item)

    # --- Outcomes -----------------------------------------------------------------------------------------------------

    def report(self, item: PendingMessage, outcome: PubAck | DeliveryError) -> None:
        """Report the outcome of a message that has left the window."""
        set_outcome(item.ack, outcome)
        if isinstance(outcome, PubAck):
            self.tally.add(outcome, item.attempts)
        else:
            item.has_failed = True
        self._done(item, outcome)

    def finish_all(self, items: Sequence[PendingMessage], ack: PubAck) -> None:
        """Process the acknowledgement of messages in a batch, some of which may have failed meanwhile."""
        done, pop, tally = self._done, self.window.unacknowledged.items.pop, self.tally
        self.search.note_all_stored(items)
        is_known = ack.seq > 0 or bool(ack.duplicate)
        count = 0
        for item in items:
            if pop(item.token, None) is not None:
                if not item.ack.done():
                    item.ack.set_result(ack)
                if is_known:
                    tally.add(ack, item.attempts, in_batch=not ack.seq)
                else:
                    count += 1
                done(item, ack)
        tally.add_batch(count)
        self.window.wake()

    def fail(self, item: PendingMessage, error: DeliveryError) -> None:
        """Process the failure of a message."""
        self.window.finish(item, error)

    def fail_late(self, item: PendingMessage) -> None:
        """Fail a message that is not acknowledged in time, or before the connection was closed; it may be stored."""
        if self.nc.is_closed:
            self.fail(item, unacknowledged_error(self.nc, item.subject))
            return
        violation = Link.of(self.nc).ending.violation_since(item.give_up - self.retry_timeout)
        late = late_error(item.subject, self.search.reason(item.subject) or violation)
        self.fail(item, item.last_error or late)

    def is_too_large(self, item: PendingMessage) -> bool:
        """Return whether the server's ``max_payload`` was lowered below the size of a message."""
        return item.size > self.nc.max_payload

    def fail_too_large(self, item: PendingMessage) -> None:
        """Fail a message that :meth:`is_too_large`."""
        limit = f"max_payload was lowered to {self.nc.max_payload} bytes, and the message has {item.size}"
        text = f"{item.subject}: no acknowledgement arrived, and {limit}"
        self.fail(item, DeliveryError(ErrorCode.PAYLOAD_TOO_LARGE, text))
