"""Columns of messages that a consumer has received."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import pyarrow as pa

from ._explode import explode_cloudevents

RecordBatch: TypeAlias = pa.RecordBatch

_SCHEMA = pa.schema(
    {
        "stream": pa.string(),
        "sequence": pa.int64(),
        "subject": pa.string(),
        "headers": pa.binary(),
        "data": pa.binary(),
    }
)


def columns_of(
    messages: Iterable[tuple[str, int, str, bytes | None, bytes]], extensions: Mapping[str, str] | None
) -> RecordBatch:
    """Return messages, at least one, as columns with those of their events; a message is a row of the schema."""
    columns = zip(*messages)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA)]
    return explode_cloudevents(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA), extensions=extensions)
