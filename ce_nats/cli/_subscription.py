"""Subscriptions of commands, which report a lost connection and a reconnect on standard error."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nats.aio.client import Client

from ..aio import Events, subscribe
from ..cesql import Expression
from ..codec.binary import Dialect
from ..schemas import Schemas
from ._connection import Settings, open_connection
from ._terminal import print_to_stderr


@asynccontextmanager
async def open_subscription(
    settings: Settings,
    subject: str,
    *,
    queue: str = "",
    dialect: Dialect = Dialect.SPEC,
    filter: Expression | None = None,
    validate: Schemas | None = None,
) -> AsyncIterator[Events]:
    """
    Connect, and subscribe to a subject.

    Core NATS does not store messages for a disconnected subscriber, so a lost connection and a reconnect are reported
    immediately.

    Raises:
        DeliveryError: As for ``open_connection`` and ``subscribe``; the iteration raises it if the connection is
            closed permanently.
    """
    connections: list[Client] = []

    async def on_disconnected() -> None:
        # nats-py also calls this when the connection is closed.
        if connections and not connections[0].is_closed:
            print_to_stderr("ce-nats: connection lost; messages published before it is restored are not received")

    async def on_reconnected() -> None:
        print_to_stderr("ce-nats: reconnected")

    async with open_connection(settings, disconnected_cb=on_disconnected, reconnected_cb=on_reconnected) as nc:
        connections.append(nc)
        async with await subscribe(
            nc, subject, queue=queue, dialect=dialect, filter=filter, validate=validate
        ) as items:
            # Users and tests wait for this line: messages published after it are received.
            print_to_stderr(f"listening on {subject}")
            yield items
