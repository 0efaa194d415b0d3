"""
Look up whether a stream listens on a subject, after a publish got a no-responders status.

While a stream has no leader, for seconds after a server was lost, a publish gets the same status 503 as if no stream
listened. Only JetStream's API can distinguish the two cases.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from nats.aio.client import Client

from ...errors import DeliveryError, ErrorCode, NoStreamError
from .._jetstream_api import NO_JETSTREAM, StreamApi
from .._reply_window import Pending
from ..link._link import Link

# Pause before a retry if a stream has no leader, or is still replicating a copy of the message.
PAUSE_SECONDS: Final = 0.5
# Timeout for the response of the API: there is none during an election of the meta leader.
_ANSWER_SECONDS: Final = 2.0
# Interval of lookups whether JetStream is enabled.
_LOOK_SECONDS: Final = 1.0
# Subjects of messages that are not acknowledged, whose streams are looked up.
_MAX_REASONS: Final = 16


class Listeners:
    """Results of looking up streams for subjects. A subject with a stream is looked up once."""

    def __init__(self, nc: Client, api_prefix: str) -> None:
        self._nc = nc
        self._prefix = api_prefix
        self._found: set[str] = set()
        self._absent: dict[str, float] = {}

    def was_absent(self, subject: str) -> bool:
        """Return whether the API has reported once that no stream listens."""
        return subject in self._absent

    @property
    def has_absent(self) -> bool:
        """Whether the API has reported of any subject that no stream listens."""
        return bool(self._absent)

    def note_stream(self, subject: str) -> None:
        """Forget a report that no stream listens: a stream has stored a message since."""
        if self._absent:
            self._absent.pop(subject, None)

    async def look_for_jetstream(self, subject: str, timeout: float) -> None:
        """
        Check that JetStream is enabled, after a publish got a no-responders status although streams have stored others.

        That no stream listens on the subject is not an error: it may be created again. The API must have found a stream
        before: an account may import subjects of a stream, and not have JetStream.

        Raises:
            NoStreamError: JetStream is not enabled, according to two responses with a pause between them.
        """
        api = StreamApi(self._nc, self._prefix, min(timeout, _ANSWER_SECONDS))
        for seconds in (0.0, PAUSE_SECONDS):
            await asyncio.sleep(seconds)
            reason = await api.why_no_stream(subject)
            if reason not in NO_JETSTREAM:
                return
        raise NoStreamError(ErrorCode.NO_RESPONDERS, f"no stream listens: {reason}")

    async def look(self, subject: str, timeout: float) -> None:
        """
        Look for streams that listen on a subject, after a publish to it got a no-responders status.

        A server that shuts down also reports that there are none, so a second report in a later call is required. A
        missing response, for instance because permission is denied, is ignored.

        Raises:
            NoStreamError: No stream listens.
        """
        if subject in self._found:
            return
        api = StreamApi(self._nc, self._prefix, min(timeout, _ANSWER_SECONDS))
        reason = await api.why_no_stream(subject)
        if not reason:
            self._absent.pop(subject, None)
            if reason is not None:
                self._found.add(subject)
            return
        now = time.monotonic()
        if now - self._absent.setdefault(subject, now) >= PAUSE_SECONDS / 2:
            raise NoStreamError(ErrorCode.NO_RESPONDERS, f"{subject}: no stream listens: {reason}")


class StreamSearch:
    """
    Lookups of a publisher: does a stream listen, and why is a message not acknowledged?

    ``start`` runs a background task. ``absent`` is called if no stream listens: with the error, and the subject; None
    if JetStream is not enabled.

    Attributes:
        has_stream: Whether a stream has acknowledged a message. No responders then mean that it has no leader. Before
            that, JetStream's API is asked whether a stream listens.
    """

    def __init__(
        self,
        nc: Client,
        api_prefix: str,
        timeout: float,
        start: Callable[[Coroutine[Any, Any, None]], object],
        absent: Callable[[NoStreamError, str | None], None],
    ) -> None:
        self.has_stream = False
        self._nc = nc
        self._api_prefix = api_prefix
        self._timeout = timeout
        self._start = start
        self._absent = absent
        self._listeners = Listeners(nc, api_prefix)
        self._lookups: set[str] = set()
        self._look_again = 0.0
        self._reasons: dict[str, str] = {}

    def note_stored(self, subject: str) -> None:
        """Set that a stream has stored a message."""
        self.has_stream = True
        self._listeners.note_stream(subject)

    def note_all_stored(self, items: Iterable[Pending]) -> None:
        """Set that streams have stored messages."""
        self.has_stream = True
        if self._listeners.has_absent:
            for item in items:
                self._listeners.note_stream(item.subject)

    def look(self, subject: str, *, may_lack_jetstream: bool = False) -> None:
        """Look up whether a stream listens, unless that is known or being looked up; if it is, look for JetStream."""
        if not self.has_stream or self._listeners.was_absent(subject):
            if subject not in self._lookups:
                self._lookups.add(subject)
                self._start(self._look_up(subject))
        elif may_lack_jetstream and time.monotonic() >= self._look_again:
            self._look_again = time.monotonic() + _LOOK_SECONDS
            self._start(self._look_for_jetstream(subject))

    async def _look_up(self, subject: str) -> None:
        try:
            await self._listeners.look(subject, self._timeout)
        except NoStreamError as error:
            self._absent(error, subject)
        finally:
            self._lookups.discard(subject)

    async def _look_for_jetstream(self, subject: str) -> None:
        try:
            await self._listeners.look_for_jetstream(subject, self._timeout)
        except NoStreamError as error:
            self._absent(error, None)

    def explain(self, subjects: Iterable[str]) -> None:
        """Begin to look up why messages to subjects are not acknowledged."""
        for subject in subjects:
            if subject not in self._reasons and len(self._reasons) < _MAX_REASONS:
                self._reasons[subject] = ""
                self._start(self._find_reason(subject))

    async def _find_reason(self, subject: str) -> None:
        self._reasons[subject] = await find_reason(self._nc, self._api_prefix, subject, self._timeout)

    def reason(self, subject: str) -> str:
        """Return the reason for :func:`late_error` if it was found, or ``""``."""
        return self._reasons.get(subject, "")


def late_error(subject: str, reason: str = "") -> DeliveryError:
    """Return the error of a message that is not acknowledged in time; the reason begins with its punctuation."""
    return DeliveryError(ErrorCode.TIMEOUT, f"{subject}: no acknowledgement arrived in time{reason}")


def unacknowledged_error(nc: Client, subject: str) -> DeliveryError:
    """Return the error of a message on a connection that was closed; the message may be stored."""
    loss = Link.of(nc).ending.loss
    text = f"{subject}: the connection was closed before the acknowledgement arrived"
    return DeliveryError(ErrorCode.TIMEOUT, f"{text}: {loss}" if loss else text)


async def find_reason(nc: Client, api_prefix: str, subject: str, timeout: float) -> str:
    """Return the reason for :func:`late_error`, if JetStream's API knows it; else ``""``."""
    reason = await StreamApi(nc, api_prefix, min(timeout, _ANSWER_SECONDS)).why_unacknowledged(subject)
    return f": {reason}" if reason else ""
