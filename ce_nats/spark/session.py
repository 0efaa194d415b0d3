"""What a Spark session has to know: the data source, and the functions of Spark SQL."""

from __future__ import annotations

from pyspark.sql import Column, SparkSession

from . import columns
from .encode import to_nats
from .functions import as_sql
from .schema import EVENT, MESSAGE

__all__ = ["register"]


def _structured(event: Column) -> Column:
    return to_nats(event, mode="structured")


def register(spark: SparkSession, *, functions: bool = True) -> None:
    """
    Make ``format("nats")`` known to a session, and to Spark SQL the function ``ce_nats.from_nats(headers, data)`` and
    the temporary functions ``to_nats(event)`` and ``to_nats_structured(event)``.

    They are what :func:`ce_nats.spark.from_nats` and :func:`ce_nats.spark.to_nats` make. Where a session takes no jar,
    the name of the first one is ``from_nats``.

    Args:
        spark: The session.
        functions: False leaves the functions of Spark SQL out.
    """
    from . import source  # the columns run on pyspark 4.0, too, which has no such data sources

    source.register(spark)
    if not functions:
        return
    columns.register(spark)
    for name, make in {"to_nats": to_nats, "to_nats_structured": _structured}.items():
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY FUNCTION {name}(event {EVENT.simpleString()}) "
            f"RETURNS {MESSAGE.simpleString()} RETURN {as_sql(make, 'event')}"
        )
