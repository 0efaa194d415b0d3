"""The command ``find``: where events are, and how far each consumer is with them."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterator
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated, Any

import typer
from nats.js import JetStreamContext

from .. import cesql
from ..aio._jetstream_api import Progress, StreamApi
from ..aio.jetstream import read_stream
from ..capture._message_json import as_line
from ..codec.event import DecodedEvent
from ..codec.timestamp import Timestamp
from ..errors import CeNatsError, DecodeError
from ..message import StoredMessage
from ..redelivery import DeadLetter
from ..subjects import covers
from . import _arguments as arguments
from ._arguments import InputError
from ._connection import Settings, open_jetstream, with_connection
from ._files import read_messages, write
from ._filters import FilterOption, read_filter, selects
from ._identity import Identity, identity_and_event
from ._options import JsonOption, SinceOption, UntilOption
from ._program import print_error, run, with_exit_status
from ._terminal import console


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_exit_status(with_connection(find)))


def find(
    settings: Settings,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Stream of the events.", callback=arguments.name)],
    identifier: Annotated[str | None, typer.Option("--id", metavar="ID", help="Only events with this id.")] = None,
    source: Annotated[str | None, typer.Option("--source", metavar="URI", help="Only events of this source.")] = None,
    kind: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only events of this type.")] = None,
    subject: Annotated[
        str,
        typer.Option(
            "--subject", help="Only messages on this NATS subject, wildcards allowed.", callback=arguments.pattern
        ),
    ] = ">",
    since: SinceOption = None,
    until: UntilOption = None,
    where: FilterOption = None,
    dead_letters: Annotated[
        list[str] | None,
        typer.Option(
            "--dead-letters",
            metavar="STREAM",
            help="Also search this stream for dead letters of the events; may be repeated.",
            callback=arguments.name,
        ),
    ] = None,
    captures: Annotated[
        list[str] | None,
        typer.Option("--capture", metavar="PATH", help="Also search this capture; may be repeated."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """
    Show where events are, and how far each consumer is with them.

    Prints for each message with such an event its sequence, and for each consumer of the stream whether it has settled
    the message (acknowledged, or dead-lettered), has received it, or has not received it yet. Dead letters and captures
    are found by their content, also if the message is not in the stream any more. A message that is not a valid event
    is found by the attributes that can be read, and its error is printed; not with --where.

    The exit status is 1 if nothing was found.
    """
    if identifier is source is kind is since is until is where is None and subject == ">":
        options = "--id, --source, --type, --subject, --since, --until or --where"
        raise InputError(f"events must be selected: with {options}")
    for path in captures or ():
        os.stat(path)  # raises FileNotFoundError
    now = datetime.now(timezone.utc)
    search = _Search(
        stream,
        identifier,
        source,
        kind,
        subject,
        arguments.instant("since", since, now),
        arguments.instant("until", until, now),
        read_filter(where),
    )
    found = 0

    def show(fields: dict[str, Any]) -> None:
        nonlocal found
        found += 1
        if as_json:
            write(as_line(fields))
        else:
            _print(fields)

    status = 0

    async def look() -> None:
        nonlocal status
        async with open_jetstream(settings) as (_, js):
            sequences: set[int] = set()
            async with aclosing(_in_stream(js, search)) as messages:
                async for fields in messages:
                    sequences.add(fields["sequence"])
                    show(fields)
            for name in dead_letters or ():
                async with aclosing(_in_dead_letters(js, name, search, sequences)) as letters:
                    async for fields in letters:
                        show(fields)
        for path in captures or ():
            try:
                for fields in _in_capture(path, search):
                    show(fields)
            except CeNatsError as error:
                status = print_error(error, path)

    run(look())
    raise typer.Exit(status or int(not found))


@dataclass(frozen=True)
class _Search:
    """What is searched: the options of the command."""

    stream: str
    id: str | None
    source: str | None
    type: str | None
    subject: str
    since: datetime | None
    until: datetime | None
    where: cesql.Expression | None

    def matches(self, event: Identity, decoded: DecodedEvent | None, subject: str, at: datetime | None) -> bool:
        """Return whether the event of a message is searched; ``at`` is the time at which it was stored, if known."""
        return (
            all(wanted in (None, own) for wanted, own in zip(self._wanted, event, strict=False))
            and covers(self.subject, subject)
            and (at is None or self._is_in_time(at))
            and selects(self.where, decoded)
        )

    @property
    def _wanted(self) -> tuple[str | None, str | None, str | None]:
        return self.id, self.source, self.type

    def _is_in_time(self, at: datetime) -> bool:
        return (self.since is None or self.since <= at) and (self.until is None or at <= self.until)


def standing(consumer: Progress, message: StoredMessage) -> str | None:
    """
    Return what a consumer knows of a message; None if it does not read its subject.

    The server reports positions, not single messages. So a message between them may be settled, or not.
    """
    filters = consumer.filters
    if filters and not any(covers(one, message.subject) for one in filters):
        return None
    if _is_before_start(consumer, message):
        return "before its start"
    if message.sequence <= consumer.ack_floor:
        return "settled"
    return "in flight or settled" if message.sequence <= consumer.delivered else "not delivered yet"


def _is_before_start(consumer: Progress, message: StoredMessage) -> bool:
    config = consumer.config
    policy = config.get("deliver_policy")
    if policy == "by_start_sequence":
        return message.sequence < int(config.get("opt_start_seq") or 0)
    start = {"by_start_time": config.get("opt_start_time"), "new": consumer.created}.get(str(policy))
    return bool(start) and message.timestamp < Timestamp.parse(str(start))


async def _in_stream(js: JetStreamContext, search: _Search) -> AsyncGenerator[dict[str, Any], None]:
    api = StreamApi.of(js)
    names = await api.consumer_names(search.stream)
    consumers = {name: await api.progress(search.stream, name) for name in names}
    batches = read_stream(js, search.stream, subject=search.subject, start_time=search.since, end_time=search.until)
    async with aclosing(batches):
        async for batch in batches:
            for message in batch:
                event, decoded = identity_and_event(message.headers, message.data)
                if search.matches(event, decoded, message.subject, None):
                    known = {name: standing(one, message) for name, one in consumers.items()}
                    readers = {name: place for name, place in known.items() if place is not None}
                    yield {**_fields("stream", message, event), "consumers": readers}


async def _in_dead_letters(
    js: JetStreamContext, stream: str, search: _Search, sequences: AbstractSet[int]
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield dead letters of events, or of messages with these sequences: a dead letter may lack a large original."""
    async with aclosing(read_stream(js, stream)) as batches:
        async for batch in batches:
            for message in batch:
                try:
                    letter, headers = DeadLetter.split(message.headers)
                except DecodeError:
                    continue
                event, decoded = identity_and_event(headers, message.data)
                is_found = letter.sequence in sequences or search.matches(event, decoded, letter.subject, None)
                if letter.stream == search.stream and is_found:
                    yield {
                        **_fields("dead letter", message, event),
                        "subject": letter.subject,
                        "reason": str(letter.reason),
                        "error": letter.error,
                        "text": letter.text,
                        "consumer": letter.consumer,
                        "of": letter.sequence,
                    }


