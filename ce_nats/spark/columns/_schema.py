"""
Names and types of the columns that decoding and encoding read and write.

``EVENT`` is the struct that ``from_nats`` returns, ``FLAT`` the columns that ``explode_cloudevents`` adds, without
their prefix, and ``MESSAGE`` the struct that ``to_nats`` returns. They are derived from the types of ``ce_nats.arrow``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
)

from ...arrow._decode import ATTRIBUTES, COLUMNS, TYPES
from ...capture._rows import SCHEMA
from ...errors import shortened

_ERROR: Final = pa.field("error", pa.string())
ARROW_ATTRIBUTES: Final = pa.struct([(name, TYPES[name]) for name in (*ATTRIBUTES, "time_text")])
ARROW_EVENT: Final = pa.struct(
    [
        ("attributes", ARROW_ATTRIBUTES),
        *((name, TYPES[name]) for name in ("extensions", "data", "is_json", "mode")),
        _ERROR,
    ]
)
ARROW_MESSAGE: Final = pa.struct([SCHEMA.field("headers"), SCHEMA.field("data"), _ERROR])

EVENT: Final = from_arrow_schema(pa.schema(list(ARROW_EVENT)))
MESSAGE: Final = from_arrow_schema(pa.schema(list(ARROW_MESSAGE)))
FLAT: Final = from_arrow_schema(pa.schema([*((name, TYPES[name]) for name in COLUMNS), _ERROR]))
_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
_EXTENSION: Final = (StringType, BooleanType, BinaryType, TimestampType, *_INTEGERS)
_FIELDS: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "data": (BinaryType, StringType, VariantType),
    "data_text": (StringType,),
    "is_json": (BooleanType,),
    "error": (StringType,),
}
# For errors; without the field that encoding does not read.
_EVENT_TEXT: Final = StructType([field for field in EVENT if field.name != "mode"]).simpleString()
_MAKER: Final = "ce_nats.spark.cloudevent() makes one"


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


def check_event(kind: DataType) -> None:
    """
    Check that events of a type can be encoded.

    The type must be like ``EVENT``, with these differences: fields may be missing or in another order, ``time`` may be
    a STRING, further ``attributes`` are extensions of type STRING, BOOLEAN, BINARY, TIMESTAMP or an integer, ``data``
    may also be a STRING or a VARIANT, and there may be a STRING ``data_text``. The type of a NULL literal is valid for
    each field.

    Raises:
        TypeError: The type is wrong; the text names the field, or has the expected type.
    """
    attributes = _field(kind, "attributes") if isinstance(kind, StructType) else None
    if not isinstance(kind, StructType) or not isinstance(attributes, StructType):
        raise TypeError(f"an event must be {_EVENT_TEXT}, got {shortened(kind.simpleString())}; {_MAKER}")
    for field in attributes:
        _check_field(f"attribute {field.name}", field.dataType, _attribute_types(field.name))
    for name, wanted in _FIELDS.items():
        _check_field(f"{name} of an event", _field(kind, name), wanted)
    extensions = _field(kind, "extensions")
    _check_field("extensions of an event", extensions, (MapType,))
    if isinstance(extensions, MapType):
        _check_field("names of extensions of an event", extensions.keyType, (StringType,))
        _check_field("values of extensions of an event", extensions.valueType, (StringType,))


def _field(kind: StructType, name: str) -> DataType:
    return kind[name].dataType if name in kind.names else NullType()


def _attribute_types(name: str) -> tuple[type[DataType], ...]:
    if name == "time":
        return TimestampType, StringType
    return (StringType,) if name in ATTRIBUTES or name == "time_text" else _EXTENSION


def _check_field(name: str, found: DataType, wanted: tuple[type[DataType], ...]) -> None:
    if not isinstance(found, (*wanted, NullType)):
        names = " or ".join(kind.typeName() for kind in wanted)
        raise TypeError(f"{name} must be {names}, got {shortened(found.simpleString())}{_remedy(name, wanted)}")


def _remedy(name: str, wanted: tuple[type[DataType], ...]) -> str:
    """Return how to convert a column to a wanted type."""
    if name == "data of an event":
        return "; convert it with to_json(), or make the event with ce_nats.spark.cloudevent()"
    return "; convert it with cast('string')" if StringType in wanted else ""
