"""
Handle events of one key in order, and those of different keys concurrently.

A gate between arriving messages and the queue of :class:`~ce_nats.aio.consumer._in_flight.InFlightDeliveries`: it
decodes each message, and queues it when it is the first one of its key. A failed message stays in flight, and is
handled again after its delay. (The server would redeliver it after later messages of its key.)

The server does not keep the order, either, if messages were delivered to an earlier process and not acknowledged, or
sent on a connection that was lost: it delivers newer ones before the ack deadlines of these expire. So the gate stays
closed until this client has all unacknowledged messages; :class:`~ce_nats.aio.consumer._key_order.Continuity` detects
missing ones.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import nats.errors
from nats.aio.msg import Msg

from ...errors import DecodeError, DeliveryError, ErrorCode, preview
from ...redelivery import Outcome
from ...wire._ack_subject import AckSubject
from .._jetstream_api import Progress
from .._util.supervising import call_plain, supervise
from ._delivery import Delivery
from ._in_flight import InFlightDeliveries
from ._key_order import IN_USE_SECONDS, Continuity, KeyOrder, OtherClients, Sharing
from ._settle import Settler

_log: Final = logging.getLogger(__name__)

Key = Callable[[Delivery], Hashable]

# Settled messages that are remembered, because acknowledgements can be lost.
_MAX_REMEMBERED: Final = 16_384
# Pauses between requests for the progress of the consumer while messages are missing.
_MIN_PAUSE: Final = 0.05
_MAX_PAUSE: Final = 1.0
# Time after the longest ack_wait until missing messages are logged; then after twice the time, and so on.
_LOG_SECONDS: Final = 5.0
_PERMANENT: Final = (
    ErrorCode.CONSUMER_NOT_FOUND,
    ErrorCode.STREAM_NOT_FOUND,
    ErrorCode.PERMISSION_DENIED,
    ErrorCode.CONNECTION_CLOSED,
    ErrorCode.CONSUMER_IN_USE,
)


@dataclass(slots=True, eq=False)
class _Entry:
    """
    A message that has passed the gate.

    Attributes:
        delivery: Its delivery; a new one for each attempt.
        has_key: False if its key is not known, because the function for it has failed.
        is_running: Whether a block with it is running.
        is_settled: Whether it was acknowledged or dead-lettered.
        timer: Timer of the next attempt.
    """

    delivery: Delivery
    has_key: bool = True
    is_running: bool = False
    is_settled: bool = False
    timer: asyncio.TimerHandle | None = None


class KeyGate:
    """
    Lets the first message of each key into the queue.

    Args:
        key: Returns the key of a delivery.
        in_flight: Deliveries of the consumer.
        settler: Settles them.
        read: Decodes the message of a delivery.
        settle_undecodable: Settles a message that is not an event.
        progress: Requests the progress of the consumer.
        others: Detects other clients.
        waits: Times until the server redelivers a message, in seconds.
        target: Name of the consumer, for the log.
        wake: Called when the queue, or the number of free slots, has changed.
        fail: Called with the error after which no further messages can be handled.
    """

    def __init__(
        self,
        key: Key,
        in_flight: InFlightDeliveries,
        settler: Settler,
        *,
        read: Callable[[Delivery], Awaitable[None]],
        settle_undecodable: Callable[[Delivery, DecodeError], Awaitable[None]],
        progress: Callable[[], Awaitable[Progress]],
        others: OtherClients,
        waits: Sequence[float],
        target: str,
        wake: Callable[[], None],
        fail: Callable[[DeliveryError], None],
    ) -> None:
        self._key = key
        self._in_flight = in_flight
        self._settler = settler
        self._read = read
        self._settle_undecodable = settle_undecodable
        self._progress = progress
        self._max_wait = max(waits)
        self._pause = min(_MAX_PAUSE, min(waits) / 5)
        self._target = target
        self._wake = wake
        self._fail = fail
        self._order = KeyOrder()
        self._continuity = Continuity()
        self._inbox: list[Delivery] = []
        self._entries: dict[int, _Entry] = {}
        # Sequence in the stream, and time, of messages that this process has settled.
        self._remembered: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._again: list[Msg] = []  # to acknowledge again
        self._admission_wanted = asyncio.Event()
        self._recovery_wanted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._others = others
        self._is_warned = False
        self._is_first = True  # until this client has had all messages for the first time
        # While messages are missing:
        self._missing = 1
        self._was_redelivered = False
        self._not_before = 0.0

    def open(self) -> None:
        """Begin, with the deliveries that are already queued or taken."""
        for delivery in self._in_flight.open_gate(self):
            if delivery._event is None:
                continue
            with suppress(Exception):  # without a key, it does not hold back others
                self._order.add(delivery.sequence, call_plain("key", self._key, delivery))
                self._entries[delivery.sequence] = _Entry(delivery, is_running=delivery._has_started)
        self._settler.gate = self
        self._recovery_wanted.set()
        loops = (self._keep_admitting(), self._keep_recovering())
        self._tasks = [supervise(loop, self._target, self._fail) for loop in loops]

    async def close(self) -> None:
        """End; all deliveries are queued, without regard to their keys."""
        if self._settler.gate is not self:
            return
        self._settler.gate = None
        self._in_flight.close_gate()
        for task in self._tasks:
            task.cancel()
        for entry in self._entries.values():
            if entry.timer is not None:
                entry.timer.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- Arrival ------------------------------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether no message is missing."""
        return self._continuity.is_complete

    @property
    def waiting(self) -> int:
        """Number of messages that have arrived, and have not passed the gate."""
        return len(self._inbox)

    def slots(self, most: int) -> int:
        """
        Return the number of messages that may be fetched now, while some are missing.

        The server sends redelivered messages before new ones. New ones have to wait, and a process that ends meanwhile
        increments their delivery counts, so few are fetched.
        """
        if self._was_redelivered:
            return max(1, min(most, self._missing))
        return 1 if time.monotonic() >= self._not_before else 0

    def receive(self, message: Msg, origin: AckSubject) -> bool:
        """Note a delivery; return whether its message was settled before, and needs only another acknowledgement."""
        self._continuity.receive(origin.consumer_sequence)
        if not self.is_complete:
            # A message that is in flight is a new one for a server that has lost its last state.
            self._was_redelivered = origin.deliveries > 1 or origin.sequence in self._in_flight.sequences()
            if self._was_redelivered:
                self._missing -= 1
            else:
                self._not_before = time.monotonic() + self._pause
            self._recovery_wanted.set()
        if (origin.sequence, origin.timestamp) not in self._remembered:
            return False
        self._again.append(message)
        self._admission_wanted.set()
        return True

    def add(self, delivery: Delivery) -> None:
        """Add a message that has arrived."""
        self._inbox.append(delivery)
        self._admission_wanted.set()

    # --- Attempts -----------------------------------------------------------------------------------------------------

    def hold(self, delivery: Delivery, delay: float) -> None:
        """
        Handle a message again after a delay.

        Args:
            delivery: The delivery, whose attempt has ended or ends soon.
            delay: Seconds.
        """
        again = delivery._next_attempt()
        self._in_flight.hold(again)
        entry = self._entries.setdefault(delivery.sequence, _Entry(again))
        entry.delivery, entry.is_running = again, delivery._has_started
        entry.timer = asyncio.get_running_loop().call_later(delay, self._end_delay, entry)

    def remember(self, delivery: Delivery) -> None:
        """Remember a message that was handled or dead-lettered: its acknowledgement can be lost."""
        self._remembered[delivery.sequence, delivery._origin.timestamp] = None
        if len(self._remembered) > _MAX_REMEMBERED:
            self._remembered.popitem(last=False)

    def settle(self, delivery: Delivery) -> None:
        """Continue with the key of a settled message, at the end of its block."""
        entry = self._entries.get(delivery.sequence)
        if entry is not None:
            entry.is_settled = True
            if not delivery._has_started:
                self._continue(entry)

    def end_block(self, delivery: Delivery) -> None:
        """Continue with a key after a block."""
        entry = self._entries.get(delivery.sequence)
        if entry is not None and (entry.is_settled or entry.delivery is not delivery):
            entry.is_running = False
            self._continue(entry)

    def _end_delay(self, entry: _Entry) -> None:
        entry.timer = None
        self._continue(entry)

    def _continue(self, entry: _Entry) -> None:
        """Queue the next message of a key, or the same one again."""
        sequence = entry.delivery.sequence
        if entry.is_settled:
            del self._entries[sequence]
            following = self._order.finish(sequence)
            if following is not None:
                self._in_flight.queue(self._entries[following].delivery)
        elif entry.is_running or entry.timer is not None:
            return
        elif entry.has_key:
            self._in_flight.queue(entry.delivery)
        else:
            self._inbox.insert(0, entry.delivery)
            self._admission_wanted.set()
        self._wake()

    # --- Admission ----------------------------------------------------------------------------------------------------

    async def _keep_admitting(self) -> None:
        while True:
            await self._admission_wanted.wait()
            self._admission_wanted.clear()
            while self._again:
                with suppress(nats.errors.Error):
                    await self._again.pop().ack()
            while self._inbox and self.is_complete:
                await self._admit(self._inbox[0])
                self._wake()

    async def _admit(self, delivery: Delivery) -> None:
        """Decode the first message in the inbox, and queue it if it is the first one of its key."""
        is_event = await self._decode(delivery)
        self._inbox.remove(delivery)
        if not is_event or delivery.is_settled:
            return
        entry = self._entries[delivery.sequence] = _Entry(delivery)
        try:
            key = call_plain("key", self._key, delivery)
            if inspect.isawaitable(key):
                raise TypeError(f"key must be a function that is not async, got {preview(self._key)}")
            is_first = self._order.add(delivery.sequence, key)
        except Exception as error:
            # As a failure of its handler. Its key is not known, so it cannot hold back others.
            entry.has_key = False
            self._settler.report(error, delivery)
            await self._settler.settle_quietly(delivery, Outcome.FAILED, error)
            return
        if is_first:
            self._in_flight.queue(delivery)

    async def _decode(self, delivery: Delivery) -> bool:
        """Decode a message; settle it, and return False, if it is not an event."""
        while True:
            try:
                await self._read(delivery)
            except DecodeError as error:
                await self._settle_undecodable(delivery, error)
                return False
            except DeliveryError as error:
                # Its key is not known, so all later messages wait.
                self._settler.report(error, delivery)
                await asyncio.sleep(self._pause)
            else:
                return True

    # --- Missing messages ---------------------------------------------------------------------------------------------

    async def _keep_recovering(self) -> None:
        while True:
            await self._recovery_wanted.wait()
            self._recovery_wanted.clear()
            if self.is_complete:
                continue
            if not await self._recover():
                return
            self._missing, self._was_redelivered, self._not_before = 1, False, 0.0
            self._inbox.sort(key=lambda delivery: delivery.sequence)
            self._admission_wanted.set()
            self._wake()

    async def _recover(self) -> bool:
        """Wait until no message is missing, and at first no other client requests any; return False if that fails."""
        began, logged_after = time.monotonic(), self._max_wait + _LOG_SECONDS
        pause = _MIN_PAUSE
        loop = asyncio.get_running_loop()
        while True:
            self._continuity.begin_request(self._in_flight.sequences())
            try:
                progress = await self._progress()
                is_shared = self._is_first and self._check_others(progress)
            except DeliveryError as error:
                if error.code in _PERMANENT:
                    self._fail(error)
                    return False
                self._settler.report(error, None)
                pause = _MAX_PAUSE
            else:
                self._missing = 1 if is_shared else self._continuity.missing(progress, self._in_flight.sequences())
                if not self._missing:
                    self._is_first = False
                    return True
            self._wake()
            seconds = time.monotonic() - began
            if seconds >= logged_after:
                logged_after *= 2
                self._log_missing(round(seconds))
            timer = loop.call_later(pause, self._recovery_wanted.set)
            pause = min(2 * pause, _MAX_PAUSE)
            await asyncio.sleep(_MIN_PAUSE)
            await self._recovery_wanted.wait()
            self._recovery_wanted.clear()
            timer.cancel()

    def _check_others(self, progress: Progress) -> bool:
        """
        Return whether other clients request messages.

        Raises:
            DeliveryError: ``consumer-in-use``: they do not stop.
        """
        sharing = self._others.observe(progress.requests, time.monotonic())
        text = "another client requests messages, and with a key the consumer must have one client"
        if sharing is not Sharing.ALONE and not self._is_warned:
            self._is_warned = True
            _log.warning("%s: %s; waiting for %g s until it stops", self._target, text, IN_USE_SECONDS)
        if sharing is Sharing.IN_USE:
            raise DeliveryError(ErrorCode.CONSUMER_IN_USE, f"{self._target}: {text}")
        return sharing is not Sharing.ALONE

    def _log_missing(self, seconds: int) -> None:
        _log.warning(
            "%s: waiting for %d unacknowledged messages since %d s, to keep the order of keys: another client uses the "
            "consumer, or an earlier one has delayed their redelivery",
            self._target,
            self._missing,
            seconds,
        )
