"""Find positions of a channel's durables, and create consumers that begin there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from nats.aio.client import Client

from ..aio._jetstream_api import StreamApi
from ..errors import DeliveryError, ErrorCode
from ._connection import connect
from ._monitor import ChannelState, Durable, Monitor


@dataclass(frozen=True)
class Position:
    """
    The position of a durable.

    Attributes:
        sequence: First sequence of the channel that it has not acknowledged.
        ack_wait: Seconds after which an unacknowledged message is redelivered.
        max_in_flight: Maximum number of unacknowledged messages.
    """

    sequence: int
    ack_wait: int
    max_in_flight: int


async def find_position(
    nc: Client, cluster: str, monitor: Monitor, state: ChannelState, durable: Durable, *, client_id: str, timeout: float
) -> Position:
    """
    Find the position of a durable.

    Raises:
        DeliveryError: ``consumer-not-found``, ``consumer-in-use``, ``timeout``.
    """
    found = state.durable(durable)
    if found is None:
        raise DeliveryError(ErrorCode.CONSUMER_NOT_FOUND, f"channel {state.name} has no durable {durable}")
    if not found.is_offline:
        raise DeliveryError(
            ErrorCode.CONSUMER_IN_USE,
            f"durable {durable} of channel {state.name} must have no client subscribed: stop it first",
        )
    position = Position(found.last_sent + 1, found.ack_wait, found.max_in_flight)
    if not found.pending:
        return position
    # Monitoring shows only the number of unacknowledged messages. A new subscription to a durable first receives these,
    # in ascending order, and with max_in_flight=1 no other message.
    client_id = durable.client_id or client_id
    async with await connect(nc, cluster, client_id, timeout=timeout) as connection:
        subscription = await connection.subscribe(
            state.name, durable=durable.name, queue=durable.queue, max_in_flight=1, ack_wait=position.ack_wait
        )
        async with subscription:
            if await subscription._has_next(timeout):
                first = (await subscription.__anext__()).sequence
                return replace(position, sequence=min(first, position.sequence))
    now = (await monitor.channel(state.name)).durable(durable)
    if now is not None and not now.pending:  # the channel has deleted them
        return replace(position, sequence=min(now.last_sent + 1, position.sequence))
    text = f"durable {durable} of channel {state.name} must redeliver its {found.pending} pending messages, got none"
    raise DeliveryError(ErrorCode.TIMEOUT, text)


async def create_consumer(api: StreamApi, stream: str, name: str, subject: str, position: Position, start: int) -> None:
    """Create a consumer to replace a durable."""
    config: dict[str, Any] = {
        "durable_name": name,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": start,
        "ack_policy": "explicit",
        "ack_wait": position.ack_wait * 1_000_000_000,
        "max_ack_pending": position.max_in_flight,
        "filter_subject": subject,
    }
    await api.create_consumer(stream, name, config)
