"""
Copy a channel of NATS Streaming into a JetStream stream, and the positions of its durables into consumers.

    migrated = await migrate(old, new.jetstream(), "orders", "ORDERS", monitor=Monitor("http://127.0.0.1:8222"))
    assert migrated.is_complete

Payloads go as they are, events or not. Each message gets the headers that the ``stan2js`` tool gives it as well,
``Nats-Streaming-Channel``, ``-Sequence`` and ``-Timestamp``. By these the stream itself says what of the channel is in
it: whoever runs the same again after an interruption, of whatever kind, copies what is missing, and nothing twice. At
the end the stream is read, and compared with the channel.

That takes downtime: what is published to the channel meanwhile is left for the next run, and a durable has to be left
by its clients before.

Needs the extra ``stan``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from typing import Any, Final

from nats.aio.client import Client
from nats.js import JetStreamContext

from ...binding import dedup_id, from_nats_message
from ...capture import StoredMessage
from ...errors import DecodeError, DeliveryError, EncodeError, ErrorCode
from ...message import NatsMessage
from ...mode import CONTENT_TYPE, STRUCTURED_TYPE, ContentMode
from ...subjects import covers
from ...timestamp import Timestamp
from ...wire.stan import MsgProto
from .._nats import client_of
from ..checks import check_client, check_jetstream
from ..jetstream import MSG_ID, read_stream
from ..replay import replay
from ..streams import StreamApi, nanoseconds
from .connection import Connection, connect
from .monitor import ChannelState, Durable, Monitor
from .session import new_id
from .subscription import Start, Subscription

__all__ = ["CHANNEL", "SEQUENCE", "TIMESTAMP", "Durable", "Migrated", "Monitor", "migrate"]

CHANNEL: Final = "Nats-Streaming-Channel"
SEQUENCE: Final = "Nats-Streaming-Sequence"
TIMESTAMP: Final = "Nats-Streaming-Timestamp"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MOST_SILENCES: Final = 3
_MOST_DIGITS: Final = 20  # 64 bits


@dataclass
class Migrated:
    """
    What became of a channel.

    Attributes:
        channel: Name of the channel.
        stream: Name of the stream.
        expired: Messages that the channel had given up before, and the stream does not have.
        messages: Messages that the channel has, up to the last one when this began.
        stored: How many of these the stream has.
        repeated: How many of these the stream has more than once.
        copied: Messages that were sent this time.
        events: How many of those are CloudEvents.
        duplicates: How many of those have the source and the id of an earlier one. They are kept: their
            ``Nats-Msg-Id`` is made of channel and sequence.
        gaps: Sequences that the channel does not have between others, as ``(first, last)``.
        consumers: The stream sequence at which each consumer begins; empty where the migration is not complete.
    """

    channel: str
    stream: str
    expired: int = 0
    messages: int = 0
    stored: int = 0
    repeated: int = 0
    copied: int = 0
    events: int = 0
    duplicates: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    consumers: dict[str, int] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether the stream has every message of the channel, once."""
        return self.stored == self.messages and not self.repeated


async def migrate(
    nc: Client,
    js: JetStreamContext,
    channel: str,
    stream: str,
    *,
    monitor: Monitor,
    subject: str | None = None,
    durables: Mapping[str, Durable] | None = None,
    timeout: float = 5.0,
    told: Callable[[int, int], object] = lambda done, total: None,
) -> Migrated:
    """
    Copy a channel, up to the last message that it has when this begins.

    Order is kept, but for messages that are sent again after a broken connection. A message gets the ``Nats-Msg-Id`` of
    its event, or else one of cluster, channel and sequence; an event gets a ``Content-Type``, with which every reader
    knows it for one, and no ``ce-`` headers.

    A consumer begins at the first message that its durable has not acknowledged; what was acknowledged behind that one
    comes again. Where it has acknowledged all, the consumer begins behind the last one that was copied. Where some
    delivered messages are not acknowledged, finding the first one takes up the durable for a moment, without any
    acknowledgement: those messages are then marked as redelivered.

    Args:
        nc: A connection on which the streaming server is found.
        js: Where the stream is, from ``nc.jetstream()`` of this connection or another.
        channel: Name of the channel.
        stream: Name of the stream, which exists and listens on the subject.
        monitor: The streaming server's monitoring.
        subject: Subject for the messages; by default the channel's name.
        durables: Pull consumers to create, by name, with ``ack_wait`` and ``max_ack_pending`` as the durable has them.
        timeout: Seconds to wait for answers, and for the next message before the server is asked what is the matter.
        told: Called with the number of messages that were sent, and of those that are to be sent.

    Raises:
        DeliveryError: ``stream-not-found`` (channel or stream); ``consumer-not-found`` (durable); ``consumer-in-use``;
            ``incompatible-config``: the stream would not keep the messages; ``stream-mismatch``: the channel was made
            again since it was copied; ``publish-refused`` and ``request-refused``. ``timeout``, ``no-responders``,
            ``connection-closed``: another run copies the rest.
        EncodeError: ``payload-too-large``: a message is too large for JetStream's server with its headers;
            ``invalid-subject``.
        DecodeError: What answered is no streaming server.
    """
    check_client(nc)
    check_jetstream(js)
    migration = _Migration(nc, js, channel, stream, monitor, subject or channel, timeout, told)
    return await migration.run(durables or {})


