"""
Write acknowledgements, many at once, and extend ack deadlines.

One write for each acknowledgement costs more than everything else that is done for a message. So acknowledgements are
pending for at most some milliseconds: they are written together, and earlier if there is nothing else to do, before
more messages are requested, before a message is terminated, and when the connection is closed.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import Final

import nats.errors
from nats.aio.client import Client

from .._errors import delivery_error
from .._util.supervising import failure, supervise
from ..link._link import Link
from ..link._writing import check_writable, send_publish, write_publish_frame
from ._entry import Entry
from ._ledger import MAX_ACKS, Ledger
from ._running import Reporter, Running

# Until the next attempt to write acknowledgements while the connection is lost.
_RECONNECT_SECONDS: Final = 0.05
# Bytes in nats-py's buffer from which on deadlines are not extended.
_MAX_UNSENT: Final = 2**20


class AckWriter:
    """Writes what the server has to know about deliveries."""

    def __init__(self, nc: Client, ledger: Ledger, running: Running, reporter: Reporter, delay: float) -> None:
        self._nc = nc
        self._ledger = ledger
        self._running = running
        self._reporter = reporter
        self._delay = delay
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._forget = Link.of(nc).closing.before(partial(self._close, is_connection=True))
        self._extending: asyncio.Task[None] | None = None

    def open(self, interval: float) -> None:
        """Begin to extend ack deadlines."""
        self._extending = supervise(self._keep_extending(interval), self._reporter.target, self._running.cut_off)

    async def end(self) -> None:
        """Write pending acknowledgements, and extend ack deadlines no longer."""
        self._close(is_connection=self._nc.is_closed)
        if self._extending is not None:
            self._extending.cancel()
            await asyncio.gather(self._extending, return_exceptions=True)

    def check(self) -> None:
        """Check whether an acknowledgement can be written now, or after a reconnect."""
        if not self._nc.is_connected:
            check_writable(self._nc, sum(len(entry.raw[1]) for entry in self._ledger.acks))

    def schedule(self) -> None:
        """Write the pending acknowledgements in time."""
        if not self._delay or len(self._ledger.acks) >= MAX_ACKS:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._delay, self._end_timer)

    def flush(self) -> None:
        """Write the pending acknowledgements; without a connection, after the reconnect."""
        acks = self._ledger.acks
        if not acks:
            return
        if not (self._nc.is_connected or self._nc.is_draining):
            if self._timer is None and not self._nc.is_closed:
                self._timer = self._loop.call_later(_RECONNECT_SECONDS, self._end_timer)
            return
        self._write_all()

    def _write_all(self) -> None:
        acks = self._ledger.acks
        frames = b"PUB %s 0\r\n\r\n" % b" 0\r\n\r\nPUB ".join([entry.raw[1] for entry in acks])
        write_publish_frame(self._nc, frames, 0, len(acks))
        self._ledger.settle_acks(time.monotonic())

    def _end_timer(self) -> None:
        self._timer = None
        try:
            self.flush()
        except Exception as error:  # otherwise further acknowledgements would not be written, without a report
            self._running.cut_off(failure(self._reporter.target, error))

    def _close(self, *, is_connection: bool) -> None:
        """Write the pending acknowledgements a last time, and report those that cannot be sent."""
        self._forget()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        count = len(self._ledger.acks)
        if not count:
            return
        try:
            if is_connection and not self._nc.is_connected:
                raise nats.errors.ConnectionClosedError
            self._write_all()
        except nats.errors.Error as failure:
            error = delivery_error(f"{self._reporter.target}: {count} acknowledgements cannot be sent", failure)
            self._ledger.settle_acks(time.monotonic())
            self._reporter.report(error, None)

    async def write(self, entry: Entry, content: bytes) -> None:
        """Request a redelivery, or the end of redeliveries."""
        self.flush()
        await send_publish(self._nc, _frame(entry, content), len(content))

    async def _keep_extending(self, interval: float) -> None:
        """Extend the ack deadlines of all messages in flight."""
        while True:
            if self._nc.is_connected and self._nc.pending_data_size < _MAX_UNSENT:
                self._ledger.handled.extend(time.monotonic(), interval)
                entries = [entry for entry in self._ledger.in_flight() if not is_acked(entry)]
                if entries:
                    frames = b"".join(_frame(entry, b"+WPI") for entry in entries)
                    with suppress(nats.errors.Error):
                        await send_publish(self._nc, frames, 4 * len(entries), len(entries))
            await asyncio.sleep(interval)
            self.flush()


def is_acked(entry: Entry) -> bool:
    """Return whether the program has settled a message with a method of nats-py."""
    return entry.message is not None and entry.message.is_acked


def _frame(entry: Entry, content: bytes) -> bytes:
    return b"PUB %s %d\r\n%s\r\n" % (entry.raw[1], len(content), content)
