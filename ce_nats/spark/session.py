"""What a Spark session has to know: the data source, and the functions of Spark SQL."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, SparkSession

from . import source
from .columns import from_nats
from .encode import to_nats
from .functions import as_sql
from .schema import EVENT, HEADERS, MESSAGE

__all__ = ["register"]


def _structured(event: Column) -> Column:
    return to_nats(event, mode="structured")


# Name, parameters, result, and what makes the expression of it.
_FUNCTIONS: Final = (
    ("from_nats", {"headers": HEADERS.simpleString(), "data": "binary"}, EVENT, from_nats),
    ("to_nats", {"event": EVENT.simpleString()}, MESSAGE, to_nats),
    ("to_nats_structured", {"event": EVENT.simpleString()}, MESSAGE, _structured),
)


def register(spark: SparkSession, *, functions: bool = True) -> None:
    """
    Make ``format("nats")`` known to a session, and the functions ``from_nats(headers, data)``, ``to_nats(event)`` and
    ``to_nats_structured(event)`` known to Spark SQL, as temporary functions.

    They are what :func:`ce_nats.spark.from_nats` and :func:`ce_nats.spark.to_nats` make: native expressions. Spark
    parses them here, which takes some ten seconds in a JVM that has just started.

    Args:
        spark: The session.
        functions: False leaves the functions of Spark SQL out.

    Raises:
        ImportError: Workers on this machine run a Python that cannot import ce_nats.
    """
    source.register(spark)
    if not functions:
        return
    for name, parameters, result, make in _FUNCTIONS:
        body = as_sql(make, *parameters)
        declared = ", ".join(f"{parameter} {kind}" for parameter, kind in parameters.items())
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY FUNCTION {name}({declared}) RETURNS {result.simpleString()} RETURN {body}"
        )
