"""
CloudEvents out of captured NATS messages, as native Spark columns: no Python worker in the plan.

The same rules and error codes as ``ce_nats.from_nats_message(message, parse_data=False)``. A row that cannot be decoded
has a code in its error column and nothing in the others; it never fails the query, unless the caller wants that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import BinaryType, DataType, StringType

from . import binary, structured
from . import headers as header_columns
from . import mode as modes
from . import plain as plain_events
from .attributes import fault, typed
from .expressions import let
from .functions import F, apply
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
    The event in a message, as a struct: ``attributes``, ``extensions``, ``data``, ``is_json``, ``mode``, ``error``.

    ``attributes`` has the eight attributes of the specification, ``time`` as TIMESTAMP, and ``time_text``, which keeps
    nanoseconds and offset. ``extensions`` maps names to canonical strings. ``data`` is bytes: of a JSON event the JSON
    text as it stands, and where that event has no datacontenttype, ``is_json`` is true: another message would have to
    say ``application/json``. Where ``error`` has a code, everything else is NULL.

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
    return _from_nats(headers, data, headers_type, _types(extensions))


def _from_nats(headers: Column, data: Column, headers_type: DataType, types: Mapping[str, DataType]) -> Column:
    def event(headers: Column, data: Column) -> Column:
        payload = F.coalesce(data, F.lit(b""))
        return let(
            header_columns.columns(headers, headers_type),
            lambda found: F.when(found["code"].isNotNull(), fault(found["code"])).otherwise(
                let(
                    F.transform(found["names"], header_columns.fold),
                    lambda names: _event(names, found["values"], payload, types),
                )
            ),
        )

    return apply(event, headers, data)


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
    types = _types(extensions)
    decoded = _decoded(df, headers, data, prefix, types)
    error = F.col(_quoted(f"{prefix}error"))
    if mode == "DROPMALFORMED":
        decoded = decoded.where(error.isNull())
    if mode == "FAILFAST":
        error = F.when(error.isNotNull(), F.raise_error(_complaint(df, error))).otherwise(error)
    texts = F.col(_quoted(f"{prefix}extensions"))
    return decoded.select(
        *_own(df),
        *(F.col(_quoted(prefix + name)) for name in _COLUMNS),
        error.alias(f"{prefix}error"),
        *(typed(texts[name], wanted).alias(prefix + name) for name, wanted in types.items()),
    )


_COLUMNS: Final = (*ATTRIBUTES, "extensions", "data", "mode")
# Columns on the way begin like this.
_STEP: Final = "__ce_nats_"


def _decoded(df: DataFrame, headers: str, data: str, prefix: str, types: Mapping[str, DataType]) -> DataFrame:
    """The columns of ``df``, and those of the event."""
    shape = df.schema[headers].dataType
    given, payload = F.col(_quoted(headers)), F.col(_quoted(data)).cast("binary")
    general = _from_nats(given, payload, shape, types)
    plain = header_columns.plain_columns(given, shape)
    if plain is None:
        steps = df.withColumn(f"{_STEP}general", general)
        columns = {name: _of_general(name) for name in _COLUMNS}
    else:
        steps, get = _plain_steps(df, *plain, payload)
        # What is plain has no other outcome. Nothing is named twice: one more projection would cost more than it saves.
        steps = steps.select("*", F.when(~plain_events.check(get, types), general).alias(f"{_STEP}general"))
        is_plain = _get("general").isNull()
        event = plain_events.event(get)
        columns = {name: F.when(is_plain, event[name]).otherwise(_of_general(name)) for name in _COLUMNS}
    columns["error"] = _get("general")["error"]
    row = F.struct(*(column.alias(prefix + name) for name, column in columns.items()))
    # A generator, because the optimiser does not merge projections through one: a condition on one column would have
    # the event decoded again for it.
    return steps.select(*_own(df), F.inline_outer(F.array(row)))


def _plain_steps(
    df: DataFrame, names: Column, values: Column, payload: Column
) -> tuple[DataFrame, plain_events.Columns]:
    given = {"names": names, "values": values, "payload": payload}

    def get(name: str) -> Column:
        return given[name] if name in given else _get(name)

    # What a step makes is copied by every later one as long as it is needed: few columns, and small ones.
    steps = df
    for step in plain_events.STEPS:
        steps = steps.select("*", *(column.alias(_STEP + name) for name, column in step(get).items()))
    return steps, get


def _get(name: str) -> Column:
    return F.col(_STEP + name)


def _of_general(name: str) -> Column:
    return _get("general")["attributes"][name] if name in ATTRIBUTES else _get("general")[name]


def _own(df: DataFrame) -> list[Column]:
    return [F.col(_quoted(name)) for name in df.columns]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


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
