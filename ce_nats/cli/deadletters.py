"""The commands ``dead-letters list``, ``show`` and ``requeue``."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, nullcontext
from typing import Annotated, Any, Final

import typer
from nats.js import JetStreamContext
from nats.js.api import PubAck
from rich.text import Text

from ..aio.deadletter import Requeued, requeue_all
from ..aio.jetstream import read_stream
from ..aio.streams import StreamApi
from ..binary import Dialect
from ..capture import StoredMessage
from ..deadletter import DeadLetter
from ..errors import CeNatsError, DecodeError, DeliveryError, ErrorCode
from ..json_form import as_fields, as_line
from ..message import Headers, NatsMessage
from .codec import JsonOption
from .connection import Settings, connected, with_connection
from .explain import error_fields, explanation, show, visible
from .files import InputError, console, table, write
from .program import complain, guarded, run
from .progress import progress

__all__ = ["register"]

# Dead letters that are read before the first of them goes out.
_BATCH: Final = 100

StreamArgument = Annotated[str, typer.Argument(metavar="STREAM", help="Stream that has the dead letters.")]


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
    letters_found = table("sequence", "reason", "error", "subject", "from", "deliveries")

    async def read() -> None:
        async with connected(settings) as (_, js), aclosing(_letters(js, stream, subject)) as letters:
            async for stored in letters:
                if as_json:
                    write(as_line(_fields(stored)))
                else:
                    letters_found.add_row(*(Text(visible(cell)) for cell in _cells(stored)))

    run(read())
    if not as_json:
        console().print(letters_found)


def show_letter(
    settings: Settings,
    stream: StreamArgument,
    sequence: Annotated[int, typer.Argument(metavar="SEQUENCE", min=1, help="As in the list.")],
    as_json: JsonOption = False,
) -> None:
    """
    Show a dead letter.

    Why it was put aside, and what explain says of the original. With --json, headers and data of the original are there
    as decode, explain and replay read them.
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
            if all_of_them:
                total = (await StreamApi.of(js).state(stream)).messages
                letters = _letters(js, stream, batch_size=_BATCH)
            else:
                total = len(sequences or [])
                letters = _chosen(js, stream, sequences or [], statuses)
            outcomes = requeue_all(js, letters, delete=not keep, timeout=settings.timeout)
            # On a terminal the lines themselves show how far it is.
            with nullcontext(_ignore) if sys.stdout.isatty() else progress("requeue", total) as advance:
                async with aclosing(letters), aclosing(outcomes):
                    done = 0
                    async for outcome in outcomes:
                        if outcome.error is not None:
                            statuses.append(complain(outcome.error, f"dead letter {outcome.sequence}"))
                        if outcome.ack is not None:
                            _tell(outcome, outcome.ack, as_json=as_json)
                        done += 1
                        advance(done)

    run(send())
    raise typer.Exit(max(statuses, default=0))


def _ignore(_: int) -> None: ...


def _tell(outcome: Requeued, ack: PubAck, *, as_json: bool) -> None:
    if as_json:
        stored = {"stream": ack.stream, "sequence": ack.seq}
        write(as_line({"sequence": outcome.sequence, "stored": stored, "deleted": outcome.is_deleted}))
    else:
        write(f"{outcome.sequence} is message {ack.seq} of stream {ack.stream}\n".encode())


async def _letters(
    js: JetStreamContext, stream: str, subject: str = ">", *, batch_size: int = 1000
) -> AsyncGenerator[StoredMessage, None]:
    async with aclosing(read_stream(js, stream, subject=subject, batch_size=batch_size)) as batches:
        async for batch in batches:
            for stored in batch:
                yield stored


async def _chosen(
    js: JetStreamContext, stream: str, sequences: list[int], statuses: list[int]
) -> AsyncGenerator[StoredMessage, None]:
    for sequence in sequences:
        try:
            yield await _letter(js, stream, sequence)
        except CeNatsError as error:
            statuses.append(complain(error, f"dead letter {sequence}"))


async def _letter(js: JetStreamContext, stream: str, sequence: int) -> StoredMessage:
    async with aclosing(read_stream(js, stream, start=sequence, end=sequence)) as batches:
        async for batch in batches:
            return batch[0]
    raise DeliveryError(ErrorCode.MESSAGE_NOT_FOUND, f"stream {stream} has no message {sequence}")


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
    paper = console()
    paper.print(f"dead letter {stored.sequence} of {stored.stream}, {stored.timestamp}", soft_wrap=True)
    paper.print(
        f"{letter.reason} by {letter.consumer or 'a consumer without a name'}, deliveries: {letter.deliveries}",
        soft_wrap=True,
    )
    if letter.error or letter.text:
        paper.print(f"{visible(letter.error)}: {visible(letter.text)}", soft_wrap=True)
    gone = "" if letter.is_complete else " (not all of it: the stream had it no more)"
    paper.print(f"message {letter.sequence} of {letter.stream} on {letter.subject}{gone}", soft_wrap=True)
    show(explanation(NatsMessage(letter.subject, stored.data, Headers(headers)), Dialect.SPEC))
