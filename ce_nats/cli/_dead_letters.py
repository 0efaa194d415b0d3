"""The commands ``dead-letters list``, ``show``, ``requeue`` and ``discard``."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, nullcontext
from typing import Annotated, Any, Final, NamedTuple

import typer
from nats.js import JetStreamContext
from nats.js.api import PubAck

from ..aio._jetstream_api import StreamApi
from ..aio.consumer._dead_letters import RequeueResult, requeue_all
from ..aio.consumer._originals import Originals
from ..aio.jetstream import read_stream
from ..capture._message_json import as_fields, as_line
from ..cesql import Expression
from ..codec.binary import Dialect
from ..errors import CeNatsError, DecodeError
from ..message import Headers, NatsMessage, StoredMessage
from ..redelivery import DeadLetter, Reason
from . import _arguments as arguments
from ._arguments import InputError
from ._connection import Settings, open_jetstream, with_connection
from ._explain import error_fields, explanation, print_explanation, read_one
from ._files import write
from ._filters import FilterOption, read_filter, selects
from ._help import Program
from ._identity import identity_and_event, identity_of
from ._options import JsonOption
from ._program import StoppedError, print_error, run, with_exit_status
from ._progress import counted, print_summary, progress, with_progress
from ._terminal import console, table

# Number of dead letters in a read request.
_BATCH: Final = 100
# Columns of a wide table; the names are those of the fields of an Identity.
_ATTRIBUTES: Final = ("id", "type", "source", "time")
_WIDE: Final = 140

StreamArgument = Annotated[
    str, typer.Argument(metavar="STREAM", help="Stream with the dead letters.", callback=arguments.name)
]
SequencesArgument = Annotated[
    list[int] | None, typer.Argument(metavar="SEQUENCE...", help="Sequences, as printed by list.")
]
ReasonOption = Annotated[
    Reason | None, typer.Option("--reason", help="Only dead letters with this reason.", show_default=False)
]
ErrorOption = Annotated[
    str | None,
    typer.Option("--error", metavar="CODE", help="Only dead letters with this error code or exception class."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = Program(help="Dead letters: messages that consumers could not process.")
    group.command("list")(with_exit_status(with_connection(list_dead_letters)))
    group.command("show")(with_exit_status(with_connection(show_dead_letter)))
    group.command("requeue")(with_exit_status(with_connection(requeue_dead_letters)))
    group.command("discard")(with_exit_status(with_connection(discard_dead_letters)))
    app.add_typer(group, name="dead-letters")


def list_dead_letters(
    settings: Settings,
    stream: StreamArgument,
    subject: Annotated[
        str,
        typer.Option(
            "--subject", help="Only dead letters on this subject, wildcards allowed.", callback=arguments.pattern
        ),
    ] = ">",
    reason: ReasonOption = None,
    error: ErrorOption = None,
    filter: FilterOption = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Maximum number of dead letters to list.")] = None,
    as_json: JsonOption = False,
) -> None:
    """
    List dead letters.

    Prints for each dead letter its sequence, its reason and error, and the subject, stream, sequence and number of
    deliveries of the original message; in a pipe, or on a terminal of at least 140 columns, also the id, type, source
    and time of the event, as far as they can be read.
    """
    selected = _Selected(reason, error, read_filter(filter))
    is_wide = console().width >= _WIDE
    rows = table("sequence", "reason", "error", *(_ATTRIBUTES if is_wide else ()), "subject", "from", "deliveries")

    async def read() -> None:
        remaining = limit
        async with (
            open_jetstream(settings) as (_, js),
            aclosing(_read(js, stream, subject, selected)) as dead_letters,
        ):
            async for stored in dead_letters:
                if as_json:
                    write(as_line(_fields(stored)))
                else:
                    rows.add_row(*_cells(stored, is_wide=is_wide))
                remaining = None if remaining is None else remaining - 1
                if remaining == 0:
                    return

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

    Prints the reason and the error of the dead letter, and for the original message the same as explain. With --json,
    the object has the headers and data of the original, and is valid input of decode, explain and replay. An original
    that did not fit into the dead letter is read from the stream of the original.
    """
    status = 0

    async def read() -> None:
        nonlocal status
        async with open_jetstream(settings) as (_, js):
            stored = await read_one(js, stream, sequence)
            dead_letter, headers = DeadLetter.split(stored.headers)
            original = stored._replace(headers=headers) if dead_letter.is_copied else None
            if dead_letter.is_reference:
                try:
                    original = await Originals(js, None, StreamApi.of(js, timeout=settings.timeout)).fetch(dead_letter)
                except CeNatsError as error:
                    status = print_error(error, f"dead letter {sequence}")
        if as_json:
            write(as_line({**_fields(stored), **(as_fields(original.headers, original.data) if original else {})}))
        else:
            _print(stored, dead_letter, original)

    run(read())
    raise typer.Exit(status)


