"""
JSON in columns: detection by media type, options that make Spark's JSON parser strict, the nesting depth, and writing.

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
# The text depends neither on the time zone nor on other settings of the session; by default it has milliseconds only.
_WRITE: Final = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "true",
}
# Spark writes numbers that JSON does not have as strings.
_NOT_FINITE: Final = '"(NaN|-?Infinity)"'
_NAME_TWICE: Final = r"[<,]([^<>,:]+):.*[<,]\1:"
_MEMBER_NAME: Final = rf"{_STRING}:"
# Replacements that make, of the text of a type, the DDL of that type with STRING for everything but floats.
_TO_DDL: Final = {
    r"(?<=[:<,](?:decimal|char|varchar))\([0-9,]+\)": "",
    r"(?<=[<,])([^<>,:`]+):": "`$1`:",
    r"(?<=[:<,])(?!(?:struct|array|map)<|(?:float|double)[,>])[a-z][^<>,:`]*": "string",
    r"map<(?:float|double),": "map<string,",
}
_DDL: Final = r"^(?:`[^`<>,:]+`:|struct<(?=[`>])|array<|map<string,|string|float|double|>|,(?=`))*$"


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


def json_text(value: Column) -> Column:
    """
    Return JSON text of a value that is not NULL, or text that is not valid JSON if the value is not representable.

    That is a number that is not finite, and a struct with two fields of the same name.
    """
    kind = F.typeof(value)
    # to_json() accepts only containers, also in branches that are never executed. transform() evaluates it once.
    array = F.to_json(F.array(value), _WRITE)
    return F.transform(F.array(array), lambda text: _checked(text, kind))[0]


def _checked(array: Column, kind: Column) -> Column:
    """Return the element of a JSON array of one; ``kind`` is the text of its type, which Spark evaluates beforehand."""
    text = F.substring(array, F.lit(2), F.length(array) - 2)
    may_be_infinite = kind.rlike("float|double") & (
        F.contains(array, F.lit('"NaN"')) | F.contains(array, F.lit('nity"'))
    )
    ddl = F.concat(F.lit("array<"), kind, F.lit(">"))
    for pattern, replacement in _TO_DDL.items():
        ddl = F.regexp_replace(ddl, pattern, replacement)
    is_ddl = ddl.rlike(_DDL)  # otherwise names have characters that types have, too
    ddl = F.when(is_ddl, ddl).otherwise(F.lit("array<string>"))
    # Only the columns of floats differ between the two.
    read, strict = (F.to_json(F.from_json(array, ddl, {"allowNonNumericNumbers": flag})) for flag in ("true", "false"))
    counts = [F.regexp_count(some, F.lit(_MEMBER_NAME)) for some in (array, read)]
    return (
        F.when(may_be_infinite & ~(is_ddl & read.eqNullSafe(strict)), F.regexp_replace(text, _NOT_FINITE, "$1"))
        .when(kind.rlike(_NAME_TWICE) & is_ddl & (counts[0] != counts[1]), F.concat(F.lit("a duplicate field: "), text))
        .otherwise(text)
    )
