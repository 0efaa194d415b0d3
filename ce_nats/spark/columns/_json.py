"""
JSON in columns: detection by media type, options that make Spark's JSON parser strict, and the nesting depth.

RFC 8259; the same rules and limit as ce_nats/codec/media_type.py and ce_nats/codec/_nesting.py.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

_TOKEN: Final = r"[!#$%&'*+.^_`{|}~0-9A-Za-z-]+"
_JSON: Final = rf"(?is)\A{_TOKEN}/(?:(?:{_TOKEN})?\+)?json[ \t]*+(?:;|\z)"
# Deviations from RFC 8259 that Spark's parser allows by default or by configuration, all disabled.
STRICT: Final = {
    "allowComments": "false",
    "allowUnquotedFieldNames": "false",
    "allowSingleQuotes": "false",
    "allowNumericLeadingZeros": "false",
    "allowNonNumericNumbers": "false",
    "allowBackslashEscapingAnyCharacter": "false",
    "allowUnquotedControlChars": "false",
    "mode": "PERMISSIVE",
}
# Quantifiers are possessive: with other ones, Java needs stack space for each repetition that it may backtrack to.
_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_NO_BRACKETS: Final = rf'(?s){_STRING}|[^"{{}}\[\]]++'
_PAIR: Final = r"\[\]|\{\}"
_INNERMOST: Final = 2


def is_json(media_type: Column) -> Column:
    """Return whether a type is JSON: "the media subtype is 'json' or has a '+json' suffix" (JSON format 3.1.1)."""
    return media_type.rlike(_JSON)


def is_deeper(text: Column, levels: int) -> Column:
    """
    Return whether arrays and objects of a JSON text are nested more than ``levels`` deep.

    For text that is not JSON, the result is undefined.

    Most texts have too few opening brackets for this depth, which one pattern detects. Only in the others, brackets are
    counted one by one, after the two innermost levels are removed: in a wide, flat text these are most of the brackets.
    """
    brackets = F.regexp_replace(text, _NO_BRACKETS, "")
    for _ in range(_INNERMOST):
        brackets = F.regexp_replace(brackets, _PAIR, "")  # removes the innermost level of every branch
    rest = levels - _INNERMOST
    depth = F.aggregate(
        F.split(brackets, ""),
        F.lit(0),
        lambda depth, bracket: F.when(depth > rest, depth).when(bracket.isin("[", "{"), depth + 1).otherwise(depth - 1),
    )
    return text.rlike(rf"(?s)\A(?:[^\[{{]*+[\[{{]){{{levels + 1}}}") & (depth > rest)
