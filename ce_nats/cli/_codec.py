"""The commands ``encode`` and ``decode``: events to NATS messages and back, without a connection."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from ..capture._message_json import as_fields, as_line, as_message, read_object
from ..codec.binary import Dialect
from ..codec.binding import from_nats_message, to_nats_message
from ..codec.event import DecodedEvent
from ..codec.mode import ContentMode
from ..codec.subject_template import subject_of_text
from ..errors import CeNatsError, DecodeError
from ..message import Headers, NatsMessage, StoredMessage
from ..wire.nats import decode_header_block, encode_header_block
from . import _arguments as arguments
from ._arguments import InputError, usage_errors
from ._exploding import decode_capture, read_extensions
from ._files import documents, is_capture, read_all, read_messages, write
from ._program import complain, guarded

_VERSION_LINE: Final = b"NATS/1.0\r\n"
_END_OF_BLOCK: Final = b"\r\n\r\n"
_SAMPLE: Final = b'{"specversion":"1.0","id":"1","source":"/","type":"t","datacontenttype":"text/plain","data":""}'
_WITH_EVENT: Final = "this looks like output of sub --json, whose member event is the event (jq -c .event)"


class EventFormat(str, Enum):
    """Event formats of structured mode."""

    JSON = "json"
    PROTOBUF = "protobuf"


ModeOption = Annotated[ContentMode, typer.Option("--mode", "-m", help="Content mode of the messages.")]
FormatOption = Annotated[
    EventFormat | None, typer.Option("--format", help="Event format of structured mode; json by default.")
]
DialectOption = Annotated[
    Dialect, typer.Option("--dialect", help="How senders encode binary mode: as specified, or as sdk-go.")
]
HeaderOption = Annotated[
    list[str] | None, typer.Option("--header", "-H", metavar="NAME:VALUE", help="Message header; may be repeated.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
EventArgument = Annotated[
    str | None,
    typer.Argument(metavar="EVENT", help="Event in JSON, or a file of events; by default those on standard input."),
]
MessageArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MESSAGE", help="Message, or a file or capture of messages; by default those on standard input."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(guarded(encode))
    app.command()(guarded(decode))


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
            status = complain(error, where)
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
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE.parquet", help="Write the events of the capture MESSAGE to this file."
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
    it is only the payload. Messages that are not events are reported on standard error, and the next one is read; the
    exit status is then 1.

    With --output, MESSAGE is the path of a Parquet capture. The columns of each event are added to its row: ce_id,
    ce_type and so on. A message that is not an event has an error code in ce_error, and the exit status is 1. The type
    of an extension is string, int, boolean, binary or timestamp.
    """
    if output is not None:
        if message is None or header or dialect is not Dialect.SPEC:
            raise InputError("--output must be used with the path of a capture, without --header and --dialect")
        decode_capture(message, output, read_extensions(extension), as_json=as_json)
        return
    if extension:
        raise InputError("--extension must be used with --output")
    status = 0
    for where, given in messages(message, header):
        try:
            write(event_line(from_nats_message(given(), dialect=dialect)))
        except CeNatsError as error:
            status = complain(error, where)
    raise typer.Exit(status)


def messages(argument: str | None, header: list[str] | None) -> Iterator[tuple[str, Callable[[], NatsMessage]]]:
    """
    For each message, its position in the input and a function that returns it or raises DecodeError.

    Args:
        argument: The argument of the command line, or None for standard input.
        header: Headers of the command line, as ``NAME:VALUE``; with any, the input is one payload.

    Raises:
        CeNatsError, ImportError: The input is a capture that cannot be read.
        InputError, OSError: As :func:`documents` does.
    """
    if header:
        headers = Headers(read_headers(header))
        payload = read_all(argument)
        yield "", lambda: NatsMessage("", payload, headers)
        return
    if argument is not None and is_capture(argument):
        for number, stored in enumerate(read_messages(argument), 1):
            yield f"message {number}", partial(_as_message, stored)
        return
    for where, text in documents(argument, whole=_VERSION_LINE):
        yield where, partial(_read_message, text)


def _as_message(stored: StoredMessage) -> NatsMessage:
    return NatsMessage(stored.subject, stored.data, Headers(stored.headers), stored.reply)


