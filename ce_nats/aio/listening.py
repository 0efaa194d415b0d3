"""
Whether a stream listens on a subject, asked where a message found nobody.

While a stream has no leader, for seconds after a server was lost, what is published to it comes back with a 503, as it
does where no stream listens at all. Only JetStream's API tells one from the other.
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

from ..errors import ErrorCode, NoStreamError
from ._nats import api_prefix, client_of
from .streams import StreamApi

__all__ = ["IN_PROCESS", "PAUSE_SECONDS", "Listeners", "publish_patiently"]

# How long a stream that has just not been there, or is busy with a message's copy, gets.
PAUSE_SECONDS: Final = 0.5
# For the API's answer: without a meta leader, whom an election may be about as well, there is none.
_ANSWER_SECONDS: Final = 2.0
# nats-server: JSStreamDuplicateMessageConflict. A message's copy is still being replicated, so ask again.
IN_PROCESS: Final = 10158


class Listeners:
    """
    What is known of the streams behind subjects; each subject is asked for once where there is one.

    Args:
        nc: An open connection.
        api_prefix: First tokens of the subjects of JetStream's API.
    """

    def __init__(self, nc: Client, api_prefix: str) -> None:
        self._nc = nc
        self._prefix = api_prefix
        self._found: set[str] = set()
        self._missed: dict[str, float] = {}

    def was_missed(self, subject: str) -> bool:
        """Whether the server has said once that none does."""
        return subject in self._missed

    async def look(self, subject: str, timeout: float) -> None:
        """
        Ask for the streams that listen on a subject, after a message there has found nobody.

        A server says that there are none while it shuts down, too. So it has to say so again in a later call. An API
        that does not answer, because permission is denied say, proves nothing.

        Args:
            subject: The message's.
            timeout: Seconds to wait for the answer at most.

        Raises:
            NoStreamError: No stream listens.
        """
        if subject in self._found:
            return
        api = StreamApi(self._nc, self._prefix, min(timeout, _ANSWER_SECONDS))
        reason = await api.why_no_stream(subject)
        if not reason:
            self._missed.pop(subject, None)
            if reason is not None:
                self._found.add(subject)
            return
        now = time.monotonic()
        if now - self._missed.setdefault(subject, now) >= PAUSE_SECONDS / 2:
            raise NoStreamError(ErrorCode.NO_RESPONDERS, f"{subject}: no stream listens: {reason}")


async def publish_patiently(
    js: JetStreamContext, subject: str, data: bytes, headers: dict[str, str] | None, timeout: float
) -> PubAck:
    """
    As ``js.publish()``, and again after a pause where nothing was stored but may be: while a stream has no leader, and
    while it replicates a copy of the message.

    Raises:
        NoStreamError: No stream listens.
        nats.errors.Error: As ``js.publish()`` does.
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
            if error.err_code != IN_PROCESS:
                raise
            if time.monotonic() + PAUSE_SECONDS >= give_up:
                raise nats.errors.TimeoutError from error
        await asyncio.sleep(PAUSE_SECONDS)
