"""The commands ``dead-letters list``, ``show`` and ``requeue``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

import typer
from nats.js import JetStreamContext
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..aio.deadletter import requeue
from ..aio.jetstream import read_stream
from ..aio.publish import delivery
from ..binary import Dialect
from ..capture import StoredMessage
from ..deadletter import DeadLetter
from ..errors import CeNatsError, DecodeError, DeliveryError, ErrorCode
from ..json_form import as_fields, as_line
from ..message import Headers, NatsMessage
from .codec import JsonOption
from .connection import Settings, connected, with_connection
from .explain import error_fields, explanation, show, visible
from .files import InputError, write
from .program import complain, guarded, run

__all__ = ["register"]

StreamArgument = Annotated[str, typer.Argument(help="Stream that has the dead letters.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Messages that consumers have put aside.")
    group.command("list")(guarded(with_connection(list_letters)))
    group.command("show")(guarded(with_connection(show_letter)))
    group.command("requeue")(guarded(with_connection(requeue_letters)))
    app.add_typer(group, name="dead-letters")


def list_letters(
    settings: Settings,
    stream: StreamArgument,
    subject: Annotated[str, typer.Option("--subject", help="Only on this subject, wildcards allowed.")] = ">",
    as_json: JsonOption = False,
) -> None:
    """List dead letters: sequence, why, where they are from."""
    table = Table("sequence", "reason", "error", "subject", "from", "deliveries", box=None, pad_edge=False)

    async def read() -> None:
        async with connected(settings) as (_, js), aclosing(_letters(js, stream, subject)) as letters:
            async for stored in letters:
                if as_json:
                    write(as_line(_fields(stored)))
                else:
                    table.add_row(*(Text(visible(cell)) for cell in _cells(stored)))

    run(read())
    if not as_json:
        Console(highlight=False).print(table)


def show_letter(
    settings: Settings,
    stream: StreamArgument,
    sequence: Annotated[int, typer.Argument(min=1, help="As in the list.")],
    as_json: JsonOption = False,
) -> None:
    """
    Show a dead letter: why it was put aside, and what explain says of the original.

    With --json, headers and data of the original are there as decode, explain and replay read them.
    """

    async def read() -> None:
        async with connected(settings) as (_, js):
            stored = await _letter(js, stream, sequence)
        if as_json:
            _, headers = DeadLetter.split(stored.headers)
            write(as_line({**_fields(stored), **as_fields(headers, stored.data)}))
        else:
            _show(stored)

    run(read())


def requeue_letters(
    settings: Settings,
    stream: StreamArgument,
    sequences: Annotated[list[int] | None, typer.Argument(metavar="SEQUENCE...", help="As in the list.")] = None,
    all_of_them: Annotated[bool, typer.Option("--all", help="All dead letters of the stream.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Do not delete the dead letters.")] = False,
    as_json: JsonOption = False,
) -> None:
    """
    Publish originals to their subjects again; each dead letter is deleted when the stream there has its original.

    Headers for the server (Nats-...) are not sent again, and the Nats-Msg-Id is a new one. What cannot be requeued
    stays and does not hold up the others.
    """
    if bool(sequences) == all_of_them:
        raise InputError("either sequences or --all is needed")
    statuses: list[int] = []

    async def send() -> None:
        async with connected(settings) as (_, js):
            found = [number async for number in _sequences(js, stream)] if all_of_them else sequences or []
            for sequence in found:
                try:
                    await _requeue(settings, js, stream, sequence, keep=keep, as_json=as_json)
                except CeNatsError as error:
                    statuses.append(complain(error, f"dead letter {sequence}"))

    run(send())
    raise typer.Exit(max(statuses, default=0))


async def _requeue(
    settings: Settings, js: JetStreamContext, stream: str, sequence: int, *, keep: bool, as_json: bool
) -> None:
    stored = await _letter(js, stream, sequence)
    ack = await requeue(js, stored, timeout=settings.timeout)
    if not keep:
        with delivery(f"stream {stream}"):
            await js.delete_msg(stream, sequence)
    if as_json:
        write(
            as_line({"sequence": sequence, "stored": {"stream": ack.stream, "sequence": ack.seq}, "deleted": not keep})
        )
    else:
        typer.echo(f"{sequence} is message {ack.seq} of stream {ack.stream}")


async def _letters(js: JetStreamContext, stream: str, subject: str = ">") -> AsyncGenerator[StoredMessage, None]:
    async with aclosing(read_stream(js, stream, subject=subject)) as batches:
        async for batch in batches:
            for stored in batch:
                yield stored


async def _sequences(js: JetStreamContext, stream: str) -> AsyncGenerator[int, None]:
    async with aclosing(_letters(js, stream)) as letters:
        async for stored in letters:
            yield stored.sequence


async def _letter(js: JetStreamContext, stream: str, sequence: int) -> StoredMessage:
    async with aclosing(read_stream(js, stream, start=sequence, end=sequence)) as batches:
        async for batch in batches:
            return batch[0]
    raise DeliveryError(ErrorCode.DELIVERY_FAILED, f"stream {stream} has no message {sequence}")


def _fields(stored: StoredMessage) -> dict[str, Any]:
    """A dead letter in JSON, without the original's headers and data."""
    fields: dict[str, Any] = {"sequence": stored.sequence, "timestamp": str(stored.timestamp)}
    try:
        letter, _ = DeadLetter.split(stored.headers)
    except DecodeError as error:
        return {**fields, "error": error_fields(error)}
    fields["dead_letter"] = {
        "reason": str(letter.reason),
        "error": letter.error,
        "text": letter.text,
        "stream": letter.stream,
        "consumer": letter.consumer,
        "sequence": letter.sequence,
        "deliveries": letter.deliveries,
        "is_complete": letter.is_complete,
    }
    return {**fields, "subject": letter.subject}


def _cells(stored: StoredMessage) -> list[str]:
    try:
        letter, _ = DeadLetter.split(stored.headers)
    except DecodeError as error:
        return [str(stored.sequence), "", str(error.code), stored.subject, "", ""]
    origin = f"{letter.stream}:{letter.sequence}"
    numbers = str(stored.sequence), str(letter.deliveries)
    return [numbers[0], str(letter.reason), letter.error, letter.subject, origin, numbers[1]]


def _show(stored: StoredMessage) -> None:
    letter, headers = DeadLetter.split(stored.headers)
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(f"dead letter {stored.sequence} of {stored.stream}, {stored.timestamp}", soft_wrap=True)
    console.print(
        f"{letter.reason} by {letter.consumer or 'a consumer without a name'}, deliveries: {letter.deliveries}",
        soft_wrap=True,
    )
    if letter.error or letter.text:
        console.print(f"{visible(letter.error)}: {visible(letter.text)}", soft_wrap=True)
    gone = "" if letter.is_complete else " (not all of it: the stream had it no more)"
    console.print(f"message {letter.sequence} of {letter.stream} on {letter.subject}{gone}", soft_wrap=True)
    show(explanation(NatsMessage(letter.subject, stored.data, Headers(headers)), Dialect.SPEC))
