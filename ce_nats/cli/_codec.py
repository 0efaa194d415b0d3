"""The commands ``encode`` and ``decode``: events to NATS messages and back, without a connection."""

from __future__ import annotations

from typing import Annotated

import typer

from ..capture._message_json import as_fields, as_line
from ..codec.binary import Dialect
from ..codec.binding import from_nats_message, to_nats_message
from ..codec.mode import ContentMode
from ..codec.subject_template import subject_of_text
from ..errors import CeNatsError
from ..wire.nats import encode_header_block
from . import _arguments as arguments
from ._arguments import InputError
from ._files import documents, write
from ._filters import FilterOption, read_filter
from ._input import event_line, messages, read_event, read_headers
from ._options import (
    DialectOption,
    EventArgument,
    FormatOption,
    HeaderOption,
    JsonOption,
    MessageArgument,
    ModeOption,
    check_format,
    check_headers,
)
from ._parquet_output import decode_capture, read_extensions
from ._program import print_error, with_exit_status
from ._schemas import SchemaOption, read_schemas


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(with_exit_status(encode))
    app.command()(with_exit_status(decode))


def encode(
    event: EventArgument = None,
    mode: ModeOption = ContentMode.BINARY,
    format: FormatOption = None,  # noqa: A002
    header: HeaderOption = None,
    subject: Annotated[
        str,
        typer.Option(
            "--subject",
            help="With --json, the subject of the messages, or a template such as orders.{type}.",
            callback=arguments.template_if_given,
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """
    Encode events in JSON as NATS messages.

    Prints each message as its raw header block and payload; with --json, as a JSON object with subject, headers and
    data, which decode, explain and replay read. Invalid events are reported on standard error, and the next one is
    read; the exit status is then 1.
    """
    event_format = check_format(format, mode)
    headers = check_headers(read_headers(header), mode, event_format)
    target = subject_of_text(subject)
    status = 0
    for where, text in documents(event):
        try:
            message = to_nats_message(read_event(text), target, mode=mode, format=event_format, headers=headers)
        except CeNatsError as error:
            status = print_error(error, where)
            continue
        if as_json:
            write(as_line(as_fields(message.headers.items(), message.data, message.subject)))
        else:
            write(encode_header_block(message.headers) + message.data + b"\n")
    raise typer.Exit(status)


def decode(
    message: MessageArgument = None,
    header: HeaderOption = None,
    dialect: DialectOption = Dialect.SPEC,
    schema: SchemaOption = None,
    filter: FilterOption = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="OUT.parquet", help="Write the events of the capture MESSAGE to Parquet."
        ),
    ] = None,
    extension: Annotated[
        list[str] | None,
        typer.Option("--extension", metavar="NAME:TYPE", help="With -o, an extension that gets its own column."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """
    Decode NATS messages to events in JSON.

    Prints each event as a line of JSON. A message is a JSON object with headers and data, as encode --json and capture
    print it, or a raw header block followed by the payload; MESSAGE may be a file of them, or a capture. With --header,
    it is only the payload. Messages that are not events, or whose data does not match a --schema, are reported on
    standard error, and the next one is read; the exit status is then 1.

    With --output, MESSAGE is the path of a Parquet capture. The columns of each event are added to its row: ce_id,
    ce_type and so on. A message that is not an event has an error code in ce_error, and the exit status is 1. The type
    of an extension is string, int, boolean, binary or timestamp. The output of a directory is a directory, and
    continues after the last part that was decoded into it.
    """
    if output is not None:
        if message is None or header or schema or filter or dialect is not Dialect.SPEC:
            without = "--header, --schema, --filter and --dialect"
            text = f"--output must be used with the path of a capture, without {without}"
            raise InputError(text)
        decode_capture(message, output, read_extensions(extension), as_json=as_json)
        return
    if extension:
        raise InputError("--extension must be used with --output")
    schemas, expression = read_schemas(schema), read_filter(filter)
    status = 0
    for where, given in messages(message, header):
        try:
            event = from_nats_message(given(), dialect=dialect)
            if expression is not None and not expression.matches(event):
                continue
            if schemas is not None:
                schemas.check(event)
            write(event_line(event))
        except CeNatsError as error:
            status = print_error(error, where())
    raise typer.Exit(status)
