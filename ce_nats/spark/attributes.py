"""
The checks of attribute names and values.

CloudEvents 1.0 "Naming Conventions", "Type System", "Context Attributes"; the same rules as ce_nats/attributes.py. An
attribute is a struct of ``name``, ``text`` (its canonical string) and ``code`` (its error, or NULL) here; how it
travelled is known to binary.py and structured.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column
from pyspark.sql.types import BinaryType, BooleanType, DataType, IntegerType, TimestampType

from ..errors import ErrorCode
from . import media_type, timestamp
from .expressions import code, full, matches, printable, runs, when_first
from .functions import F
from .schema import ATTRIBUTES, REQUIRED

__all__ = ["ABSOLUTE_URI", "PRINTABLE", "check", "is_name", "missing"]

NAME: Final = full("[a-z0-9]++")
ABSOLUTE_URI: Final = r"\A[A-Za-z][A-Za-z0-9+.-]*+:"
# Strings must not hold control characters or noncharacters; a surrogate cannot stand in valid UTF-8.
_FORBIDDEN: Final = (
    r"[\x00-\x1f\x7f-\x9f\x{fdd0}-\x{fdef}"
    + "".join(rf"\x{{{plane << 16 | low:x}}}" for plane in range(17) for low in (0xFFFE, 0xFFFF))
    + "]"
)
# Of the lowest plane, without halves of surrogates and noncharacters.
_LETTERS: Final = r"[\u00a0-\ud7ff\ue000-\ufdcf\ufdf0-\ufffd]++"
PRINTABLE: Final = rf"\A{printable()}*\z"
_COMMON: Final = rf"\A{runs(printable(), _LETTERS)}\z"
_INTEGER: Final = full("-?(?:0|[1-9][0-9]*+)")
_LONGEST_INTEGER: Final = len("-2147483648")
# RFC 4648 4: the standard alphabet, padded. Trailing bits are not looked at.
_BASE64: Final = full("(?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


def is_name(name: Column) -> Column:
    """Whether a text is an attribute name: a-z and 0-9, and not ``data``."""
    return matches(name, NAME) & (name != "data")


def is_legal(text: Column) -> Column:
    """Whether there are only characters that a CloudEvents String may hold."""
    # Most texts are ASCII, or at least of the lowest plane, and that is told several times faster.
    return matches(text, PRINTABLE) | matches(text, _COMMON) | ~matches(text, _FORBIDDEN)


def check(name: Column, text: Column, types: Mapping[str, DataType]) -> Column:
    """
    The code of what is wrong with an attribute's text, or NULL.

    Args:
        name: Attribute name, checked.
        text: Text of the value, valid UTF-8, not NULL.
        types: What extensions are declared as.
    """
    rules = F.when(~is_legal(text), code(ErrorCode.INVALID_CHARACTER))
    rules = rules.when(name.isin(*ATTRIBUTES) & (text == ""), code(ErrorCode.EMPTY_ATTRIBUTE))
    broken = {
        "specversion": (text != "1.0", ErrorCode.UNSUPPORTED_SPECVERSION),
        "datacontenttype": (~media_type.is_valid(text), ErrorCode.INVALID_MEDIA_TYPE),
        "dataschema": (~matches(text, ABSOLUTE_URI), ErrorCode.INVALID_URI),
        "time": (~timestamp.parse(text)["valid"], ErrorCode.INVALID_TIMESTAMP),
    }
    for attribute, rule in broken.items():
        rules = rules.when(name == attribute, when_first(rule))
    for attribute, wanted in types.items():
        error = type_error(text, wanted)
        if error is not None:
            rules = rules.when(name == attribute, error)
    return rules


def type_error(text: Column, wanted: DataType) -> Column | None:
    """The code of a text that is no value of a type, or NULL; None for strings, which every text is."""
    if isinstance(wanted, BooleanType):
        return when_first((~text.isin("true", "false"), ErrorCode.INVALID_BOOLEAN))
    if isinstance(wanted, IntegerType):
        return when_first(
            (~matches(text, _INTEGER), ErrorCode.INVALID_INTEGER), (~is_int(text), ErrorCode.INTEGER_OUT_OF_RANGE)
        )
    if isinstance(wanted, BinaryType):
        return decode_base64_error(text)
    if isinstance(wanted, TimestampType):
        return when_first((~timestamp.parse(text)["valid"], ErrorCode.INVALID_TIMESTAMP))
    return None


def is_int(text: Column) -> Column:
    """Whether the digits of an integer make one of 32 bits."""
    return (F.length(text) <= _LONGEST_INTEGER) & text.try_cast("int").isNotNull()


def decode_base64_error(text: Column) -> Column:
    """``invalid-base64``, or NULL."""
    return when_first((~matches(text, _BASE64), ErrorCode.INVALID_BASE64))


def missing(names: Column) -> Column:
    """``missing-attribute``, or NULL."""
    required = F.array(*map(F.lit, REQUIRED))
    return when_first((F.size(F.array_except(required, names)) > 0, ErrorCode.MISSING_ATTRIBUTE))
