"""
Structured content mode as columns: the whole event as one JSON object in the payload.

NATS binding, section 3.2; JSON event format, sections 2 and 3; the same rules as ce_nats/structured.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column
from pyspark.sql.types import DataType

from ..errors import ErrorCode
from . import json, media_type
from .attributes import check, decode_base64_error, event, fault, is_int, is_name, missing
from .expressions import at, code, find, let, when_first
from .functions import F
from .json import Kind
from .mode import STRUCTURED
from .schema import ATTRIBUTES, REQUIRED

__all__ = ["decode"]

_BOM: Final = b"\xef\xbb\xbf"
_DATA_BASE64: Final = "data_base64"


def decode(payload: Column, is_marked: Column, types: Mapping[str, DataType]) -> Column:
    """
    The event in a payload, or its fault: a repeated member, else the first one in wire order.

    Args:
        payload: Bytes, not NULL.
        is_marked: Whether a header says that this is an event; if none does, the payload has to look like one.
        types: What extensions are declared as.
    """
    bom = F.lit(len(_BOM))
    text = F.when(F.substring(payload, 1, len(_BOM)) == F.lit(_BOM), F.substring(payload, bom + 1, F.length(payload)))
    return let(
        F.coalesce(text, payload).cast("string"),
        lambda text: let(json.parse(text), lambda document: _decode(text, document, is_marked, types)),
    )


def _decode(text: Column, document: Column, is_marked: Column, types: Mapping[str, DataType]) -> Column:
    names = document["members"]["name"]
    looks_like_one = F.arrays_overlap(names, F.array(*map(F.lit, REQUIRED)))
    error = F.when(
        ~is_marked & (document["code"].isNotNull() | ~looks_like_one), code(ErrorCode.NOT_A_CLOUDEVENT)
    ).otherwise(
        F.coalesce(
            document["code"],
            when_first((F.size(F.array_distinct(names)) < F.size(names), ErrorCode.DUPLICATE_ATTRIBUTE)),
        )
    )
    return let(
        error,
        lambda error: F.when(error.isNotNull(), fault(error)).otherwise(
            let(
                F.transform(document["members"], lambda member: _checked(member, types)),
                lambda members: _of_members(text, document, members),
            )
        ),
    )


def _checked(member: Column, types: Mapping[str, DataType]) -> Column:
    """A member with its ``code``."""
    name, kind, text = member["name"], member["kind"], member["text"]
    is_string, is_integer = kind == Kind.STRING, kind == Kind.INTEGER
    is_scalar = is_string | is_integer | (kind == Kind.BOOLEAN)
    encoded = F.when(~is_string, code(ErrorCode.INVALID_DATA)).otherwise(decode_base64_error(text))
    attribute = F.when(~is_name(name), code(ErrorCode.INVALID_ATTRIBUTE_NAME)).when(
        kind != Kind.NULL,
        F.coalesce(
            when_first(
                (~F.when(name.isin(*ATTRIBUTES), is_string).otherwise(is_scalar), ErrorCode.INVALID_ATTRIBUTE_TYPE),
                (is_integer & ~is_int(text), ErrorCode.INTEGER_OUT_OF_RANGE),
            ),
            check(name, text, types),
        ),
    )
    error = F.when(name == _DATA_BASE64, F.when(kind != Kind.NULL, encoded)).when(name != "data", attribute)
    return F.struct(name.alias("name"), kind.alias("kind"), text.alias("text"), error.alias("code"))


def _of_members(text: Column, document: Column, members: Column) -> Column:
    found = F.filter(members, lambda one: ~one["name"].isin("data", _DATA_BASE64) & (one["kind"] != Kind.NULL))
    return let(found, lambda attributes: _of_attributes(text, document, members, attributes))


def _of_attributes(text: Column, document: Column, members: Column, attributes: Column) -> Column:
    faults = F.filter(members["code"], lambda one: one.isNotNull())
    base64 = find(members["name"], _DATA_BASE64, members["text"])
    has_both = F.array_contains(members["name"], "data") & base64.isNotNull()
    # JSON format 3.1.1: data "without datacontenttype is application/json", which has to be said in another mode.
    has_json = F.array_contains(members["name"], "data") & ~F.array_contains(attributes["name"], "datacontenttype")
    error = F.coalesce(at(faults, 0), when_first((has_both, ErrorCode.DATA_CONFLICT)), missing(attributes["name"]))
    return let(
        error,
        lambda error: F.when(error.isNotNull(), fault(error)).otherwise(
            let(
                _data(text, document, members, base64),
                lambda data: F.when(data["code"].isNotNull(), fault(data["code"])).otherwise(
                    event(attributes, data["data"], STRUCTURED, has_json)
                ),
            )
        ),
    )


def _data(text: Column, document: Column, members: Column, base64: Column) -> Column:
    """A struct of ``data`` and ``code``; both are NULL where there is no data."""
    names = members["name"]
    content_type = find(names, "datacontenttype", members["text"])
    kind, value = find(names, "data", members["kind"]), find(names, "data", members["text"])

    def written(content_type: Column) -> Column:
        is_json = kind.isNull() | content_type.isNull() | media_type.is_json(content_type)
        return (
            F.when(is_json, F.lit(None))
            .when(kind != Kind.STRING, _coded(ErrorCode.INVALID_DATA))
            .otherwise(media_type.encode(value, content_type))
        )

    as_it_stands = F.struct(
        F.when(kind.isNull(), F.try_to_binary(base64, F.lit("base64")))
        .otherwise(json.data_text(text).cast("binary"))
        .alias("data"),
        F.lit(None).cast("string").alias("code"),
    )
    return F.coalesce(let(content_type, written), as_it_stands)


def _coded(error: ErrorCode) -> Column:
    return F.struct(F.lit(None).cast("binary").alias("data"), code(error).alias("code"))
