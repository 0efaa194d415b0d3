"""
The columns that decoding reads and writes: their names and types.

``HEADERS`` is the shape of headers that is taken for granted where nothing else is said, ``EVENT`` what ``from_nats``
gives, ``FLAT`` what ``explode_cloudevents`` adds, without the prefix, ``MESSAGE`` what ``to_nats`` gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

__all__ = [
    "ATTRIBUTES",
    "EVENT",
    "EXTENSION_TYPES",
    "FLAT",
    "HEADERS",
    "MESSAGE",
    "REQUIRED",
    "check_event",
    "check_headers",
]

# In the order in which they become columns.
ATTRIBUTES: Final = ("specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema")
# The order in which a missing attribute is looked for.
REQUIRED: Final = ("specversion", "id", "source", "type")

_TEXT: Final = StringType()
_TEXTS: Final = MapType(_TEXT, _TEXT)

# As Spark's Kafka source has them, but text: header names and values of NATS are text.
HEADERS: Final = ArrayType(StructType([StructField("key", _TEXT), StructField("value", _TEXT)]))

EVENT: Final = StructType(
    [
        StructField(
            "attributes",
            StructType(
                [
                    *(StructField(name, TimestampType() if name == "time" else _TEXT) for name in ATTRIBUTES),
                    StructField("time_text", _TEXT),
                ]
            ),
        ),
        StructField("extensions", _TEXTS),
        StructField("data", BinaryType()),
        # Whether the data is that of a JSON event without a datacontenttype, which means application/json.
        StructField("is_json", BooleanType()),
        StructField("mode", _TEXT),
        StructField("error", _TEXT),
    ]
)

MESSAGE: Final = StructType(
    [StructField("headers", HEADERS), StructField("data", BinaryType()), StructField("error", _TEXT)]
)

FLAT: Final = StructType(
    [
        *(StructField(name, TimestampType() if name == "time" else _TEXT) for name in ATTRIBUTES),
        *(field for field in EVENT.fields if field.name not in ("attributes", "is_json")),
    ]
)

# What an extension can be declared as.
EXTENSION_TYPES: Final[Mapping[str, DataType]] = {
    "string": _TEXT,
    "int": IntegerType(),
    "boolean": BooleanType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
}

_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
_EXTENSION: Final = (StringType, BooleanType, BinaryType, TimestampType, *_INTEGERS)
_DATA: Final = (BinaryType, StringType, VariantType)


def check_headers(kind: DataType) -> None:
    """
    Refuse what is not a type of headers.

    Raises:
        TypeError: It is neither an array of structs of two strings or binaries, nor a map to a string or to an array of
            strings, nor a raw header block in a binary.
    """
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType):
        pair = kind.elementType
        if len(pair.fields) != 2 or not all(isinstance(field.dataType, (StringType, BinaryType)) for field in pair):
            raise TypeError(f"a header is a struct of two strings or binaries, not {pair.simpleString()}")
        return
    value = kind.valueType if isinstance(kind, MapType) and isinstance(kind.keyType, StringType) else None
    is_map = isinstance(value.elementType if isinstance(value, ArrayType) else value, StringType)
    if not (is_map or isinstance(kind, BinaryType)):
        raise TypeError(
            "headers are array<struct<key:string,value:string>>, map<string,string>, map<string,array<string>> or "
            f"binary (a raw header block), not {kind.simpleString()}"
        )


def check_event(kind: DataType) -> tuple[StructType, StructType]:
    """
    The types of an event struct that can be encoded and of its ``attributes``.

    Like ``EVENT``, but fields may be missing, stand in another order, and say more: ``time`` may be a STRING, further
    ``attributes`` are extensions of type STRING, BOOLEAN, BINARY, TIMESTAMP or an integer, and ``data`` may also be a
    STRING or a VARIANT.

    Raises:
        TypeError: It is not like that; the message names the field.
    """
    attributes = _field(kind, "attributes") if isinstance(kind, StructType) else None
    if not isinstance(kind, StructType) or not isinstance(attributes, StructType):
        raise TypeError(f"an event is a struct with a struct attributes, not {kind.simpleString()}")
    for field in attributes:
        wanted = _attribute_types(field.name)
        if not isinstance(field.dataType, wanted):
            names = ", ".join(one.typeName() for one in wanted)
            raise TypeError(f"attribute {field.name} is one of {names}, not {field.dataType.simpleString()}")
    rest: dict[str, tuple[type[DataType], ...]] = {"data": _DATA, "is_json": (BooleanType,), "error": (StringType,)}
    for name, wanted in rest.items():
        found = _field(kind, name)
        if found is not None and not isinstance(found, wanted):
            names = ", ".join(one.typeName() for one in wanted)
            raise TypeError(f"{name} of an event is one of {names}, not {found.simpleString()}")
    found = _field(kind, "extensions")
    if found is not None and not (
        isinstance(found, MapType) and isinstance(found.keyType, StringType) and isinstance(found.valueType, StringType)
    ):
        raise TypeError(f"extensions of an event are a map of strings, not {found.simpleString()}")
    return kind, attributes


def _field(kind: StructType, name: str) -> DataType | None:
    return kind[name].dataType if name in kind.names else None


def _attribute_types(name: str) -> tuple[type[DataType], ...]:
    if name == "time":
        return TimestampType, StringType
    return (StringType,) if name in ATTRIBUTES or name == "time_text" else _EXTENSION
