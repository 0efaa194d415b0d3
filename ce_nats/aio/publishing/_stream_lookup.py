"""
Look up whether a stream listens on a subject, after a publish got a no-responders status.

While a stream has no leader, for seconds after a server was lost, a publish gets the same status 503 as if no stream
listened. Only JetStream's API can distinguish the two cases.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import PubAck
from nats.js.errors import APIError, NoStreamResponseError

from ...errors import DeliveryError, ErrorCode, NoStreamError
from .. import _server_codes as codes
from .._jetstream_api import NO_JETSTREAM, StreamApi
from .._natspy import api_prefix, client_of
from .._util.pausing import pause

# Pause before a retry if a stream has no leader, or is still replicating a copy of the message.
PAUSE_SECONDS: Final = 0.5
# Timeout for the response of the API: there is none during an election of the meta leader.
_ANSWER_SECONDS: Final = 2.0


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


def late_error(subject: str, reason: str = "") -> DeliveryError:
    """Return the error of a message that is not acknowledged in time; the reason begins with its punctuation."""
    return DeliveryError(ErrorCode.TIMEOUT, f"{subject}: no acknowledgement arrived in time{reason}")


async def find_reason(nc: Client, api_prefix: str, subject: str, timeout: float) -> str:
    """Return the reason for :func:`late_error`, if JetStream's API knows it; else ``""``."""
    reason = await StreamApi(nc, api_prefix, min(timeout, _ANSWER_SECONDS)).why_unacknowledged(subject)
    return f": {reason}" if reason else ""


async def publish_with_retry(
    js: JetStreamContext, subject: str, data: bytes, headers: dict[str, str] | None, timeout: float
) -> PubAck:
    """
    Publish as ``js.publish()`` does, and retry while a stream has no leader, or replicates a copy of the message.

    Raises:
        NoStreamError: No stream listens.
    """
    listeners = Listeners(client_of(js), api_prefix(js))
    give_up = time.monotonic() + timeout
    while True:
        try:
            return await js.publish(subject, data, timeout=give_up - time.monotonic(), headers=headers)
        except NoStreamResponseError:
            await listeners.look(subject, max(PAUSE_SECONDS, give_up - time.monotonic()))
            if time.monotonic() + PAUSE_SECONDS >= give_up:
                raise
        except APIError as error:
            if error.err_code != codes.DUPLICATE_IN_PROCESS:
                raise
            if time.monotonic() + PAUSE_SECONDS >= give_up:
                raise nats.errors.TimeoutError from error
        await pause(PAUSE_SECONDS)
