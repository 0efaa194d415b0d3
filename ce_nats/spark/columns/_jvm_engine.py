"""
Decode messages with functions on the JVM, from ``jvm/ce-nats.jar``; the query plan has no Python worker.

The functions are plain Java classes that mirror the modules of ce_nats/codec. Spark loads them through its connector
API, as functions of a catalog. Jar and catalog are added to a session on first use.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import local
from typing import TYPE_CHECKING, Final, cast
from weakref import WeakSet

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, StructField, StructType

from .._pipelines import in_pipeline
from .._workers import context_of
from ._inline import add_fields
from ._schema import FLAT

if TYPE_CHECKING:
    from importlib.abc import FileLoader

    from pyspark import SparkContext  # pyspark-client, which has only Spark Connect, does not have it

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
        RuntimeError: A declarative pipeline has no catalog ``ce_nats`` in its configuration.
        Exception: The session does not accept a jar; the class of the error depends on the platform.
    """
    if spark in _thread.sessions:
        return
    add = _add_in_pipeline if in_pipeline() else _add
    add(spark, str(_local_path(JAR)))
    _thread.sessions.add(spark)


def _add(spark: SparkSession, jar: str) -> None:
    context = context_of(spark)
    if context is None:
        spark.addArtifact(jar)
    elif context not in _thread.contexts:
        spark.sql("ADD JAR '" + jar.replace("\\", "\\\\").replace("'", "\\'") + "'")
        _thread.contexts.add(context)
    spark.conf.set(_CATALOG, _CATALOG_CLASS)
    # The first call of a function creates the catalog with the class loader of this thread; the session keeps it.
    spark.sql(f"SELECT {_FROM_NATS}(NULL, NULL)")


def _add_in_pipeline(spark: SparkSession, jar: str) -> None:
    """Add the jar; Spark refuses to set the catalog in the session, and to call a function in a query function."""
    if spark.conf.get(_CATALOG, None) != _CATALOG_CLASS:
        raise RuntimeError(f"in a pipeline, its spec file must have {_CATALOG}: {_CATALOG_CLASS} in configuration")
    spark.addArtifact(jar)


@cache
def _local_path(jar: Path) -> Path:
    """
    Return the path of a file of this package: if the package is in a zip file, that of a copy.

    Raises:
        FileNotFoundError: The package has no such file.
    """
    if jar.exists():
        return jar
    try:
        content = cast("FileLoader", __spec__.loader).get_data(str(jar))
    except OSError:
        raise FileNotFoundError(f"{jar} is missing: the package was built without a JDK") from None
    directory = TemporaryDirectory(prefix="ce-nats-")
    atexit.register(directory.cleanup)  # executors fetch the jar from this file
    copy = Path(directory.name, jar.name)
    copy.write_bytes(content)
    return copy


def from_nats(headers: Column, data: Column, types: Mapping[str, DataType]) -> Column:
    """Return the event in a message as :data:`._schema.EVENT`, in the active session."""
    return _call(SparkSession.active(), _FROM_NATS, headers, data, types)


def explode(
    df: DataFrame,
    headers: Column,
    data: Column,
    prefix: str,
    types: Mapping[str, DataType],
    failure: Callable[[Column], Column] | None,
) -> DataFrame:
    """Return messages with the columns of :data:`._schema.FLAT` and of declared extensions added."""
    event = _call(df.sparkSession, _EVENT_COLUMNS, headers, data, types)
    names = [prefix + name for name in (*FLAT.fieldNames(), *types)]
    return add_fields(df, event, names, "error", failure)


def _call(spark: SparkSession, function: str, headers: Column, data: Column, types: Mapping[str, DataType]) -> Column:
    load(spark)
    if not types:
        return F.call_function(function, headers, data)
    declared = StructType([StructField(name, wanted) for name, wanted in types.items()])
    return F.call_function(function, headers, data, F.lit(None).cast(declared))