def _read_message(text: bytes) -> NatsMessage:
    if not text.startswith(_VERSION_LINE):
        try:
            return as_message(read_object(text))
        except DecodeError as error:
            raise _hinted(error, _not_a_message(text)) from error
    block, end, data = text.partition(_END_OF_BLOCK)
    return NatsMessage("", data, decode_header_block(block + end).headers)


def read_event(text: bytes) -> DecodedEvent:
    """
    The event in a JSON document, or in a line of ``sub --json``.

    Raises:
        DecodeError: The document is not an event. The text says what it may be instead, if that is known.
    """
    try:
        return from_nats_message(NatsMessage(data=text), mode=ContentMode.STRUCTURED)
    except DecodeError as error:
        if (event := _event_of_sub(text)) is not None:
            return from_nats_message(NatsMessage(data=event), mode=ContentMode.STRUCTURED)
        raise _hinted(error, _not_an_event(text)) from error


class _LineOfSub(msgspec.Struct, forbid_unknown_fields=True):
    subject: str
    event: msgspec.Raw


def _event_of_sub(text: bytes) -> bytes | None:
    try:
        return bytes(msgspec.json.decode(text, type=_LineOfSub).event)
    except (ValueError, RecursionError):
        return None


def _hinted(error: DecodeError, hint: str) -> DecodeError:
    if not hint:
        return error
    return DecodeError(
        error.code,
        f"{error.message}; {hint}",
        attribute=error.attribute,
        header=error.header,
        requirement=error.requirement,
    )


def _not_a_message(text: bytes) -> str:
    """What was given instead of a message, and what to do; ``""`` if that is not known."""
    fields = _loaded(text)
    if isinstance(fields, dict) and "headers" not in fields:
        if "event" in fields:
            return _WITH_EVENT
        if "specversion" in fields:
            return (
                'this looks like an event, but it must be a message: {"headers":[[NAME,VALUE],...],"data":TEXT}; '
                "encode --json encodes an event as a message"
            )
    return _neither(text, fields)


def _not_an_event(text: bytes) -> str:
    """What was given instead of an event, and what to do; ``""`` if that is not known."""
    fields = _loaded(text)
    if isinstance(fields, dict) and "specversion" not in fields and isinstance(fields.get("headers"), list):
        return "this looks like a message, but it must be an event; decode prints the event of a message"
    return _neither(text, fields)


def _neither(text: bytes, fields: Any) -> str:
    if isinstance(fields, list):
        return "this looks like an array; give one element per line (jq -c '.[]')"
    if fields is None and _is_file(text):
        return "this is the name of a file; give its content on standard input (< FILE)"
    return ""


def _loaded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_file(text: bytes) -> bool:
    try:
        return Path(os.fsdecode(text)).is_file()
    except (OSError, ValueError):  # too long for a name; a NUL
        return False


def event_line(event: DecodedEvent) -> bytes:
    """An event as a line of JSON, in structured mode."""
    return to_nats_message(event, mode=ContentMode.STRUCTURED).data + b"\n"


def check_format(given: EventFormat | None, mode: ContentMode) -> str | None:
    """
    The event format from the command line.

    Raises:
        InputError: The mode is binary.
    """
    if given is not None and mode is ContentMode.BINARY:
        raise InputError("--format must be used with --mode structured")
    return None if given is None else given.value


def read_headers(given: list[str] | None) -> list[tuple[str, str]]:
    """
    Headers from the command line.

    Raises:
        InputError: One has no colon.
    """
    pairs = []
    for text in given or ():
        name, colon, value = text.partition(":")
        if not colon:
            raise InputError(f"--header must be NAME:VALUE, got {text!r}")
        pairs.append((name.strip(), value.strip()))
    return pairs


def check_headers(headers: list[tuple[str, str]], mode: ContentMode, event_format: str | None) -> list[tuple[str, str]]:
    """
    Check further headers of messages with a sample event.

    Returns:
        The same headers.

    Raises:
        InputError: One is not valid, or is a header of events.
    """
    with usage_errors():
        to_nats_message(read_event(_SAMPLE), mode=mode, format=event_format, headers=headers)
    return headers
