"""
Events and messages as tables of HTML, as notebooks show the last value of a cell.

All text comes from a sender, so all of it is escaped, control characters and the like, too. A table has a bound,
however much data there is.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol, TypeAlias

from .errors import preview, visible

# A name, and a value of any type.
Row: TypeAlias = tuple[str, object]

_MAX_ROWS: Final = 60
_MAX_CHARACTERS: Final = 1000
_MAX_BYTES: Final = 100
_LEFT: Final = "text-align: left; vertical-align: top"


class _Event(Protocol):
    has_data: bool

    def get_attributes(self) -> Mapping[str, Any]: ...

    def get_data(self) -> Any: ...


def html_table(caption: str, rows: Iterable[Row]) -> str:
    """
    A table of two columns.

    Args:
        caption: What it is.
        rows: Names and values. Text stands as it is, bytes as text where they are UTF-8 and else as hexadecimal digits,
            everything else as JSON.
    """
    rows = list(rows)
    lines = [f"<table><caption>{_text(caption)}</caption>"]
    lines += [_row(name, _value(value)) for name, value in rows[:_MAX_ROWS]]
    if len(rows) > _MAX_ROWS:
        lines.append(_row("...", f"{len(rows) - _MAX_ROWS} more"))
    return "\n".join([*lines, "</table>"])


def event_rows(event: _Event) -> list[Row]:
    """Attributes and data of an event."""
    attributes = event.get_attributes().items()
    rows: list[Row] = [(name, value if isinstance(value, bytes) else str(value)) for name, value in attributes]
    data = event.get_data()
    return [*rows, ("data", data)] if event.has_data or data is not None else rows


def message_rows(headers: Iterable[tuple[str, str]], data: bytes) -> list[Row]:
    """Headers and payload of a message."""
    return [*headers, ("data", data)]


def _row(name: str, cell: str) -> str:
    style = f'style="{_LEFT}"'
    pre = '<pre style="margin: 0; white-space: pre-wrap; text-align: left">'
    return f"<tr><th {style}>{_text(name[:_MAX_CHARACTERS])}</th><td {style}>{pre}{_text(cell)}</pre></td></tr>"


def _value(value: object) -> str:
    if isinstance(value, str):
        return _cut(value, f"{len(value):,} characters")
    if isinstance(value, (bytes, bytearray)):
        return _octets(bytes(value))
    return _json(value)


def _cut(text: str, size: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}... ({size})"


def _octets(value: bytes) -> str:
    size = f"{len(value):,} bytes"
    try:
        # Of a character that is cut, the decoder waits for the rest.
        start = codecs.getincrementaldecoder("utf-8")().decode(value[:_MAX_CHARACTERS], len(value) <= _MAX_CHARACTERS)
    except UnicodeDecodeError:
        digits = value[:_MAX_BYTES].hex(" ")
        return f"{digits}... ({size})" if len(value) > _MAX_BYTES else f"{digits} ({size})"
    return start if len(value) <= _MAX_CHARACTERS else f"{start}... ({size})"


def _json(value: object) -> str:
    """The beginning of a value in JSON; however large it is, no more than that is made."""
    text = ""
    try:
        for piece in json.JSONEncoder(ensure_ascii=False).iterencode(value):
            text += piece
            if len(text) > _MAX_CHARACTERS:
                break
    except (TypeError, ValueError, RecursionError):  # an object of the program's own
        return preview(value)
    what = "members" if isinstance(value, dict) else "items"
    return _cut(text, f"{len(value):,} {what}" if isinstance(value, (dict, list)) else f"{len(text):,} characters")


def _text(text: str) -> str:
    from html import escape  # here, because its table of characters is a good part of what importing ce_nats costs

    return escape("\n".join(map(visible, text.split("\n"))))
