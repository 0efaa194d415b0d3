"""
The common case, checked all at once.

Most events of a stream have the same attributes in the same order, and plain values. Their names then need checking
once, and their values can be looked at together instead of one by one, which is several times cheaper. Everything here
answers None as soon as something is out of the ordinary; the careful code in attributes.py and binary.py then has the
word, and is the only place that words an error. A property test holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from . import media_type
from .attributes import ABSOLUTE_URI, REQUIRED, check_name
from .errors import CeNatsError, DecodeError, EncodeError
from .percent import LITERAL, decode, encode
from .timestamp import Timestamp, format_datetime

__all__ = ["Shape", "find"]

_LITERAL_BYTES: Final = LITERAL.encode("ascii")
_ONLY_STRINGS: Final = {str}
# What is remembered stays small whatever a peer sends.
_MOST_SHAPES: Final = 1024
_MOST_NAMES: Final = 64
_LONGEST_NAMES: Final = 1024


class Shape(NamedTuple):
    """
    The attribute names of a valid event, in order, and where the ones with rules of their own stand (-1: nowhere).

    The names are legal and distinct, and the four required ones are among them.
    """

    names: tuple[str, ...]
    headers: tuple[str, ...]
    specversion: int
    datacontenttype: int
    dataschema: int
    time: int


_shapes: dict[tuple[str, ...], Shape | None] = {}


def find(names: tuple[str, ...]) -> Shape | None:
    """The shape with these attribute names; None where they are not those of a valid event."""
    try:
        return _shapes[names]
    except KeyError:
        shape = _build(names)
        if len(names) <= _MOST_NAMES and len("".join(map(str, names))) <= _LONGEST_NAMES:
            if len(_shapes) >= _MOST_SHAPES:
                _shapes.clear()
            _shapes[names] = shape
        return shape


def _build(names: tuple[str, ...]) -> Shape | None:
    try:
        for name in names:
            check_name(name, DecodeError)
    except DecodeError:
        return None
    if len(set(names)) != len(names) or not set(REQUIRED) <= set(names):
        return None
    places = {name: index for index, name in enumerate(names)}
    special = (places.get(name, -1) for name in ("specversion", "datacontenttype", "dataschema", "time"))
    return Shape(names, tuple(f"ce-{name}" for name in names), *special)


def encode_headers(shape: Shape, values: Sequence[str]) -> list[tuple[str, str]] | None:
    """``ce-`` headers of values that :func:`encode_values` gave."""
    left = _not_literal(values)
    if left is None:
        return None
    if any(left):
        values = [encode(value) if rest else value for value, rest in zip(values, left, strict=True)]
    return list(zip(shape.headers, values, strict=True))


def encode_values(shape: Shape, values: list[Any]) -> list[str] | None:
    """Canonical strings of attribute values, of which only ``time`` is anything but a ``str``."""
    if shape.time >= 0:
        text = _time_text(values[shape.time])
        if text is None:
            return None
        values[shape.time] = text
    if set(map(type, values)) != _ONLY_STRINGS or not _is_valid(shape, values):
        return None
    return values


def decode_headers(shape: Shape, values: Sequence[str]) -> dict[str, Any] | None:
    """Attributes in ``ce-`` header values."""
    left = _not_literal(values)
    if left is None:
        return None
    if any(left):
        try:
            values = [decode(value.strip(" \t")) if rest else value for value, rest in zip(values, left, strict=True)]
        except DecodeError:
            return None
    return decode_values(shape, list(values))


def decode_values(shape: Shape, values: list[Any]) -> dict[str, Any] | None:
    """Attributes in strings, decoded already."""
    if not _is_valid(shape, values):
        return None
    if shape.time >= 0:
        try:
            values[shape.time] = Timestamp.parse(values[shape.time])
        except CeNatsError:
            return None
    return dict(zip(shape.names, values, strict=True))


def _is_valid(shape: Shape, values: Sequence[str]) -> bool:
    return (
        values[shape.specversion] == "1.0"
        and "" not in values
        # What prints is neither a control character nor a surrogate nor a noncharacter.
        and "".join(values).isprintable()
        and (shape.datacontenttype < 0 or media_type.parse(values[shape.datacontenttype]) is not None)
        and (shape.dataschema < 0 or ABSOLUTE_URI.match(values[shape.dataschema]) is not None)
    )


def _not_literal(values: Sequence[str]) -> list[bytes] | None:
    """For each value the bytes that are not the same in a header as in the attribute."""
    left = "\n".join(values).encode("utf-8", "surrogatepass").translate(None, _LITERAL_BYTES).split(b"\n")
    return left if len(left) == len(values) else None


def _time_text(value: object) -> str | None:
    try:
        if value.__class__ is Timestamp:
            return value.text
        if value.__class__ is datetime:
            return format_datetime(value)
        return Timestamp.parse(value, EncodeError).text if value.__class__ is str else None
    except CeNatsError:
        return None
