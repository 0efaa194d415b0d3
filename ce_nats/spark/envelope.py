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
from .json import MOST_LEVELS, STRICT, is_deeper

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
_END_ESCAPED: Final = "0001"
# A name, a colon, a value and a comma, of a front that is cut at its quotes.
_PIECES: Final = 4
# A float holds numbers of 308 digits, and with exponents of two digits those of 209.
_MOST_DIGITS: Final = 308
_MOST_DIGITS_WITH_EXPONENT: Final = _MOST_DIGITS - 99
# What stands behind the e of a number: an exponent, or one that is too large for sure.
_BEHIND: Final = r"(?:[ ,}\]\t\n\r]|\z)"
_EXPONENT: Final = rf"\+?[0-9]++{_BEHIND}"
_LARGE_EXPONENT: Final = rf"[eE]\+?[0-9]{{3,}}{_BEHIND}"
_HALF: Final = "[dD][89a-fA-F]"
_SURROGATE: Final = rf"\\u{_HALF}"
# No control character, and none escaped that has a use here, no single quote, no half of a pair, and no exponent.
_ESCAPE: Final = rf"\\(?:[^u']|u(?!{_END_ESCAPED}|{_HALF}))"
_SIMPLE: Final = r"\A" + runs(printable(without="'eE\\"), _BEYOND, f"[eE](?!{_EXPONENT})", _ESCAPE) + r"\z"
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
    return F.when(size >= 0, F.trim(F.substring(text.cast("binary"), start + 1, size).cast("string")))


def is_json(member: Column) -> Column:
    """Whether the data of a document whose front is one is strict JSON in UTF-8. Not all that is passes."""
    is_strict = F.when(
        matches(member, _SIMPLE), _has_no_longer_number(member, _MOST_DIGITS) & _is_one_value(member)
    ).otherwise(
        F.is_valid_utf8(member)
        & _has_no_longer_number(member, _MOST_DIGITS_WITH_EXPONENT)
        & ~matches(member, _LARGE_EXPONENT)
        & ~matches(member, _SURROGATE)
        & _is_one_object(member)
    )
    return is_strict & ~is_deeper(member, MOST_LEVELS)


def _has_no_longer_number(text: Column, digits: int) -> Column:
    return (F.octet_length(text) <= digits) | ~matches(text, f"[0-9]{{{digits + 1}}}")


def _is_one_value(text: Column) -> Column:
    """
    Whether a text is one JSON value, and nothing behind it; one without single quotes, control characters and the mark.

    By the cheapest of Spark's parsers, which makes nothing, and takes single quotes and control characters for granted.
    A text that closes the object by itself is parsed to its end there, without the mark.
    """
    names = F.json_object_keys(F.concat(F.lit('{"":'), text, F.lit(f',"{_END}":0}}')))
    return names == F.array(F.lit(""), F.lit(_END))


def _is_one_object(text: Column) -> Column:
    """Whether a text is one JSON object, and nothing around it, not even white space."""
    found = F.from_json(F.concat(F.lit("["), text, F.lit(f',{{"m":{_MARK}}}]')), _MARKS, STRICT)
    is_one = (F.size(found) == 2) & (F.get(found, F.lit(1))["m"] == int(_MARK))
    return is_one & text.startswith("{") & text.endswith("}") & ~text.contains(_MARK)
