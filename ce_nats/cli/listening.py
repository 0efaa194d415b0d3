"""A subscription of the command line, which reports loss and return of its connection on standard error."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import typer
from nats.aio.client import Client

from ..aio import Events, subscribe
from ..codec.binary import Dialect
from .connection import Settings, open_connection

__all__ = ["listening"]


@asynccontextmanager
async def listening(
    settings: Settings, subject: str, *, queue: str = "", dialect: Dialect = Dialect.SPEC
) -> AsyncIterator[Events]:
    """
    The messages of a subject.

    Core NATS does not keep messages for a disconnected subscriber, so loss and return of the connection are reported
    at once.

    Args:
        settings: How to connect.
        subject: Subject, wildcards allowed.
        queue: Queue group.
        dialect: Whose binary mode the senders write.

    Raises:
        DeliveryError: As ``open_connection`` and ``subscribe`` do, and as the iteration does when the connection is
            lost for good.
    """
    connections: list[Client] = []

    async def lost() -> None:
        # nats-py also calls this when the connection is closed.
        if connections and not connections[0].is_closed:
            _print("the connection is lost; messages published until it returns are not seen")

    async def restored() -> None:
        _print("the connection is back")

    async with open_connection(settings, disconnected_cb=lost, reconnected_cb=restored) as nc:
        connections.append(nc)
        async with await subscribe(nc, subject, queue=queue, dialect=dialect) as items:
            # Messages that are published after this line are received.
            typer.echo(f"listening on {subject}", err=True)
            yield items


def _print(text: str) -> None:
    print(f"ce-nats: {text}", file=sys.stderr)  # not typer.echo(), which writes into a table that is being drawn
