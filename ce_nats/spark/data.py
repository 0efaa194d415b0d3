"""
Event data on its way into a message: as a payload, and as a member of a JSON event.

NATS binding 3.1.1; JSON event format 3.1.1; the same rules as ce_nats/data.py for what is bytes (BINARY), text (STRING)
or a JSON value (VARIANT).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql.types import BinaryType, DataType, VariantType

from ..errors import ErrorCode
from . import media_type
from .expressions import code, let, matches
from .functions import F
from .json import MOST_LEVELS, is_deeper

__all__ = ["base64", "member", "payload", "quoted"]

# Control characters whose escapes have a letter in them.
_HEX_ESCAPED: Final = r"[\x0b\x0e\x0f\x1a-\x1f]"
_PIECE: Final = r"(?s)\\u[0-9A-F]{4}|\\.|[^\\]++"


def payload(value: Column, kind: DataType | None, content_type: Column) -> Column:
    """
    A struct of ``data`` (bytes) and ``code``, one of which is NULL.

    Args:
        value: Event data; NULL is none.
        kind: Its type: BINARY, STRING or VARIANT; None where an event has no data.
        content_type: The datacontenttype, checked; not NULL where there is a STRING or VARIANT.
    """
    if kind is None:
        return _written(F.lit(b""))
    if isinstance(kind, BinaryType):
        return _written(F.coalesce(value, F.lit(b"")))
    text, json = _text(value, kind), _json(value, kind)
    return (
        F.when(value.isNull(), _written(F.lit(b"")))
        .when(
            media_type.is_json(content_type),
            F.when(_is_utf8(content_type), _refused_where_null(json.cast("binary"))).otherwise(
                _refused(ErrorCode.UNSUPPORTED_CHARSET)
            ),
        )
        .when(text.isNull(), _refused(ErrorCode.INVALID_DATA))
        .otherwise(media_type.encode(text, content_type))
    )


def member(value: Column, kind: DataType | None, content_type: Column) -> Column:
    """
    A struct of ``data`` and ``code``, one of which is NULL: the member of a JSON event with a comma before it, or
    nothing.

    Args:
        value: Event data; NULL is none.
        kind: Its type: BINARY, STRING or VARIANT; None where an event has no data.
        content_type: The datacontenttype, checked; not NULL where there is a STRING or VARIANT.
    """
    if kind is None:
        return _written(F.lit(""))
    if isinstance(kind, BinaryType):
        # "MUST be rendered in data_base64", whatever the datacontenttype says.
        encoded = F.concat(F.lit(',"data_base64":"'), base64(value), F.lit('"'))
        return _written(F.coalesce(encoded, F.lit("")))
    text, before = _text(value, kind), F.lit(',"data":')
    # What cannot be sent in one mode cannot be sent in the other.
    error = F.when(~_is_utf8(content_type), media_type.encode(text, content_type)["code"])
    return (
        F.when(value.isNull(), _written(F.lit("")))
        .when(media_type.is_json(content_type), _refused_where_null(F.concat(before, _json(value, kind))))
        .when(text.isNull(), _refused(ErrorCode.INVALID_DATA))
        .otherwise(
            let(
                error,
                lambda error: F.struct(
                    F.when(error.isNull(), F.concat(before, quoted(text))).alias("data"), error.alias("code")
                ),
            )
        )
    )


def quoted(text: Column) -> Column:
    """A JSON string as compact as can be, spelled as Python spells it."""
    array = F.to_json(F.array(text))
    return let(
        F.substring(array, F.lit(2), F.length(array) - 2),
        lambda string: F.when(matches(text, _HEX_ESCAPED), _in_lower_case(string)).otherwise(string),
    )


def base64(value: Column) -> Column:
    """Base64 in one line; Spark can be configured to fold it."""
    return F.replace(F.base64(value), F.lit("\r\n"), F.lit(""))


def _in_lower_case(string: Column) -> Column:
    r"""``\u001F`` becomes ``\u001f``."""
    pieces = F.regexp_extract_all(string, F.lit(_PIECE), F.lit(0))
    return F.array_join(
        F.transform(pieces, lambda piece: F.when(piece.startswith("\\u"), F.lower(piece)).otherwise(piece)), ""
    )


def _text(value: Column, kind: DataType) -> Column:
    """The text that data is; NULL for what is no text."""
    if isinstance(kind, VariantType):
        return F.when(F.schema_of_variant(value) == "STRING", F.try_variant_get(value, "$", "string"))
    return F.when(F.is_valid_utf8(value), value)


def _json(value: Column, kind: DataType) -> Column:
    """The JSON text of data; NULL for what has none, or is nested too deep."""
    if isinstance(kind, VariantType):
        return let(F.to_json(value), lambda text: F.when(~is_deeper(text, MOST_LEVELS), text))
    return F.when(F.is_valid_utf8(value), quoted(value))


def _is_utf8(content_type: Column) -> Column:
    return ~content_type.contains(";") | media_type.is_utf8(media_type.charset(content_type))


def _written(data: Column) -> Column:
    return F.struct(data.alias("data"), F.lit(None).cast("string").alias("code"))


def _refused_where_null(data: Column) -> Column:
    return F.struct(data.alias("data"), F.when(data.isNull(), code(ErrorCode.INVALID_DATA)).alias("code"))


def _refused(error: ErrorCode) -> Column:
    return F.struct(F.lit(None).alias("data"), code(error).alias("code"))
