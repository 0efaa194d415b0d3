"""
Headers as two columns, names and values in wire order, from every shape in which captured messages hold them.

ADR-4 "NATS Message Headers" for the raw block, with the same rules as ce_nats/wire/nats.py. What headers mean is not
known here.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType

from ..errors import ErrorCode
from .expressions import at, code, full, let, matches, when_first
from .functions import F

__all__ = ["columns", "fold", "plain_columns"]

_TEXTS: Final = "array<string>"
_UPPER: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TO_END: Final = 2**31 - 1
# One byte, one character: a block is looked at as bytes, whatever they mean.
_BYTES: Final = "ISO-8859-1"
_CRLF: Final = "\r\n"
_BARE_CR_OR_LF: Final = r"\r(?!\n)|(?<!\r)\n"
_VERSION_LINE: Final = full(r"NATS/1\.0(?: [0-9]{3}(?:[ \t][^\x00]*+)?)?")
_FIELD_NAME: Final = full("[!-9;-~]++")


def fold(name: Column) -> Column:
    """ASCII letters in lower case; others stay, since no other letter may count as one of ours."""
    return F.translate(name, _UPPER, _UPPER.lower())


def plain_columns(headers: Column, shape: DataType) -> tuple[Column, Column] | None:
    """
    Names and values, not checked for NULL, where the shape has them at no cost; None where it does not.

    Args:
        headers: The headers column.
        shape: Its type.
    """
    if isinstance(shape, MapType) and isinstance(shape.valueType, StringType):
        return F.map_keys(headers), F.map_values(headers)
    if isinstance(shape, ArrayType) and isinstance(shape.elementType, StructType):
        name, value = _checked_pair(shape.elementType)
        return headers[name].cast(_TEXTS), headers[value].cast(_TEXTS)
    return None


def columns(headers: Column, shape: DataType) -> Column:
    """
    A struct of ``names``, ``values`` (arrays of the same length, in wire order) and ``code``.

    The code is that of the first header that is not text, or NULL; in a raw block also of what is wrong with its shape.

    Args:
        headers: The headers column; NULL is no headers, and so is an empty block.
        shape: Its type: an array of structs of two strings or binaries, a map to a string or to an array of strings, or
            a raw header block in a binary.

    Raises:
        TypeError: The type is none of these.
    """
    if isinstance(shape, BinaryType):
        return _of_block(headers)
    plain = plain_columns(headers, shape)
    if plain is None:
        plain = _of_lists(headers, shape)
    no_names, no_values = (F.coalesce(column, F.array().cast(_TEXTS)) for column in plain)
    return let(F.struct(no_names.alias("names"), no_values.alias("values")), _checked)


def _checked(found: Column) -> Column:
    names, values = found["names"], found["values"]
    faults = F.transform(
        names,
        lambda name, place: when_first(
            (name.isNull(), ErrorCode.INVALID_HEADER_NAME),
            (at(values, place).isNull(), ErrorCode.INVALID_HEADER_VALUE),
            (~F.is_valid_utf8(name) | ~F.is_valid_utf8(at(values, place)), ErrorCode.INVALID_UTF8),
        ),
    )
    return F.struct(names.alias("names"), values.alias("values"), _first(faults).alias("code"))


def _first(faults: Column) -> Column:
    return at(F.filter(faults, lambda fault: fault.isNotNull()), 0)


def _checked_pair(pair: StructType) -> tuple[str, str]:
    """Names of the two fields of a header."""
    fields = [field.name for field in pair.fields if isinstance(field.dataType, (StringType, BinaryType))]
    if len(fields) != 2 or len(pair.fields) != 2:
        raise TypeError(f"a header is a struct of two strings or binaries, not {pair.simpleString()}")
    return fields[0], fields[1]


def _of_lists(headers: Column, shape: DataType) -> tuple[Column, Column]:
    """Names and values of ``map<string,array<string>>``, each name as often as it has values."""
    if not (
        isinstance(shape, MapType)
        and isinstance(shape.valueType, ArrayType)
        and isinstance(shape.valueType.elementType, StringType)
    ):
        raise TypeError(
            "headers are array<struct<key:string,value:string>>, map<string,string>, map<string,array<string>> or "
            f"binary (a raw header block), not {shape.simpleString()}"
        )
    # A NULL list counts as one NULL value, so that it is found to be none.
    entries = F.transform(
        F.map_entries(headers),
        lambda entry: F.struct(
            entry["key"].alias("name"), F.coalesce(entry["value"], F.array(F.lit(None).cast("string"))).alias("values")
        ),
    )
    names = F.transform(entries, lambda entry: F.transform(entry["values"], lambda _: entry["name"]))
    return F.flatten(names), F.flatten(entries["values"])


# --- A raw header block ---------------------------------------------------------------------------------------------


def _of_block(block: Column) -> Column:
    return let(F.decode(F.coalesce(block, F.lit(b"")), _BYTES), _of_text)


def _of_text(text: Column) -> Column:
    """Of a block whose bytes are characters."""
    shape = when_first(
        (~text.endswith(_CRLF * 2), ErrorCode.INVALID_HEADER_BLOCK),
        (matches(text, _BARE_CR_OR_LF), ErrorCode.INVALID_HEADER_BLOCK),
    )
    lines = F.split(F.substring(text, F.lit(1), F.length(text) - 2 * len(_CRLF)), _CRLF, -1)
    no_lines = F.array().cast(_TEXTS)
    return let(
        F.struct(
            F.when(text == "", no_lines).when(shape.isNull(), lines).otherwise(no_lines).alias("lines"),
            F.when(text != "", shape).alias("code"),
        ),
        lambda block: let(
            F.transform(F.slice(block["lines"], F.lit(2), F.lit(_TO_END)), _line),
            lambda pairs: F.struct(
                pairs["name"].alias("names"),
                pairs["value"].alias("values"),
                F.coalesce(block["code"], _version_error(at(block["lines"], 0)), _first(pairs["code"])).alias("code"),
            ),
        ),
    )


def _version_error(line: Column) -> Column:
    return F.when(~matches(line, _VERSION_LINE), code(ErrorCode.INVALID_HEADER_VERSION)).when(
        ~F.is_valid_utf8(_utf8(line)), code(ErrorCode.INVALID_UTF8)
    )


def _line(line: Column) -> Column:
    """A struct of ``name``, ``value`` and ``code`` of "a field name followed by a colon" and the field's value."""
    name = F.substring_index(line, ":", 1)
    value = _utf8(F.btrim(F.substring(line, F.length(name) + 2, F.lit(_TO_END)), F.lit(" \t")))
    error = when_first(
        (line.startswith(" ") | line.startswith("\t") | ~line.contains(":"), ErrorCode.INVALID_HEADER_BLOCK),
        (~matches(name, _FIELD_NAME), ErrorCode.INVALID_HEADER_NAME),
        (value.contains("\0"), ErrorCode.INVALID_HEADER_VALUE),
        (~F.is_valid_utf8(value), ErrorCode.INVALID_UTF8),
    )
    return F.struct(name.alias("name"), value.alias("value"), error.alias("code"))


def _utf8(text: Column) -> Column:
    """The text that bytes in the place of characters are in UTF-8; it may be none."""
    return F.encode(text, _BYTES).cast("string")