def _in_capture(path: str, search: _Search) -> Iterator[dict[str, Any]]:
    for message in read_messages(path):
        event, decoded = identity_and_event(message.headers, message.data)
        if search.matches(event, decoded, message.subject, message.timestamp):
            yield {**_fields("capture", message, event), "path": path}


def _fields(place: str, message: StoredMessage, event: Identity) -> dict[str, Any]:
    """Return a message as JSON values."""
    return {
        "place": place,
        "stream": message.stream,
        "sequence": message.sequence,
        "subject": message.subject,
        "timestamp": str(message.timestamp),
        "event": event.fields(),
        "invalid": None if event.error is None else str(event.error.code),
    }


def _print(fields: dict[str, Any]) -> None:
    output = console()
    place = f"{fields['path']}: " if "path" in fields else "dead letter: " if "of" in fields else ""
    message = f"message {fields['sequence']} of {fields['stream']} on {fields['subject']}, {fields['timestamp']}"
    output.print(f"{place}{message}", soft_wrap=True)
    output.print(f"  {Identity(**fields['event']).text()}", soft_wrap=True)
    if fields["invalid"] is not None:
        output.print(f"  not a valid event: {fields['invalid']}", soft_wrap=True)
    if "of" in fields:
        text = f"{fields['reason']} by {fields['consumer'] or 'an unnamed consumer'}, message {fields['of']}"
        output.print(f"  {text}: {fields['error']}: {fields['text']}", soft_wrap=True)
    for name, state in fields.get("consumers", {}).items():
        output.print(f"  consumer {name}: {state}", soft_wrap=True)
