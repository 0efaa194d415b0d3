"""
Whether a stream listens on a subject, asked where a message found nobody.

While a stream has no leader, for seconds after a server was lost, what is published to it comes back with a 503, as it
does where no stream listens at all. Only JetStream's API tells one from the other.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import PubAck
from nats.js.errors import APIError, NoStreamResponseError

from ..errors import DeliveryError, ErrorCode, preview
from .watch import answered

__all__ = ["IN_PROCESS", "PAUSE_SECONDS", "Listeners", "NobodyListens", "publish_patiently"]

# How long a stream that has just not been there, or is busy with a message's copy, gets.
PAUSE_SECONDS: Final = 0.5
# nats-server: JSStreamDuplicateMessageConflict. A message's copy is still being replicated, so ask again.
IN_PROCESS: Final = 10158
# nats-server: JSNotEnabledForAccountErr, JSNotEnabledErr
_NOT_ENABLED: Final = (10039, 10076)


class NobodyListens(DeliveryError):  # noqa: N818 - a DeliveryError with a reason to give up at once
    """``no-responders``, and the server has said that it will stay so."""


class _Answer(msgspec.Struct):
    streams: list[str] | None = None
    error: dict[str, Any] = {}


_decode: Final = msgspec.json.Decoder(_Answer).decode


class Listeners:
    """
    What is known of the streams behind subjects; each subject is asked for once where there is one.

    Args:
        nc: An open connection.
        api_prefix: First tokens of the subjects of JetStream's API.
    """

    def __init__(self, nc: Client, api_prefix: str) -> None:
        self._nc = nc
        self._subject = f"{api_prefix}.STREAM.NAMES"
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
            timeout: Seconds to wait for the answer.

        Raises:
            NobodyListens: No stream listens.
        """
        try:
            reason = "" if subject in self._found else await self._ask(subject, timeout)
        except (DeliveryError, nats.errors.Error, OSError, msgspec.MsgspecError):
            return
        if not reason:
            self._missed.pop(subject, None)
            return
        now = time.monotonic()
        if now - self._missed.setdefault(subject, now) >= PAUSE_SECONDS / 2:
            raise NobodyListens(ErrorCode.NO_RESPONDERS, f"{subject}: no stream listens: {reason}")

    async def _ask(self, subject: str, timeout: float) -> str:
        """Why no stream listens; ``""`` where one does, or where nobody knows."""
        try:
            body = msgspec.json.encode({"subject": subject})
            reply = await answered(
                self._nc, self._subject, lambda: self._nc.request(self._subject, body, timeout=timeout)
            )
        except nats.errors.NoRespondersError:
            # Another server of the cluster may have JetStream, and be away. One that stands alone has none.
            info = self._nc._server_info
            return "" if info.get("jetstream") or info.get("cluster") else "the server has no JetStream"
        answer = _decode(reply.data)
        if answer.error.get("err_code") in _NOT_ENABLED:
            return "JetStream is not enabled for this account"
        if answer.streams:
            self._found.add(subject)
        if answer.error or answer.streams:
            return ""
        return f"make one with js.add_stream(name=..., subjects=[{preview(subject)}]), or with nats stream add"


async def publish_patiently(
    js: JetStreamContext, subject: str, data: bytes, headers: dict[str, str] | None, timeout: float
) -> PubAck:
    """
    As ``js.publish()``, and again after a pause where nothing was stored but may be: while a stream has no leader, and
    while it replicates a copy of the message.

    Raises:
        NobodyListens: No stream listens.
        nats.errors.Error: As ``js.publish()`` does.
    """
    listeners = Listeners(js._nc, js._prefix)
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
