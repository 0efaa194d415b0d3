"""
Copy a channel of NATS Streaming into a JetStream stream, and the positions of its durables into consumers.

    migrated = await migrate(old, new.jetstream(), "orders", "ORDERS", monitor=Monitor("http://127.0.0.1:8222"))
    assert migrated.is_complete

Payloads are unchanged, whether they are events or not. Each message gets the same headers as from the ``stan2js`` tool:
``Nats-Streaming-Channel``, ``-Sequence`` and ``-Timestamp``. They identify the messages that are already in the stream:
after an interruption, another run copies the missing messages, and none twice. At the end the stream is read and
compared with the channel.

A migration needs downtime: messages that are published to the channel meanwhile are only copied by the next run, and
the clients of a durable must be stopped before.

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
from ..aio._util.checks import check_client, check_jetstream
from ..aio.publishing._replay import replay
from ..errors import DeliveryError, EncodeError, ErrorCode
from ..message import StoredMessage
from ..subjects import covers
from ._connection import Connection, connect
from ._inventory import Inventory, MigrationResult, take_inventory
from ._monitor import ChannelState, Durable, Monitor
from ._options import check_seconds
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
    Copy a channel, up to the last message that it has at the start.

    Messages are copied in order, except for those that are resent after a broken connection. The ``Nats-Msg-Id`` of a
    message is that of its event, or is composed of cluster, channel and sequence. An event gets a ``Content-Type``, by
    which every reader recognizes it, and no ``ce-`` headers.

    A consumer begins at the first message that its durable has not acknowledged, so later messages that were
    acknowledged are redelivered. If all are acknowledged, the consumer begins after the last copied message. If the
    durable has unacknowledged messages, it is subscribed to briefly to find the first one, without acknowledging any:
    those messages are then marked as redelivered.

    Args:
        nc: A connection to the NATS of the streaming server.
        js: JetStream with the stream, from ``nc.jetstream()`` of this connection or another.
        channel: Name of the channel.
        stream: Name of an existing stream that listens on the subject.
        monitor: The streaming server's monitoring.
        subject: Subject for the messages; by default the channel's name.
        durables: Pull consumers to create, by name, with the ``ack_wait`` and ``max_in_flight`` of the durable.
        timeout: Seconds to wait for answers, and for the next message before the channel's state is checked.
        on_progress: Called with the number of sent messages, and the total number of messages to send.

    Raises:
        DeliveryError: ``stream-not-found`` (channel or stream); ``consumer-not-found`` (durable); ``consumer-in-use``;
            ``incompatible-config``: the stream would not keep the messages; ``stream-mismatch``: the channel was
            deleted and created again since it was copied; ``publish-refused`` and ``request-refused``. After
            ``timeout``, ``no-responders`` or ``connection-closed`` another run copies the rest.
        EncodeError: ``payload-too-large``: a message with its headers is too large for JetStream's server;
            ``invalid-subject``; ``invalid-message``: ``timeout`` is not a number of seconds above 0.
        DecodeError: The answer is not that of a streaming server.
    """
    check_client(nc)
    check_jetstream(js)
    check_seconds("timeout", timeout)
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
        self._api = StreamApi.of(js, timeout=timeout)
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
        initial = await self._monitor.channel(self._channel)
        await self._check_stream()
        # A client id is in use once: during this run the server refuses a second one for the same channel.
        client_id = _client_id(self._channel)
        positions = {
            name: await find_position(
                self._nc, cluster, self._monitor, initial, durable, client_id=client_id, timeout=self._timeout
            )
            for name, durable in durables.items()
        }
        builder = MessageBuilder(cluster, self._channel, self._subject)
        async with await connect(self._nc, cluster, client_id, timeout=self._timeout) as connection:
            inventory = await self._take_inventory(positions.values())
            await self._check_same(connection, initial, inventory)
            # A message that the stream dropped as a duplicate, of a deleted message for instance, is resent with
            # another id.
            for again in (False, True):
                missing = inventory.missing(initial.first, initial.last)
                if missing:
                    builder.set_known_ids(inventory.ids)
                    await self._copy(connection, missing, builder, again=again)
                    inventory = await self._take_inventory(positions.values())
        result = MigrationResult(self._channel, self._stream, events=builder.events, duplicates=builder.duplicates)
        inventory.count(result, initial, await self._monitor.channel(self._channel), builder.built)
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
            # With another retention a stream drops messages without a consumer, or refuses further consumers.
            raise DeliveryError(
                ErrorCode.INCOMPATIBLE_CONFIG,
                f"stream {self._stream} must have retention limits, got {state.retention}",
            )
        subjects = await self._api.subjects(self._stream)
        if not any(covers(pattern, self._subject) for pattern in subjects):
            raise DeliveryError(
                ErrorCode.INCOMPATIBLE_CONFIG,
                f"stream {self._stream} must listen on {self._subject}, got {', '.join(subjects) or 'no subject'}",
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
                    self._js,
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
        Yield messages of a range of the channel, by ascending sequence; missing ones are skipped.

        Raises:
            DeliveryError: ``timeout``: the channel has further messages, which are not delivered.
        """
        seen = first - 1
        async with await connection.subscribe(self._channel, start=Start.at_sequence(first)) as subscription:
            while seen < last:
                if await self._has_ended(subscription, seen, last):
                    return
                message = (item := await subscription.__anext__()).message
                # Before it is copied, because the stream shows what was copied, and nothing must be redelivered.
                await item.ack()
                # A lost message is redelivered late, and left to the second pass.
                if seen < message.sequence <= last:
                    yield message
                seen = max(seen, message.sequence)

    async def _has_ended(self, subscription: Subscription, seen: int, last: int) -> bool:
        """Wait for the next message; return True if the channel has no further messages of the range."""
        for _ in range(_MAX_WAITS):
            if await subscription._has_next(self._timeout):
                return False
            if (await self._monitor.channel(self._channel)).first > last:
                return True
        text = f"channel {self._channel} has messages up to {last}, and none was delivered after {seen}"
        raise DeliveryError(ErrorCode.TIMEOUT, text)


def _client_id(channel: str) -> str:
    return f"ce-nats-migrate-{sha256(channel.encode()).hexdigest()[:16]}"
