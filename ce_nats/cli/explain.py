"""The command ``explain``: what a message is taken for, why, and what is wrong with it."""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import Any, Final

import typer
from rich.text import Text

from ..capture.message_json import as_line
from ..codec.attributes import canonical, check_characters
from ..codec.binary import Dialect, decode_header
from ..codec.binding import from_nats_message
from ..codec.mode import PREFIX, ContentMode, inspect
from ..errors import CeNatsError, DecodeError, ErrorCode, visible
from ..message import NatsMessage, folded
from .codec import DialectOption, HeaderOption, JsonOption, MessageArgument, event_line, messages
from .files import console, table, write
from .program import BAD_INPUT, complain, guarded
from .progress import counted

__all__ = ["error_fields", "explanation", "register", "show"]

_ESCAPE_OR_CHARACTER: Final = re.compile("%[0-9A-Fa-f]{2}|.", re.DOTALL)
_MALFORMED_ESCAPE: Final = re.compile("%(?![0-9A-Fa-f]{2})")
_BYTE: Final = re.compile(r"\(byte ([0-9]+)\)")
# Longer values are shown in part; what messages of errors quote of a value; what is quoted around an error.
_LONG: Final = 400
_QUOTED: Final = 60
_AROUND: Final = 30


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(guarded(explain))


def explain(
    message: MessageArgument = None,
    header: HeaderOption = None,
    dialect: DialectOption = Dialect.SPEC,
    as_json: JsonOption = False,
) -> None:
    """
    Say what NATS messages are taken for, and why.

    Mode and reason, each header as it was sent and as it is read, and what is wrong and where. Messages are given as to
    decode. The exit status is 1 where one of them is not an event.
    """
    status = 0
    for where, given in messages(message, header):
        try:
            found = explanation(given(), dialect)
        except CeNatsError as error:
            status = complain(error, where)
            continue
        if found["error"] is not None:
            status = BAD_INPUT
        if as_json:
            write(as_line(found))
        else:
            show(found)
    raise typer.Exit(status)


def explanation(message: NatsMessage, dialect: Dialect) -> dict[str, Any]:
    """
    What there is to say about a message.

    Returns:
        ``mode`` and ``reason`` (None where there is an error before), ``headers`` with ``name``, ``raw``,
        ``attribute``, ``value`` and ``error`` of each, ``event`` in JSON, ``data_bytes``, and ``error``. An error has
        ``position`` and ``around`` where it is known how many characters of the header, or bytes of the payload, are in
        front of the error, and what stands around it.
    """
    found: dict[str, Any] = {"mode": None, "reason": None, "headers": [], "event": None, "error": None}
    found["data_bytes"] = len(message.data)
    try:
        inspection = inspect(message)
        found["mode"], found["reason"] = str(inspection.mode), inspection.reason
        found["event"] = json.loads(event_line(from_nats_message(message, dialect=dialect)))
    except CeNatsError as error:
        found["error"] = {**error_fields(error), **_place(error, message)}
    is_binary = found["mode"] == ContentMode.BINARY
    for name, raw in message.headers.items():
        found["headers"].append(_header(name, raw, dialect, is_binary=is_binary))
    return found


def error_fields(error: CeNatsError) -> dict[str, Any]:
    """An error in JSON."""
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
            found["error"] = {**error_fields(error), **_place_in_value(error, raw)}
    return found


def _place(error: CeNatsError, message: NatsMessage) -> dict[str, Any]:
    """Where in a message it is; nothing where that is not known."""
    if error.header is not None:
        values = message.headers.values(error.header)
        return _place_in_value(error, values[0]) if len(values) == 1 else {}
    position = None
    if byte := _BYTE.search(error.message):
        position = int(byte.group(1))
    elif error.code is ErrorCode.INVALID_UTF8:
        position = _first_malformed(message.data)
    if position is None:
        return {}
    around = message.data[max(0, position - _AROUND) : position + _AROUND]
    return {"position": position, "around": around.decode("utf-8", "backslashreplace")}


def _place_in_value(error: CeNatsError, raw: str) -> dict[str, Any]:
    position = None
    if '"' in raw:  # of a quoted string, what is within is read
        pass
    elif error.code is ErrorCode.INVALID_PERCENT_ESCAPE:
        malformed = _MALFORMED_ESCAPE.search(raw)
        position = malformed.start() if malformed else None
    elif error.code in (ErrorCode.INVALID_UTF8, ErrorCode.INVALID_CHARACTER):
        pieces = _ESCAPE_OR_CHARACTER.findall(raw)
        octets = [bytes.fromhex(piece[1:]) if len(piece) > 1 else _utf8(piece) for piece in pieces]
        decoded = b"".join(octets)
        position_of_error = (
            _first_malformed(decoded) if error.code is ErrorCode.INVALID_UTF8 else _first_forbidden(decoded)
        )
        if position_of_error is not None:
            ends = accumulate(map(len, octets))
            position = sum(len(piece) for piece, end in zip(pieces, ends, strict=True) if end <= position_of_error)
    if position is None:
        return {}
    return {"position": position, "around": raw[max(0, position - _AROUND) : position + _AROUND]}


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _first_malformed(octets: bytes) -> int | None:
    """How many bytes are in front of what is not UTF-8."""
    try:
        octets.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    return None


def _first_forbidden(octets: bytes) -> int | None:
    """How many bytes are in front of a character that no attribute may hold."""
    text = octets.decode("utf-8", "replace")
    for number, char in enumerate(text):
        try:
            check_characters("", char, DecodeError)
        except DecodeError:
            return len(text[:number].encode())
    return None


def show(found: dict[str, Any]) -> None:
    """Print an explanation for people."""
    paper = console()
    if found["mode"] is not None:
        paper.print(f"{found['mode']}: {found['reason']}", soft_wrap=True)
    if found["headers"]:
        headers = table("header", "as sent", "as read")
        for header in found["headers"]:
            wrong = header["error"]
            position = wrong.get("position") if wrong else None
            read = f"{wrong['code']}: {wrong['message']}" if wrong else header["value"] or ""
            if position is not None and len(header["raw"]) > _QUOTED:
                read += f", after {position} characters: {wrong['around']}"
            cells = visible(header["name"]), _part(header["raw"], position), _part(read, None)
            headers.add_row(*map(Text, cells))
        paper.print(headers)
    paper.print(f"payload: {counted(found['data_bytes'], 'byte')}")
    if found["error"] is None:
        paper.print(json.dumps(found["event"], ensure_ascii=False), soft_wrap=True)
        return
    error = found["error"]
    at = [f"{what} {visible(error[what])}" for what in ("header", "attribute", "requirement") if error[what]]
    paper.print(f"{error['code']}: {visible(error['message'])}", soft_wrap=True)
    if at:
        paper.print(f"  at {', '.join(at)}", soft_wrap=True)
    if "position" in error and error["around"] not in error["message"]:
        unit = "character of the value" if error["header"] else "byte of the payload"
        before, _, what = unit.partition(" ")
        paper.print(f"  after {counted(error['position'], before)} {what}: {visible(error['around'])}", soft_wrap=True)


def _part(text: str, position: int | None) -> str:
    """A value as it is shown: a long one in part, around a position."""
    if len(text) <= _LONG:
        return visible(text)
    start = max(0, min((position or 0) - _LONG // 2, len(text) - _LONG))
    end = start + _LONG
    before = f"[{start} characters] " if start else ""
    after = f" [{len(text) - end} characters]" if end < len(text) else ""
    return f"{before}{visible(text[start:end])}{after}"
