"""Publish the messages to one stream in batches, as :class:`~._batches.Batches` decides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Final

import nats.errors

from ...wire.nats import write_publish
from ..link._writing import write_publish_frame
from ._atomic_lookup import EXPECTED_SEQUENCE
from ._batches import (
    APPEND,
    COMMIT,
    START,
    Action,
    Adopt,
    Batch,
    Batches,
    Confirm,
    Control,
    EndSuspended,
    Event,
    Fail,
    FailLate,
    FailTooLarge,
    FindStream,
    Finish,
    NoteDuplicates,
    Phase,
    Reply,
    Resume,
    SendAlone,
    Signal,
    Situation,
    Stored,
    Write,
)
from ._outbox import Outbox
from ._pending_message import PendingMessage
from ._prepare import MAX_HEADER_BYTES

_PAUSE_SECONDS: Final = 0.002
# A leader that has lost a message with it refuses it, instead of storing it before others: no stream reaches this
# sequence. Duplicates are detected before, so this header does not affect them.
_IMPOSSIBLE: Final = f"{EXPECTED_SEQUENCE}: {2**63 - 1}\r\n\r\n".encode()


class Lane:
    """
    The messages to one stream.

    ``inbox`` and ``flow`` are parts of the reply subjects of a batch.

    Attributes:
        batches: The messages and their state.
    """

    def __init__(self, outbox: Outbox, batches: Batches, inbox: str, flow: int) -> None:
        self.batches = batches
        self._outbox = outbox
        self._nc = outbox.nc
        self._inbox = inbox
        self._flow = flow
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False
        self._number_at_pause = 0
        self._pause: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()

    @property
    def is_ordinary(self) -> bool:
        """Whether the messages of the stream are published one by one from now on."""
        return self.batches.phase is Phase.ORDINARY

    def add(self, item: PendingMessage, now: float) -> None:
        """Send a message after those before it: now, or at the end of this iteration of the loop, or later."""
        if self.batches.add(item, now):
            self._on(Signal.SEND_MORE)
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._outbox.window.guard, self._send_soon)

    def send(self) -> None:
        """Send the messages that wait."""
        self._on(Signal.SEND)

    def _send_soon(self) -> None:
        self._is_scheduled = False
        self._on(Signal.SEND)

    def commit(self) -> None:
        """Send the messages that wait, and end the batch with the last one, if the server allows as many."""
        self._on(Signal.COMMIT)

    async def emptied(self) -> None:
        """Wait until no message waits or is unacknowledged."""
        self.commit()
        while self.batches.is_busy:
            self._changed.clear()
            await self._changed.wait()

    def check(self) -> None:
        """Resend, fail or ask for messages that have waited too long."""
        self._on(Signal.CHECK)

    def write_last(self) -> None:
        """Write all messages that wait: the connection is about to be closed."""
        self._on(Signal.LAST_WRITE)

    def close(self) -> None:
        """End the batch, without waiting for its acknowledgement."""
        self._on(Signal.CLOSE)
        if self._pause is not None:
            self._pause.cancel()

    def receive(self, reply: Reply) -> bool:
        """Process a reply to a message of the batch; return whether to look up the streams, and to :meth:`resume`."""
        return self._on(reply)

    # --- Other streams ------------------------------------------------------------------------------------------------

    def suspend_at_denial(self) -> bool:
        """After denied messages have failed, return whether to find out which ones before are stored."""
        return self._on(Signal.DENIED)

    def note_stored(self, subject: str, sequence: int, block: bytes) -> None:
        """Finish the messages up to one that the stream has stored."""
        self._on(Stored(subject, sequence, block))

    async def end_batch(self, subject: str) -> None:
        """End the batch of a suspended lane, and wait for the reply, which says how many messages are stored."""
        batch = self.batches.batch
        if not (batch.id and batch.sent):
            return
        self._on(EndSuspended(subject))
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended(batch), self._outbox.ack_timeout)

    async def _ended(self, batch: Batch) -> None:
        while self.batches.batch is batch and not batch.is_forgotten:
            self._changed.clear()
            await self._changed.wait()

    def resume(self, gone: Collection[str]) -> list[PendingMessage]:
        """Resend the messages of a suspended lane, and return those whose subjects have left the stream."""
        leaving = [item for item in self.batches.unfinished if item.subject in gone]
        self._on(Resume(gone))
        return leaving

    def adopt(self, items: Iterable[PendingMessage]) -> None:
        """Send messages that have left another lane, in the order in which all were published, with later ones."""
        self._on(Adopt(list(items)))

    # --- Actions ------------------------------------------------------------------------------------------------------

    def _on(self, event: Event) -> bool:
        """Do what an event requires; return whether the lane is suspended by it."""
        batches, nc, before = self.batches, self._nc, self.batches.phase
        at = Situation(
            time.monotonic(),
            nc.is_connected,
            nc.is_closed,
            bool(self._outbox.denials),
            nc.stats["reconnects"],
            nc.max_payload,
        )
        for action in batches.on(event, at):
            self._perform(action)
        self._changed.set()
        self._watch_for_pause()
        return batches.phase is Phase.SUSPENDED and before is not Phase.SUSPENDED

    def _perform(self, action: Action) -> None:
        outbox = self._outbox
        match action:
            case Write():
                self._write(action)
            case Finish():
                outbox.finish_all(action.items, action.ack)
            case Control():
                reply = self._reply(action.batch, action.number, action.operation)
                self._write_frame(write_publish(action.subject, b"", b"", reply), 0)
            case Confirm():
                self._confirm(action)
            case Fail():
                outbox.fail(action.item, action.error)
            case FailLate():
                outbox.fail_late(action.item)
            case FailTooLarge():
                outbox.fail_too_large(action.item)
            case NoteDuplicates():
                outbox.tally.note_duplicates(action.number)
            case FindStream():
                outbox.search.look(action.subject, may_lack_jetstream=True)
            case SendAlone():
                outbox.publish_batched(action.items)

    def _prefix(self, batch: str) -> str:
        return f"{self._inbox}.{batch}.{self._flow}.fail."

    def _reply(self, batch: str, number: int, operation: int) -> str:
        return f"{self._prefix(batch)}{number}.{operation}.$FI"

    def _write(self, write: Write) -> None:
        prefix, number, last = self._prefix(write.batch), write.first - 1, write.first - 1 + len(write.items)
        parts: list[bytes] = []
        add = parts.append
        total = 0
        for item in write.items:
            number += 1
            operation = COMMIT if write.commits and number == last else START if number == 1 else APPEND
            data, block = item.data, item.block
            size = len(block) + len(data)
            # As wire.nats.write_publish() does; joined once for all frames.
            line = f"HPUB {item.subject} {prefix}{number}.{operation}.$FI {len(block)} {size}\r\n"
            add(line.encode())
            add(block)
            add(data)
            add(b"\r\n")
            total += size
        self._write_frame(b"".join(parts), total, len(write.items))

    def _confirm(self, confirm: Confirm) -> None:
        item = confirm.item
        block = item.block[:-2] + _IMPOSSIBLE
        if len(block) + len(item.data) > self._nc.max_payload or len(block) > MAX_HEADER_BYTES:
            block = item.block
        frame = write_publish(item.subject, item.data, block, self._reply(confirm.batch, 1, COMMIT))
        self._write_frame(frame, len(block) + len(item.data))

    def _write_frame(self, frame: bytes, size: int, count: int = 1) -> None:
        with suppress(nats.errors.Error):  # the connection was lost meanwhile; check() sends the messages again
            write_publish_frame(self._nc, frame, size, count)

    # --- Pauses -------------------------------------------------------------------------------------------------------

    def _watch_for_pause(self) -> None:
        batches = self.batches
        if self._pause is None and batches.phase is Phase.OPEN and (batches.batch.number or batches.queue):
            self._number_at_pause = batches.batch.number
            self._pause = self._loop.call_later(_PAUSE_SECONDS, self._outbox.window.guard, self._end_if_paused)

    def _end_if_paused(self) -> None:
        self._pause = None
        if self.batches.phase is Phase.OPEN:
            if self.batches.batch.number == self._number_at_pause:
                self.commit()
            self._watch_for_pause()
