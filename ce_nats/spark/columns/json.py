"""
Which data is JSON, what Spark's JSON parser has to be told to be strict, and how deep a text is nested.

RFC 8259; the same rule and limit as ce_nats/media_type.py and ce_nats/nesting.py.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

__all__ = ["STRICT", "is_deeper", "is_json"]

_TOKEN: Final = r"[!#$%&'*+.^_`{|}~0-9A-Za-z-]+"
_JSON: Final = rf"(?is)\A{_TOKEN}/(?:(?:{_TOKEN})?\+)?json[ \t]*+(?:;|\z)"
# What Spark lets pass by default, or could be told to let pass, and RFC 8259 does not.
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
# Possessive wherever a pattern repeats: Java needs a stack for every repetition that it could take back.
_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_NO_BRACKETS: Final = rf'(?s){_STRING}|[^"{{}}\[\]]++'
_PAIR: Final = r"\[\]|\{\}"
_INNERMOST: Final = 2


def is_json(media_type: Column) -> Column:
    """Whether a media type is JSON: "the media subtype is 'json' or has a '+json' suffix" (JSON format 3.1.1)."""
    return media_type.rlike(_JSON)


def is_deeper(text: Column, levels: int) -> Column:
    """
    Whether arrays and objects of a JSON text are nested more than so many levels deep. What is not JSON has no depth.

    Few texts have so many brackets at all. Only of those they are looked at one by one, and of what is wide and not
    deep most are gone before.
    """
    brackets = F.regexp_replace(text, _NO_BRACKETS, "")
    for _ in range(_INNERMOST):
        brackets = F.regexp_replace(brackets, _PAIR, "")  # the innermost level of every branch
    left = levels - _INNERMOST
    depth = F.aggregate(
        F.split(brackets, ""),
        F.lit(0),
        lambda depth, bracket: F.when(depth > left, depth).when(bracket.isin("[", "{"), depth + 1).otherwise(depth - 1),
    )
    return text.rlike(rf"(?s)\A(?:[^\[{{]*+[\[{{]){{{levels + 1}}}") & (depth > left)
