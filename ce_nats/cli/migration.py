"""The command ``migrate``: a channel of NATS Streaming to a stream."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer
from nats.aio.client import Client

from .codec import JsonOption
from .connection import Settings, connected, open_connection, settings_of, with_connection
from .files import InputError
from .program import BAD_INPUT, guarded, run
from .progress import counted, progress, report

if TYPE_CHECKING:
    from ..stan.migrate import Durable, MigrationResult

__all__ = ["register"]

# A valid name of a consumer.
_CONSUMER: Final = re.compile(r"[^\s.*>/\\]+")
_PANEL: Final = "NATS Streaming"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("migrate")(guarded(with_connection(migrate_command)))


def migrate_command(
    settings: Settings,
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="Channel of NATS Streaming.")],
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Stream to copy it to, which exists.")],
    monitor: Annotated[
        str,
        typer.Option(
            "--monitor", metavar="URL", help="Monitoring of the streaming server (-m).", rich_help_panel=_PANEL
        ),
    ] = "http://127.0.0.1:8222",
    from_server: Annotated[
        str | None,
        typer.Option(
            "--from-server",
            metavar="URL",
            help="NATS of the streaming server; by default that of the stream.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    from_context: Annotated[
        str | None,
        typer.Option("--from-context", metavar="NAME", help="Context of the same.", rich_help_panel=_PANEL),
    ] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", help="Publish to this subject; by default to that of the channel's name.")
    ] = None,
    durable: Annotated[
        list[str] | None,
        typer.Option(
            "--durable",
            metavar="CLIENT:NAME=CONSUMER",
            help="Create a consumer that begins at this durable's position. Repeatable.",
        ),
    ] = None,
    queue_durable: Annotated[
        list[str] | None,
        typer.Option(
            "--queue-durable", metavar="GROUP:NAME=CONSUMER", help="The same for a durable queue group. Repeatable."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """
    Copy a channel of NATS Streaming to a stream.

    Messages are copied byte for byte, events or not, up to the channel's present end; another run, also after a crash,
    continues there. At the end the stream is read: the exit status is 0 where it has each message of the channel once,
    else 1, and then no consumers are created. Stop the clients of durables that are to become consumers before.
    """
    from ..stan.migrate import MigrationResult, Monitor, migrate

    durables = _durables(durable or [], queue_durable or [])
    result = MigrationResult(channel, stream)

    async def copy() -> None:
        nonlocal result
        async with connected(settings) as (target, js), _source(settings, target, from_server, from_context) as nc:
            with progress(channel, None) as advance:
                result = await migrate(
                    nc,
                    js,
                    channel,
                    stream,
                    monitor=Monitor(monitor, settings.timeout),
                    subject=subject,
                    durables=durables,
                    timeout=settings.timeout,
                    on_progress=advance,
                )

    run(copy())
    report({**asdict(result), "complete": result.is_complete}, _text(result), as_json=as_json)
    if not result.is_complete:
        raise typer.Exit(BAD_INPUT)


@asynccontextmanager
async def _source(settings: Settings, target: Client, server: str | None, context: str | None) -> AsyncIterator[Client]:
    if server is None and context is None:
        yield target
    else:
        async with open_connection(settings_of(server, context, settings.timeout)) as nc:
            yield nc


def _durables(durables: Sequence[str], groups: Sequence[str]) -> dict[str, Durable]:
    """
    Durables, by the name of the consumer.

    Raises:
        InputError: One has another form, or two have the same consumer.
    """
    from ..stan.migrate import Durable

    found: dict[str, Durable] = {}
    for text, is_group in [*((text, False) for text in durables), *((text, True) for text in groups)]:
        named, _, consumer = text.rpartition("=")
        # A client's id has no colon, and the name of a queue group's durable has none.
        owner, _, name = named.rpartition(":") if is_group else named.partition(":")
        if not (owner and name and _CONSUMER.fullmatch(consumer)):
            raise InputError(f"durable must be {'GROUP' if is_group else 'CLIENT'}:NAME=CONSUMER, got {text!r}")
        if consumer in found:
            raise InputError(f"two durables for consumer {consumer!r}")
        found[consumer] = Durable(name, queue=owner) if is_group else Durable(name, client_id=owner)
    return found


def _text(result: MigrationResult) -> str:
    lines = [
        f"{result.stored} of {result.messages} messages of channel {result.channel} are in stream {result.stream}, "
        f"{result.copied} of them copied now: {counted(result.events, 'event')}, "
        f"{counted(result.copied - result.events, 'other')}"
    ]
    if result.duplicates:
        events = counted(result.duplicates, "event")
        lines.append(f"duplicates by source and id, kept: {events}")
    if result.expired:
        lines.append(f"{counted(result.expired, 'message')} had expired in the channel")
    for first, last in result.gaps:
        lines.append(f"the channel has no messages {first} to {last}")
    if result.repeated:
        lines.append(f"in the stream more than once: {counted(result.repeated, 'message')}")
    lines += [f"consumer {name} begins at message {start}" for name, start in result.consumers.items()]
    return "\n".join(lines)
