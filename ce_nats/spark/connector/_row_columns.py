"""
Columns of rows to write: which of them are used, and their types.

A row is an event (``event``) or a message (``headers`` and ``data``). Further columns are ignored, as by Spark's Kafka
sink.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType

from ...errors import shortened
from ..columns._schema import check_event

SHAPES: Final = (
    "rows must have event, a struct that ce_nats.spark.cloudevent() makes, or headers ARRAY<STRUCT<key: STRING, value: "
    "STRING>> and data BINARY, of which one may be missing; and subject STRING, or the option subject"
)
_NAMES: Final = ("subject", "event", "headers", "data")
# Names in other sinks and in the CloudEvents specification; each is an error if the column that is meant is missing.
_SIMILAR: Final = {
    "header": "headers",
    "payload": "data",
    "value": "data",
    "body": "data",
    "topic": "subject",
    "subjects": "subject",
}
_TEXTS: Final = (StringType, BinaryType)


@dataclass(frozen=True)
class RowColumns:
    """
    Indexes of the columns that are used; None if a column is missing.

    Attributes:
        subject: Index of the NATS subject.
        event: Index of the event struct.
        headers: Index of the headers; None if there is an ``event``.
        data: Index of the payload; None if there is an ``event``.
    """

    subject: int | None
    event: int | None
    headers: int | None
    data: int | None

    @classmethod
    def of(cls, schema: StructType, *, has_subject: bool) -> RowColumns:
        """
        Find the columns, and check their types. Names are case-insensitive; one in exact spelling has precedence.

        Raises:
            ValueError: A column is missing, or duplicated in different case.
            TypeError: A column has the wrong type.
        """
        found = {name: _index(schema, name) for name in _NAMES}
        if found["event"] is not None:
            found["headers"] = found["data"] = None
        _check_names(schema, found, has_subject=has_subject)
        for name, index in found.items():
            if index is not None:
                _check_type(name, schema.fields[index].dataType)
        return cls(**found)


def _index(schema: StructType, name: str) -> int | None:
    if schema.names.count(name) == 1:
        return schema.names.index(name)
    indexes = [index for index, found in enumerate(schema.names) if found.lower() == name]
    if len(indexes) > 1:
        raise ValueError(f"rows must have one column {name}, got {', '.join(schema.names[index] for index in indexes)}")
    return indexes[0] if indexes else None


def _check_names(schema: StructType, found: dict[str, int | None], *, has_subject: bool) -> None:
    given = f"got columns {shortened(', '.join(schema.names))}"
    if all(found[name] is None for name in ("event", "headers", "data")):
        raise ValueError(f"{SHAPES}; {given}")
    missing = {name for name, index in found.items() if index is None}
    # An event needs neither headers nor data; a subject that is an option needs no column.
    missing -= {"event", *(("headers", "data") if found["event"] is not None else ())}
    missing -= {"subject"} if has_subject else set()
    for name in schema.names:
        if (meant := _SIMILAR.get(name.lower())) in missing:
            raise ValueError(f"column {name} must be named {meant}, or be dropped: {SHAPES}; {given}")
    if "subject" in missing:
        raise ValueError(f"the subject is missing: add a column subject or an option subject; {given}")


def _check_type(name: str, kind: DataType) -> None:
    if name == "event":
        check_event(kind)
    elif name == "subject" and not isinstance(kind, StringType):
        raise TypeError(f"column subject must be STRING, got {kind.simpleString()}")
    elif name == "data" and not isinstance(kind, _TEXTS):
        raise TypeError(
            f"column data must be BINARY or STRING, got {shortened(kind.simpleString())}; convert it with to_json() or "
            "cast('string')"
        )
    elif name == "headers" and not _are_headers(kind):
        raise TypeError(
            "column headers must be ARRAY<STRUCT<key: STRING, value: STRING>> or MAP<STRING, STRING>, or the same with "
            f"BINARY, got {shortened(kind.simpleString())}"
        )


def _are_headers(kind: Any) -> bool:
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, _TEXTS) and isinstance(kind.valueType, _TEXTS)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return len(fields) == 2 and all(isinstance(field.dataType, _TEXTS) for field in fields)
