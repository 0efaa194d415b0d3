"""
CloudEvents out of captured NATS messages, as Spark columns.

The same rules and error codes as ``ce_nats.from_nats_message(message, parse_data=False)``. A row that cannot be decoded
has a code in its error column and nothing in the others; it never fails the query, unless the caller wants that.

Two engines decode: functions on the JVM (jvm_engine.py), and the Python codec over Arrow (python_engine.py) where a
session takes no jar.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, DataType, StringType

from . import jvm_engine
from .schema import EXTENSION_TYPES, check_headers

__all__ = ["explode_cloudevents", "from_nats", "register"]

_ENGINES: Final = ("auto", "jvm", "python")
_MODES: Final = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
# What tells a message from another, where a row has it.
_IDENTITY: Final = ("stream", "sequence", "subject")


def from_nats(
    headers: Column | str,
    data: Column | str,
    *,
    headers_type: DataType | None = None,
    extensions: Mapping[str, str] | None = None,
    engine: str = "auto",
) -> Column:
    """
    The event in a message, as a struct: ``attributes``, ``extensions``, ``data``, ``is_json``, ``mode``, ``error``.

    ``attributes`` has the eight attributes of the specification, ``time`` as TIMESTAMP, and ``time_text``, which keeps
    nanoseconds and offset. ``extensions`` maps names to canonical strings. ``data`` is bytes: of a JSON event the JSON
    text as it stands, and where that event has no datacontenttype, ``is_json`` is true: another message would have to
    say ``application/json``. Where ``error`` has a code, everything else is NULL.

    Select the struct before you take fields of it, or it is computed for each. The session is the active one.

    Args:
        headers: The headers, a column or its name: an array of structs of two strings or binaries, a map to a string or
            to an array of strings, or a raw header block in a binary; NULL is none.
        data: The payload, BINARY or STRING; NULL is empty.
        headers_type: Type of ``headers``, checked at once. Where it is left out, the query is refused for another type.
        extensions: Types of extension attributes (``string``, ``int``, ``boolean``, ``binary``, ``timestamp``): a value
            that is none of its type is an error.
        engine: ``jvm``, ``python``, or ``auto`` for the first of them that the session takes.

    Raises:
        TypeError: ``headers_type`` is none of these.
        ValueError: A type in ``extensions`` is none of these, or ``engine`` is another.
    """
    if headers_type is not None:
        check_headers(headers_type)
    types = _types(extensions)
    given, payload = (F.col(column) if isinstance(column, str) else column for column in (headers, data))
    event: Column = _engine(engine, SparkSession.active()).from_nats(given, payload, types)
    return event


def explode_cloudevents(
    df: DataFrame,
    *,
    headers: str = "headers",
    data: str = "data",
    prefix: str = "ce_",
    extensions: Mapping[str, str] | None = None,
    mode: str = "PERMISSIVE",
    engine: str = "auto",
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
        engine: ``jvm`` decodes in Java, by a jar of this package that the session is given; ``python`` by the codec in
            Python workers, which have to find ce_nats; ``auto`` is ``jvm``, or ``python`` with a warning that says why.

    Raises:
        TypeError: A column is of no type that messages are made of.
        ValueError: Another ``mode`` or ``engine``, another type in ``extensions``.
    """
    if mode not in _MODES:
        raise ValueError(f"mode is one of {', '.join(_MODES)}, not {mode!r}")
    check_headers(df.schema[headers].dataType)
    payload_type = df.schema[data].dataType
    if not isinstance(payload_type, (BinaryType, StringType)):
        raise TypeError(f"column {data} is BINARY or STRING, not {payload_type.simpleString()}")
    types = _types(extensions)
    given, payload = F.col(_quoted(headers)), F.col(_quoted(data)).cast("binary")
    decoded: DataFrame = _engine(engine, df.sparkSession).explode(df, given, payload, prefix, types)
    error = F.col(_quoted(f"{prefix}error"))
    if mode == "DROPMALFORMED":
        return decoded.where(error.isNull())
    if mode == "FAILFAST":
        checked = F.when(error.isNotNull(), F.raise_error(_complaint(df, error))).otherwise(error)
        return decoded.withColumn(f"{prefix}error", checked)
    return decoded


def register(spark: SparkSession) -> None:
    """
    Make a function known to Spark SQL, by the engine that the session takes: ``ce_nats.from_nats(headers, data)`` on
    the JVM, ``from_nats(headers, data)`` in Python.
    """
    _engine("auto", spark).register(spark)


def _engine(name: str, spark: SparkSession) -> Any:
    """The module that decodes in a session: ``jvm_engine`` or ``python_engine``."""
    if name not in _ENGINES:
        raise ValueError(f"engine is one of {', '.join(_ENGINES)}, not {name!r}")
    if name != "python":
        try:
            jvm_engine.load(spark)
            return jvm_engine
        except Exception as error:  # each platform has its own way to refuse a jar
            if name == "jvm":
                raise
            why = str(error).partition("\n")[0]
            warnings.warn(f"CloudEvents are decoded in Python workers, because of {why}", stacklevel=3)
    return import_module(".python_engine", __package__)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _types(extensions: Mapping[str, str] | None) -> dict[str, DataType]:
    types = {}
    for name, wanted in (extensions or {}).items():
        if wanted.lower() not in EXTENSION_TYPES:
            raise ValueError(f"an extension is one of {', '.join(EXTENSION_TYPES)}, not {wanted!r}")
        types[name] = EXTENSION_TYPES[wanted.lower()]
    return types


def _complaint(df: DataFrame, error: Column) -> Column:
    """Code and whereabouts of a message that is not an event."""
    known = [name for name in _IDENTITY if name in df.columns]
    where = [part for name in known for part in (F.lit(f" {name}="), F.coalesce(F.col(name).cast("string"), F.lit("")))]
    return F.concat(F.lit("no CloudEvent: "), error, *where)
