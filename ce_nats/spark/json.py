"""
What Spark's JSON parser has to be told to be strict, and how deep a text is nested.

RFC 8259; the same limit as ce_nats/nesting.py.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column

from .expressions import matches
from .functions import F

__all__ = ["MOST_LEVELS", "STRICT", "is_deeper"]

# Of arrays and objects in data, as ce_nats/nesting.py has it. Spark's parser would read 1,000.
MOST_LEVELS: Final = 128

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


def is_deeper(text: Column, levels: int) -> Column:
    """
    Whether arrays and objects of a JSON text are nested more than so many levels deep. What is no JSON has no depth.

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
    return matches(text, rf"\A(?:[^\[{{]*+[\[{{]){{{levels + 1}}}") & (depth > left)
