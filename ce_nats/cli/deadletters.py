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

from ..aio.deadletter import RequeueResult, requeue_all
from ..aio.jetstream import read_stream
from ..aio.streams import StreamApi
from ..capture.message_json import as_fields, as_line
from ..codec.binary import Dialect
from ..errors import CeNatsError, DecodeError, DeliveryError, ErrorCode, visible
from ..message import Headers, NatsMessage, StoredMessage
from ..redelivery import DeadLetter
from .codec import JsonOption
from .connection import Settings, connected, with_connection
from .explain import error_fields, explanation, show
from .files import InputError, console, table, write
from .program import complain, guarded, run
from .progress import progress

# Dead letters that are read at a time.
_BATCH: Final = 100

StreamArgument = Annotated[str, typer.Argument(metavar="STREAM", help="Stream with the dead letters.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="Dead letters: messages that consumers could not process."
    )
    group.command("list")(guarded(with_connection(list_dead_letters)))
    group.command("show")(guarded(with_connection(show_dead_letter)))
    group.command("requeue")(guarded(with_connection(requeue_dead_letters)))
    app.add_typer(group, name="dead-letters")


def list_dead_letters(
    settings: Settings,
    stream: StreamArgument,
    subject: Annotated[
        str, typer.Option("--subject", help="Only dead letters on this subject, wildcards allowed.")
    ] = ">",
    as_json: JsonOption = False,
) -> None:
    """
    List dead letters.

    For each one: its sequence, why it was dead-lettered, the error code, and subject, stream, sequence and number of
    deliveries of the original message.
    """
    rows = table("sequence", "reason", "error", "subject", "from", "deliveries")

    async def read() -> None:
        async with connected(settings) as (_, js), aclosing(_read(js, stream, subject)) as dead_letters:
            async for stored in dead_letters:
                if as_json:
                    write(as_line(_fields(stored)))
                else:
                    rows.add_row(*(Text(visible(cell)) for cell in _cells(stored)))

    run(read())
    if not as_json:
        console().print(rows)


def show_dead_letter(
    settings: Settings,
    stream: StreamArgument,
    sequence: Annotated[int, typer.Argument(metavar="SEQUENCE", min=1, help="Sequence, as printed by list.")],
    as_json: JsonOption = False,
) -> None:
    """
    Show a dead letter.

    Prints why it was dead-lettered, and for the original message the same as explain. With --json, the object has
    headers and data of the original, and can be given to decode, explain and replay.
    """

    async def read() -> None:
        async with connected(settings) as (_, js):
            stored = await _read_one(js, stream, sequence)
        if as_json:
            _, headers = DeadLetter.split(stored.headers)
            write(as_line({**_fields(stored), **as_fields(headers, stored.data)}))
        else:
            _show(stored)

    run(read())


def requeue_dead_letters(
    settings: Settings,
    stream: StreamArgument,
    sequences: Annotated[
        list[int] | None, typer.Argument(metavar="SEQUENCE...", help="Sequences, as printed by list.")
    ] = None,
    all_of_them: Annotated[bool, typer.Option("--all", help="Requeue all dead letters of the stream.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Do not delete the dead letters.")] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="SUBJECT",
            help="Publish to this subject, wildcards allowed, whatever stream a dead letter names; may be repeated.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """
    Publish original messages again.

    Each original is published to its subject, if the stream that the dead letter names listens on it, and its dead
    letter is deleted when a stream has stored the original.
    Headers for the server (Nats-...) are not published again, and the Nats-Msg-Id is a new one. A dead letter that
    cannot be requeued is kept and reported on standard error, and the next one is requeued.
    """
    if bool(sequences) == all_of_them:
        raise InputError("either sequences or --all must be given")
    statuses: list[int] = []

    async def send() -> None:
        async with connected(settings) as (_, js):
            if all_of_them:
                total = (await StreamApi.of(js).state(stream)).messages
                dead_letters = _read(js, stream, batch_size=_BATCH)
            else:
                total = len(sequences or [])
                dead_letters = _chosen(js, stream, sequences or [], statuses)
            results = requeue_all(js, dead_letters, delete=not keep, allowed=allow or None, timeout=settings.timeout)
            # A terminal already shows progress through the printed lines.
            with nullcontext(_no_progress) if sys.stdout.isatty() else progress("requeue", total) as advance:
                async with aclosing(dead_letters), aclosing(results):
                    done = 0
                    async for result in results:
                        if result.error is not None:
                            statuses.append(complain(result.error, f"dead letter {result.sequence}"))
                        if result.ack is not None:
                            _print_result(result, result.ack, as_json=as_json)
                        done += 1
                        advance(done)

    run(send())
    raise typer.Exit(max(statuses, default=0))


def _no_progress(_: int) -> None: ...


def _print_result(result: RequeueResult, ack: PubAck, *, as_json: bool) -> None:
    if as_json:
        stored = {"stream": ack.stream, "sequence": ack.seq}
        write(as_line({"sequence": result.sequence, "stored": stored, "deleted": result.is_deleted}))
    else:
        write(f"dead letter {result.sequence} is now message {ack.seq} of stream {ack.stream}\n".encode())


async def _read(
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
            yield await _read_one(js, stream, sequence)
        except CeNatsError as error:
            statuses.append(complain(error, f"dead letter {sequence}"))


async def _read_one(js: JetStreamContext, stream: str, sequence: int) -> StoredMessage:
    async with aclosing(read_stream(js, stream, start=sequence, end=sequence)) as batches:
        async for batch in batches:
            return batch[0]
    raise DeliveryError(ErrorCode.MESSAGE_NOT_FOUND, f"stream {stream} has no message {sequence}")


def _fields(stored: StoredMessage) -> dict[str, Any]:
    """A dead letter in JSON, without the original's headers and data."""
    fields: dict[str, Any] = {"sequence": stored.sequence, "timestamp": str(stored.timestamp)}
    try:
        dead_letter, _ = DeadLetter.split(stored.headers)
    except DecodeError as error:
        return {**fields, "error": error_fields(error)}
    fields["dead_letter"] = {
        "reason": str(dead_letter.reason),
        "error": dead_letter.error,
        "text": dead_letter.text,
        "stream": dead_letter.stream,
        "consumer": dead_letter.consumer,
        "sequence": dead_letter.sequence,
        "deliveries": dead_letter.deliveries,
        "is_complete": dead_letter.is_complete,
        "is_copied": dead_letter.is_copied,
        "time": dead_letter.time or None,
    }
    return {**fields, "subject": dead_letter.subject}


def _cells(stored: StoredMessage) -> list[str]:
    try:
        dead_letter, _ = DeadLetter.split(stored.headers)
    except DecodeError as error:
        return [str(stored.sequence), "", str(error.code), stored.subject, "", ""]
    origin = f"{dead_letter.stream}:{dead_letter.sequence}"
    numbers = str(stored.sequence), str(dead_letter.deliveries)
    return [numbers[0], str(dead_letter.reason), dead_letter.error, dead_letter.subject, origin, numbers[1]]


def _show(stored: StoredMessage) -> None:
    dead_letter, headers = DeadLetter.split(stored.headers)
    output = console()
    output.print(f"dead letter {stored.sequence} of {stored.stream}, {stored.timestamp}", soft_wrap=True)
    output.print(
        f"{dead_letter.reason} by {dead_letter.consumer or 'a consumer without a name'}, "
        f"deliveries: {dead_letter.deliveries}",
        soft_wrap=True,
    )
    if dead_letter.error or dead_letter.text:
        output.print(f"{visible(dead_letter.error)}: {visible(dead_letter.text)}", soft_wrap=True)
    note = "" if dead_letter.is_complete else " (incomplete: it was already deleted from the stream)"
    output.print(
        f"message {dead_letter.sequence} of {dead_letter.stream} on {dead_letter.subject}{note}", soft_wrap=True
    )
    show(explanation(NatsMessage(dead_letter.subject, stored.data, Headers(headers)), Dialect.SPEC))
