"""Check and convert single header values and attribute values of common forms, with few calls into C."""

from __future__ import annotations

import sys
from binascii import a2b_qp
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, NoReturn

import msgspec

from ...errors import EncodeError
from .. import media_type, percent
from .._bounded_cache import BoundedCache
from ..attributes import ABSOLUTE_URI, check_integer, scalar_text
from ..mode import structured_by
from ..timestamp import Timestamp, format_datetime

MAX_ESCAPES: Final = 1024

to_json: Final = msgspec.json.Encoder().encode
to_builtins: Final = msgspec.to_builtins
# From Python 3.11 on datetime.fromisoformat() accepts "Z".
_read_time: Final[Callable[[str], datetime]] = (
    datetime.fromisoformat if sys.version_info >= (3, 11) else partial(msgspec.convert, type=datetime)
)
_new_datetime: Final[Callable[..., Timestamp]] = datetime.__new__
# As ints: "in" on bytes is several times faster for an int than for bytes.
_BACKSLASH, _BLANK, _DEL, _PERCENT = b"\\ \x7f%"


class NotHandled(ValueError):  # noqa: N818  # not an error: the full codec may accept the event
    """The fast path does not handle this event. A ValueError, like the exceptions of the functions that it calls."""


def decline(_: object = None) -> NoReturn:
    raise NotHandled


# --- Header values --------------------------------------------------------------------------------------------------


def is_literal(text: str) -> bool:
    """
    Whether all characters are legal and need no percent-encoding in a header value.

    JSON puts a backslash before double quotes and control characters other than DEL. For text that contains a
    backslash, which needs no encoding either, the result is False, and the slower checks decide.
    """
    octets = to_json(text)
    return (
        text.isascii()
        and _BACKSLASH not in octets
        and _BLANK not in octets
        and _PERCENT not in octets
        and _DEL not in octets
    )


class _Escapes(dict[int, str]):
    """Table for ``str.translate()``: the form of each character in a header value."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if not character.isprintable():  # excludes control characters, surrogates and noncharacters
            raise NotHandled
        if len(self) >= MAX_ESCAPES:
            self.clear()
        self[code] = escaped = percent.encode(character)
        return escaped


escapes: Final = _Escapes()


def escape_all(texts: Sequence[str]) -> list[str]:
    """Percent-encode texts, which must be printable."""
    if is_literal("".join(filter(str.isascii, texts))):
        return [text if text.isascii() else text.translate(escapes) for text in texts]
    return [_escape(text) for text in texts]


def _escape(text: str) -> str:
    return text if is_literal(text) else text.translate(escapes)


def unescape_all(values: Sequence[str]) -> list[str]:
    """Decode header values to the texts of attributes, which must be printable and not empty."""
    joined = "".join(values)
    if "=" not in joined and is_literal(joined.replace("%", "")):
        return [_undo_percent(value) if "%" in value else value for value in values]
    return [_unescape(value) for value in values]


def _unescape(value: str) -> str:
    text = value.strip(" \t")
    if "%" in text and "=" not in text and is_literal(text.replace("%", "")):
        return _undo_percent(text)
    text = percent.decode(text)
    return text if text and text.isprintable() else decline()


def _undo_percent(value: str) -> str:
    """
    Percent-decode a value whose other characters are literal and do not include "=".

    Quoted-printable is the same encoding with "=" for "%". a2b_qp() shortens the text by two characters for each valid
    escape, and by one or none for any other text that starts with "=", if there are no line ends. So the length shows
    whether all escapes were valid.
    """
    octets = a2b_qp(value.replace("%", "="))
    if len(octets) != len(value) - 2 * value.count("%"):
        raise NotHandled
    text = octets.decode("utf-8")
    return text if text.isprintable() else decline()


# --- Attribute values -----------------------------------------------------------------------------------------------


def scalar_texts(values: Iterable[object]) -> list[str]:
    """Return the canonical strings of strings, integers and booleans."""
    return [value if value.__class__ is str else _scalar_text(value) for value in values]


def _scalar_text(value: object) -> str:
    if value.__class__ is int:
        return str(check_integer("", value, EncodeError))
    return scalar_text(value) if value.__class__ is bool else decline()


def time_text(value: object) -> str:
    """Return the RFC 3339 text of the attribute ``time`` of an event to encode."""
    if value.__class__ is datetime:
        return format_datetime(value)
    if value.__class__ is Timestamp:
        return value.text
    if value.__class__ is str:
        return timestamp(value).text
    raise NotHandled


def timestamp(text: str) -> Timestamp:
    """Parse RFC 3339 text."""
    at = _read_time(text)
    # _read_time() accepts more than RFC 3339, but msgspec writes only RFC 3339: text that it writes back is valid.
    if to_builtins(at) != text:
        return Timestamp.parse(text)
    reduced: Any = at.__reduce__()  # (datetime, (state, zone)), the constructor's arguments for unpickling
    state, zone = reduced[1]  # a ValueError if there is no zone
    made = _new_datetime(Timestamp, state, zone)
    made._text = text
    return made


# --- Values that repeat ---------------------------------------------------------------------------------------------
# Caches raise NotHandled for a value that the full codec has to decide about.


def _checked_by(is_valid: Callable[[str], object]) -> Callable[[str], object]:
    return lambda text: is_valid(text) or decline()


def _header_text(is_valid: Callable[[str], object]) -> Callable[[str], str]:
    return lambda text: _escape(text) if text and is_valid(text) else decline()


def _attribute_text(is_valid: Callable[[str], object]) -> Callable[[str], str]:
    def make(value: str) -> str:
        text = _unescape(value)
        return text if is_valid(text) else decline()

    return make


# Attributes whose values repeat, with the check that each value must pass.
RULES: Final[Mapping[str, Callable[[str], object]]] = {
    "source": bool,
    "type": bool,
    "datacontenttype": media_type.parse,
    "dataschema": ABSOLUTE_URI.match,
}
# By attribute: header values for texts, and texts for header values.
header_texts: Final = {name: BoundedCache(_header_text(is_valid)) for name, is_valid in RULES.items()}
attribute_texts: Final = {name: BoundedCache(_attribute_text(is_valid)) for name, is_valid in RULES.items()}
media_types: Final = BoundedCache(_checked_by(media_type.parse))
schemas: Final = BoundedCache(_checked_by(ABSOLUTE_URI.match))
# Values of Content-Type that make a message structured, and that do not.
structured_types: Final = BoundedCache(_checked_by(lambda value: structured_by([value])))
other_types: Final = BoundedCache(_checked_by(lambda value: not structured_by([value])))
