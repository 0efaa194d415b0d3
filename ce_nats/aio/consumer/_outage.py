"""
Pause the handlers of a consumer during an outage, and report when it begins, each minute, and when it ends.

The reports go to the log, and to the metadata of the consumer, where ``ce-nats top`` finds them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from ...errors import DeliveryError, text_of
from ...redelivery import Blame, Breaker, BreakerState, Unavailable
from .._observer import Observer
from .._util.supervising import supervise
from ._binding import Binding
from ._running import Running

_log: Final = logging.getLogger(__name__)

METADATA_KEY: Final = "ce-nats-outage"
# Seconds between two reports of an outage.
_REPORT_SECONDS: Final = 60.0


class Pause(NamedTuple):
    """
    A pause of the handlers of a consumer, as in its metadata.

    Attributes:
        since: Begin, in seconds since 1970.
        at: Time of the report, in seconds since 1970.
        error: Class of the exception, and the name in :class:`~ce_nats.Unavailable`; other texts may be confidential.
    """

    since: float
    at: float
    error: str

    @classmethod
    def find(cls, metadata: Mapping[str, str] | None, now: float) -> Pause | None:
        """Return the pause that metadata report; None without one, or if its client has not renewed the report."""
        try:
            pause = msgspec.json.decode((metadata or {}).get(METADATA_KEY, "null"), type=Pause | None)
        except (msgspec.MsgspecError, UnicodeError):
            return None
        return pause if pause is not None and pause.at > now - 2.5 * _REPORT_SECONDS else None


class Outage:
    """Tells the breaker of a consumer how handlers end."""

    def __init__(
        self,
        breaker: Breaker,
        unavailable: tuple[type[Exception], ...],
        running: Running,
        binding: Binding,
        observer: Observer | None,
    ) -> None:
        self.breaker = breaker
        self._unavailable: tuple[type[Exception], ...] = (Unavailable, *unavailable)
        self._running = running
        self._binding = binding
        self._observer = observer
        self._text = ""
        self._pause: Pause | None = None
        self._written = ""  # in the metadata
        self._writing: asyncio.Task[None] | None = None
        self._reporting: asyncio.TimerHandle | None = None

    def covers(self, error: BaseException) -> bool:
        """Return whether an exception of a handler declares an outage, or was raised during one."""
        return isinstance(error, self._unavailable) or self.breaker.state is not BreakerState.CLOSED

    def succeed(self) -> None:
        """Note that a handler has returned."""
        if not self.breaker.succeed():
            return
        self._end()
        _log.warning("%s: handlers succeed again after %d s", self._running.target, self._seconds)
        self._running.wake()

    def fail(self, sequence: int, error: BaseException | None) -> Blame:
        """Note that a handler has failed, and return what the failure is attributed to."""
        breaker = self.breaker
        was_closed = breaker.state is BreakerState.CLOSED
        is_declared = isinstance(error, self._unavailable)
        retry_after = error.retry_after if isinstance(error, Unavailable) else None
        now = time.monotonic()
        blame = breaker.fail(sequence, now, is_declared=is_declared, retry_after=retry_after)
        if blame is not Blame.EVENT and error is not None:
            self._text = f"{type(error).__name__}: {text_of(error)}"
            if was_closed:
                _log.warning(
                    "%s: handlers fail, %d in a row; events are kept, and one at once is tried until one succeeds: %s",
                    self._running.target,
                    breaker.failures,
                    self._text,
                )
                self._begin(error)
            self._running.wake()
        return blame

    async def close(self) -> None:
        """Report no longer."""
        self._end()
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)

    @property
    def _seconds(self) -> int:
        return round(time.monotonic() - self.breaker.since)

    def _begin(self, error: BaseException) -> None:
        text = self._text if isinstance(error, Unavailable) else type(error).__name__
        self._pause = Pause(time.time(), time.time(), text)
        self._report_later()
        if self._observer is not None:
            self._observer.pause(self._binding.name, 1)

    def _report_later(self) -> None:
        self._reporting = asyncio.get_running_loop().call_later(_REPORT_SECONDS, self._report)
        self._write()

    def _write(self) -> None:
        """Write the present state to the metadata, unless that is being done."""
        if self._writing is None or self._writing.done():
            # It is only for information, so its failure, which is logged, does not end the consumer.
            self._writing = supervise(self._keep_writing(), self._running.target, lambda _: None)

    async def _keep_writing(self) -> None:
        while True:
            pause = self._pause and self._pause._replace(at=time.time())
            text = msgspec.json.encode(pause).decode() if pause else ""

            def change(present: str, _: int, text: str = text) -> str:
                is_own = present == self._written
                return text if text or is_own else present

            with suppress(DeliveryError):
                await self._binding.annotate(METADATA_KEY, change, is_repeated=False)
                self._written = text
            if bool(self._pause) == bool(text):
                return

    def _report(self) -> None:
        _log.warning("%s: handlers fail since %d s: %s", self._running.target, self._seconds, self._text)
        self._report_later()

    def _end(self) -> None:
        if self._reporting is None:
            return
        self._reporting.cancel()
        self._reporting = self._pause = None
        self._write()
        if self._observer is not None:
            self._observer.pause(self._binding.name, -1)
