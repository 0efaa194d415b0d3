"""
One client at once keeps the order of keys: the one whose inbox is in the metadata of the consumer.

The client answers on its inbox as long as it runs. A client that finds the inbox of another one sends a request there.
After an answer it waits for a while, because a deployment may start a process before it stops the old one, and then
gives up. Without a subscriber, or without an answer for that time, it replaces the inbox; a client whose inbox was
replaced gives up before it continues. So only one continues, also if several begin at the same time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from ...errors import DeliveryError, ErrorCode
from .._errors import delivery_errors
from .._jetstream_api import Progress
from ..link._link import answered
from ._binding import METADATA_IMPOSSIBLE, Binding
from ._key_order import IN_USE_SECONDS, OtherClients, Sharing

_log: Final = logging.getLogger(__name__)

METADATA_KEY: Final = "ce-nats-client"
# Maximum time for an answer, and pause after it.
_ANSWER_SECONDS: Final = 1.0
_PAUSE: Final = 0.2
_OTHER: Final = "another client keeps the order of its keys"


class SoleUse:
    """Whether this client is the one that keeps the order of keys."""

    def __init__(self, nc: Client, binding: Binding, others: OtherClients) -> None:
        self._nc = nc
        self._binding = binding
        self._others: OtherClients | None = others  # until this client has had all messages for the first time
        self._is_written = False
        self._is_warned = False
        self._inbox = nc.new_inbox()
        self._subscription: Subscription | None = None

    async def begin(self) -> None:
        """
        Wait until this client is the one, unless that cannot be written to the metadata.

        Raises:
            DeliveryError: ``consumer-in-use``: there is another one, which does not stop; ``timeout``;
                ``consumer-not-found``; ``connection-closed``.
        """
        target = self._binding.target
        if self._subscription is None:
            with delivery_errors(target, self._nc):
                self._subscription = await self._nc.subscribe(self._inbox, cb=_answer)
        others, gone, has_answered = OtherClients(), "", False
        try:
            while other := await self._replace(gone):
                answer = await self._ask(other)
                is_over = others.observe(2, time.monotonic()) is Sharing.IN_USE
                if answer and not has_answered:
                    has_answered = True
                    _log.warning("%s: %s; waiting for %g s until it stops", target, _OTHER, IN_USE_SECONDS)
                if answer is False or (is_over and not has_answered):
                    gone = other
                elif is_over:
                    raise DeliveryError(ErrorCode.CONSUMER_IN_USE, f"{target}: {_OTHER}")
                else:
                    await asyncio.sleep(_PAUSE)
        except DeliveryError as error:
            if error.code not in METADATA_IMPOSSIBLE:
                raise
            _log.debug("%s", error)
            self._is_written = False
        else:
            self._is_written = True

    async def is_shared(self, progress: Progress) -> bool:
        """
        Return whether other clients use the consumer.

        Raises:
            DeliveryError: ``consumer-in-use``: they do not stop, or have replaced this one.
        """
        if not self._is_written:
            return self._others is not None and self._is_requested(self._others, progress.requests)
        inbox = progress.metadata.get(METADATA_KEY, "")
        if inbox not in ("", self._inbox):
            text = f"{self._binding.target}: {_OTHER}, and has replaced this one"
            raise DeliveryError(ErrorCode.CONSUMER_IN_USE, text)
        if not inbox:
            await self.begin()
        return False

    def _is_requested(self, others: OtherClients, requests: int) -> bool:
        """As :meth:`is_shared`: without the metadata, other clients are only seen by their requests."""
        target = self._binding.target
        sharing = others.observe(requests, time.monotonic())
        text = "another client requests messages, and with a key the consumer must have one client"
        if sharing is not Sharing.ALONE and not self._is_warned:
            self._is_warned = True
            _log.warning("%s: %s; waiting for %g s until it stops", target, text, IN_USE_SECONDS)
        if sharing is Sharing.IN_USE:
            raise DeliveryError(ErrorCode.CONSUMER_IN_USE, f"{target}: {text}")
        return sharing is not Sharing.ALONE

    def note_complete(self) -> None:
        """Note that this client has had all messages: from now on, requests of others are not looked for."""
        self._others = None

    async def close(self) -> None:
        """Answer no longer."""
        if self._subscription is not None:
            with suppress(nats.errors.Error):
                await self._subscription.unsubscribe()

    async def _replace(self, gone: str) -> str:
        """Write the inbox of this client in the place of one that has gone, or of none; return that of another one."""
        other = ""

        def change(present: str, _: int) -> str:
            nonlocal other
            other = present if present not in ("", gone, self._inbox) else ""
            return other or self._inbox

        await self._binding.annotate(METADATA_KEY, change)
        return other

    async def _ask(self, inbox: str) -> bool | None:
        """Return whether a client answers; None if that is not known."""
        try:
            with delivery_errors(self._binding.target, self._nc):
                await answered(self._nc, inbox, lambda: self._nc.request(inbox, timeout=_ANSWER_SECONDS))
        except DeliveryError as error:
            if error.code is ErrorCode.CONNECTION_CLOSED:
                raise
            return False if error.code is ErrorCode.NO_RESPONDERS else None
        return True


async def _answer(request: Msg) -> None:
    with suppress(nats.errors.Error):
        await request.respond(b"")
