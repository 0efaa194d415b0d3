"""
Copy a channel of NATS Streaming into a JetStream stream, and the positions of its durables into consumers.

    migrated = await migrate(old, new.jetstream(), "orders", "ORDERS", monitor=Monitor("http://127.0.0.1:8222"))
    assert migrated.is_complete

Payloads go as they are, events or not. Each message gets the headers that the ``stan2js`` tool gives it as well,
``Nats-Streaming-Channel``, ``-Sequence`` and ``-Timestamp``. By these the stream itself tells what it has of the
channel: another run, after any interruption, copies what is missing, and nothing twice. At the end the stream is read,
and compared with the channel.

This needs downtime: what is published to the channel meanwhile is copied by the next run only, and the clients of a
durable must be stopped before.

Needs the extra ``stan``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from hashlib import sha256
from typing import Final

from nats.aio.client import Client
from nats.js import JetStreamContext

from ..aio._jetstream_api import StreamApi
from ..aio._natspy import client_of
from ..aio._util.checks import check_client, check_jetstream
from ..aio.publishing._replay import replay
from ..errors import DeliveryError, EncodeError, ErrorCode
from ..message import StoredMessage
from ..subjects import covers
from ._connection import Connection, connect
from ._inventory import Inventory, MigrationResult, take_inventory
from ._monitor import ChannelState, Durable, Monitor
from ._outgoing import CHANNEL, SEQUENCE, TIMESTAMP, MessageBuilder
from ._positions import Position, create_consumer, find_position
from ._subscription import Start, Subscription
from .wire import MsgProto

__all__ = ["CHANNEL", "SEQUENCE", "TIMESTAMP", "Durable", "MigrationResult", "Monitor", "migrate"]

_MAX_WAITS: Final = 3


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
    on_progress: Callable[[int, int], object] = lambda done, total: None,
) -> MigrationResult:
    """
    Copy a channel, up to the last message that it has when this begins.

    Order is kept, except for messages that are sent again after a broken connection. A message gets the ``Nats-Msg-Id``
    of its event, or else one of cluster, channel and sequence; an event gets a ``Content-Type``, by which every reader
    recognizes it, and no ``ce-`` headers.

    A consumer begins at the first message that its durable has not acknowledged; later messages that were acknowledged
    are redelivered. Where all are acknowledged, the consumer begins behind the last one that was copied. Where some
    delivered messages are not acknowledged, the durable is subscribed to for a moment to find the first one, without
    acknowledging any: those messages are then marked as redelivered.

    Args:
        nc: A connection to the NATS of the streaming server.
        js: JetStream with the stream, from ``nc.jetstream()`` of this connection or another.
        channel: Name of the channel.
        stream: Name of the stream, which exists and listens on the subject.
        monitor: The streaming server's monitoring.
        subject: Subject for the messages; by default the channel's name.
        durables: Pull consumers to create, by name, with ``ack_wait`` and ``max_ack_pending`` as the durable has them.
        timeout: Seconds to wait for answers, and for the next message before the channel's state is checked.
        on_progress: Called with the number of messages that were sent, and of those to be sent in all.

    Raises:
        DeliveryError: ``stream-not-found`` (channel or stream); ``consumer-not-found`` (durable); ``consumer-in-use``;
            ``incompatible-config``: the stream would not keep the messages; ``stream-mismatch``: the channel was made
            again since it was copied; ``publish-refused`` and ``request-refused``. ``timeout``, ``no-responders``,
            ``connection-closed``: another run copies the rest.
        EncodeError: ``payload-too-large``: a message is too large for JetStream's server with its headers;
            ``invalid-subject``.
        DecodeError: The answer is not that of a streaming server.
    """
    check_client(nc)
    check_jetstream(js)
    migration = _Migration(nc, js, channel, stream, monitor, subject or channel, timeout, on_progress)
    return await migration.run(durables or {})


class _Migration:
    """The migration of one channel."""

    def __init__(
        self,
        nc: Client,
        js: JetStreamContext,
        channel: str,
        stream: str,
        monitor: Monitor,
        subject: str,
        timeout: float,
        on_progress: Callable[[int, int], object],
    ) -> None:
        self._nc = nc
        self._js = js
        self._api = StreamApi.of(js, timeout)
        self._channel = channel
        self._stream = stream
        self._monitor = monitor
        self._subject = subject
        self._timeout = timeout
        self._on_progress = on_progress
        self._sent = 0
        self._current = 0  # sequence of the message that is being sent

    async def run(self, durables: Mapping[str, Durable]) -> MigrationResult:
        cluster = await self._monitor.cluster()
        began = await self._monitor.channel(self._channel)
        await self._check_stream()
        # One client at a time has an id: while one run looks at the stream and adds to it, a second one for the same
        # channel is refused by the server.
        client_id = _client_id(self._channel)
        positions = {
            name: await find_position(
                self._nc, cluster, self._monitor, began, durable, client_id=client_id, timeout=self._timeout
            )
            for name, durable in durables.items()
        }
        builder = MessageBuilder(cluster, self._channel, self._subject)
        async with await connect(self._nc, cluster, client_id, timeout=self._timeout) as connection:
            inventory = await self._take_inventory(positions.values())
            await self._check_same(connection, began, inventory)
            # What the stream took for a duplicate, of a message that was deleted for instance, is sent again under an
            # id that it cannot know.
            for again in (False, True):
                missing = inventory.missing(began.first, began.last)
                if missing:
                    builder.know(inventory.ids)
                    await self._copy(connection, missing, builder, again=again)
                    inventory = await self._take_inventory(positions.values())
        result = MigrationResult(self._channel, self._stream, events=builder.events, duplicates=builder.duplicates)
        inventory.count(result, began, await self._monitor.channel(self._channel), builder.built)
        if result.is_complete:
            for name, position in positions.items():
                start = inventory.starts.get(position.sequence, inventory.end + 1)
                await create_consumer(self._api, self._stream, name, self._subject, position, start)
                result.consumers[name] = start
        return result

    async def _take_inventory(self, positions: Iterable[Position]) -> Inventory:
        starts = [position.sequence for position in positions]
        return await take_inventory(self._js, self._stream, self._channel, starts)

    async def _check_stream(self) -> None:
        """
        Check that the stream keeps every message, and listens on the subject.

        Raises:
            DeliveryError: ``incompatible-config``.
        """
        state = await self._api.state(self._stream)
        if state.retention != "limits":
            # Other streams drop messages without a consumer, or refuse further consumers.
            raise DeliveryError(
                ErrorCode.INCOMPATIBLE_CONFIG,
                f"stream {self._stream} must have retention limits, got {state.retention}",
            )
        subjects = await self._api.subjects(self._stream)
        if not any(covers(pattern, self._subject) for pattern in subjects):
            raise DeliveryError(
                ErrorCode.INCOMPATIBLE_CONFIG,
                f"stream {self._stream} listens on {', '.join(subjects) or 'nothing'}, not on {self._subject}",
            )

    async def _check_same(self, connection: Connection, state: ChannelState, inventory: Inventory) -> None:
        """
        Check that the stream has no messages of an earlier channel of this name.

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
                f"message {number} of channel {self._channel} differs from its copy in stream {self._stream}: "
                "the channel was deleted and created again",
            )

    async def _copy(
        self, connection: Connection, missing: Sequence[int], builder: MessageBuilder, *, again: bool
    ) -> None:
        wanted = set(missing)
        total = self._sent + len(missing)

        async def outgoing() -> AsyncGenerator[StoredMessage, None]:
            async with aclosing(self._messages(connection, missing[0], missing[-1])) as messages:
                async for message in messages:
                    if message.sequence in wanted:
                        self._current = message.sequence
                        yield builder.build(message, again=again)

        before = self._sent
        async with aclosing(outgoing()) as messages:
            try:
                await replay(
                    client_of(self._js),
                    messages,
                    ack_timeout=self._timeout,
                    on_progress=lambda n: self._progressed(before + n, total),
                )
            except EncodeError as error:
                text = f"message {self._current} of channel {self._channel}: {error.message}"
                raise EncodeError(error.code, text, requirement=error.requirement) from error

    def _progressed(self, sent: int, total: int) -> None:
        self._sent = sent
        self._on_progress(sent, total)

    async def _messages(self, connection: Connection, first: int, last: int) -> AsyncGenerator[MsgProto, None]:
        """
        Messages of a range of the channel, by ascending sequence; those that it does not have are skipped.

        Raises:
            DeliveryError: ``timeout``: the channel has more messages, which are not delivered.
        """
        seen = first - 1
        async with await connection.subscribe(self._channel, start=Start.at_sequence(first)) as subscription:
            while seen < last:
                if await self._has_ended(subscription, seen, last):
                    return
                message = (item := await subscription.__anext__()).message
                # At once: what was copied is known from the stream, and nothing shall be redelivered meanwhile.
                await item.ack()
                # One that was lost on the way comes late, and is left to the second pass.
                if seen < message.sequence <= last:
                    yield message
                seen = max(seen, message.sequence)

    async def _has_ended(self, subscription: Subscription, seen: int, last: int) -> bool:
        """Wait for the next message; whether the channel has no more of the range."""
        for _ in range(_MAX_WAITS):
            if await subscription._has_next(self._timeout):
                return False
            if (await self._monitor.channel(self._channel)).first > last:
                return True
        text = f"channel {self._channel} has messages up to {last}, but none comes after {seen}"
        raise DeliveryError(ErrorCode.TIMEOUT, text)


def _client_id(channel: str) -> str:
    return f"ce-nats-migrate-{sha256(channel.encode()).hexdigest()[:16]}"
