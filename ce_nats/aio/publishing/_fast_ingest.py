"""
Publish messages to streams in batches of fast ingest (ADR-50), several hundred to an acknowledgement.

A stream with ``allow_batched`` (nats-server 2.14) accepts messages whose reply subjects number them within a batch. It
stores them in order; if one is missing, it ends the batch before it. So every message of a batch up to the last
acknowledged one is stored, and those after it are resent in a new batch; by their ``Nats-Msg-Id`` the stream stores
none twice. There is one batch at a time for each stream, so that its order is kept.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import nats.errors
from nats.aio.subscription import Subscription

from ..._settings import DEFAULT_PREFIX
from ...subjects import covers
from .._jetstream_api import StreamApi
from .._natspy import is_server_from
from ._ack_window import subscribe_raw, unsubscribe_raw
from ._lane import Lane, Owner

_MAX_FLOW: Final = 500
# Subjects that are looked up in vain; then further ones are published in the ordinary way.
_MAX_MISSES: Final = 16
_MAX_ROUTES: Final = 4096
# Seconds to wait for a response about a stream, and to repeat the request. An election is awaited: if messages were
# published one by one meanwhile, those that are resent would be stored after later ones.
_LOOKUP_SECONDS: Final = 2.0
_LOOKUP_RETRY_SECONDS: Final = 10.0

# In place of the lane of a subject that was not looked up.
UNKNOWN: Final = object()


class FastIngest:
    """
    Batches to the streams that accept them.

    Args:
        owner: The unacknowledged messages.
        window: Their maximum number.
        ack_timeout: Seconds without progress after which the unacknowledged messages of a batch are resent.
        retry_timeout: Seconds to repeat the lookup of a stream without a response, at most ten.

    Attributes:
        routes: Lanes by subject, of subjects that were looked up.
    """

    def __init__(self, owner: Owner, *, window: int, ack_timeout: float, retry_timeout: float) -> None:
        self._owner = owner
        self._nc = owner.nc
        self._flow = max(1, min(_MAX_FLOW, window // 4))
        self._ack_timeout = ack_timeout
        self._retry_timeout = min(retry_timeout, _LOOKUP_RETRY_SECONDS)
        self.routes: dict[str, Lane | None] = {}
        self._streams: list[tuple[list[str], Lane | None]] = []
        self._misses = 0
        self._lanes: list[Lane] = []
        self._lock = asyncio.Lock()
        self._inbox = ""
        self._subscription: Subscription | None = None

    async def look_up(self, subject: str) -> Lane | None:
        """Return the lane of a subject, and remember it; None if its stream accepts no batches."""
        if subject in self.routes:
            return self.routes[subject]
        async with self._lock:
            if subject not in self.routes:
                lane = await self._look_up(subject)
                if len(self.routes) >= _MAX_ROUTES:
                    self.routes.clear()
                self.routes[subject] = lane
            return self.routes[subject]

    async def emptied(self, subject: str) -> None:
        """Wait until a message on a subject that is not sent in a batch does not overtake one that is."""
        for patterns, lane in self._streams:
            if lane is not None and any(covers(pattern, subject) for pattern in patterns):
                await lane.emptied()

    async def _look_up(self, subject: str) -> Lane | None:
        for patterns, lane in self._streams:
            if any(covers(pattern, subject) for pattern in patterns):
                return lane
        if self._misses >= _MAX_MISSES or not is_server_from(self._nc, (2, 14)):
            return None
        api = StreamApi(self._nc, DEFAULT_PREFIX, _LOOKUP_SECONDS, self._retry_timeout)
        found = await api.stream_on(subject)
        if found is None:
            self._misses += 1
            return None
        lane = None
        if found.accepts_batches and await self._subscribed():
            lane = Lane(self._owner, self._inbox, found.name, flow=self._flow, ack_timeout=self._ack_timeout)
            self._lanes.append(lane)
        self._streams.append((found.subjects, lane))
        return lane

    async def _subscribed(self) -> bool:
        """Subscribe to the replies, once; return False if that is not possible."""
        if self._subscription is None:
            self._inbox = self._nc.new_inbox()
            with suppress(nats.errors.Error):
                self._subscription = await subscribe_raw(self._nc, f"{self._inbox}.>", self._on_reply)
        return self._subscription is not None

    async def close(self) -> None:
        """End open batches, without waiting for their acknowledgements, and unsubscribe."""
        for lane in self._lanes:
            lane.close()
        if self._subscription is not None:
            await unsubscribe_raw(self._nc, self._subscription)

    def commit(self) -> None:
        """End open batches."""
        for lane in self._lanes:
            lane.commit()

    def check(self) -> None:
        """Resend or fail messages that have waited too long; called ten times a second."""
        for lane in self._lanes:
            lane.check()

    def _on_reply(self, subject: bytes, reply: bytes, data: bytes, block: bytes | None) -> None:
        words = subject.rsplit(b".", 6)  # inbox, batch, flow, gap mode, number, operation, $FI
        if len(words) != 7 or not words[4].isdigit():
            return
        batch, number = words[1].decode("latin-1"), int(words[4][:18])
        for lane in self._lanes:
            if lane.batch == batch:
                lane.receive(number, data, block or b"")
