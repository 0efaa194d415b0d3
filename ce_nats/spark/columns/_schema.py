"""
Names and types of the columns that decoding and encoding read and write.

``HEADERS`` is the default type of headers, ``EVENT`` the struct that ``from_nats`` returns, ``FLAT`` the columns that
``explode_cloudevents`` adds, without their prefix, and ``MESSAGE`` the struct that ``to_nats`` returns.
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

# In the order of the columns.
ATTRIBUTES: Final = ("specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema")
# In the order in which they are checked.
REQUIRED: Final = ("specversion", "id", "source", "type")

_TEXT: Final = StringType()
_TEXTS: Final = MapType(_TEXT, _TEXT)

# As in Spark's Kafka source, but with STRING values: NATS headers are text.
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
        # True if a JSON event has data and no datacontenttype, which means application/json.
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

# Types that an extension can be declared with, by name.
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
    Check the type of a column of headers.

    Raises:
        TypeError: The type is not an array of structs of two strings or binaries, a map to strings or to arrays of
            strings, or binary (a raw header block).
    """
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType):
        pair = kind.elementType
        if len(pair.fields) != 2 or not all(isinstance(field.dataType, (StringType, BinaryType)) for field in pair):
            raise TypeError(f"a header must be a struct of two strings or binaries, got {pair.simpleString()}")
        return
    value = kind.valueType if isinstance(kind, MapType) and isinstance(kind.keyType, StringType) else None
    is_map = isinstance(value.elementType if isinstance(value, ArrayType) else value, StringType)
    if not (is_map or isinstance(kind, BinaryType)):
        raise TypeError(
            "headers must be array<struct<key:string,value:string>>, map<string,string>, map<string,array<string>> or "
            f"binary (a raw header block), got {kind.simpleString()}"
        )


def check_event(kind: DataType) -> tuple[StructType, StructType]:
    """
    Check that the type of a column is that of events which can be encoded.

    It must be like ``EVENT``, with these differences: fields may be missing or in another order, ``time`` may be a
    STRING, further ``attributes`` are extensions of type STRING, BOOLEAN, BINARY, TIMESTAMP or an integer, and ``data``
    may also be a STRING or a VARIANT.

    Returns:
        The type, and that of its field ``attributes``.

    Raises:
        TypeError: The type is wrong; the text names the field.
    """
    attributes = _field(kind, "attributes") if isinstance(kind, StructType) else None
    if not isinstance(kind, StructType) or not isinstance(attributes, StructType):
        raise TypeError(f"an event must be a struct with a struct attributes in it, got {kind.simpleString()}")
    for field in attributes:
        wanted = _attribute_types(field.name)
        if not isinstance(field.dataType, wanted):
            names = " or ".join(one.typeName() for one in wanted)
            raise TypeError(f"attribute {field.name} must be {names}, got {field.dataType.simpleString()}")
    rest: dict[str, tuple[type[DataType], ...]] = {"data": _DATA, "is_json": (BooleanType,), "error": (StringType,)}
    for name, wanted in rest.items():
        found = _field(kind, name)
        if found is not None and not isinstance(found, wanted):
            names = " or ".join(one.typeName() for one in wanted)
            raise TypeError(f"{name} of an event must be {names}, got {found.simpleString()}")
    found = _field(kind, "extensions")
    if found is not None and not (
        isinstance(found, MapType) and isinstance(found.keyType, StringType) and isinstance(found.valueType, StringType)
    ):
        raise TypeError(f"extensions of an event must be map<string,string>, got {found.simpleString()}")
    return kind, attributes


def _field(kind: StructType, name: str) -> DataType | None:
    return kind[name].dataType if name in kind.names else None


def _attribute_types(name: str) -> tuple[type[DataType], ...]:
    if name == "time":
        return TimestampType, StringType
    return (StringType,) if name in ATTRIBUTES or name == "time_text" else _EXTENSION
