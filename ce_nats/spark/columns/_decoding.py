"""
Decode captured NATS messages to Spark columns.

The rules and error codes are those of ``ce_nats.from_nats_message(message, parse_data=False)``. A row that cannot be
decoded has a code in the error column and NULL in the others; it fails the query only in mode ``FAILFAST``.

There are two engines: functions on the JVM (_jvm_engine.py), and the Python codec over Arrow (_python_engine.py), for
sessions that do not accept a jar.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import BinaryType, DataType, StringType, StructType

from ...arrow._decode import DECLARED
from ...arrow._explode import IDENTITY, checked_mode, extension_types
from ...errors import preview
from .._pipelines import in_pipeline
from . import _jvm_engine as jvm_engine
from . import _python_engine as python_engine
from ._arrow_functions import HAS_ARROW_FUNCTIONS
from ._names import column_of, quoted
from ._schema import FLAT, check_headers

_ENGINES: Final = ("auto", "jvm", "python")


def from_nats(
    headers: Column | str,
    data: Column | str,
    *,
    extensions: Mapping[str, str] | None = None,
    engine: str = "auto",
) -> Column:
    """
    Return the event in a message as a struct of ``attributes``, ``extensions``, ``data``, ``is_json``, ``mode`` and
    ``error``.

    ``attributes`` has the eight attributes of the specification, with ``time`` as TIMESTAMP, and ``time_text``, which
    keeps nanoseconds and offset. ``extensions`` maps names to canonical strings. ``data`` is BINARY: for a JSON event,
    the JSON text of its ``data`` member, unchanged. ``is_json`` is true if a JSON event has data and no
    datacontenttype, which means ``application/json``. If ``error`` has a code, all other fields are NULL.

    Select the struct before you take fields of it; otherwise Spark computes it once for each field. The function uses
    the active session.

    Args:
        headers: The headers, a column or its name: an array of structs of two strings or binaries, a map to strings or
            to arrays of strings, or a raw header block in a binary; NULL means no headers.
        data: The payload, a column or its name, BINARY or STRING; NULL means an empty payload.
        extensions: Types of extension attributes by name (``string``, ``int``, ``boolean``, ``binary`` or
            ``timestamp``); a value that is not valid for its type is an error of the message.
        engine: ``jvm``, ``python``, or ``auto`` for ``jvm`` if the session accepts the jar, else ``python``.

    Raises:
        TypeError: ``extensions`` is not a mapping.
        ValueError: A name or a type in ``extensions`` is not valid, or ``engine``.
    """
    types = _types(extensions)
    given, payload = (F.col(column) if isinstance(column, str) else column for column in (headers, data))
    event: Column = _engine(engine, SparkSession.active()).from_nats(given, payload, types)
    return event


def explode_cloudevents(
    df: DataFrame,
    *,
    headers: Column | str = "headers",
    data: Column | str = "data",
    prefix: str = "ce_",
    extensions: Mapping[str, str] | None = None,
    mode: str = "PERMISSIVE",
    engine: str = "auto",
) -> DataFrame:
    """
    Add one column per attribute to captured messages, batch or streaming.

    ``ce_specversion ce_id ce_source ce_type ce_subject ce_time ce_datacontenttype ce_dataschema`` (``ce_time`` as
    TIMESTAMP, the others as STRING), ``ce_extensions`` (map of strings), ``ce_data`` (BINARY), ``ce_mode`` (``binary``
    or ``structured``) and ``ce_error`` (a code of :class:`ce_nats.ErrorCode`). Existing columns are kept.

    Args:
        df: Messages, one per row.
        headers: The headers, a column or its name, of any type that :func:`from_nats` accepts; ``m.headers`` is a field
            of a struct ``m``.
        data: The payloads, a column or its name, BINARY or STRING.
        prefix: Prefix of the names of the new columns.
        extensions: Extension attributes that get their own column, and its type: ``string``, ``int``, ``boolean``,
            ``binary`` or ``timestamp``. They are also in the map.
        mode: ``PERMISSIVE`` keeps messages that cannot be decoded, with a code in ``ce_error`` and NULL in the other
            new columns; ``DROPMALFORMED`` removes them; ``FAILFAST`` fails the query at the first one, whichever
            columns the query uses. Messages that Spark does not decode cannot fail: those excluded by a condition on
            columns of ``df``, and those after a limit. Case-insensitive.
        engine: ``jvm`` decodes in Java, with a jar of this package that is added to the session; ``python`` with the
            codec in Python workers, which need ce_nats; ``auto`` uses ``jvm`` if possible, else ``python`` with a
            warning that has the reason.

    Raises:
        TypeError: A column has the wrong type, or ``extensions`` is not a mapping.
        ValueError: ``mode``, ``engine``, or a name or a type in ``extensions`` is not valid; or a new column has the
            name of another one (choose another ``prefix``).
        AnalysisException: The column ``headers`` or ``data`` does not exist.
    """
    mode = checked_mode(mode)
    types = _types(extensions)
    _check_extensions(types, prefix)
    has_schema = not in_pipeline()  # there, Spark itself checks types and names when it resolves the flow
    names = df.columns if has_schema else []
    given, payload = column_of(names, headers), column_of(names, data)
    if has_schema:
        _check_types(df.select(given, payload).schema)
        _check_new_names(df, prefix, types)
    failure = partial(_error_text, names) if mode == "FAILFAST" else None
    decoder = _engine(engine, df.sparkSession)
    decoded: DataFrame = decoder.explode(df, given, payload.cast("binary"), prefix, types, failure)
    return decoded.where(F.col(quoted(f"{prefix}error")).isNull()) if mode == "DROPMALFORMED" else decoded


def register(spark: SparkSession) -> None:
    """
    Register the decoding function for Spark SQL: ``from_nats(headers, data)`` in Python workers, with pyspark 4.1 or
    later and outside of pipelines, and ``ce_nats.from_nats(headers, data)`` on the JVM, if the session accepts the jar.
    """
    if HAS_ARROW_FUNCTIONS and not in_pipeline():
        python_engine.register(spark)
    _engine("auto", spark)


def _engine(name: str, spark: SparkSession) -> Any:
    """Return the module that decodes in a session: ``_jvm_engine`` or ``_python_engine``."""
    if name not in _ENGINES:
        raise ValueError(f"engine must be {' or '.join(_ENGINES)}, got {preview(name)}")
    if name != "python":
        try:
            jvm_engine.load(spark)
            return jvm_engine
        except Exception as error:  # the class depends on the platform that does not accept the jar
            if name == "jvm":
                raise
            reason = str(error).partition("\n")[0]
            text = f"the JVM engine is not available ({reason}); CloudEvents are decoded in Python workers"
            warnings.warn(text, stacklevel=3)
    return python_engine


def _types(extensions: Mapping[str, str] | None) -> dict[str, DataType]:
    return {name: from_arrow_type(DECLARED[kind]) for name, kind in extension_types(extensions).items()}


def _check_types(schema: StructType) -> None:
    """
    Check the types of headers and payload.

    Raises:
        TypeError: A column has the wrong type.
    """
    headers, payload = schema
    check_headers(headers.dataType)
    if not isinstance(payload.dataType, (BinaryType, StringType)):
        raise TypeError(f"column {payload.name} must be BINARY or STRING, got {payload.dataType.simpleString()}")


def _check_extensions(types: Mapping[str, DataType], prefix: str) -> None:
    """
    Check that no extension has the name of another new column.

    Raises:
        ValueError: It has.
    """
    for name in types:
        if name in FLAT.names:
            raise ValueError(
                f"extensions must not have the name of another new column, got {name!r}; its values are in the map "
                f"{prefix}extensions"
            )


def _check_new_names(df: DataFrame, prefix: str, types: Mapping[str, DataType]) -> None:
    """
    Check that no new column has the name of an existing one.

    Raises:
        ValueError: It has.
    """
    is_case_sensitive = df.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    fold: Callable[[str], str] = str if is_case_sensitive else str.lower
    existing = set(map(fold, df.columns))
    taken = [prefix + name for name in (*FLAT.names, *types) if fold(prefix + name) in existing]
    if taken:
        raise ValueError(
            f"prefix must form names of new columns, got {preview(prefix)}: the DataFrame already has "
            f"{', '.join(taken)}"
        )


def _error_text(names: Sequence[str], error: Column) -> Column:
    """Return the error text of FAILFAST: the code, and those of the columns ``names`` that identify the message."""
    columns = [name.lower() for name in names]
    known = [name for name in IDENTITY if columns.count(name) == 1]
    where = [part for name in known for part in (F.lit(f" {name}="), F.coalesce(F.col(name).cast("string"), F.lit("")))]
    return F.concat(F.lit("the message is not a valid CloudEvent: "), error, *where)
