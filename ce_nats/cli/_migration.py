"""The command ``migrate``: copy a channel of NATS Streaming to a stream."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer
from nats.aio.client import Client

from ..errors import CeNatsError
from . import _arguments as arguments
from ._arguments import InputError, usage_errors
from ._connection import Settings, open_connection, open_jetstream, settings_of, with_connection
from ._options import JsonOption
from ._program import BAD_INPUT, StoppedError, run, with_exit_status
from ._progress import counted, print_summary, progress

if TYPE_CHECKING:
    from ..stan.migration import Durable, MigrationResult

# A valid consumer name.
_CONSUMER: Final = re.compile(r"[^\s.*>/\\]+")
_PANEL: Final = "NATS Streaming"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("migrate")(with_exit_status(with_connection(migrate_channel)))


def migrate_channel(
    settings: Settings,
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="Channel of NATS Streaming.")],
    stream: Annotated[
        str, typer.Argument(metavar="STREAM", help="Existing stream to copy to.", callback=arguments.name)
    ],
    monitor: Annotated[
        str,
        typer.Option(
            "--monitor",
            metavar="URL",
            help="Monitoring URL of the streaming server (server option -m).",
            rich_help_panel=_PANEL,
        ),
    ] = "http://127.0.0.1:8222",
    from_server: Annotated[
        str | None,
        typer.Option(
            "--from-server",
            metavar="URL",
            help="NATS server of the streaming server; by default --server.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    from_context: Annotated[
        str | None,
        typer.Option(
            "--from-context",
            metavar="NAME",
            help="Context of the nats command line, for the streaming server.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(
            "--subject",
            help="Publish to this subject; by default, to the name of the channel.",
            callback=arguments.subject,
        ),
    ] = None,
    durable: Annotated[
        list[str] | None,
        typer.Option(
            "--durable",
            metavar="CLIENT:NAME=CONSUMER",
            help="Create a consumer that starts at the position of this durable; may be repeated.",
        ),
    ] = None,
    queue_durable: Annotated[
        list[str] | None,
        typer.Option(
            "--queue-durable",
            metavar="GROUP:NAME=CONSUMER",
            help="Create a consumer for a durable queue group; may be repeated.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """
    Copy a channel of NATS Streaming to a stream.

    Messages are copied unchanged, whether they are events or not, up to the last message of the channel. If the command
    is interrupted, or crashes, another run copies the remaining messages. At the end, the stream is checked: if it has
    each message of the channel exactly once, the consumers are created, and the exit status is 0; otherwise it is 1.
    Stop the clients of the durables before the migration.
    """
    from ..stan.migration import MigrationResult, Monitor, migrate

    durables = _durables(durable or [], queue_durable or [])
    with usage_errors():
        monitoring = Monitor(monitor, settings.timeout)
    source = None
    if from_server is not None or from_context is not None:
        source = settings_of(from_server, from_context, settings.timeout)
    result = MigrationResult(channel, stream)
    sent = total = 0

    async def copy() -> None:
        nonlocal result
        async with open_jetstream(settings) as (target, js), _open_source(source, target) as nc:
            with progress(channel, None) as advance:

                def on_progress(done: int, of: int) -> None:
                    nonlocal sent, total
                    sent, total = done, of
                    advance(done, of)

                result = await migrate(
                    nc,
                    js,
                    channel,
                    stream,
                    monitor=monitoring,
                    subject=subject,
                    durables=durables,
                    timeout=settings.timeout,
                    on_progress=on_progress,
                )

    try:
        run(copy())
    except (StoppedError, CeNatsError) as error:
        if isinstance(error, StoppedError) or sent:
            counts = {"channel": channel, "stream": stream, "sent": sent, "to_send": total, "complete": False}
            text = (
                f"{sent} of {total} messages sent to stream {stream}; run the command again to complete the migration"
            )
            print_summary(counts, text, as_json=as_json)
        raise
    print_summary({**asdict(result), "complete": result.is_complete}, _summary(result), as_json=as_json)
    if not result.is_complete:
        raise typer.Exit(BAD_INPUT)


@asynccontextmanager
async def _open_source(settings: Settings | None, target: Client) -> AsyncIterator[Client]:
    if settings is None:
        yield target
    else:
        async with open_connection(settings) as nc:
            yield nc


def _durables(durables: Sequence[str], groups: Sequence[str]) -> dict[str, Durable]:
    """
    Return the durables of the command line, by consumer name.

    Raises:
        InputError: A durable has the wrong form, or two have the same consumer.
    """
    from ..stan.migration import Durable

    found: dict[str, Durable] = {}
    for text, is_group in [*((text, False) for text in durables), *((text, True) for text in groups)]:
        named, _, consumer = text.rpartition("=")
        # Client ids, and durable names of queue groups, cannot contain a colon.
        owner, _, name = named.rpartition(":") if is_group else named.partition(":")
        if not (owner and name and _CONSUMER.fullmatch(consumer)):
            raise InputError(f"durable must be {'GROUP' if is_group else 'CLIENT'}:NAME=CONSUMER, got {text!r}")
        if consumer in found:
            raise InputError(f"each durable must have its own consumer, got two for {consumer!r}")
        found[consumer] = Durable(name, queue=owner) if is_group else Durable(name, client_id=owner)
    return found


def _summary(result: MigrationResult) -> str:
    lines = [
        f"{result.stored} of {result.messages} messages of channel {result.channel} are in stream {result.stream}; "
        f"this run copied {result.copied}: {counted(result.events, 'event')}, "
        f"{counted(result.copied - result.events, 'other')}"
    ]
    if result.duplicates:
        events = counted(result.duplicates, "event")
        lines.append(f"duplicates by source and id, kept: {events}")
    if result.expired:
        lines.append(f"expired in the channel before they were copied: {counted(result.expired, 'message')}")
    for first, last in result.gaps:
        lines.append(f"the channel has no messages {first} to {last}")
    if result.repeated:
        lines.append(f"in the stream more than once: {counted(result.repeated, 'message')}")
    lines += [f"consumer {name} starts at message {start}" for name, start in result.consumers.items()]
    return "\n".join(lines)
