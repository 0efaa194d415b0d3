"""A subscription of a command, which reports a lost and a restored connection on standard error."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nats.aio.client import Client

from ..aio import Events, subscribe
from ..codec.binary import Dialect
from ._connection import Settings, open_connection
from ._terminal import say


@asynccontextmanager
async def listening(
    settings: Settings, subject: str, *, queue: str = "", dialect: Dialect = Dialect.SPEC
) -> AsyncIterator[Events]:
    """
    Subscribe to a subject.

    Core NATS does not store messages for a disconnected subscriber, so the user is told at once that the connection is
    lost, and that it is restored.

    Args:
        settings: How to connect.
        subject: Subject, wildcards allowed.
        queue: Queue group.
        dialect: How senders encode binary mode.

    Raises:
        DeliveryError: As for ``open_connection`` and ``subscribe``; the iteration raises it when the connection is
            closed permanently.
    """
    connections: list[Client] = []

    async def lost() -> None:
        # nats-py also calls this when the connection is closed.
        if connections and not connections[0].is_closed:
            say("ce-nats: the connection is lost; messages published until it is back are not received")

    async def restored() -> None:
        say("ce-nats: the connection is back")

    async with open_connection(settings, disconnected_cb=lost, reconnected_cb=restored) as nc:
        connections.append(nc)
        async with await subscribe(nc, subject, queue=queue, dialect=dialect) as items:
            # Users and tests wait for this line: messages that are published after it are received.
            say(f"listening on {subject}")
            yield items
