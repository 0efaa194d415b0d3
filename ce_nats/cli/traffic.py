"""The commands ``pub`` and ``sub``: publish events in JSON, and print received events."""

from __future__ import annotations

import json
from contextlib import aclosing
from enum import Enum
from typing import Annotated, Any

import typer

from ..aio import Publisher, Received, flush, publish
from ..aio.jetstream import DedupId, bare_id
from ..capture.message_json import as_fields, as_line
from ..codec.binary import Dialect
from ..codec.binding import dedup_id
from ..codec.mode import ContentMode
from ..codec.subject_template import subject_of_text
from ..errors import DecodeError, EncodeError
from ..message import header_pairs
from .codec import (
    DialectOption,
    EventArgument,
    FormatOption,
    HeaderOption,
    JsonOption,
    ModeOption,
    check_format,
    event_line,
    read_event,
    read_headers,
)
from .connection import Settings, connected, open_connection, with_connection
from .explain import error_fields
from .files import is_typed, stdin_documents, write
from .listening import listening
from .program import complain, guarded, run, until_stopped
from .progress import progress, with_progress
from .terminal import say

JetStreamOption = Annotated[
    bool, typer.Option("--jetstream", "-J", help="Publish to JetStream, and wait for acknowledgements.")
]


class _Dedup(str, Enum):
    SOURCE_AND_ID = "source-and-id"
    ID = "id"
    NONE = "none"


_DEDUP: dict[_Dedup, DedupId | None] = {_Dedup.SOURCE_AND_ID: dedup_id, _Dedup.ID: bare_id, _Dedup.NONE: None}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(guarded(with_connection(pub)))
    app.command()(guarded(with_connection(sub)))


def pub(
    settings: Settings,
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="Subject, or a template such as orders.{type}.")],
    event: EventArgument = None,
    mode: ModeOption = ContentMode.BINARY,
    format: FormatOption = None,  # noqa: A002
    header: HeaderOption = None,
    reply: Annotated[str, typer.Option("--reply", help="Reply subject; not with --jetstream.")] = "",
    jetstream: JetStreamOption = False,
    dedup: Annotated[
        _Dedup, typer.Option("--dedup", help="With --jetstream, what the Nats-Msg-Id is made of.")
    ] = _Dedup.SOURCE_AND_ID,
    as_json: JsonOption = False,
) -> None:
    """
    Publish events in JSON.

    Invalid events are reported on standard error, and the next one is read. The exit status is 0 if the server received
    all events, and 1 if some were invalid.
    """
    target = subject_of_text(subject)
    event_format = check_format(format, mode)
    headers = read_headers(header)
    counts = {"published": 0, "duplicates": 0, "refused": 0}

    async def to_core() -> None:
        async with open_connection(settings) as nc, aclosing(documents):
            async for where, text in documents:
                try:
                    await publish(
                        nc, read_event(text), target, mode=mode, format=event_format, reply=reply, headers=headers
                    )
                    counts["published"] += 1
                except (EncodeError, DecodeError) as error:
                    counts["refused"] += 1
                    complain(error, where)
            await flush(nc)

    async def to_streams() -> None:
        async with connected(settings) as (_, js), aclosing(documents):
            async with Publisher(
                js, mode=mode, format=event_format, dedup=_DEDUP[dedup], ack_timeout=settings.timeout
            ) as publisher:
                async for where, text in documents:
                    try:
                        await publisher.publish(read_event(text), target, headers=headers)
                    except (EncodeError, DecodeError) as error:
                        counts["refused"] += 1
                        complain(error, where)
            counts["published"], counts["duplicates"] = publisher.acknowledged, publisher.duplicates

    with progress("pub", None, wanted=event is None and not is_typed()) as advance:
        documents = with_progress(stdin_documents(event), advance)
        run(to_streams() if jetstream else to_core())
    if as_json:
        write(as_line(counts))
    else:
        again = f", {counts['duplicates']} of them already stored" if counts["duplicates"] else ""
        say(f"{counts['published']} published{again}")
    raise typer.Exit(1 if counts["refused"] else 0)


def sub(
    settings: Settings,
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="Subject, wildcards allowed.")],
    queue: Annotated[str, typer.Option("--queue", help="Queue group.")] = "",
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after this number of messages.")
    ] = None,
    dialect: DialectOption = Dialect.SPEC,
    as_json: JsonOption = False,
) -> None:
    """
    Subscribe, and print the events that are published.

    Prints a line for each message: its subject, and its event in JSON, or the error if it is not an event. With --json,
    each line is a JSON object; that of a message which is not an event has the error, headers and data. The command
    ends after --count messages or with Ctrl-C (exit status 0), or when the connection is closed permanently (exit
    status 3).
    """

    async def receive() -> None:
        remaining = count
        async with listening(settings, subject, queue=queue, dialect=dialect) as items:
            async for item in items:
                write(_json_line(item) if as_json else _line(item))
                remaining = None if remaining is None else remaining - 1
                if remaining == 0:
                    return

    until_stopped(receive())


def _line(item: Received) -> bytes:
    subject = item.subject.encode()
    if item.error is not None:
        return b"%s %s\n" % (subject, " ".join(str(item.error).split()).encode("utf-8", "replace"))
    return b"%s %s" % (subject, event_line(item.event))


def _json_line(item: Received) -> bytes:
    message = item.message
    if item.error is None:
        return b'{"subject":%s,"event":%s}\n' % (json.dumps(message.subject).encode(), event_line(item.event).strip())
    fields: dict[str, Any] = as_fields(header_pairs(message.headers), message.data, message.subject, message.reply)
    return as_line({**fields, "error": error_fields(item.error)})
