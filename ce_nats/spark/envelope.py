"""
JSON events whose members are strings without escapes, but for the data, which comes last.

That is how most senders write them, and it is told by looking at the text, without a JSON parser for anything but the
data. See json.py for all other documents.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column

from .expressions import matches, printable, runs
from .functions import F
from .json import STRICT

__all__ = ["data", "front", "is_json", "names", "pieces", "values"]

# Without U+FFFD, which stands where bytes were not UTF-8.
_BEYOND: Final = r"[\x80-\ufffc\ufffe-\x{10ffff}]++"
# What stands before the data, or all of it where there is none. Control characters, which JSON does not have either,
# are found here too.
_STRING: Final = '"' + runs(printable(without='"\\'), _BEYOND) + '"'
_FRONT: Final = rf'\A(\{{(?:{_STRING}: ?{_STRING}(?:, ?|\}}\z))*+)(?:"data":|\z)'
_DATA: Final = '"data":'
_BRACE: Final = "}"
# What stands behind the data while it is parsed: no strict JSON has it.
_END: Final = "\x01"
_END_ESCAPED: Final = r"\u0001"
# A name, a colon, a value and a comma, of a front that is cut at its quotes.
_PIECES: Final = 4
# What stands behind the e of a number that is too large for a float.
_LARGE: Final = r"\+?[0-9]{3,}(?:[ ,}\]\t\n\r]|\z)"
_LARGE_EXPONENT: Final = f"[eE]{_LARGE}"
_SMALL: Final = f"[eE](?!{_LARGE})"
# No control character, no single quote, and no such number.
_SIMPLE: Final = r"\A" + runs(printable(without="'eE"), _BEYOND, _SMALL) + r"\z"
# No number of fewer digits is too large for a float.
_MOST_DIGITS: Final = 308
_DIGITS: Final = rf"[0-9]{{{_MOST_DIGITS + 1}}}"
_SURROGATE: Final = r"\\u[dD][89a-fA-F]"
# A number has one spelling only, so a document that does not hold this text does not hold this number.
_MARK: Final = "4611686018427387847"
_MARKS: Final = "array<struct<m: bigint>>"


def front(text: Column) -> Column:
    """What stands before the data, the whole document where there is none, empty where that are not plain strings."""
    return F.regexp_extract(text, _FRONT, 1)


def pieces(before: Column) -> Column:
    """A front cut at its quotes."""
    return F.split(before, '"')


def names(pieces: Column) -> Column:
    return F.filter(pieces, lambda _, place: place % _PIECES == 1)


def values(pieces: Column) -> Column:
    return F.filter(pieces, lambda _, place: place % _PIECES == _PIECES - 1)


def data(text: Column, before: Column) -> Column:
    """The text between the name of the data and the brace at the end of the document; NULL where there is no data."""
    start = F.octet_length(before) + len(_DATA)
    size = F.octet_length(text) - start - len(_BRACE)
    return F.when(size > 0, F.trim(F.substring(text.cast("binary"), start + 1, size).cast("string")))


def is_json(member: Column) -> Column:
    """Whether the data of a document whose front is one is strict JSON in UTF-8. Not all that is passes."""
    is_simple = matches(member, _SIMPLE) & ~member.contains(_END_ESCAPED)
    return (
        F.when(is_simple, _is_one_value(member)).otherwise(
            F.is_valid_utf8(member) & ~matches(member, _LARGE_EXPONENT) & _is_one_object(member)
        )
        & (~member.contains("\\") | ~matches(member, _SURROGATE))
        & ((F.octet_length(member) <= _MOST_DIGITS) | ~matches(member, _DIGITS))
    )


def _is_one_value(text: Column) -> Column:
    """
    Whether a text is one JSON value, and nothing behind it; one without single quotes, control characters and the mark.

    By the cheapest of Spark's parsers, which makes nothing, and takes single quotes and control characters for granted.
    A text that closes the object by itself is parsed to its end there, without the mark.
    """
    names = F.json_object_keys(F.concat(F.lit('{"":'), text, F.lit(f',"{_END}":0}}')))
    return names == F.array(F.lit(""), F.lit(_END))


def _is_one_object(text: Column) -> Column:
    """Whether a text is one JSON object, and nothing behind it."""
    found = F.from_json(F.concat(F.lit("["), text, F.lit(f',{{"m":{_MARK}}}]')), _MARKS, STRICT)
    is_one = (F.size(found) == 2) & (F.get(found, F.lit(1))["m"] == int(_MARK))
    return is_one & ~text.contains(_MARK)
