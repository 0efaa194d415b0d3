"""Rows of messages for Arrow, and their columns as the codec decodes them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from ce_nats import DecodeError, from_nats_message
from ce_nats.arrow import _decode as decode_module
from ce_nats.arrow import explode_cloudevents
from ce_nats.arrow._explode import extension_types
from ce_nats.codec.attributes import canonical
from ce_nats.codec.mode import detect_mode
from tests.support.damage import as_text

Pairs = list[tuple[Any, Any]]
Row = tuple[Pairs | None, bytes | None]

CORE = ("specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema")
TEXTS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
OCTETS = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
LARGE = pa.large_list(pa.struct([("name", pa.large_string()), ("text", pa.large_binary())]))


def table(rows: Sequence[Row], kind: pa.DataType = TEXTS, payload: pa.DataType | None = None) -> pa.Table:
    names = [field.name for field in kind.value_type] if kind in (TEXTS, OCTETS, LARGE) else []
    headers = [pairs if pairs is None or not names else [dict(zip(names, pair)) for pair in pairs] for pairs, _ in rows]
    return pa.table(
        {"headers": pa.array(headers, kind), "data": pa.array([data for _, data in rows], payload or pa.binary())}
    )


def expected(row: Row, extensions: dict[str, str] | None = None, prefix: str = "ce_") -> dict[str, Any]:
    """Return the columns of a row, from the codec."""
    types = extension_types(extensions)
    columns = [*CORE, "extensions", "data", "mode", "error", *types]
    made: dict[str, Any] = dict.fromkeys(columns)
    headers, data = row
    message = SimpleNamespace(headers=headers, data=data or b"")
    try:
        for pair in headers or ():
            refuse_null(pair)
        message.headers = [tuple(map(as_text, pair)) for pair in headers or ()]
        event = from_nats_message(message, parse_data=False, extension_types=types)
    except DecodeError as error:
        return {prefix + name: value for name, value in (made | {"error": str(error.code)}).items()}
    attributes = event.get_attributes()
    untyped = from_nats_message(message, parse_data=False).get_attributes()
    made |= {name: attributes.get(name) for name in CORE}
    made["time"] = instant(made["time"])
    made["extensions"] = [(name, canonical(value)) for name, value in untyped.items() if name not in CORE]
    data = event.get_data()
    if event.has_data and not isinstance(data, bytes):
        made["error"], data = str(event.data_error.code), None
    made |= {"data": data, "mode": str(detect_mode(message))}
    made |= {name: attributes.get(name) for name in types if name not in CORE}
    made |= {name: instant(made[name]) for name, kind in types.items() if kind is datetime}
    return {prefix + name: value for name, value in made.items()}


DETAILS = ("time_text", "is_json")


def details_of(row: Row) -> tuple[str | None, bool | None]:
    """Return the values that only from_nats has."""
    try:
        pairs = [tuple(map(as_text, pair)) for pair in row[0] or ()]
        event = from_nats_message(SimpleNamespace(headers=pairs, data=row[1] or b""), parse_data=False)
    except (DecodeError, UnicodeError, AttributeError):
        return None, None
    time = event.get_time()
    return None if time is None else str(time), event.is_json


def refuse_null(pair: tuple[Any, Any]) -> None:
    """Raise the error of a header with a NULL; its name is checked before its value."""
    for part, code in zip(pair, ("invalid-header-name", "invalid-header-value")):
        if part is None:
            raise DecodeError(code, "NULL")


def instant(time: datetime | None) -> datetime | None:
    try:
        return time and time.astimezone(timezone.utc).replace(tzinfo=timezone.utc)
    except OverflowError:
        return None


def found(exploded: Any) -> list[dict[str, Any]]:
    table = pa.Table.from_batches([exploded]) if isinstance(exploded, pa.RecordBatch) else exploded
    return table.drop_columns(["headers", "data"]).to_pylist()


def compare(rows: Sequence[Row], given: pa.Table, extensions: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Compare all rows, and return their columns."""
    wanted = [expected(row, extensions) for row in rows]
    for minimum in (1, decode_module._MIN_ROWS):  # all rows decoded together, and small groups one by one
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decode_module, "_MIN_ROWS", minimum)
            exploded = explode_cloudevents(given, extensions=extensions)
            both = given.combine_chunks()
            columns = [pa.concat_arrays(both[name].chunks) if len(both) else [] for name in ("headers", "data")]
            details = decode_module.decode(*columns).columns if len(both) and not extensions else None
        exploded.validate(full=True)
        if details:
            assert list(zip(*(details[name].to_pylist() for name in DETAILS))) == [details_of(row) for row in rows]
        for row, columns, right in zip(rows, found(exploded), wanted, strict=True):
            assert columns == right, row
    return wanted
