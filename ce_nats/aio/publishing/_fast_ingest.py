"""
Publish messages to streams in batches of fast ingest (ADR-50), several hundred to an acknowledgement.

A stream with ``allow_batched`` (nats-server 2.14) accepts messages whose reply subjects number them within a batch. It
stores them in order; if one is missing, it ends the batch before it. So every message of a batch up to the last
acknowledged one is stored, and those after it are resent in a new batch; by their ``Nats-Msg-Id`` the stream stores
none twice. There is one batch at a time for each stream, so that its order is kept.

If a stream refuses a message because it does not know the batch, the subject may have moved to another stream. Then the
streams are looked up again before anything is resent, and the messages go to the lanes of their streams, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, cast

from ..._settings import DEFAULT_PREFIX
from ...errors import DeliveryError, ErrorCode
from .._jetstream_api import StreamApi, StreamOnSubject
from .._reply_inbox import Replies, ReplyInbox
from ..link._client import is_server_from
from ..link._frame_splitter import RawMessage
from ..link._link import Link
from ..link._permissions import Denial
from ._batches import PING, Batches, Reply, subjects_of
from ._lane import Lane
from ._outbox import Outbox
from ._pending_message import PendingMessage
from ._routes import UNKNOWN, Routes

_MAX_FLOW: Final = 500
# Lookups in vain after which further subjects are not looked up.
_MAX_MISSES: Final = 16
# Seconds to wait for a response about a stream, and to repeat the request. An election is awaited: if messages were
# published one by one meanwhile, those that are resent would be stored after later ones.
_LOOKUP_SECONDS: Final = 2.0
_LOOKUP_RETRY_SECONDS: Final = 10.0
_RENEWAL_SECONDS: Final = 0.5
_MAX_UNBATCHED: Final = 4096
# Seconds before each lookup of the last message of a batch, which the stream may still be storing.
_STORING_PAUSES: Final = (0.0, 0.05, 0.1, 0.2)
# Subjects of a batch whose last message is looked up.
_MAX_LOOKUPS: Final = 8

_PING: Final = b"%d" % PING


class FastIngest:
    """
    Batches to the streams that accept them, of at most ``size`` unacknowledged messages.

    Attributes:
        routes: Lanes by subject, of subjects that were looked up.
    """

    def __init__(self, outbox: Outbox, size: int) -> None:
        self._outbox = outbox
        self._nc = outbox.nc
        self._flow = max(1, min(_MAX_FLOW, size // 4))
        self._routes: Routes[Lane] = Routes()
        self.routes = self._routes.by_subject
        self._misses = 0
        self._lanes: list[Lane] = []
        # Messages whose subject has lost its stream. They wait here, so that those to the stream do not wait for them.
        self._without_stream: Lane | None = None
        # Subjects that the server maps to those of other streams.
        self._unbatched: set[str] = set()
        self._lock = asyncio.Lock()
        self._replies: Replies | None = None
        self._forget: Callable[[], None] = lambda: None

    def open(self) -> None:
        """Receive replies; those to other messages of the owner are received already."""
        inbox, fail = ReplyInbox.of(self._nc), self._outbox.window.fail
        self._replies = Replies(inbox, "publisher", self._on_replies, denied=lambda _: False, fail=fail)
        self._replies.add()
        self._forget = Link.of(self._nc).closing.before(self._write_all)

    async def look_up(self, subject: str) -> Lane | None:
        """Return the lane of a subject, and remember it; None if its stream accepts no batches."""
        if subject in self.routes:
            return self.routes[subject]
        async with self._lock:
            if subject not in self.routes:
                lane = None if subject in self._unbatched else self._routes.find(subject)
                if lane is UNKNOWN:
                    lane = await self._look_up(subject)
                self._routes.remember(subject, cast("Lane | None", lane))
            return self.routes[subject]

    @property
    def has_found(self) -> bool:
        """Whether JetStream's API has found a stream."""
        return self._routes.has_streams

    async def emptied(self, subject: str) -> None:
        """Wait until a message on a subject that is not sent in a batch does not overtake one that is."""
        for lane in self._routes.lanes_on(subject):
            await lane.emptied()
        other = self._without_stream
        if other is not None and subject in _subjects(other):
            await other.emptied()

    def _api(self, timeout: float = _LOOKUP_SECONDS) -> StreamApi:
        return StreamApi(self._nc, DEFAULT_PREFIX, timeout, min(self._outbox.retry_timeout, _LOOKUP_RETRY_SECONDS))

    async def _look_up(self, subject: str) -> Lane | None:
        if self._misses >= _MAX_MISSES or not is_server_from(self._nc, (2, 14)):
            return None
        try:
            found = await self._api().stream_on(subject)
        except DeliveryError:
            self._misses += 1
            return None
        if found is None:
            self._misses += 1
            return self._lane_without_stream() if self._lanes else None
        self._misses = 0
        return await self._add(found)

    async def _add(self, found: StreamOnSubject) -> Lane | None:
        """Set the result of a lookup, and return the lane of the stream."""
        lane = None
        if found.accepts_batches:
            lane = self._routes.lane_of(found.name) or self._new_lane(found.name, found.last)
        self._set_stream(found.name, found.subjects, lane)
        return lane

    def _set_stream(self, name: str, patterns: Sequence[str], lane: Lane | None) -> None:
        """Set the result of a lookup. Later messages on a subject must not overtake those that wait in another lane."""
        self._routes.set_stream(name, patterns, lane)
        for one in self._lanes:
            for subject in _subjects(one):
                self._routes.remember(subject, one)

    def _new_lane(self, stream: str, last: int) -> Lane:
        inbox = "" if self._replies is None else self._replies.prefix[:-1]
        name = self._nc.new_inbox().rpartition(".")[2]  # unique
        batches = Batches(stream, name, last, flow=self._flow, ack_timeout=self._outbox.ack_timeout)
        lane = Lane(self._outbox, batches, inbox, self._flow)
        self._lanes.append(lane)
        return lane

    def _lane_without_stream(self) -> Lane:
        if self._without_stream is None:
            self._without_stream = self._new_lane("", 0)
        return self._without_stream

    def close(self) -> None:
        """End open batches, without waiting for their acknowledgements."""
        self._forget()
        for lane in self._lanes:
            lane.close()
        if self._replies is not None:
            self._replies.close()

    def _write_all(self) -> None:
        """Write the messages that wait; called before the connection is closed."""
        for lane in self._lanes:
            self._outbox.window.guard(lane.write_last)

    def commit(self) -> None:
        """End open batches."""
        for lane in self._lanes:
            lane.commit()

    def check(self) -> None:
        """Resend or fail messages that have waited too long; called ten times a second."""
        for lane in self._lanes:
            lane.check()

    def _on_replies(self, messages: list[RawMessage]) -> None:
        for message in messages:
            self._receive(message)

    def _receive(self, message: RawMessage) -> None:
        subject, _, data, block = message
        words = subject.rsplit(b".", 6)  # inbox, batch, flow, gap mode, number, operation, $FI
        if len(words) != 7 or not words[4].isdigit():
            return
        batch, number = words[1].decode("latin-1"), int(words[4][:18])
        for lane in self._lanes:
            if lane.batches.batch.id == batch and lane.receive(Reply(number, data, block or b"", words[5] == _PING)):
                self._outbox.window.start_task(self._renew_routes(lane))

    # --- Subjects that move to another stream -------------------------------------------------------------------------

    async def _renew_routes(self, lane: Lane) -> None:
        """Look up again which streams the messages of a suspended lane belong to, and resume it."""
        found: dict[str, Lane | None] = {}
        async with self._lock:
            try:
                fresh = await self._look_up_again(lane)
                # Messages that are published meanwhile are added to the lane, or wait for the lock.
                while missing := [subject for subject in _subjects(lane) if subject not in found]:
                    await self._find_all_again(lane, missing, fresh, found)
                    await self._end_batch(lane, found)
                await self._find_mapped(lane, fresh, found)
            except DeliveryError:
                found = {}  # no answer; ask again after the next refusal
            gone = {subject for subject, target in found.items() if target is not lane}
            self._distribute(lane.resume(gone), found)

    async def _find_mapped(self, lane: Lane, fresh: set[str], found: dict[str, Lane | None]) -> None:
        """Publish messages one by one from now on if JetStream's API does not know the stream of their subject."""
        subject = lane.batches.mapped_subject
        if subject and await self._find_again(subject, fresh) is lane:
            if len(self._unbatched) >= _MAX_UNBATCHED:
                self._unbatched.clear()
            self._unbatched.add(subject)
            found[subject] = None

    async def _look_up_again(self, lane: Lane) -> set[str]:
        """Set the present subjects of the stream of a lane, and return its name."""
        stream = lane.batches.stream
        if not stream:
            return set()
        try:
            await self._add(await self._api(_RENEWAL_SECONDS).stream_named(stream))
        except DeliveryError as error:
            if error.code is not ErrorCode.STREAM_NOT_FOUND:
                raise
            self._set_stream(stream, [], lane)
        return {stream}

    async def _find_all_again(
        self, lane: Lane, subjects: Iterable[str], fresh: set[str], found: dict[str, Lane | None]
    ) -> None:
        """Add the lanes of subjects; after many lookups in vain the others stay for the time being."""
        misses = 0
        for subject in subjects:
            found[subject] = lane if misses >= _MAX_MISSES else await self._find_again(subject, fresh)
            misses += found[subject] is self._without_stream

    async def _find_again(self, subject: str, fresh: set[str]) -> Lane | None:
        """Return the lane of a subject, None if its stream accepts no batches."""
        lane = self._routes.find(subject, fresh)
        if lane is not UNKNOWN:
            return cast("Lane | None", lane)
        found = await self._api(_RENEWAL_SECONDS).stream_on(subject)
        if found is not None:
            fresh.add(found.name)
            return await self._add(found)
        return self._lane_without_stream()

    async def _end_batch(self, lane: Lane, found: Mapping[str, Lane | None]) -> None:
        """Find out which messages the stream of a suspended lane has stored, if some leave it: these are not resent."""
        subjects = _subjects(lane)
        staying = [subject for subject in subjects if found.get(subject) is lane]
        if len(staying) == len(subjects):
            return
        if staying:
            await lane.end_batch(staying[0])
        elif lane.batches.stream:
            await self._find_stored(lane)

    def sent(self) -> Iterator[PendingMessage]:
        """Yield the messages of open batches that are not acknowledged."""
        for lane in self._lanes:
            yield from lane.batches.sent

    def waiting(self) -> Iterator[PendingMessage]:
        """Yield the messages that are in no batch."""
        for lane in self._lanes:
            yield from lane.batches.waiting

    def after_denial(self, denial: Denial) -> None:
        """Continue after the denied messages have failed: the others of their batches may be stored."""
        for lane in self._lanes:
            if lane.suspend_at_denial():
                self._outbox.window.start_task(self._end_denied(lane, denial))
            else:
                lane.send()

    async def _end_denied(self, lane: Lane, denial: Denial) -> None:
        """Find out which messages before the denied ones are stored, and resend the others."""
        async with self._lock:
            allowed = [subject for subject in _subjects(lane) if not denial.is_publish(subject)]
            if allowed:
                await lane.end_batch(allowed[0])
            for pause in _STORING_PAUSES:
                if allowed or not lane.batches.sent:
                    break
                await asyncio.sleep(pause)
                await self._find_stored(lane)
            lane.resume(())

    async def _find_stored(self, lane: Lane) -> None:
        """
        Look for the last message of a batch in the stream, for which the connection needs permission.

        A batch is stored in order, so messages before it are stored, too.
        """
        for subject in subjects_of(lane.batches.sent)[:_MAX_LOOKUPS]:
            with suppress(DeliveryError):
                api = self._api().without_retries()
                stored = await api.stored(lane.batches.stream, {"last_by_subj": subject})
                if stored is not None:
                    lane.note_stored(subject, stored.seq, stored.hdrs)

    def _distribute(self, items: Iterable[PendingMessage], found: Mapping[str, Lane | None]) -> None:
        """Pass on the messages that have left a lane."""
        by_lane: dict[Lane | None, list[PendingMessage]] = {}
        for item in items:
            target = found[item.subject]
            by_lane.setdefault(None if target is None or target.is_ordinary else target, []).append(item)
        for target, part in by_lane.items():
            if target is None:
                self._outbox.publish_batched(part)
            else:
                target.adopt(part)
            for item in part:
                self._routes.remember(item.subject, target)


def _subjects(lane: Lane) -> list[str]:
    return subjects_of(lane.batches.unfinished)
