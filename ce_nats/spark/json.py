"""
Strict JSON with Spark's own, lenient parser: the members of an object with their types, in wire order, repeats kept.

RFC 8259. Spark's ``from_json`` knows the grammar, but gives every member as text, so that ``5`` and ``"5"`` look
alike, rounds numbers, repairs lone surrogates, and does not look at what stands behind a document. So each string and
number of the document is marked first, which also is the moment to look into it, and the document is parsed as the
first of two elements of an array, the second of which it cannot spell.

What differs from ce_nats/data.py: a name of more than 50,000 characters or a string of more than 100 million is invalid
here, in a document that would be valid JSON.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from pyspark.sql import Column

from ..errors import ErrorCode
from .expressions import at, code, full, let, matches
from .functions import F

__all__ = ["MOST_LEVELS", "STRICT", "Kind", "data_text", "is_deeper", "parse"]

# Of arrays and objects in data, as ce_nats/nesting.py has it. Spark's parser would read 1,000.
MOST_LEVELS: Final = 128

_TO_END: Final = 2**31 - 1
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
_MAPS: Final = "array<map<string,string>>"

# Possessive wherever a pattern repeats: Java needs a stack for every repetition that it could take back.
_BLANKS: Final = r"[ \t\n\r]*+"
_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_NUMBER: Final = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"
_NO_BRACKETS: Final = rf'(?s){_STRING}|[^"{{}}\[\]]++'
_PAIR: Final = r"\[\]|\{\}"
_INNERMOST: Final = 2
_TOKEN: Final = rf'(?s){_STRING}|{_NUMBER}|[^"\-0-9]++|.'
_IS_NUMBER: Final = r"\A-?[0-9]"
_IS_FLOAT: Final = "[.eE]"
_PAIRED_SURROGATES: Final = full(
    r"[^\\]*+(?:\\(?:[^u]|u(?![dD][89a-fA-F])|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})[^\\]*+)*+"
)
_LARGEST_FLOAT: Final = 1.7976931348623157e308
# Python refuses to read longer integers.
_MOST_DIGITS: Final = 4300

_STRING_MARK: Final = "s"
_NUMBER_MARK: Final = '["n'
_NUMBER_END: Final = '"]'
# Stands for what is not allowed: no JSON has it.
_BROKEN: Final = "!"
# No string of the document is spelled like this one, for want of its mark.
_LAST: Final = "end"

# Where an object has no other container than "data", everything around it is flat.
_SCALAR: Final = rf'(?:{_STRING}|[^"{{}}\[\],: \t\n\r]++)'
_NAME_DATA: Final = r'"(?:d|\\u0064)(?:a|\\u0061)(?:t|\\u0074)(?:a|\\u0061)"'
_MEMBER: Final = rf"{_STRING}{_BLANKS}:{_BLANKS}{_SCALAR}{_BLANKS}"
_DATA: Final = (
    rf"(?s)\A{_BLANKS}\{{{_BLANKS}(?:(?!{_NAME_DATA}){_MEMBER},{_BLANKS})*+{_NAME_DATA}{_BLANKS}:{_BLANKS}"
    rf"({_SCALAR}|[\[{{].*[\]}}]){_BLANKS}(?:,{_BLANKS}{_MEMBER})*+\}}{_BLANKS}\z"
)


class Kind(str, Enum):
    """What a JSON value is; a number with a fraction or an exponent is no integer, whatever its value."""

    STRING = "string"
    INTEGER = "integer"
    FLOAT = "float"
    BOOLEAN = "boolean"
    NULL = "null"
    CONTAINER = "container"


def parse(text: Column) -> Column:
    """
    A struct of ``members`` and ``code``. A document has one level more than its data may have.

    Members are structs of ``name``, ``kind`` and ``text``: of a string what it says, of an integer or a boolean its one
    spelling, else of no use. The code is ``invalid-utf8``, ``invalid-json``, ``not-an-object`` or NULL.

    Args:
        text: A document; bytes that are not UTF-8 are found.
    """
    marked = F.when(is_deeper(text, MOST_LEVELS + 1), F.lit(_BROKEN)).otherwise(_marked(text))
    wrapped = F.concat(F.lit("["), marked, F.lit(f',{{"{_LAST}":null}}]'))
    return let(
        F.when(F.is_valid_utf8(text), wrapped),
        lambda wrapped: let(F.from_json(wrapped, _MAPS, STRICT), lambda maps: _document(wrapped, maps)),
    )


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


def data_text(text: Column) -> Column:
    """
    The JSON text of the member ``data`` as it stands in the document.

    Args:
        text: Valid JSON, an object without repeats whose other members are scalars and have no braces in their names.
    """
    return F.regexp_extract(text, _DATA, 1)


def _document(wrapped: Column, maps: Column) -> Column:
    is_object = (F.size(maps) == 2) & F.map_contains_key(at(maps, 1), _LAST) & at(maps, 0).isNotNull()
    members = F.transform(F.map_entries(at(maps, 0)), _member)
    # Anything else but an object cannot be read as a map; as text it can.
    elements = F.from_json(wrapped, "array<string>", STRICT)
    is_json = F.coalesce((F.size(elements) == 2) & (at(elements, 1) == f'{{"{_LAST}":null}}'), F.lit(False))
    error = F.when(wrapped.isNull(), code(ErrorCode.INVALID_UTF8)).when(
        ~F.coalesce(is_object, F.lit(False)),
        F.when(is_json, code(ErrorCode.NOT_AN_OBJECT)).otherwise(code(ErrorCode.INVALID_JSON)),
    )
    return let(
        error,
        lambda error: F.struct(F.when(error.isNull(), members).alias("members"), error.alias("code")),
    )


def _member(entry: Column) -> Column:
    value = entry["value"]
    number = F.substring(value, F.lit(len(_NUMBER_MARK) + 1), F.length(value) - len(_NUMBER_MARK + _NUMBER_END))
    kind = (
        F.when(value.isNull(), F.lit(Kind.NULL.value))
        .when(value.startswith(_STRING_MARK), F.lit(Kind.STRING.value))
        .when(value.isin("true", "false"), F.lit(Kind.BOOLEAN.value))
        .when(~value.startswith(_NUMBER_MARK), F.lit(Kind.CONTAINER.value))
        .when(matches(number, _IS_FLOAT), F.lit(Kind.FLOAT.value))
        .otherwise(F.lit(Kind.INTEGER.value))
    )
    text = (
        F.when(kind == Kind.STRING.value, F.substring(value, F.lit(2), F.lit(_TO_END)))
        .when(kind == Kind.INTEGER.value, F.when(number == "-0", F.lit("0")).otherwise(number))
        .otherwise(value)
    )
    name = F.substring(entry["key"], F.lit(2), F.lit(_TO_END))
    return F.struct(name.alias("name"), kind.alias("kind"), text.alias("text"))


def _marked(text: Column) -> Column:
    """
    The document with each string and number marked, and broken on purpose where one of them is not allowed.

    ``"x"`` becomes ``"sx"`` and ``5`` becomes ``["n5"]``, which can stand where ``5`` can, and not as a name.
    """

    def marked(token: Column) -> Column:
        string = F.concat(F.lit(f'"{_STRING_MARK}'), F.substring(token, F.lit(2), F.lit(_TO_END)))
        is_paired = ~token.contains("\\u") | matches(token, _PAIRED_SURROGATES)
        digits = F.length(F.btrim(token, F.lit("-")))
        is_number = F.when(
            matches(token, _IS_FLOAT), F.abs(token.try_cast("double")) <= F.lit(_LARGEST_FLOAT)
        ).otherwise(digits <= _MOST_DIGITS)
        number = F.concat(F.lit(_NUMBER_MARK), token, F.lit(_NUMBER_END))
        return (
            F.when(~token.startswith('"') & ~matches(token, _IS_NUMBER), token)
            .when(token.startswith('"') & (F.length(token) > 1) & is_paired, string)
            .when(matches(token, _IS_NUMBER) & is_number, number)
            .otherwise(F.lit(_BROKEN))
        )

    return F.array_join(F.transform(F.regexp_extract_all(text, F.lit(_TOKEN), F.lit(0)), marked), "")
