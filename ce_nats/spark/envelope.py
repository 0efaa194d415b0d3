"""
JSON events whose members are strings without escapes, but for the data, which comes last.

That is how most senders write them, and it can be told from what Spark's ``from_json`` gives: spell the members again
and compare with the document. See json.py for all other documents and for what ``from_json`` does not tell.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from .expressions import at, let, matches

__all__ = ["MAPS", "STRICT", "data", "front", "has_data", "is_plain_data", "is_whole", "maps"]

MAPS: Final = "array<map<string,string>>"
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

# A number has one spelling only, so a document that does not hold this text does not hold this number.
_MARK: Final = "4611686018427387847"
_INFINITE: Final = 'Infinity"'
_REPLACEMENT: Final = "\ufffd"
_SURROGATE: Final = r"\\u[dD][89a-fA-F]"
_BLANKS: Final = " \t\n\r"


def maps(text: Column) -> Column:
    """
    The members of an object as a map, repeats and wire order kept, and behind it a map that is a mark.

    ``from_json`` does not look at what stands behind a document. The document is therefore read as the first of two
    elements of an array; :func:`is_whole` tells whether the second is ours.
    """
    return F.from_json(F.concat(F.lit("["), text, F.lit(f',{{"":{_MARK}}}]')), MAPS, STRICT)


def is_whole(text: Column, found: Column) -> Column:
    """Whether :func:`maps` has found an object and nothing behind it."""
    mark = at(found, 1)[""]
    return (F.size(found) == 2) & (mark == _MARK) & at(found, 0).isNotNull() & ~text.contains(_MARK)


def has_data(names: Column) -> Column:
    """Whether the last member is ``data``."""
    return at(names, F.size(names) - 1) == "data"


def front(text: Column, names: Column, texts: Column) -> Column:
    """
    The document up to its data, or all of it, spelled from its members; NULL where the document is spelled otherwise.

    A name or string that is written with an escape, and a value that is no string, make it different.
    """
    is_last = has_data(names)
    count = F.size(names) - is_last.cast("int")

    def spelled(colon: str, comma: str) -> Column:
        members = F.transform(
            F.slice(names, F.lit(1), count),
            lambda name, place: F.concat(F.lit('"'), name, F.lit(f'"{colon}"'), at(texts, place), F.lit('"')),
        )
        end = F.when(is_last, F.lit(f'{comma}"data"{colon}')).otherwise(F.lit("}"))
        return F.concat(F.lit("{"), F.array_join(members, comma), end)

    # As most JSON writers do it, and as Python's does.
    return let(
        spelled(":", ","),
        lambda compact: F.when(text.startswith(compact), compact).otherwise(
            let(spelled(": ", ", "), lambda spaced: F.when(text.startswith(spaced), spaced))
        ),
    )


def data(text: Column, before: Column) -> Column:
    """The JSON text of the data, which stands between a front and the last brace."""
    size = F.octet_length(before)
    rest = F.substring(text.cast("binary"), size + 1, F.octet_length(text) - size - 1).cast("string")
    return F.btrim(rest, F.lit(_BLANKS))


def is_plain_data(text: Column, respelled: Column) -> Column:
    """
    Whether data that ``from_json`` could read is strict JSON in UTF-8.

    Args:
        text: The document.
        respelled: The data as ``from_json`` gave it. A number that no float can hold and bytes that are not UTF-8 show
            in it.
    """
    shown = F.coalesce(respelled, F.lit(""))
    has_surrogate = text.contains("\\u") & matches(text, _SURROGATE)
    return text.endswith("}") & ~shown.contains(_INFINITE) & ~shown.contains(_REPLACEMENT) & ~has_surrogate
