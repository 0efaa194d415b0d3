"""
Messages to events by functions on the JVM, those of ``jvm/ce-nats.jar``: no Python worker in the plan.

They are plain Java, class by class as in ce_nats/, and Spark finds them through its connector API as functions of a
catalog. Every session is given jar and catalog when it first needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import local
from typing import Final
from weakref import WeakSet

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, StructField, StructType

from .schema import FLAT

__all__ = ["JAR", "explode", "from_nats", "load", "register"]

JAR: Final = Path(__file__).parents[1] / "jvm" / "ce-nats.jar"
_CATALOG: Final = "spark.sql.catalog.ce_nats"
_CATALOG_CLASS: Final = "io.cenats.spark.Catalog"
_FROM_NATS: Final = "ce_nats.from_nats"
_EVENT_COLUMNS: Final = "ce_nats.event_columns"


class _Thread(local):
    """
    What a thread has done already. ADD JAR is for the whole application, and sets the class loader of the JVM's thread
    that it runs in.

    Attributes:
        contexts: Applications that were given the jar.
        sessions: Sessions that know the catalog.
    """

    def __init__(self) -> None:
        self.contexts: WeakSet[SparkContext] = WeakSet()
        self.sessions: WeakSet[SparkSession] = WeakSet()


_thread: Final = _Thread()


def load(spark: SparkSession) -> None:
    """
    Make the functions known to a session.

    Raises:
        FileNotFoundError: There is no jar, because there was no JDK when the package was built.
        Exception: What the session says where it takes no jar.
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
    # The catalog is made by the first thread that names a function of it, and kept in the session for all others.
    spark.sql(f"SELECT {_FROM_NATS}(NULL, NULL)")
    _thread.sessions.add(spark)


def from_nats(headers: Column, data: Column, types: Mapping[str, DataType]) -> Column:
    """
    The event in a message, as ``schema.EVENT``, in the active session.

    Args:
        headers: The headers, of any type that the columns take.
        data: The payload.
        types: What extension attributes are declared as.
    """
    return _call(SparkSession.active(), _FROM_NATS, headers, data, types)


def explode(df: DataFrame, headers: Column, data: Column, prefix: str, types: Mapping[str, DataType]) -> DataFrame:
    """
    Columns of messages, and behind them those of ``schema.FLAT`` and of declared extensions.

    Args:
        df: The messages.
        headers: Their headers.
        data: Their payloads.
        prefix: What the names of the new columns begin with.
        types: What extension attributes are declared as.
    """
    event = _call(df.sparkSession, _EVENT_COLUMNS, headers, data, types)
    names = [prefix + name for name in (*FLAT.fieldNames(), *types)]
    # A generator, because a function whose fields are taken is called for each of them, and for conditions on them.
    return df.select("*", F.inline(F.array(event)).alias(*names))


def register(spark: SparkSession) -> None:
    """Make ``ce_nats.from_nats(headers, data)`` known to Spark SQL; the bodies of its own functions take no catalog."""
    load(spark)


def _call(spark: SparkSession, function: str, headers: Column, data: Column, types: Mapping[str, DataType]) -> Column:
    load(spark)
    if not types:
        return F.call_function(function, headers, data)
    declared = StructType([StructField(name, wanted) for name, wanted in types.items()])
    return F.call_function(function, headers, data, F.lit(None).cast(declared))