@dataclass
class _Inventory:
    """
    What a stream has of a channel.

    Attributes:
        sequences: Of the channel.
        repeated: Sequences that are there more than once.
        ids: Hashes of all ids for deduplication.
        newest: The highest sequence, and its timestamp in nanoseconds since 1970.
        starts: Stream sequence of the first message at or behind a sequence of the channel.
        end: Stream sequence of the last message; 0 where there is none.
    """

    sequences: set[int] = field(default_factory=set)
    repeated: set[int] = field(default_factory=set)
    ids: set[int] = field(default_factory=set)
    newest: tuple[int, int] = (0, 0)
    starts: dict[int, int] = field(default_factory=dict)
    end: int = 0

    def missing(self, first: int, last: int) -> list[int]:
        """Sequences of a range that are not there."""
        return [number for number in range(first, last + 1) if number not in self.sequences]


@dataclass(frozen=True)
class _Position:
    """Where a durable is: the first ``sequence`` that it has not acknowledged."""

    sequence: int
    ack_wait: int
    max_in_flight: int


class _Migration:
    """One channel on its way."""

    def __init__(
        self,
        nc: Client,
        js: JetStreamContext,
        channel: str,
        stream: str,
        monitor: Monitor,
        subject: str,
        timeout: float,
        told: Callable[[int, int], object],
    ) -> None:
        self._nc = nc
        self._js = js
        self._api = StreamApi.of(js, timeout)
        self._channel = channel
        self._stream = stream
        self._monitor = monitor
        self._subject = subject
        self._timeout = timeout
        self._told = told
        self._cluster = ""
        self._ids: set[int] = set()
        self._delivered: set[int] = set()  # what came of the channel and was sent
        self._sent = 0
        self._under_way = 0
        self.result = Migrated(channel, stream)

    async def run(self, durables: Mapping[str, Durable]) -> Migrated:
        self._cluster = await self._monitor.cluster()
        state = await self._monitor.channel(self._channel)
        await self._check_stream()
        positions = {name: await self._position(state, durable) for name, durable in durables.items()}
        # One client at a time has an id: while one run looks at the stream and adds to it, a second one for the same
        # channel is refused by the server.
        client_id = _client_id(self._channel)
        async with await connect(self._nc, self._cluster, client_id, timeout=self._timeout) as connection:
            inventory = await self._take_inventory(positions.values())
            await self._check_same(connection, state, inventory)
            # What the stream took for a duplicate, of a message that was deleted say, goes again under an id that it
            # cannot know.
            for again in (False, True):
                missing = inventory.missing(state.first, state.last)
                if missing:
                    await self._copy(connection, missing, inventory, again=again)
                    inventory = await self._take_inventory(positions.values())
        self._count(state, await self._monitor.channel(self._channel), inventory)
        if self.result.is_complete:
            for name, position in positions.items():
                await self._create_consumer(name, position, inventory)
        return self.result

    async def _check_stream(self) -> None:
        """
        Refuse a stream that would not keep what it gets, or does not get it.

        Raises:
            DeliveryError: ``incompatible-config``.
        """
        state = await self._api.state(self._stream)
        if state.retention != "limits":
            # What has no consumer yet, or several, is lost there or refused.
            raise DeliveryError(
                ErrorCode.INCOMPATIBLE_CONFIG,
                f"stream {self._stream} has retention {state.retention}: migrate into one with retention limits",
            )
        subjects = await self._api.subjects(self._stream)
        if not any(covers(pattern, self._subject) for pattern in subjects):
            raise DeliveryError(
                ErrorCode.INCOMPATIBLE_CONFIG,
                f"stream {self._stream} listens on {', '.join(subjects) or 'nothing'}, not on {self._subject}",
            )

    async def _take_inventory(self, positions: Iterable[_Position]) -> _Inventory:
        """Read the stream. Its subject says nothing: several channels may have one."""
        inventory = _Inventory()
        wanted = {position.sequence for position in positions}
        async with aclosing(read_stream(self._js, self._stream)) as batches:
            async for batch in batches:
                for message in batch:
                    headers = dict(message.headers)
                    if identifier := headers.get(MSG_ID):
                        inventory.ids.add(hash(identifier))
                    number = _sequence(headers.get(SEQUENCE, ""))
                    if headers.get(CHANNEL) != self._channel or not number:
                        continue
                    if number in inventory.sequences:
                        inventory.repeated.add(number)
                    inventory.sequences.add(number)
                    if number > inventory.newest[0]:
                        inventory.newest = number, nanoseconds(Timestamp.parse(headers.get(TIMESTAMP, "")))
                    for position in wanted:
                        if number >= position:
                            inventory.starts.setdefault(position, message.sequence)
                    inventory.end = message.sequence
        return inventory

    async def _check_same(self, connection: Connection, state: ChannelState, inventory: _Inventory) -> None:
        """
        Refuse to go on where the stream has messages of another channel of this name.

        Raises:
            DeliveryError: ``stream-mismatch``.
        """
        number, stored_at = inventory.newest
        same = number <= state.last
        if same and number >= state.first:
            async with aclosing(self._messages(connection, number, number)) as messages:
                async for message in messages:
                    same = message.sequence != number or message.timestamp == stored_at
        if not same:
            raise DeliveryError(
                ErrorCode.STREAM_MISMATCH,
                f"message {number} of channel {self._channel} is another one in stream {self._stream}: "
                "the channel was made again",
            )

    # --- Messages -----------------------------------------------------------------------------------------------------

    async def _copy(
        self, connection: Connection, missing: Sequence[int], inventory: _Inventory, *, again: bool
    ) -> None:
        wanted = set(missing)
        total = self._sent + len(missing)
        self._ids = inventory.ids

        async def outgoing() -> AsyncGenerator[StoredMessage, None]:
            async with aclosing(self._messages(connection, missing[0], missing[-1])) as messages:
                async for message in messages:
                    if message.sequence in wanted:
                        self._under_way = message.sequence
                        yield self._outgoing(message, again=again)

        before = self._sent
        async with aclosing(outgoing()) as messages:
            try:
                await replay(
                    client_of(self._js),
                    messages,
                    ack_timeout=self._timeout,
                    told=lambda n: self._tell(before + n, total),
                )
            except EncodeError as error:
                text = f"message {self._under_way} of channel {self._channel}: {error.message}"
                raise EncodeError(error.code, text, requirement=error.requirement) from error

    def _tell(self, sent: int, total: int) -> None:
        self._sent = sent
        self._told(sent, total)

    async def _messages(self, connection: Connection, first: int, last: int) -> AsyncGenerator[MsgProto, None]:
        """
        Messages of a range of the channel, by ascending sequence; those that it does not have are stepped over.

        Raises:
            DeliveryError: ``timeout``: the channel has more, which does not come.
        """
        seen = first - 1
        async with await connection.subscribe(self._channel, start=Start.at_sequence(first)) as subscription:
            while seen < last:
                if await self._is_silent(subscription, seen, last):
                    return
                message = (item := await subscription.__anext__()).message
                # At once: what was copied is known from the stream, and nothing shall come again meanwhile.
                await item.ack()
                # One that was lost on the way comes late, and is left for the second time.
                if seen < message.sequence <= last:
                    yield message
                seen = max(seen, message.sequence)

    async def _is_silent(self, subscription: Subscription, seen: int, last: int) -> bool:
        """Wait for the next message; whether the channel has none any more."""
        for _ in range(_MOST_SILENCES):
            if await subscription._has_next(self._timeout):
                return False
            if (await self._monitor.channel(self._channel)).first > last:
                return True
        text = f"channel {self._channel} has messages up to {last}, but none comes after {seen}"
        raise DeliveryError(ErrorCode.TIMEOUT, text)

    def _outgoing(self, message: MsgProto, *, again: bool) -> StoredMessage:
        at = Timestamp.parse(_rfc3339(message.timestamp))
        headers = [(CHANNEL, self._channel), (SEQUENCE, str(message.sequence)), (TIMESTAMP, str(at))]
        identifier = f"{self._cluster}/{self._channel}/{message.sequence}"
        event_id = _event_id(message)
        is_event = event_id is not None
        is_duplicate = is_event and hash(event_id) in self._ids
        if is_event:
            headers.append((CONTENT_TYPE, STRUCTURED_TYPE))
            self._ids.add(hash(event_id))
        if again:
            identifier += f"/{new_id()}"
        elif event_id is not None and not is_duplicate:
            identifier = event_id
        headers.append((MSG_ID, identifier))
        if message.sequence not in self._delivered:
            self._delivered.add(message.sequence)
            self.result.events += is_event
            self.result.duplicates += is_duplicate
        return StoredMessage(self._subject, "", headers, message.data, "", message.sequence, at)

    def _count(self, state: ChannelState, now: ChannelState, inventory: _Inventory) -> None:
        missing = inventory.missing(state.first, state.last)
        # What did not come is gone, unless the server says that it has all of them.
        has_all = now.messages == now.last - now.first + 1
        gone = [number for number in missing if number not in self._delivered and not (has_all and number >= now.first)]
        stored = [number for number in inventory.sequences if number <= state.last]
        result = self.result
        result.copied = len(self._delivered)
        result.gaps = _ranges(gone)
        result.messages = state.last - state.first + 1 - len(gone)
        result.stored = sum(number >= state.first for number in stored)
        result.repeated = len(inventory.repeated)
        result.expired = state.first - 1 - (len(stored) - result.stored)

    # --- Durables -----------------------------------------------------------------------------------------------------

    async def _position(self, state: ChannelState, durable: Durable) -> _Position:
        """
        Find where a durable is.

        Raises:
            DeliveryError: ``consumer-not-found``, ``consumer-in-use``, ``timeout``.
        """
        found = state.durable(durable)
        if found is None:
            raise DeliveryError(ErrorCode.CONSUMER_NOT_FOUND, f"channel {self._channel} has no durable {durable}")
        if not found.is_offline:
            raise DeliveryError(
                ErrorCode.CONSUMER_IN_USE,
                f"a client has durable {durable} of channel {self._channel}, and may move it: stop it first",
            )
        position = _Position(found.last_sent + 1, found.ack_wait, found.max_in_flight)
        if found.pending:
            first = await self._first_pending(durable, position)
            position = replace(position, sequence=min(first, position.sequence))
        return position

    async def _first_pending(self, durable: Durable, position: _Position) -> int:
        """
        The first message that a durable delivered and nobody acknowledged. Monitoring only has their number.

        Whoever takes up a durable gets these first, in ascending order, and with one message in flight nothing else.
        """
        client_id = durable.client_id or _client_id(self._channel)
        async with await connect(self._nc, self._cluster, client_id, timeout=self._timeout) as connection:
            subscription = await connection.subscribe(
                self._channel,
                durable=durable.name,
                queue=durable.queue,
                max_in_flight=1,
                ack_wait=position.ack_wait,
            )
            async with subscription:
                if await subscription._has_next(self._timeout):
                    return (await subscription.__anext__()).message.sequence
        state = (await self._monitor.channel(self._channel)).durable(durable)
        if state is not None and not state.pending:  # the channel had given them up
            return state.last_sent + 1
        text = f"durable {durable} of channel {self._channel} has messages to deliver again, and does not"
        raise DeliveryError(ErrorCode.TIMEOUT, text)

    async def _create_consumer(self, name: str, position: _Position, inventory: _Inventory) -> None:
        start = inventory.starts.get(position.sequence, inventory.end + 1)
        config: dict[str, Any] = {
            "durable_name": name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": start,
            "ack_policy": "explicit",
            "ack_wait": position.ack_wait * 1_000_000_000,
            "max_ack_pending": position.max_in_flight,
            "filter_subject": self._subject,
        }
        await self._api.create_consumer(self._stream, name, config)
        self.result.consumers[name] = start


def _client_id(channel: str) -> str:
    return f"ce-nats-migrate-{sha256(channel.encode()).hexdigest()[:16]}"


def _sequence(text: str) -> int:
    """The number that a header has, or 0."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else 0


def _event_id(message: MsgProto) -> str | None:
    """What tells the event in a message from others, or None where there is none."""
    try:
        event = from_nats_message(
            NatsMessage(message.subject, message.data), mode=ContentMode.STRUCTURED, parse_data=False
        )
        return dedup_id(event)
    except (DecodeError, EncodeError):
        return None


def _rfc3339(at: int) -> str:
    """Nanoseconds since 1970 as Go prints them: without zeros at the end."""
    seconds, fraction = divmod(at, 1_000_000_000)
    digits = f".{fraction:09}".rstrip("0").rstrip(".")
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}{digits}Z"


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges, both ends inclusive."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found
