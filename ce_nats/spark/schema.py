"""
The columns that decoding reads and writes: their names and types.

``HEADERS`` is the shape of headers that is taken for granted where nothing else is said, ``EVENT`` what ``from_nats``
gives, ``FLAT`` what ``explode_cloudevents`` adds, without the prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

__all__ = ["ATTRIBUTES", "EVENT", "EXTENSION_TYPES", "FLAT", "HEADERS", "REQUIRED"]

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
        StructField("mode", _TEXT),
        StructField("error", _TEXT),
    ]
)

FLAT: Final = StructType(
    [
        *(StructField(name, TimestampType() if name == "time" else _TEXT) for name in ATTRIBUTES),
        *(field for field in EVENT.fields if field.name != "attributes"),
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
