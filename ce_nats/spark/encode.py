"""
CloudEvents into NATS messages, as native Spark columns: no Python worker in the plan.

NATS binding, section 3; the same rules and error codes as ``ce_nats.to_nats_message``. A row that cannot be encoded has
a code in ``error`` and nothing else; it never fails the query.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column
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
from . import checks, data, percent, timestamp
from .checks import Attributes
from .expressions import code, let
from .functions import F, apply
from .mode import BINARY, PREFIX, STRUCTURED
from .schema import EVENT, HEADERS, MESSAGE, check_event

__all__ = ["to_nats"]

_CONTENT_TYPE: Final = "Content-Type"
_STRUCTURED_TYPE: Final = "application/cloudevents+json"
_IMPLIED_TYPE: Final = "application/json"
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
    shape, fields = check_event(event_type)

    def encoded(event: Column, time: Column) -> Column:
        attributes = _attributes(event, time, shape, fields)
        error = F.when(event.isNull(), code(ErrorCode.INVALID_MESSAGE))
        if "error" in shape.names:
            error = F.coalesce(error, event["error"])
        return let(
            F.coalesce(error, checks.error(attributes)),
            lambda error: F.when(error.isNotNull(), _fault(error)).otherwise(
                _message(event, shape, attributes, _bare(fields), mode)
            ),
        )

    return apply(
        lambda event: let(
            event, lambda event: let(_time(event["attributes"], fields), lambda time: encoded(event, time))
        ),
        event,
    )


def _message(event: Column, shape: StructType, attributes: Attributes, bare: set[str], mode: str) -> Column:
    kind = shape["data"].dataType if "data" in shape.names else None
    value = event["data"] if kind is not None else F.lit(None)
    given = attributes.fields.get("datacontenttype", F.lit(None))
    if attributes.extensions is not None:
        given = F.coalesce(given, F.try_element_at(attributes.extensions, F.lit("datacontenttype")))
    implied = F.when(given.isNull() & _is_json(event, shape), F.lit(_IMPLIED_TYPE))
    write = data.payload if mode == BINARY else data.member

    def joined(types: Column, written: Column) -> Column:
        if mode == BINARY:
            return _struct(_headers(attributes, types["implied"]), written["data"])
        members = _members(attributes, bare, types["implied"])
        header = F.struct(F.lit(_CONTENT_TYPE).alias("key"), F.lit(_STRUCTURED_TYPE).alias("value"))
        return _struct(F.array(header), F.concat(F.lit("{"), members, written["data"], F.lit("}")).cast("binary"))

    return let(
        F.struct(given.alias("given"), implied.alias("implied")),
        lambda types: let(
            write(value, kind, F.coalesce(types["given"], types["implied"])),
            lambda written: F.when(written["code"].isNotNull(), _fault(written["code"])).otherwise(
                joined(types, written)
            ),
        ),
    )


def _is_json(event: Column, shape: StructType) -> Column:
    """Whether there is data that is JSON where no datacontenttype says otherwise."""
    if "data" not in shape.names:
        return F.lit(False)
    if not isinstance(shape["data"].dataType, BinaryType):
        return event["data"].isNotNull()
    if "is_json" not in shape.names:
        return F.lit(False)
    return event["data"].isNotNull() & F.coalesce(event["is_json"], F.lit(False))


# --- Attributes -----------------------------------------------------------------------------------------------------


def _attributes(event: Column, time: Column, shape: StructType, fields: StructType) -> Attributes:
    texts: dict[str, Column] = {}
    limits: dict[str, DataType] = {}
    for field in fields:
        if field.name in ("time", "time_text"):
            texts["time"] = time
            continue
        texts[field.name] = _text(event["attributes"][field.name], field.dataType)
        # What can be beyond the attribute's own type.
        if isinstance(field.dataType, (LongType, TimestampType)):
            limits[field.name] = IntegerType() if isinstance(field.dataType, LongType) else field.dataType
    extensions = event["extensions"].cast(_TEXTS) if "extensions" in shape.names else None
    return Attributes(texts, extensions, limits)


def _time(attributes: Column, fields: StructType) -> Column:
    kept = attributes["time_text"].cast("string") if "time_text" in fields.names else None
    made = _text(attributes["time"], fields["time"].dataType) if "time" in fields.names else None
    return F.coalesce(*(text for text in (kept, made, F.lit(None).cast("string")) if text is not None))


def _text(value: Column, kind: DataType) -> Column:
    """The canonical string of a value."""
    if isinstance(kind, TimestampType):
        return timestamp.format(value)
    if isinstance(kind, BinaryType):
        return data.base64(value)
    return value.cast("string")


def _bare(fields: StructType) -> set[str]:
    """Names of attributes that JSON has without quotes."""
    quoted = (StringType, BinaryType, TimestampType)
    return {field.name for field in fields if not isinstance(field.dataType, quoted)}


def _canonical(name: str, text: Column) -> Column:
    return timestamp.canonical(text) if name == "time" else text


def _entries(extensions: Column, body: Callable[[Column, Column], Column], kind: str) -> Column:
    """What becomes of each name and text of a map."""
    # A specified attribute may be among them, and be NULL.
    entries = F.filter(F.map_entries(extensions), lambda entry: entry["value"].isNotNull())

    def spelled(entry: Column) -> Column:
        name, text = entry["key"], entry["value"]
        return body(name, F.when(name == "time", timestamp.canonical(text)).otherwise(text))

    return F.coalesce(F.transform(entries, spelled).cast(kind), F.array().cast(kind))


# --- Binary mode ----------------------------------------------------------------------------------------------------


def _headers(attributes: Attributes, implied: Column) -> Column:
    def header(name: Column, text: Column) -> Column:
        return F.struct(F.concat(F.lit(PREFIX), name).alias("key"), text.alias("value"))

    fields = (header(F.lit(name), _canonical(name, text)) for name, text in attributes.fields.items())
    parts = [F.array(*fields).cast(HEADERS), F.array(header(F.lit("datacontenttype"), implied)).cast(HEADERS)]
    if attributes.extensions is not None:
        parts.insert(1, _entries(attributes.extensions, header, HEADERS.simpleString()))
    return F.transform(
        F.filter(F.concat(*parts), lambda one: one["value"].isNotNull()),
        lambda one: F.struct(one["key"].alias("key"), percent.encode(one["value"]).alias("value")),
    )


# --- Structured mode ------------------------------------------------------------------------------------------------


def _members(attributes: Attributes, bare: set[str], implied: Column) -> Column:
    """The attributes as members of a JSON object, with commas between them."""

    def member(name: Column, text: Column) -> Column:
        # There are no control characters in attributes.
        escaped = F.replace(F.replace(text, F.lit("\\"), F.lit("\\\\")), F.lit('"'), F.lit('\\"'))
        return F.concat(F.lit('"'), name, F.lit('":"'), escaped, F.lit('"'))

    members = [
        F.concat(F.lit(f'"{name}":'), text) if name in bare else member(F.lit(name), _canonical(name, text))
        for name, text in attributes.fields.items()
    ]
    if attributes.extensions is not None:
        members.append(_entries(attributes.extensions, member, "array<string>"))
    # NULL is left out.
    return F.concat_ws(",", *members, member(F.lit("datacontenttype"), implied))


# --- The outcome ----------------------------------------------------------------------------------------------------


def _fault(error: Column) -> Column:
    return _struct(F.lit(None).cast(HEADERS), F.lit(None), error)


def _struct(headers: Column, payload: Column, error: Column | None = None) -> Column:
    # Branches of a conditional have to agree in what may be NULL.
    no_error = F.lit(None) if error is None else error
    return F.struct(headers.alias("headers"), payload.alias("data"), no_error.alias("error")).cast(MESSAGE)
