"""The command ``explain``: what a message is taken for, why, and what is wrong with it."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..attributes import canonical
from ..binary import Dialect, decode_header
from ..binding import from_nats_message
from ..errors import CeNatsError, DecodeError
from ..json_form import as_line
from ..message import NatsMessage, folded
from ..mode import PREFIX, ContentMode, inspect
from .codec import DialectOption, HeaderOption, JsonOption, MessageArgument, event_line, messages
from .files import write
from .program import BAD_INPUT, complain, guarded

__all__ = ["error_fields", "explanation", "register", "show", "visible"]


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
    decode. The exit status is 1 where one of them is no event.
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
        ``attribute``, ``value`` and ``error`` of each, ``event`` in JSON, ``data_bytes``, and ``error``.
    """
    found: dict[str, Any] = {"mode": None, "reason": None, "headers": [], "event": None, "error": None}
    found["data_bytes"] = len(message.data)
    try:
        inspection = inspect(message)
        found["mode"], found["reason"] = str(inspection.mode), inspection.reason
        found["event"] = json.loads(event_line(from_nats_message(message, dialect=dialect)))
    except CeNatsError as error:
        found["error"] = error_fields(error)
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
            found["error"] = error_fields(error)
    return found


def show(found: dict[str, Any]) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    if found["mode"] is not None:
        console.print(f"{found['mode']}: {found['reason']}", soft_wrap=True)
    if found["headers"]:
        table = Table("header", "as sent", "as read", box=None, pad_edge=False)
        for header in found["headers"]:
            wrong = header["error"]
            read = f"{wrong['code']}: {wrong['message']}" if wrong else header["value"]
            table.add_row(*(Text(visible(text)) for text in (header["name"], header["raw"], read or "")))
        console.print(table)
    console.print(f"payload: {found['data_bytes']} bytes")
    if found["error"] is None:
        console.print(json.dumps(found["event"], ensure_ascii=False), soft_wrap=True)
        return
    error = found["error"]
    at = [f"{what} {error[what]}" for what in ("header", "attribute", "requirement") if error[what]]
    console.print(f"{error['code']}: {visible(error['message'])}", soft_wrap=True)
    if at:
        console.print(f"  at {', '.join(at)}", soft_wrap=True)


def visible(text: str) -> str:
    """Text without control characters, which a terminal would obey, and without lone surrogates."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
