"""
Handle events of one key in order, and those of different keys concurrently.

Messages are decoded when they arrive, in their order, because only the event has the key; the ledger then holds back
those that are not the first of their keys. A failed message stays in flight, and is handled again after its delay.
(The server would redeliver it after later messages of its key.)
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Final

from ...errors import DecodeError, DeliveryError, ErrorCode, preview
from ...redelivery import Outcome
from .._util.supervising import call_plain, supervise
from ._acks import AckWriter
from ._binding import Binding
from ._delivery import Delivery
from ._entry import Entry
from ._fetch import Fetcher
from ._key_order import OtherClients
from ._keys import Keys
from ._ledger import Ledger
from ._prepare import Preparation
from ._running import Running
from ._settle import Settler
from ._sole_use import SoleUse

_log: Final = logging.getLogger(__name__)

Key = Callable[[Delivery], Hashable]

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


class Keying:
    """Tasks that determine the keys of messages, and detect missing messages."""

    def __init__(
        self,
        key: Key,
        binding: Binding,
        ledger: Ledger,
        preparation: Preparation,
        settler: Settler,
        acks: AckWriter,
        fetcher: Fetcher,
        running: Running,
        others: OtherClients,
    ) -> None:
        self._key = key
        self._binding = binding
        self._ledger = ledger
        self._preparation = preparation
        self._settler = settler
        self._acks = acks
        self._fetcher = fetcher
        self._running = running
        self._sole_use = SoleUse(settler.nc, binding, others)
        self._pause = min(_MAX_PAUSE, min(binding.waits) / 5)
        self._keys = Keys(self._pause)
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin, with the messages that have already arrived."""
        for entry in self._ledger.keep_order(self._keys):
            if entry.event is not None:
                with suppress(Exception):  # without a key, it does not hold back others
                    self._ledger.admit(entry, self._key_of(entry), time.monotonic())
        self._task = supervise(self._keep_order(), self._binding.target, self._running.fail)

    async def close(self) -> None:
        """End; messages are handled without regard to their keys."""
        if self._ledger.keys is self._keys:
            self._ledger.end_order(time.monotonic())
            self._running.wake()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._sole_use.close()

    async def _keep_order(self) -> None:
        changed = self._running.changed
        if not await self._begin():
            return
        while True:
            changed.clear()
            if not self._keys.is_complete and not await self._recover():
                return
            while self._keys.inbox and self._keys.is_complete:
                await self._admit(self._keys.inbox[0])
                self._wake()
            if self._keys.is_complete:
                await changed.wait()

    def _wake(self) -> None:
        self._running.wake()
        self._fetcher.wake()

    # --- Admission ----------------------------------------------------------------------------------------------------

    async def _admit(self, entry: Entry) -> None:
        """Decode the first message in the inbox, and note its key."""
        if not await self._decode(entry):
            return
        try:
            self._ledger.admit(entry, self._key_of(entry), time.monotonic())
        except Exception as error:
            # As a failure of its handler.
            self._ledger.admit_without_key(entry)
            delivery = self._delivery_of(entry)
            await self._settler.settle_quietly(delivery, Outcome.FAILED, error, is_reported=True)

    def _key_of(self, entry: Entry) -> Hashable:
        """
        Return the key of a decoded message.

        Raises:
            Exception: As the function for it does.
        """
        key = call_plain("key", self._key, self._delivery_of(entry))
        if inspect.isawaitable(key):
            raise TypeError(f"key must be a function that is not async, got {preview(self._key)}")
        return key

    def _delivery_of(self, entry: Entry) -> Delivery:
        return Delivery(self._settler, entry, entry.event, self._preparation.resolve)

    async def _decode(self, entry: Entry) -> bool:
        """Decode a message; settle it, and return False, if it is filtered, or not an event."""
        while True:
            try:
                delivery = await self._preparation.delivery_of(entry)
            except DecodeError as error:
                await self._preparation.settle_undecodable(entry, error)
                return False
            except DeliveryError as error:
                # Its key is not known, so all later messages wait.
                self._settler.reporter.report(error, Delivery(self._settler, entry, None))
                await asyncio.sleep(self._pause)
            else:
                return delivery is not None and not entry.is_settled

    # --- Other clients ------------------------------------------------------------------------------------------------

    async def _begin(self) -> bool:
        """Wait until no other client keeps the order; return False if that fails."""
        while not self._keys.has_begun:
            try:
                await self._sole_use.begin()
            except DeliveryError as error:
                if not self._survives(error):
                    return False
                await asyncio.sleep(_MAX_PAUSE)
            else:
                self._keys.has_begun = True
                self._wake()
        return True

    def _survives(self, error: DeliveryError) -> bool:
        """Report an error after which a request may succeed; any other one ends the run."""
        if error.code in _PERMANENT:
            self._running.fail(error)
            return False
        self._settler.reporter.report(error, None)
        return True

    # --- Missing messages ---------------------------------------------------------------------------------------------

    async def _recover(self) -> bool:
        """Wait until no message is missing, and at first no other client requests any; return False if that fails."""
        began, logged_after = time.monotonic(), max(self._binding.waits) + _LOG_SECONDS
        pause = _MIN_PAUSE
        while True:
            self._acks.flush()
            self._keys.begin_request(self._ledger.sequences())
            try:
                progress = await self._binding.progress()
                is_shared = await self._sole_use.is_shared(progress)
            except DeliveryError as error:
                if not self._survives(error):
                    return False
                pause = _MAX_PAUSE
            else:
                if not is_shared and self._keys.complete(progress, self._ledger.sequences()):
                    self._sole_use.note_complete()
                    return True
            self._wake()
            seconds = time.monotonic() - began
            if seconds >= logged_after:
                logged_after *= 2
                self._log_missing(round(seconds))
            await self._wait(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    async def _wait(self, pause: float) -> None:
        """Wait for a short time, and until messages arrive, but no longer than ``pause`` seconds."""
        timer = asyncio.get_running_loop().call_later(pause, self._running.changed.set)
        await asyncio.sleep(_MIN_PAUSE)
        await self._running.changed.wait()
        self._running.changed.clear()
        timer.cancel()

    def _log_missing(self, seconds: int) -> None:
        _log.warning(
            "%s: waiting for %d unacknowledged messages since %d s, to keep the order of keys: another client uses the "
            "consumer, or an earlier one has delayed their redelivery",
            self._binding.target,
            self._keys.missing,
            seconds,
        )
