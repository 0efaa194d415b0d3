"""
Split a JSON event into its members and the text of ``data``, and prove that no member is repeated.

A JSON parser keeps only the last of repeated members. Counting the quotes in the text is a cheaper proof than a second
parser.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import filterfalse
from typing import Any, Final

import msgspec

from ..errors import DecodeError
from ._nesting import is_deeper
from .attributes import CORE, check_integer, check_name

# Bytes of a JSON event before its data.
MAX_HEAD: Final = 4096

_read_json: Final = msgspec.json.Decoder().decode
_read_strings: Final = msgspec.json.Decoder(dict[str, str]).decode
_read_scalars: Final = msgspec.json.Decoder(dict[str, str | int | bool | None]).decode
_DATA: Final = b'"data":'
_DATA_BASE64: Final = b'"data_base64":'
# As ints: "in" on bytes is several times faster for an int than for bytes.
_BACKSLASH, _CLOSING_BRACE, _DEL = b"\\}\x7f"
_WHITE_SPACE: Final = b" \t\r\n"


class _DataText(msgspec.Struct):
    data: msgspec.Raw


_read_data_text: Final = msgspec.json.Decoder(_DataText).decode


def data_text(payload: bytes) -> bytes:
    """
    Return the JSON text of the member ``data``, as it is in the payload.

    Raises:
        ValueError: The payload is not a JSON object with this member.
        RecursionError: It is nested deeper than the interpreter's recursion limit allows.
    """
    return bytes(_read_data_text(payload).data)


def are_distinct(payload: bytes, members: Mapping[str, object], text_of_data: bytes) -> bool:
    """
    Whether the number of quotes in the text of a JSON object proves that no name is repeated.

    Text with these members has at least this many quotes, and text in which a name is repeated has more.
    """
    strings = list(map(type, members.values())).count(str)
    if members.get("data").__class__ is str:
        strings -= 1
    return payload.count(b'"') == 2 * (len(members) + strings) + text_of_data.count(b'"')


def split_event(payload: bytes) -> tuple[dict[str, Any], bytes | None, Any]:
    """
    Split a JSON event whose members other than ``data`` are strings, integers, booleans or null.

    The event is split at the first ``"data":``. These quotes are not escaped: a backslash before the second one would
    come between it and ``data``. The rest without the data is decoded as an object of plain values, so the name cannot
    be that of a member of a nested object.

    Returns the members other than ``data`` and those that are null, in wire order: legal text, none empty or repeated,
    no other rule checked; the JSON text of ``data``, or None; its value.

    Raises:
        ValueError: The payload is not such an event. It may still be valid: ``structured.decode`` decides.
    """
    if not payload or payload[-1] != _CLOSING_BRACE:
        payload = payload.rstrip(_WHITE_SPACE)
    at = payload.find(_DATA, 0, MAX_HEAD)
    if at < 0:
        if len(payload) > MAX_HEAD and payload.find(_DATA_BASE64, 0, MAX_HEAD) < 0:
            raise ValueError("long members before the data")
        return _read_members(payload), None, None
    head, text, rest = payload[:at], payload[at + len(_DATA) : -1], payload[-1:]
    if is_deeper(text):
        raise ValueError("nested data")
    try:
        # Data is usually the last member. Then the payload is valid JSON if the data is, and if the text before it is
        # with its comma replaced by a brace.
        value = _read_json(text)
        text = text.strip(_WHITE_SPACE)
    except ValueError:
        text = data_text(payload)  # also checks that the whole payload is JSON
        rest = payload[at + len(_DATA) + len(text) :]
        if not payload.startswith(text, at + len(_DATA)):
            raise ValueError("another member data") from None
        value = _read_json(text)
    return _read_members(_without_data(head, rest)), text, value


def _without_data(head: bytes, rest: bytes) -> bytes:
    """Return a JSON object without its member ``data``, from the text before and after that member."""
    if not head.endswith(b","):
        head = head.rstrip(_WHITE_SPACE)
    if head.endswith(b","):
        return head[:-1] + rest
    if head == b"{" and rest.startswith(b","):
        return head + rest[1:]
    raise ValueError("no comma beside the data")


def _read_members(text: bytes) -> dict[str, Any]:
    members: dict[str, Any]
    try:
        members = _read_strings(text)
        strings: Collection[str] = members.values()
        quotes = 4 * len(members)
    except msgspec.ValidationError:
        members, strings = _read_scalar_members(text)
        quotes = 2 * (len(members) + len(strings))
        members = {name: value for name, value in members.items() if value is not None}
    if "data" in members:
        raise ValueError("another member data")
    if _BACKSLASH in text:
        if b"\\\\" in text:
            raise ValueError("escaped backslashes")
        quotes += text.count(b'\\"')
    # If a name is repeated, the text has more quotes than the members account for.
    if text.count(b'"') != quotes or not all(strings) or not is_printable(text, strings):
        raise ValueError("repeated names, empty values or characters that may be illegal")
    return members


def _read_scalar_members(text: bytes) -> tuple[dict[str, Any], list[str]]:
    """Return the members of an object, including null ones, and the values that are strings."""
    members = _read_scalars(text)
    strings: list[str] = []
    for name, value in members.items():
        if value.__class__ is str:
            strings.append(value)
        elif value is None:
            if name != "data_base64":
                check_name(name, DecodeError)
        elif name in CORE or name == "data_base64":
            raise ValueError(f"{name} must be a string")
        elif value.__class__ is int:
            check_integer(name, value, DecodeError)
    return members, strings


def is_printable(text: bytes, strings: Iterable[str]) -> bool:
    """
    Whether strings consist of printable characters, all of which are legal.

    JSON escapes control characters other than DEL, so one check of the JSON text is enough for most events.
    """
    if _BACKSLASH in text or _DEL in text:
        return "".join(strings).isprintable()
    return text.isascii() or "".join(filterfalse(str.isascii, strings)).isprintable()
