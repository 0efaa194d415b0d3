"""
CloudEvents into NATS messages, as native Spark columns: no Python worker in the plan.

NATS binding, section 3; the same rules and error codes as ``ce_nats.to_nats_message``. A row that cannot be encoded has
a code in ``error`` and nothing else; it never fails the query.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from ..errors import ErrorCode
from . import data, percent, timestamp
from .attributes import check, is_name, missing
from .expressions import at, code, find, let, when_first
from .mode import BINARY, PREFIX, STRUCTURED
from .schema import ATTRIBUTES, EVENT, HEADERS, MESSAGE, check_event

__all__ = ["to_nats"]

_CONTENT_TYPE: Final = "Content-Type"
_STRUCTURED_TYPE: Final = "application/cloudevents+json"
_IMPLIED_TYPE: Final = "application/json"
# An attribute: its name, its canonical string, and whether JSON has it without quotes.
_PAIRS: Final = "array<struct<name:string,text:string,is_bare:boolean>>"
_TEXTS: Final = MapType(StringType(), StringType())


def to_nats(event: Column, *, mode: str = BINARY, event_type: DataType = EVENT) -> Column:
    """
    The message of an event, as a struct: ``headers`` (array of structs of ``key`` and ``value``), ``data`` (BINARY) and
    ``error``.

    Where ``error`` has a code of :class:`ce_nats.ErrorCode`, the others are NULL. A field that is NULL is an attribute
    that the event does not have. Attributes go in the order of the struct, extensions behind them in that of the map;
    a name that is there twice is ``duplicate-attribute``, a NULL in the map ``invalid-attribute-type``, a NULL for the
    whole event ``invalid-message``. An event that has an ``error`` already keeps it.

    Select the struct before you take fields of it, or it is computed for each.

    Args:
        event: A struct as :func:`from_nats` gives it. Of its fields, ``attributes``, ``extensions``, ``data``,
            ``is_json`` and ``error`` are looked at. ``time_text`` goes before ``time``. Bytes of ``data`` go as they
            are (``data_base64`` in structured mode); a STRING is text, or a JSON string where the datacontenttype is
            JSON; a VARIANT is a JSON value. A STRING or VARIANT without a datacontenttype is ``application/json``, and
            so are bytes with ``is_json``.
        mode: ``binary`` or ``structured``.
        event_type: Type of ``event``, because a column does not know its own. Fields may be missing or in another
            order; ``time`` may be a STRING; further fields of ``attributes`` are extensions of type STRING, BOOLEAN,
            BINARY, TIMESTAMP or an integer. In structured mode extensions of the map are JSON strings.

    Raises:
        TypeError: ``event_type`` is no type of an event.
        ValueError: Another ``mode``.
    """
    if mode not in (BINARY, STRUCTURED):
        raise ValueError(f"mode is {BINARY} or {STRUCTURED}, not {mode!r}")
    shape, attributes = check_event(event_type)

    def encoded(event: Column) -> Column:
        error = F.when(event.isNull(), code(ErrorCode.INVALID_MESSAGE))
        if "error" in shape.names:
            error = F.coalesce(error, event["error"])
        return F.when(error.isNotNull(), _fault(error)).otherwise(
            let(
                _attributes(event, shape, attributes),
                lambda pairs: _message(pairs, _codes(pairs, attributes), event, shape, mode),
            )
        )

    return let(event, encoded)


def _message(pairs: Column, codes: Column, event: Column, shape: StructType, mode: str) -> Column:
    kind = shape["data"].dataType if "data" in shape.names else None
    write = data.payload if mode == BINARY else data.member
    join = _binary if mode == BINARY else _structured
    value = event["data"] if kind is not None else F.lit(None)
    return let(
        F.coalesce(at(F.filter(codes, lambda one: one.isNotNull()), 0), missing(pairs["name"])),
        lambda error: F.when(error.isNotNull(), _fault(error)).otherwise(
            let(
                find(pairs["name"], "datacontenttype", pairs["text"]),
                lambda content_type: let(
                    write(value, kind, content_type),
                    lambda written: F.when(written["code"].isNotNull(), _fault(written["code"])).otherwise(
                        join(pairs, written["data"])
                    ),
                ),
            )
        ),
    )


def _binary(pairs: Column, payload: Column) -> Column:
    headers = F.transform(
        pairs,
        lambda one: F.struct(
            F.concat(F.lit(PREFIX), one["name"]).alias("key"), percent.encode(_canonical(one)).alias("value")
        ),
    )
    return _struct(headers, payload)


def _structured(pairs: Column, member: Column) -> Column:
    def spelled(one: Column) -> Column:
        text = _canonical(one)
        # There are no control characters in attributes.
        escaped = F.replace(F.replace(text, F.lit("\\"), F.lit("\\\\")), F.lit('"'), F.lit('\\"'))
        value = F.when(one["is_bare"], text).otherwise(F.concat(F.lit('"'), escaped, F.lit('"')))
        return F.concat(F.lit('"'), one["name"], F.lit('":'), value)

    members = F.array_join(F.transform(pairs, spelled), ",")
    header = F.struct(F.lit(_CONTENT_TYPE).alias("key"), F.lit(_STRUCTURED_TYPE).alias("value"))
    return _struct(F.array(header), F.concat(F.lit("{"), members, member, F.lit("}")).cast("binary"))


def _canonical(one: Column) -> Column:
    return F.when(one["name"] == "time", timestamp.canonical(one["text"])).otherwise(one["text"])


# --- Attributes -----------------------------------------------------------------------------------------------------


def _attributes(event: Column, shape: StructType, attributes: StructType) -> Column:
    """Attributes as structs of ``name``, ``text`` and ``is_bare``; only an extension can have a NULL for a text."""
    fields = F.filter(
        F.array(*_fields(event["attributes"], attributes)).cast(_PAIRS),
        lambda one: one["text"].isNotNull(),
    )
    if "extensions" in shape.names:
        entries = F.transform(
            F.map_entries(event["extensions"].cast(_TEXTS)),
            lambda entry: _pair(entry["key"], entry["value"]),
        ).cast(_PAIRS)
        extensions = F.filter(entries, lambda one: one["text"].isNotNull() | ~one["name"].isin(*ATTRIBUTES))
        fields = F.concat(fields, F.coalesce(extensions, F.array().cast(_PAIRS)))
    if "data" not in shape.names:
        return fields
    is_json = event["data"].isNotNull()
    if isinstance(shape["data"].dataType, BinaryType):
        if "is_json" not in shape.names:
            return fields
        is_json &= F.coalesce(event["is_json"], F.lit(False))
    implied = F.array(_pair(F.lit("datacontenttype"), F.lit(_IMPLIED_TYPE))).cast(_PAIRS)
    return let(
        fields,
        lambda pairs: F.when(
            is_json & ~F.array_contains(pairs["name"], "datacontenttype"), F.concat(pairs, implied)
        ).otherwise(pairs),
    )


def _fields(attributes: Column, shape: StructType) -> list[Column]:
    names = [name for name in shape.names if name != "time_text" or "time" not in shape.names]
    pairs = []
    for name in names:
        kind = shape[name].dataType
        text = _text(attributes[name], kind)
        if name == "time" and "time_text" in shape.names:
            text = F.coalesce(attributes["time_text"], text)
        is_bare = not isinstance(kind, (StringType, BinaryType, TimestampType))
        pairs.append(_pair(F.lit("time" if name == "time_text" else name), text, is_bare=is_bare))
    return pairs


def _text(value: Column, kind: DataType) -> Column:
    """The canonical string of a value."""
    if isinstance(kind, TimestampType):
        return timestamp.format(value)
    if isinstance(kind, BinaryType):
        return data.base64(value)
    return value.cast("string")


def _pair(name: Column, text: Column, *, is_bare: bool = False) -> Column:
    return F.struct(name.alias("name"), text.alias("text"), F.lit(is_bare).alias("is_bare"))


def _codes(pairs: Column, shape: StructType) -> Column:
    """The code of each attribute, NULL for those that are right."""
    kinds = {name: _limits(shape[name].dataType) for name in shape.names if name not in (*ATTRIBUTES, "time_text")}
    types = {name: kind for name, kind in kinds.items() if kind is not None}

    def checked(one: Column, place: Column) -> Column:
        name, text = one["name"], one["text"]
        error = when_first(
            (~is_name(name), ErrorCode.INVALID_ATTRIBUTE_NAME),
            (F.array_position(pairs["name"], name) - 1 < place, ErrorCode.DUPLICATE_ATTRIBUTE),
            (text.isNull(), ErrorCode.INVALID_ATTRIBUTE_TYPE),
            (~F.is_valid_utf8(text), ErrorCode.INVALID_CHARACTER),
        )
        return F.coalesce(error, check(name, text, types))

    return F.transform(pairs, checked)


def _limits(kind: DataType) -> DataType | None:
    """The type that a canonical string is checked against, where a column can hold what that type cannot."""
    if isinstance(kind, LongType):
        return IntegerType()
    return kind if isinstance(kind, TimestampType) else None


# --- The outcome ----------------------------------------------------------------------------------------------------


def _fault(error: Column) -> Column:
    return _struct(F.lit(None).cast(HEADERS), F.lit(None), error)


def _struct(headers: Column, payload: Column, error: Column | None = None) -> Column:
    # Branches of a conditional have to agree in what may be NULL.
    no_error = F.lit(None) if error is None else error
    return F.struct(headers.alias("headers"), payload.alias("data"), no_error.alias("error")).cast(MESSAGE)