def requeue_dead_letters(
    settings: Settings,
    stream: StreamArgument,
    sequences: SequencesArgument = None,
    all_of_them: Annotated[bool, typer.Option("--all", help="Requeue all dead letters of the stream.")] = False,
    reason: ReasonOption = None,
    error: ErrorOption = None,
    filter: FilterOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="Do not delete the dead letters.")] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="SUBJECT",
            help="Publish to this subject, wildcards allowed, even if the named stream does not listen on it; may be "
            "repeated.",
            callback=arguments.pattern,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """
    Publish original messages again.

    Each original is published to its subject, if the stream named in the dead letter listens on that subject. The dead
    letter is deleted when the original is stored. Headers that instruct the server are omitted, and the Nats-Msg-Id is
    a new one. A dead letter that cannot be requeued is kept, and reported on standard error.

    If the command is interrupted, it also prints how many dead letters were requeued, and how many originals were sent
    without a result.
    """
    selection = _Selection(stream, sequences or [], reason, error, is_all=all_of_them, filter=filter)
    statuses: list[int] = []
    read = requeued = finished = 0

    def count_read(number: int) -> None:
        nonlocal read
        read = number

    async def send() -> None:
        nonlocal requeued, finished
        async with open_jetstream(settings) as (_, js):
            total = await selection.count(js)
            dead_letters = with_progress(selection.read(js, statuses), count_read)
            results = requeue_all(js, dead_letters, delete=not keep, allowed=allow or None, timeout=settings.timeout)
            # A terminal already shows progress through the printed lines.
            with nullcontext(_no_progress) if sys.stdout.isatty() else progress("requeue", total) as advance:
                async with aclosing(dead_letters), aclosing(results):
                    async for result in results:
                        if result.error is not None:
                            statuses.append(print_error(result.error, f"dead letter {result.sequence}"))
                        finished += 1
                        if result.ack is not None:
                            requeued += 1
                            _print_result(result, result.ack, as_json=as_json)
                        advance(finished)

    try:
        run(send())
    except StoppedError:
        # Originals may be stored although the results are unknown: requeue_all() has many of them in flight.
        counts = {"requeued": requeued, "unconfirmed": read - finished}
        text = f"{counted(requeued, 'dead letter')} requeued; {read - finished} sent without a result"
        print_summary(counts, text, as_json=as_json, to_stderr=True)
        raise
    raise typer.Exit(max(statuses, default=0))


def discard_dead_letters(
    settings: Settings,
    stream: StreamArgument,
    sequences: SequencesArgument = None,
    all_of_them: Annotated[bool, typer.Option("--all", help="Discard all dead letters of the stream.")] = False,
    reason: ReasonOption = None,
    error: ErrorOption = None,
    filter: FilterOption = None,
    as_json: JsonOption = False,
) -> None:
    """
    Delete dead letters without publishing their originals.

    Only dead letters are deleted. Other messages in the stream are kept, and reported on standard error.
    """
    selection = _Selection(stream, sequences or [], reason, error, is_all=all_of_them, filter=filter)
    statuses: list[int] = []

    async def discard() -> None:
        discarded = 0
        async with open_jetstream(settings) as (_, js):
            api = StreamApi.of(js)
            try:
                with progress("discard", await selection.count(js)) as advance:
                    async with aclosing(with_progress(selection.read(js, statuses), advance)) as dead_letters:
                        async for stored in dead_letters:
                            try:
                                DeadLetter.split(stored.headers)
                                await api.delete_message(stream, stored.sequence)
                                discarded += 1
                            except CeNatsError as failure:
                                statuses.append(print_error(failure, f"dead letter {stored.sequence}"))
            finally:
                print_summary(
                    {"discarded": discarded}, f"{counted(discarded, 'dead letter')} discarded", as_json=as_json
                )

    run(discard())
    raise typer.Exit(max(statuses, default=0))


class _Selection:
    """
    The dead letters that are selected on the command line.

    Raises:
        InputError: Nothing is selected, or several kinds of selections are combined.
    """

    def __init__(
        self,
        stream: str,
        sequences: list[int],
        reason: Reason | None,
        error: str | None,
        *,
        is_all: bool,
        filter: str | None,
    ) -> None:
        options = {"--reason": reason, "--error": error, "--filter": filter}
        filters = [option for option, value in options.items() if value is not None]
        given = [*(["sequences"] if sequences else []), *(["--all"] if is_all else []), *filters]
        if not given:
            raise InputError("dead letters must be selected: by sequences, --reason, --error, --filter, or with --all")
        if len(given) > max(1, len(filters)):
            text = "sequences, --all, and --reason with --error or --filter exclude each other, got "
            raise InputError(f"{text}{' and '.join(given)}")
        self._stream = stream
        self._sequences = sequences
        self._selected = _Selected(reason, error, read_filter(filter))
        self._is_all = is_all

    async def count(self, js: JetStreamContext) -> int | None:
        """Return the number of selected dead letters, or None if it is unknown."""
        if self._is_all:
            return (await StreamApi.of(js).state(self._stream)).messages
        return len(self._sequences) or None

    def read(self, js: JetStreamContext, statuses: list[int]) -> AsyncGenerator[StoredMessage, None]:
        """Read the selected dead letters. Errors of single sequences are printed, and their exit statuses appended."""
        if self._sequences:
            return _read_sequences(js, self._stream, self._sequences, statuses)
        return _read(js, self._stream, ">", self._selected, batch_size=_BATCH)


