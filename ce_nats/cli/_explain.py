"""The command ``explain``: content mode of a message, the reason for it, and errors with their positions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import aclosing
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer
from nats.js import JetStreamContext

from ..aio.jetstream import read_stream
from ..capture._message_json import as_line
from ..cesql import Expression
from ..codec.attributes import canonical, check_characters
from ..codec.binary import Dialect, decode_header
from ..codec.binding import from_nats_message
from ..codec.mode import CONTENT_TYPE, PREFIX, ContentMode, inspect
from ..errors import CeNatsError, DecodeError, DeliveryError, ErrorCode, preview
from ..message import Headers, NatsMessage, StoredMessage, folded
from . import _arguments as arguments
from ._arguments import InputError
from ._connection import Settings, open_jetstream, with_connection
from ._files import write
from ._filters import FilterOption, evaluation, lines_of, read_filter
from ._identity import identity_of
from ._input import event_line, messages
from ._options import DialectOption, HeaderOption, JsonOption, MessageArgument
from ._program import BAD_INPUT, print_error, run, with_exit_status
from ._progress import counted
from ._terminal import console, table

_ESCAPE_OR_CHARACTER: Final = re.compile("%[0-9A-Fa-f]{2}|.", re.DOTALL)
_MALFORMED_ESCAPE: Final = re.compile("%(?![0-9A-Fa-f]{2})")
_BYTE: Final = re.compile(r"\(byte ([0-9]+)\)")
# In characters: maximum length of a value that is shown in full; maximum length that error texts quote; length that is
# shown before and after the position of an error.
_MAX_CHARACTERS: Final = 400
_QUOTED_CHARACTERS: Final = 60
_CONTEXT_CHARACTERS: Final = 30
_NO_DATACONTENTTYPE: Final = (
    "header {name} does not set datacontenttype in binary mode, so the data is bytes; the sender must write "
    "ce-datacontenttype. --dialect sdk-go reads content-type, and does not percent-decode"
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_exit_status(with_connection(explain, is_optional=True)))


def explain(
    settings: Callable[[], Settings],
    message: MessageArgument = None,
    header: HeaderOption = None,
    dialect: DialectOption = Dialect.SPEC,
    stream: Annotated[
        str | None,
        typer.Option(
            "--stream", help="Read the message from this stream, with --sequence or --id.", callback=arguments.name
        ),
    ] = None,
    sequence: Annotated[
        int | None, typer.Option("--sequence", min=1, help="Sequence of the message in the stream.")
    ] = None,
    identifier: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Id of the event; all messages in the stream with it.")
    ] = None,
    filter: FilterOption = None,
    as_json: JsonOption = False,
) -> None:
    """
    Explain how NATS messages are decoded.

    Prints the content mode and the reason for it, each header as sent and as decoded, and the event, or the error and
    its position if the message is not an event. With --filter, it also prints whether the event passes, and the value
    and the errors of each part of the expression. Input is the same as for decode, or a message of a stream. The exit
    status is 1 if a message is not an event.
    """
    show = partial(_show, dialect=dialect, expression=read_filter(filter), as_json=as_json)
    if stream is not None or sequence is not None or identifier is not None:
        if stream is None or (sequence is None) == (identifier is None) or message is not None or header:
            raise InputError("--stream must be given with --sequence or --id, without a message and --header")
        raise typer.Exit(_explain_stored(settings(), stream, sequence, identifier, show))
    status = 0
    for where, given in messages(message, header):
        try:
            status = max(status, show(given()))
        except CeNatsError as error:
            status = print_error(error, where())
    raise typer.Exit(status)


def _explain_stored(
    settings: Settings, stream: str, sequence: int | None, identifier: str | None, show: Callable[..., int]
) -> int:
    status = 0

    async def read() -> None:
        nonlocal status
        async with open_jetstream(settings) as (_, js):
            if sequence is not None:
                status = _explain_one(await read_one(js, stream, sequence), show)
                return
            is_found = False
            async with aclosing(read_stream(js, stream)) as batches:
                async for batch in batches:
                    for message in batch:
                        if identity_of(message.headers, message.data).id == identifier:
                            is_found = True
                            status = max(status, _explain_one(message, show))
            if not is_found:
                text = f"stream {stream} has no event with the id {preview(identifier)}"
                raise DeliveryError(ErrorCode.MESSAGE_NOT_FOUND, text)

    run(read())
    return status


def _explain_one(stored: StoredMessage, show: Callable[..., int]) -> int:
    """Print the explanation of a stored message; return the exit status for it."""
    message = NatsMessage(stored.subject, stored.data, Headers(stored.headers))
    origin = {"stream": stored.stream, "sequence": stored.sequence, "subject": stored.subject}
    return show(message, {**origin, "timestamp": str(stored.timestamp)})


def _show(
    message: NatsMessage,
    origin: Mapping[str, Any] = MappingProxyType({}),
    *,
    dialect: Dialect,
    expression: Expression | None,
    as_json: bool,
) -> int:
    """Print the explanation of a message; return the exit status for it."""
    found = explanation(message, dialect)
    if expression is not None and found["error"] is None:
        found["filter"] = evaluation(expression, found["event"])
    if as_json:
        write(as_line({**origin, **found}))
    else:
        if origin:
            text = "message {sequence} of {stream} on {subject}, {timestamp}".format_map(origin)
            console().print(text, soft_wrap=True)
        print_explanation(found)
        for line in lines_of(found["filter"]) if "filter" in found else ():
            console().print(line, soft_wrap=True)
    return 0 if found["error"] is None else BAD_INPUT


async def read_one(js: JetStreamContext, stream: str, sequence: int) -> StoredMessage:
    """
    Read a message of a stream.

    Raises:
        DeliveryError: ``message-not-found``, and as for ``read_stream``.
    """
    async with aclosing(read_stream(js, stream, start=sequence, end=sequence)) as batches:
        async for batch in batches:
            return batch[0]
    raise DeliveryError(ErrorCode.MESSAGE_NOT_FOUND, f"stream {stream} has no message {sequence}")


def explanation(message: NatsMessage, dialect: Dialect) -> dict[str, Any]:
    """
    Explain how a message is decoded.

    Returns JSON values: ``mode`` and ``reason`` (None if the mode cannot be determined), ``headers`` with ``name``,
    ``raw``, ``attribute``, ``value`` and ``error`` of each, ``event``, ``data_bytes``, ``error``, ``hint`` (why
    it probably has another meaning for its sender, or None), and ``payload`` if it is the cause of the error: its text,
    or the part of a long one around the error. If the position of an error is known, the error has ``position``, the
    number of characters of the header value or of bytes of the payload before it, and ``around``, the text around it.
    """
    found: dict[str, Any] = {"mode": None, "reason": None, "headers": [], "event": None, "error": None, "hint": None}
    found |= {"data_bytes": len(message.data), "payload": None}
    try:
        inspection = inspect(message)
        found["mode"], found["reason"] = str(inspection.mode), inspection.reason
        event = from_nats_message(message, dialect=dialect)
        found["event"] = json.loads(event_line(event))
        if event.data_error is not None:
            found["hint"] = f"the datacontenttype does not explain the data: {event.data_error}"
    except CeNatsError as error:
        found["error"] = {**error_fields(error), **_error_position(error, message)}
        found["hint"] = _hint_of_dialect(message, dialect)
        if found["mode"] != ContentMode.BINARY:
            text = message.data.decode("utf-8", "backslashreplace")
            found["payload"] = _excerpt(text, found["error"].get("position"))
    is_binary = found["mode"] == ContentMode.BINARY
    for name, raw in message.headers.items():
        found["headers"].append(_header(name, raw, dialect, is_binary=is_binary))
        if (
            is_binary
            and found["event"]
            and "datacontenttype" not in found["event"]
            and folded(name) == CONTENT_TYPE.lower()
        ):
            found["hint"] = _NO_DATACONTENTTYPE.format(name=preview(name))
    return found


def _hint_of_dialect(message: NatsMessage, dialect: Dialect) -> str | None:
    """Return which other dialect a message that is not an event seems to have, or None."""
    other = Dialect.SDK_GO if dialect is Dialect.SPEC else Dialect.SPEC
    try:
        from_nats_message(message, dialect=other)
    except CeNatsError:
        return None
    return f"with --dialect {other} it is an event"


def error_fields(error: CeNatsError) -> dict[str, Any]:
    """Return an error as JSON values."""
    return {
        "code": str(error.code),
        "message": error.message,
        "attribute": error.attribute,
        "header": error.header,
        "requirement": error.requirement,
    }


def _header(name: str, raw: str, dialect: Dialect, *, is_binary: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "raw": raw, "attribute": None, "value": None, "error": None}
    if is_binary and folded(name).startswith(PREFIX):
        found["attribute"] = folded(name)[len(PREFIX) :]
        try:
            value = decode_header(found["attribute"], name, raw, is_raw=dialect is Dialect.SDK_GO)
            found["value"] = canonical(value, found["attribute"])
        except DecodeError as error:
            found["error"] = {**error_fields(error), **_position_in_value(error, raw)}
    return found


def _error_position(error: CeNatsError, message: NatsMessage) -> dict[str, Any]:
    """Return the position of an error in a message; empty if it is unknown."""
    if error.header is not None:
        values = message.headers.values(error.header)
        return _position_in_value(error, values[0]) if len(values) == 1 else {}
    position = None
    if byte := _BYTE.search(error.message):
        position = int(byte.group(1))
    elif error.code is ErrorCode.INVALID_UTF8:
        position = _first_malformed(message.data)
    elif error.attribute is not None:
        members = list(re.finditer(rb'"%s"[ \t\r\n]*:' % re.escape(error.attribute.encode()), message.data))
        position = members[0].start() if len(members) == 1 else None
    if position is None:
        return {}
    around = message.data[max(0, position - _CONTEXT_CHARACTERS) : position + _CONTEXT_CHARACTERS]
    return {"position": position, "around": around.decode("utf-8", "backslashreplace")}


def _position_in_value(error: CeNatsError, raw: str) -> dict[str, Any]:
    position = None
    if '"' in raw:  # positions in the unquoted text differ from positions in the raw value
        pass
    elif error.code is ErrorCode.INVALID_PERCENT_ESCAPE:
        malformed = _MALFORMED_ESCAPE.search(raw)
        position = malformed.start() if malformed else None
    elif error.code in (ErrorCode.INVALID_UTF8, ErrorCode.INVALID_CHARACTER):
        tokens = _ESCAPE_OR_CHARACTER.findall(raw)
        octets = [bytes.fromhex(token[1:]) if len(token) > 1 else _utf8(token) for token in tokens]
        decoded = b"".join(octets)
        position_of_error = (
            _first_malformed(decoded) if error.code is ErrorCode.INVALID_UTF8 else _first_forbidden(decoded)
        )
        if position_of_error is not None:
            ends = accumulate(map(len, octets))
            position = sum(len(token) for token, end in zip(tokens, ends, strict=True) if end <= position_of_error)
    if position is None:
        return {}
    return {
        "position": position,
        "around": raw[max(0, position - _CONTEXT_CHARACTERS) : position + _CONTEXT_CHARACTERS],
    }


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _first_malformed(octets: bytes) -> int | None:
    """Return the number of bytes before the first invalid UTF-8 sequence; None if all are valid."""
    try:
        octets.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    return None


def _first_forbidden(octets: bytes) -> int | None:
    """Return the number of bytes before the first character that attributes must not contain; None without one."""
    text = octets.decode("utf-8", "replace")
    for number, char in enumerate(text):
        try:
            check_characters("", char, DecodeError)
        except DecodeError:
            return len(text[:number].encode())
    return None


def print_explanation(found: dict[str, Any]) -> None:
    """Print an explanation as text."""
    output = console()
    if found["mode"] is not None:
        output.print(f"{found['mode']}: {found['reason']}", soft_wrap=True)
    if found["headers"]:
        headers = table("header", "as sent", "as decoded")
        for header in found["headers"]:
            error = header["error"]
            position = error.get("position") if error else None
            decoded = f"{error['code']}: {error['message']}" if error else header["value"] or ""
            if position is not None and len(header["raw"]) > _QUOTED_CHARACTERS:
                decoded += f", after {position} characters: {error['around']}"
            headers.add_row(header["name"], _excerpt(header["raw"], position), _excerpt(decoded, None))
        output.print(headers)
    text = f": {found['payload']}" if found["payload"] else ""
    output.print(f"payload: {counted(found['data_bytes'], 'byte')}{text}", soft_wrap=True)
    if found["error"] is None:
        output.print(json.dumps(found["event"], ensure_ascii=False), soft_wrap=True)
    else:
        _print_error(found["error"])
    if found["hint"]:
        output.print(f"hint: {found['hint']}", soft_wrap=True)


def _print_error(error: dict[str, Any]) -> None:
    """Print the error of a message that is not an event."""
    output = console()
    at = [f"{field} {error[field]}" for field in ("header", "attribute", "requirement") if error[field]]
    output.print(f"{error['code']}: {error['message']}", soft_wrap=True)
    if at:
        output.print(f"  at {', '.join(at)}", soft_wrap=True)
    if "position" in error and error["around"] not in error["message"]:
        unit = "character of the value" if error["header"] else "byte of the payload"
        noun, _, rest = unit.partition(" ")
        output.print(f"  after {counted(error['position'], noun)} {rest}: {error['around']}", soft_wrap=True)


def _excerpt(text: str, position: int | None) -> str:
    """Return a value to print; if it is long, only the part around a position."""
    if len(text) <= _MAX_CHARACTERS:
        return text
    start = max(0, min((position or 0) - _MAX_CHARACTERS // 2, len(text) - _MAX_CHARACTERS))
    end = start + _MAX_CHARACTERS
    before = f"[{start} characters] " if start else ""
    after = f" [{len(text) - end} characters]" if end < len(text) else ""
    return f"{before}{text[start:end]}{after}"
