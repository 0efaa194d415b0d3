"""
CloudEvents out of captured NATS messages, as native Spark columns: no Python worker in the plan.

The same rules and error codes as ``ce_nats.from_nats_message(message, parse_data=False)``. A row that cannot be decoded
has a code in its error column and nothing in the others; it never fails the query, unless the caller wants that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, DataType, StringType

from . import binary, structured
from . import headers as header_columns
from . import mode as modes
from .attributes import fault, typed
from .expressions import let
from .schema import ATTRIBUTES, EXTENSION_TYPES, HEADERS

__all__ = ["explode_cloudevents", "from_nats"]

_MODES: Final = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
# What tells a message from another, where a row has it.
_IDENTITY: Final = ("stream", "sequence", "subject")


def from_nats(
    headers: Column,
    data: Column,
    *,
    headers_type: DataType = HEADERS,
    extensions: Mapping[str, str] | None = None,
) -> Column:
    """
    The event in a message, as a struct: ``attributes``, ``extensions``, ``data``, ``mode``, ``error``.

    ``attributes`` has the eight attributes of the specification, ``time`` as TIMESTAMP, and ``time_text``, which keeps
    nanoseconds and offset. ``extensions`` maps names to canonical strings. ``data`` is bytes: of a JSON event the JSON
    text as it stands. Where ``error`` has a code, everything else is NULL.

    Args:
        headers: The headers; NULL is none.
        data: The payload, BINARY; NULL is empty.
        headers_type: Type of ``headers``, because a column does not know its own: an array of structs of two strings or
            binaries, a map to a string or to an array of strings, or a raw header block in a binary.
        extensions: Types of extension attributes (``string``, ``int``, ``boolean``, ``binary``, ``timestamp``): a value
            that is none of its type is an error.

    Raises:
        TypeError: ``headers_type`` is none of these.
        ValueError: A type in ``extensions`` is none of these.
    """
    types = _types(extensions)
    return let(
        header_columns.columns(headers, headers_type),
        lambda found: F.when(found["code"].isNotNull(), fault(found["code"])).otherwise(
            let(
                F.transform(found["names"], header_columns.fold),
                lambda names: _event(names, found["values"], F.coalesce(data, F.lit(b"")), types),
            )
        ),
    )


def explode_cloudevents(
    df: DataFrame,
    *,
    headers: str = "headers",
    data: str = "data",
    prefix: str = "ce_",
    extensions: Mapping[str, str] | None = None,
    mode: str = "PERMISSIVE",
) -> DataFrame:
    """
    Add one column per attribute to captured messages, batch or streaming.

    ``ce_specversion ce_id ce_source ce_type ce_subject ce_time ce_datacontenttype ce_dataschema`` (``ce_time`` as
    TIMESTAMP, the others as STRING), ``ce_extensions`` (map of strings), ``ce_data`` (BINARY), ``ce_mode`` (``binary``
    or ``structured``) and ``ce_error`` (a code of :class:`ce_nats.ErrorCode`). The columns that are there stay.

    Args:
        df: Messages, one a row.
        headers: Column of the headers, of any type that :func:`from_nats` takes.
        data: Column of the payload, BINARY or STRING.
        prefix: What the names of the new columns begin with.
        extensions: Extension attributes that get a column of their own, and its type: ``string``, ``int``, ``boolean``,
            ``binary`` or ``timestamp``. They stay in the map, too.
        mode: ``PERMISSIVE`` keeps bad messages with a code in ``ce_error`` and NULL in the other new columns;
            ``DROPMALFORMED`` leaves them out; ``FAILFAST`` fails the query at the first one.

    Raises:
        TypeError: A column is of no type that messages are made of.
        ValueError: Another ``mode``, another type in ``extensions``.
    """
    if mode not in _MODES:
        raise ValueError(f"mode is one of {', '.join(_MODES)}, not {mode!r}")
    payload_type = df.schema[data].dataType
    if not isinstance(payload_type, (BinaryType, StringType)):
        raise TypeError(f"column {data} is BINARY or STRING, not {payload_type.simpleString()}")
    event = from_nats(
        F.col(headers), F.col(data).cast("binary"), headers_type=df.schema[headers].dataType, extensions=extensions
    )
    decoded = df.withColumn(_EVENT, event)
    if mode == "DROPMALFORMED":
        decoded = decoded.where(F.col(_EVENT)["error"].isNull())
    error = F.col(_EVENT)["error"]
    if mode == "FAILFAST":
        error = F.when(error.isNotNull(), F.raise_error(_complaint(df, error))).otherwise(error)
    columns = {name: F.col(_EVENT)["attributes"][name] for name in ATTRIBUTES}
    columns |= {name: F.col(_EVENT)[name] for name in ("extensions", "data", "mode")} | {"error": error}
    columns |= {name: typed(F.col(_EVENT)["extensions"][name], wanted) for name, wanted in _types(extensions).items()}
    return decoded.select(*df.columns, *(column.alias(prefix + name) for name, column in columns.items()))


_EVENT: Final = "__ce_nats_event"


def _event(names: Column, values: Column, payload: Column, types: Mapping[str, DataType]) -> Column:
    is_empty = F.length(payload) == 0
    return let(
        modes.inspect(names, values, is_empty),
        lambda state: (
            F.when(state["code"].isNotNull(), fault(state["code"]))
            .when(state["mode"] == modes.BINARY, binary.decode(names, values, F.when(~is_empty, payload), types))
            .otherwise(structured.decode(payload, state["is_marked"], types))
        ),
    )


def _types(extensions: Mapping[str, str] | None) -> dict[str, DataType]:
    types = {}
    for name, wanted in (extensions or {}).items():
        if wanted.lower() not in EXTENSION_TYPES:
            raise ValueError(f"an extension is one of {', '.join(EXTENSION_TYPES)}, not {wanted!r}")
        types[name] = EXTENSION_TYPES[wanted.lower()]
    return types


def _complaint(df: DataFrame, error: Column) -> Column:
    """Code and whereabouts of a message that is no event."""
    known = [name for name in _IDENTITY if name in df.columns]
    where = [part for name in known for part in (F.lit(f" {name}="), F.coalesce(F.col(name).cast("string"), F.lit("")))]
    return F.concat(F.lit("no CloudEvent: "), error, *where)
