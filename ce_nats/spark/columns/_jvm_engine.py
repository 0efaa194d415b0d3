"""
Decode messages with functions on the JVM, from ``jvm/ce-nats.jar``; the query plan has no Python worker.

The functions are plain Java classes that mirror the modules of ce_nats/codec. Spark loads them through its connector
API, as functions of a catalog. Jar and catalog are added to a session on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from threading import local
from typing import Final
from weakref import WeakSet

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, StructField, StructType

from ._inline import add_fields
from ._schema import FLAT

JAR: Final = Path(__file__).parents[1] / "jvm" / "ce-nats.jar"
_CATALOG: Final = "spark.sql.catalog.ce_nats"
_CATALOG_CLASS: Final = "io.cenats.spark.Catalog"
_FROM_NATS: Final = "ce_nats.from_nats"
_EVENT_COLUMNS: Final = "ce_nats.event_columns"


class _Thread(local):
    """
    State of the current thread. ADD JAR adds the jar to the whole application, but sets the class loader only of the
    JVM thread that it runs in, so each thread has to call it.

    Attributes:
        contexts: Applications that the jar was added to.
        sessions: Sessions that the catalog was added to.
    """

    def __init__(self) -> None:
        self.contexts: WeakSet[SparkContext] = WeakSet()
        self.sessions: WeakSet[SparkSession] = WeakSet()


_thread: Final = _Thread()


def load(spark: SparkSession) -> None:
    """
    Add the functions to a session.

    Raises:
        FileNotFoundError: The package has no jar, because it was built without a JDK.
        Exception: The session does not accept a jar; the class of the error depends on the platform.
    """
    if spark in _thread.sessions:
        return
    if not JAR.exists():
        raise FileNotFoundError(f"{JAR} is missing: the package was built without a JDK")
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        spark.addArtifact(str(JAR))
    elif spark.sparkContext not in _thread.contexts:
        spark.sql("ADD JAR '" + str(JAR).replace("\\", "\\\\").replace("'", "\\'") + "'")
        _thread.contexts.add(spark.sparkContext)
    spark.conf.set(_CATALOG, _CATALOG_CLASS)
    # The first call of a function creates the catalog with the class loader of this thread; the session keeps it.
    spark.sql(f"SELECT {_FROM_NATS}(NULL, NULL)")
    _thread.sessions.add(spark)


def from_nats(headers: Column, data: Column, types: Mapping[str, DataType]) -> Column:
    """
    Return the event in a message as :data:`._schema.EVENT`, in the active session.

    Args:
        headers: The headers, of a type that :func:`._schema.check_headers` accepts.
        data: The payload.
        types: Declared types of extension attributes, by name.
    """
    return _call(SparkSession.active(), _FROM_NATS, headers, data, types)


def explode(
    df: DataFrame,
    headers: Column,
    data: Column,
    prefix: str,
    types: Mapping[str, DataType],
    failure: Callable[[Column], Column] | None,
) -> DataFrame:
    """
    Return messages with the columns of :data:`._schema.FLAT` and of declared extensions added.

    Args:
        df: The messages.
        headers: Their headers.
        data: Their payloads.
        prefix: Prefix of the names of the new columns.
        types: Declared types of extension attributes, by name.
        failure: As for :func:`._inline.add_fields`.
    """
    event = _call(df.sparkSession, _EVENT_COLUMNS, headers, data, types)
    names = [prefix + name for name in (*FLAT.fieldNames(), *types)]
    return add_fields(df, event, names, "error", failure)


def _call(spark: SparkSession, function: str, headers: Column, data: Column, types: Mapping[str, DataType]) -> Column:
    load(spark)
    if not types:
        return F.call_function(function, headers, data)
    declared = StructType([StructField(name, wanted) for name, wanted in types.items()])
    return F.call_function(function, headers, data, F.lit(None).cast(declared))
