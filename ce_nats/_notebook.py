"""
Show events and messages as HTML tables in notebooks.

The ``_repr_html_`` methods of events and messages import this module when a notebook calls them. All text comes from a
sender, so all of it is escaped, control characters included. The size of a table is bounded, regardless of the data.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, Final, Protocol, TypeAlias

from .errors import preview, visible

# Name and value.
Row: TypeAlias = tuple[str, object]

_MAX_ROWS: Final = 60
# Characters of a name, of a text, or of bytes that are UTF-8; and bytes that are shown as hexadecimal digits.
_MAX_CHARACTERS: Final = 1000
_MAX_BYTES: Final = 100
_CELL_STYLE: Final = "text-align: left; vertical-align: top"


class _Event(Protocol):
    has_data: bool

    def get_attributes(self) -> Mapping[str, Any]: ...

    def get_data(self) -> Any: ...


def html_table(caption: str, rows: Iterable[Row]) -> str:
    """Return a table of two columns."""
    rows = list(rows)
    lines = [f"<table><caption>{_escaped(caption)}</caption>"]
    lines += [_row(name, _value_text(value)) for name, value in rows[:_MAX_ROWS]]
    if len(rows) > _MAX_ROWS:
        lines.append(_row("...", f"{len(rows) - _MAX_ROWS} more"))
    return "\n".join([*lines, "</table>"])


def event_rows(event: _Event) -> list[Row]:
    """Return the attributes and the data of an event as rows."""
    attributes = event.get_attributes().items()
    rows: list[Row] = [(name, value if isinstance(value, bytes) else str(value)) for name, value in attributes]
    data = event.get_data()
    return [*rows, ("data", data)] if event.has_data or data is not None else rows


def message_rows(headers: Iterable[tuple[str, str]], data: bytes) -> list[Row]:
    """Return the headers and the payload of a message as rows."""
    return [*headers, ("data", data)]


def _row(name: str, cell: str) -> str:
    style = f'style="{_CELL_STYLE}"'
    pre = '<pre style="margin: 0; white-space: pre-wrap; text-align: left">'
    return f"<tr><th {style}>{_escaped(name[:_MAX_CHARACTERS])}</th><td {style}>{pre}{_escaped(cell)}</pre></td></tr>"


def _value_text(value: object) -> str:
    if isinstance(value, str):
        return _truncated(value, f"{len(value):,} characters")
    if isinstance(value, (bytes, bytearray)):
        return _bytes_text(bytes(value))
    return _json_text(value)


def _truncated(text: str, size: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}... ({size})"


def _bytes_text(value: bytes) -> str:
    size = f"{len(value):,} bytes"
    try:
        # Incremental, because the last character may be truncated.
        start = codecs.getincrementaldecoder("utf-8")().decode(value[:_MAX_CHARACTERS], len(value) <= _MAX_CHARACTERS)
    except UnicodeDecodeError:
        digits = value[:_MAX_BYTES].hex(" ")
        return f"{digits}... ({size})" if len(value) > _MAX_BYTES else f"{digits} ({size})"
    return start if len(value) <= _MAX_CHARACTERS else f"{start}... ({size})"


def _json_text(value: object) -> str:
    """Return the beginning of a value in JSON, without encoding the rest."""
    text = ""
    try:
        for piece in json.JSONEncoder(ensure_ascii=False).iterencode(value):
            text += piece
            if len(text) > _MAX_CHARACTERS:
                break
    except (TypeError, ValueError, RecursionError):  # an object that JSON cannot represent
        return preview(value)
    unit = "members" if isinstance(value, dict) else "items"
    return _truncated(
        text, f"{len(value):,} {unit}" if isinstance(value, (dict, list)) else f"{len(text):,} characters"
    )


def _escaped(text: str) -> str:
    return escape("\n".join(map(visible, text.split("\n"))))
