"""
JSON in columns: whether a media type is JSON, options that make Spark's JSON parser strict, and the nesting depth.

RFC 8259; the same rules and limit as ce_nats/codec/media_type.py and ce_nats/codec/nesting.py.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

_TOKEN: Final = r"[!#$%&'*+.^_`{|}~0-9A-Za-z-]+"
_JSON: Final = rf"(?is)\A{_TOKEN}/(?:(?:{_TOKEN})?\+)?json[ \t]*+(?:;|\z)"
# Deviations from RFC 8259 that Spark's parser allows by default or by a setting, all switched off.
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
# Quantifiers are possessive: with others, Java needs stack space for each repetition that it may backtrack to.
_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_NO_BRACKETS: Final = rf'(?s){_STRING}|[^"{{}}\[\]]++'
_PAIR: Final = r"\[\]|\{\}"
_INNERMOST: Final = 2


def is_json(media_type: Column) -> Column:
    """Whether a media type is JSON: "the media subtype is 'json' or has a '+json' suffix" (JSON format 3.1.1)."""
    return media_type.rlike(_JSON)


def is_deeper(text: Column, levels: int) -> Column:
    """
    Whether arrays and objects of a JSON text are nested more than ``levels`` deep. For text that is not JSON, the
    result may be either.

    Most texts have too few brackets to be that deep, and one pattern finds that out. Only for the others, brackets are
    counted one by one, after the two innermost levels were removed, which are most brackets of a wide, flat text.
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