def _no_progress(_: int) -> None: ...


def _print_result(result: RequeueResult, ack: PubAck, *, as_json: bool) -> None:
    if as_json:
        stored = {"stream": ack.stream, "sequence": ack.seq or None}
        write(as_line({"sequence": result.sequence, "stored": stored, "deleted": result.is_deleted}))
    else:
        # A stream with fast ingest does not report the sequences of several messages.
        message = f"message {ack.seq}" if ack.seq else "a message"
        write(f"dead letter {result.sequence} is now {message} of stream {ack.stream}\n".encode())


async def _read(
    js: JetStreamContext, stream: str, subject: str, selected: _Selected, *, batch_size: int = 1000
) -> AsyncGenerator[StoredMessage, None]:
    async with aclosing(read_stream(js, stream, subject=subject, batch_size=batch_size)) as batches:
        async for batch in batches:
            for stored in batch:
                if selected.includes(stored):
                    yield stored


class _Selected(NamedTuple):
    """Dead letters with a reason, an error, and an event that passes; None includes any."""

    reason: Reason | None
    error: str | None
    expression: Expression | None

    def includes(self, stored: StoredMessage) -> bool:
        """Return whether a message is such a dead letter."""
        if self == (None, None, None):
            return True
        try:
            letter, headers = DeadLetter.split(stored.headers)
        except DecodeError:
            return False
        return any(
            self.reason in (None, one.reason) and self.error in (None, one.error) for one in (letter, *letter.later)
        ) and (self.expression is None or selects(self.expression, identity_and_event(headers, stored.data)[1]))


async def _read_sequences(
    js: JetStreamContext, stream: str, sequences: list[int], statuses: list[int]
) -> AsyncGenerator[StoredMessage, None]:
    for sequence in sequences:
        try:
            yield await read_one(js, stream, sequence)
        except CeNatsError as error:
            statuses.append(print_error(error, f"dead letter {sequence}"))


def _fields(stored: StoredMessage) -> dict[str, Any]:
    """Return a dead letter as JSON values, without headers and data of the original."""
    fields: dict[str, Any] = {"sequence": stored.sequence, "timestamp": str(stored.timestamp)}
    try:
        dead_letter, headers = DeadLetter.split(stored.headers)
    except DecodeError as error:
        return {**fields, "error": error_fields(error)}
    fields["dead_letter"] = {
        **_described(dead_letter),
        "is_complete": dead_letter.is_complete,
        "is_copied": dead_letter.is_copied,
        "time": dead_letter.time or None,
        "later": [{**_described(one), "subject": one.subject} for one in dead_letter.later],
    }
    return {**fields, "subject": dead_letter.subject, "event": identity_of(headers, stored.data).fields()}


def _described(dead_letter: DeadLetter) -> dict[str, Any]:
    return {
        "reason": str(dead_letter.reason),
        "error": dead_letter.error,
        "text": dead_letter.text,
        "stream": dead_letter.stream,
        "consumer": dead_letter.consumer,
        "sequence": dead_letter.sequence,
        "deliveries": dead_letter.deliveries,
    }


def _cells(stored: StoredMessage, *, is_wide: bool) -> list[str]:
    try:
        dead_letter, headers = DeadLetter.split(stored.headers)
        why = str(dead_letter.reason), dead_letter.error
        origin = dead_letter.subject, f"{dead_letter.stream}:{dead_letter.sequence}", str(dead_letter.deliveries)
    except DecodeError as error:
        headers, why, origin = [], ("", str(error.code)), (stored.subject, "", "")
    event = identity_of(headers, stored.data).fields() if is_wide else {}
    return [str(stored.sequence), *why, *(event[name] or "" for name in _ATTRIBUTES if is_wide), *origin]


def _print(stored: StoredMessage, dead_letter: DeadLetter, original: StoredMessage | None) -> None:
    output = console()
    output.print(f"dead letter {stored.sequence} of {stored.stream}, {stored.timestamp}", soft_wrap=True)
    for one in (dead_letter, *dead_letter.later):
        by = one.consumer or "an unnamed consumer"
        output.print(f"{one.reason} by {by}, deliveries: {one.deliveries}", soft_wrap=True)
        if one.error or one.text:
            output.print(f"{one.error}: {one.text}", soft_wrap=True)
        output.print(f"message {one.sequence} of {one.stream} on {one.subject}{_note(one)}", soft_wrap=True)
    if original is not None:
        print_explanation(
            explanation(NatsMessage(dead_letter.subject, original.data, Headers(original.headers)), Dialect.SPEC)
        )


def _note(dead_letter: DeadLetter) -> str:
    if dead_letter.is_reference:
        return " (not copied, because it did not fit; read from that stream)"
    if not dead_letter.is_copied:
        return " (not copied, because it did not fit, and deleted from that stream)"
    return "" if dead_letter.is_complete else " (incomplete: it was already deleted from the stream)"
