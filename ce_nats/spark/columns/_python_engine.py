"""
Decode messages with the Python codec, over Arrow in Python workers, for sessions that do not accept a jar.

The columns are those of ``ce_nats.arrow``. ``from_nats`` needs pyspark 4.1 or later. ``explode`` also runs on 4.0,
which sends all columns of the DataFrame to the workers, not only headers and payload, and needs pandas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StructField, StructType

from ...arrow._decode import DECLARED, Decoded, decode
from .._workers import check_workers, sent
from ._arrow_functions import HAS_ARROW_FUNCTIONS, arrow_function
from ._inline import add_fields
from ._schema import ARROW_ATTRIBUTES, ARROW_EVENT, EVENT, FLAT

# Python types of declared extensions, by Spark type.
_PYTHON_TYPES: Final[Mapping[type[DataType], type]] = {
    type(from_arrow_type(kind)): python for python, kind in DECLARED.items()
}
# Names of temporary columns of headers and payload, if a whole DataFrame is sent to the workers.
_GIVEN: Final = ("__ce_nats_headers", "__ce_nats_data")
# Name of a temporary column with the struct of an event.
_DECODED: Final = "__ce_nats_decoded"
_ERROR_FIELD: Final = f"c{FLAT.names.index('error')}"


def from_nats(headers: Column, data: Column, types: Mapping[str, DataType]) -> Column:
    """
    Return the event in a message as :data:`._schema.EVENT`.

    Raises:
        ImportError: pyspark is older than 4.1, or workers on this machine run a Python that cannot import ce_nats.
    """
    return _function(types)(headers, data)


def register(spark: SparkSession) -> None:
    """
    Register ``from_nats(headers, data)`` for Spark SQL, as a temporary function.

    Raises:
        ImportError: pyspark is older than 4.1, or workers on this machine run a Python that cannot import ce_nats.
    """
    spark.udf.register("from_nats", _function({}))


def _function(types: Mapping[str, DataType]) -> Callable[..., Column]:
    work = partial(_events, _python_types(types))
    return arrow_function(work, EVENT, "from_nats with the Python engine")


def explode(
    df: DataFrame,
    headers: Column,
    data: Column,
    prefix: str,
    types: Mapping[str, DataType],
    failure: Callable[[Column], Column] | None,
) -> DataFrame:
    """
    Return messages with the columns of their events, as :func:`._jvm_engine.explode` does.

    Raises:
        ImportError: Workers on this machine run a Python that cannot import ce_nats.
    """
    fields = [*FLAT.fields, *(StructField(name, kind) for name, kind in types.items())]
    # Numbered names, because a declared extension may have the name of another column.
    struct = StructType([StructField(f"c{index}", field.dataType) for index, field in enumerate(fields)])
    names = [prefix + field.name for field in fields]
    work = partial(_columns, _python_types(types))
    if HAS_ARROW_FUNCTIONS:
        event = arrow_function(work, struct, "explode_cloudevents")(headers, data)
        return add_fields(df, event, names, _ERROR_FIELD, failure)
    check_workers(df.sparkSession)
    given = df.select("*", *(column.alias(name) for column, name in zip((headers, data), _GIVEN)))
    schema = StructType([*df.schema.fields, StructField(_DECODED, struct)])
    rows = given.mapInArrow(sent(partial(_rows, work)), schema)
    return add_fields(rows, F.col(_DECODED), names, _ERROR_FIELD, failure).drop(_DECODED)


def event_array(decoded: Decoded) -> pa.Array:
    """Return an array of :data:`._schema.ARROW_EVENT`, with one struct for each message."""
    columns = decoded.columns
    codes = _codes(decoded)
    has_none = columns["mode"].is_null()
    attributes = pa.StructArray.from_arrays(
        [columns[field.name] for field in ARROW_ATTRIBUTES], fields=list(ARROW_ATTRIBUTES), mask=has_none
    )
    arrays = [attributes, *(columns[name] for name in ("extensions", "data", "is_json", "mode")), codes]
    return pa.StructArray.from_arrays(arrays, fields=list(ARROW_EVENT))


def _events(types: Mapping[str, type], headers: pa.Array, data: pa.Array) -> pa.Array:
    return event_array(decode(headers, data, types))


def _columns(types: Mapping[str, type], headers: pa.Array, data: pa.Array) -> pa.Array:
    arrays = _flat(decode(headers, data, types))
    return pa.StructArray.from_arrays(arrays, names=[f"c{index}" for index in range(len(arrays))])


def _rows(
    work: Callable[[pa.Array, pa.Array], pa.Array], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        *own, headers, data = batch.columns
        names = [*batch.schema.names[: len(own)], _DECODED]
        yield pa.RecordBatch.from_arrays([*own, work(headers, data)], names=names)


def _flat(decoded: Decoded) -> list[pa.Array]:
    """Return the columns of :data:`._schema.FLAT`, and those of declared extensions."""
    return [*(decoded.columns[name] for name in FLAT.names[:-1]), _codes(decoded), *decoded.typed.values()]


def _codes(decoded: Decoded) -> pa.Array:
    codes: list[str | None] = [None] * len(decoded.columns["mode"])
    for row, error in decoded.errors.items():
        codes[row] = str(error.code)
    return pa.array(codes, pa.string())


def _python_types(types: Mapping[str, DataType]) -> dict[str, type]:
    return {name: _PYTHON_TYPES[type(kind)] for name, kind in types.items()}
