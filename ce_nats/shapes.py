"""
The common case, checked all at once.

Most events of a stream have the same attributes in the same order, and plain values. Their names then need checking
once, and their values can be looked at together instead of one by one, which is several times cheaper. Everything here
answers None as soon as something is out of the ordinary; the careful code in attributes.py and binary.py then has the
word, and is the only place that words an error. A property test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterable
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
        if len(names) <= _MOST_NAMES and {*map(type, names)} <= _ONLY_STRINGS and len("".join(names)) <= _LONGEST_NAMES:
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
    names = tuple(map(str.__str__, names))  # of an enum's member the value, not its name
    if len(set(names)) != len(names) or not set(REQUIRED) <= set(names):
        return None
    places = {name: index for index, name in enumerate(names)}
    special = (places.get(name, -1) for name in ("specversion", "datacontenttype", "dataschema", "time"))
    return Shape(names, tuple(f"ce-{name}" for name in names), *special)


def encode_headers(shape: Shape, given: Iterable[Any]) -> list[tuple[str, str]] | None:
    """``ce-`` headers of an event whose attributes are strings, but for ``time``."""
    values = _texts(shape, given)
    if values is None or not _obeys_rules(shape, values):
        return None
    for place in not_literal(values):
        if not values[place].isprintable():
            return None
        values[place] = encode(values[place])
    return list(zip(shape.headers, values))


def encode_members(shape: Shape, given: Iterable[Any]) -> dict[str, Any] | None:
    """Members of the JSON event of an event whose attributes are strings, but for ``time``."""
    values = _texts(shape, given)
    if values is None or not "".join(values).isprintable() or not _obeys_rules(shape, values):
        return None
    return dict(zip(shape.names, values))


def decode_headers(shape: Shape, given: Iterable[str]) -> dict[str, Any] | None:
    """Attributes in ``ce-`` header values."""
    values = list(given)
    try:
        for place in not_literal(values):
            values[place] = decode(values[place].strip(" \t"))
            if not values[place].isprintable():
                return None
        return _attributes(shape, values)
    except DecodeError:
        return None


def decode_members(shape: Shape, values: list[Any]) -> dict[str, Any] | None:
    """Attributes in the members of a JSON event."""
    if set(map(type, values)) != _ONLY_STRINGS or not "".join(values).isprintable():
        return None
    try:
        return _attributes(shape, values)
    except DecodeError:
        return None


def _texts(shape: Shape, given: Iterable[Any]) -> list[str] | None:
    values = list(given)
    place = shape.time
    if place >= 0:
        values[place] = _time_text(values[place])
    return values if set(map(type, values)) == _ONLY_STRINGS else None


def _attributes(shape: Shape, values: list[Any]) -> dict[str, Any] | None:
    if not _obeys_rules(shape, values):
        return None
    if shape.time >= 0:
        values[shape.time] = Timestamp.parse(values[shape.time])
    return dict(zip(shape.names, values))


def _obeys_rules(shape: Shape, values: list[str]) -> bool:
    """The rules of single attributes, but for ``time``; extensions that are empty are left to the careful code."""
    return (
        values[shape.specversion] == "1.0"
        and "" not in values
        and (shape.datacontenttype < 0 or media_type.parse(values[shape.datacontenttype]) is not None)
        and (shape.dataschema < 0 or ABSOLUTE_URI.match(values[shape.dataschema]) is not None)
    )


def not_literal(values: list[str]) -> Iterable[int]:
    """
    Places of the values that are not the same in a header as in the attribute.

    Of the others each character is one that a header value holds as it is, and a legal one. One pass over all of them
    together takes those characters away, and looks at what is left between the separators.
    """
    left = "\n".join(values).encode("utf-8", "surrogatepass").translate(None, _LITERAL_BYTES)
    if left.count(b"\n") == len(left) == len(values) - 1:
        return ()
    parts = left.split(b"\n")
    if len(parts) != len(values):  # some value has the separator in it
        return range(len(values))
    return [place for place, rest in enumerate(parts) if rest]


def _time_text(value: object) -> str | None:
    try:
        if value.__class__ is Timestamp:
            return value.text
        if isinstance(value, datetime):
            return format_datetime(value)
        return Timestamp.parse(value, EncodeError).text if value.__class__ is str else None
    except CeNatsError:
        return None
