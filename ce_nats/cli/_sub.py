"""The command ``sub``: print the events that are published, or those of a stream."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from datetime import datetime, timezone
from typing import Annotated, Any, Final, NamedTuple

import typer
from nats.js import JetStreamContext

from ..aio import Received
from ..aio._jetstream_api import StreamApi
from ..aio.jetstream import read_stream
from ..aio.reading._stored_messages import as_message
from ..capture._message_json import as_fields, as_line
from ..cesql import Expression
from ..codec.binary import Dialect
from ..codec.binding import from_nats_message
from ..codec.event import DecodedEvent, NotDelivered
from ..errors import CeNatsError, DeliveryError, ErrorCode
from ..message import StoredMessage, header_pairs
from ..schemas import Schemas
from . import _arguments as arguments
from ._arguments import InputError
from ._connection import Settings, open_jetstream, with_connection
from ._explain import error_fields
from ._files import write
from ._filters import FilterOption, passes, read_filter
from ._input import event_line
from ._options import DialectOption, JsonOption, PatternArgument, SinceOption
from ._program import run_until_stopped, with_exit_status
from ._schemas import SchemaOption, read_schemas
from ._subscription import open_subscription

# Seconds between two looks for new messages of a stream.
_FOLLOW_SECONDS: Final = 0.5


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_exit_status(with_connection(sub)))


def sub(
    settings: Settings,
    subject: PatternArgument = None,
    queue: Annotated[str, typer.Option("--queue", help="Queue group.", callback=arguments.subject_if_given)] = "",
    stream: Annotated[
        str | None, typer.Option("--stream", help="Print the events of this stream.", callback=arguments.name)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="With --stream, from its first message on.")] = False,
    since: SinceOption = None,
    last: Annotated[
        bool, typer.Option("--last-per-subject", help="With --stream, the last message on each subject.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="With --stream, also messages that are stored later.")
    ] = False,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Number of messages to print.")] = None,
    dialect: DialectOption = Dialect.SPEC,
    schema: SchemaOption = None,
    filter: FilterOption = None,
    as_json: JsonOption = False,
) -> None:
    """
    Print the events that are published, or those of a stream.

    On a terminal, prints a line for each message: its subject, and its event in JSON, or the error if it is not an
    event or its data does not match a --schema. With --json, or if the output is not a terminal, each line is a JSON
    object with subject and event, which pub and encode accept; for a message with an error, the object has error,
    headers and data instead of event. The command ends after --count messages or with Ctrl-C (exit status 0), or when
    the connection is closed permanently (exit status 3).

    With --filter, events that do not pass are not printed; messages that are not events are.

    With --stream, prints stored messages on the subject, or on all: from --all or --since to the last one, or
    --last-per-subject. With --follow, and without these options, the command continues with messages stored
    later. Nothing is acknowledged, and consumers are not affected.
    """
    choices = [everything, since is not None, last]
    if stream is None and (subject is None or any(choices) or follow):
        raise InputError("give a subject, or --stream, which --all, --since, --last-per-subject and --follow need")
    if stream is not None and (sum(choices) > 1 or queue):
        raise InputError("--all, --since, --last-per-subject and --queue exclude each other")
    begin = arguments.instant("since", since, datetime.now(timezone.utc))
    is_text = sys.stdout.isatty() and not as_json
    schemas, expression = read_schemas(schema), read_filter(filter)

    async def receive() -> None:
        remaining = count
        source = _Source(subject or ">", queue, stream, is_new=not any(choices), since=begin, is_last=last)
        follows = follow or source.is_new
        async with source.open(settings, dialect, schemas, expression, follows=follows) as items, aclosing(items):
            async for item in items:
                write(_line(item) if is_text else _json_line(item))
                remaining = None if remaining is None else remaining - 1
                if remaining == 0:
                    return

    run_until_stopped(receive())


class _Item(NamedTuple):
    """A message to print, and its event or its error."""

    subject: str
    headers: Iterable[tuple[str, str]]
    data: bytes
    reply: str
    event: DecodedEvent | None
    error: CeNatsError | None

    @classmethod
    def of_received(cls, item: Received) -> _Item:
        message = item.message
        event = None if item.error is not None else item.event
        error = item.error
        if event is not None and isinstance(event.data, NotDelivered):
            error = event.data.error
        return cls(message.subject, header_pairs(message.headers), message.data, message.reply, event, error)

    @classmethod
    def of_stored(cls, message: StoredMessage, dialect: Dialect, schemas: Schemas | None) -> _Item:
        event, error = None, None
        try:
            event = from_nats_message(message, dialect=dialect)
            if schemas is not None:
                schemas.check(event)
        except CeNatsError as failure:
            error = failure
        return cls(message.subject, message.headers, message.data, "", event, error)


class _Source(NamedTuple):
    """What is printed: the options of the command."""

    subject: str
    queue: str
    stream: str | None
    is_new: bool
    since: datetime | None
    is_last: bool

    @asynccontextmanager
    async def open(
        self,
        settings: Settings,
        dialect: Dialect,
        schemas: Schemas | None,
        expression: Expression | None,
        *,
        follows: bool,
    ) -> AsyncIterator[AsyncGenerator[_Item, None]]:
        """Connect, and yield the messages."""
        if self.stream is None:
            options: dict[str, Any] = {
                "queue": self.queue,
                "dialect": dialect,
                "filter": expression,
                "validate": schemas,
            }
            async with open_subscription(settings, self.subject, **options) as received:
                yield (_Item.of_received(item) async for item in received)
        else:
            async with open_jetstream(settings) as (_, js):
                messages = self._stored(js, self.stream, follows=follows)
                async with aclosing(messages):
                    yield (
                        _Item.of_stored(message, dialect, schemas)
                        async for message in messages
                        if passes(expression, message.headers, message.data, dialect=dialect)
                    )

    async def _stored(self, js: JetStreamContext, stream: str, *, follows: bool) -> AsyncGenerator[StoredMessage, None]:
        api = StreamApi.of(js)
        state = await api.state(stream)
        created, first, since = state.created, state.last + 1 if self.is_new or self.is_last else 1, self.since
        if self.is_last:
            for stored in await api.last_on_subjects(stream, self.subject):
                if not follows or stored.seq < first:  # later ones follow, with those on other subjects
                    yield as_message(stored, stream)
        while True:
            if first <= state.last:
                batches = read_stream(js, stream, subject=self.subject, start=first, end=state.last, start_time=since)
                async with aclosing(batches):
                    async for batch in batches:
                        for message in batch:
                            yield message
                first, since = state.last + 1, None
            if not follows:
                return
            await asyncio.sleep(_FOLLOW_SECONDS)
            state = await api.state(stream)
            if state.created != created:
                text = f"stream {stream} was deleted and created again"
                raise DeliveryError(ErrorCode.STREAM_MISMATCH, text)


def _line(item: _Item) -> bytes:
    subject = item.subject.encode()
    if item.event is None or item.error is not None:
        return b"%s %s\n" % (subject, " ".join(str(item.error).split()).encode("utf-8", "replace"))
    return b"%s %s" % (subject, event_line(item.event))


def _json_line(item: _Item) -> bytes:
    if item.event is not None and item.error is None:
        return b'{"subject":%s,"event":%s}\n' % (json.dumps(item.subject).encode(), event_line(item.event).strip())
    assert item.error is not None
    fields: dict[str, Any] = as_fields(item.headers, item.data, item.subject, item.reply)
    return as_line({**fields, "error": error_fields(item.error)})
