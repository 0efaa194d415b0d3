"""What a Spark session has to know: the data source, and the functions of Spark SQL."""

from __future__ import annotations

import warnings
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from .columns import decoding as columns
from .columns.arrow_functions import HAS_ARROW_FUNCTIONS
from .columns.encoding import messages
from .connector import source

__all__ = ["register"]

# Name, and mode of its messages.
_ENCODERS: Final = (("to_nats", "binary"), ("to_nats_structured", "structured"))


def register(spark: SparkSession, *, functions: bool = True) -> None:
    """
    Make ``format("nats")`` known to a session, and to Spark SQL the function ``ce_nats.from_nats(headers, data)`` and
    the temporary functions ``to_nats(event)`` and ``to_nats_structured(event)``.

    They are what :func:`ce_nats.spark.from_nats` and :func:`ce_nats.spark.to_nats` make. Where a session takes no jar,
    the name of the first one is ``from_nats``. The others need pyspark 4.1 or later; on 4.0 a warning says so, and they
    are left out.

    Args:
        spark: The session.
        functions: False leaves the functions of Spark SQL out.

    Raises:
        ImportError: Workers on this machine run a Python that cannot import ce_nats.
    """
    source.register(spark)
    if not functions:
        return
    columns.register(spark)
    if not HAS_ARROW_FUNCTIONS:
        names = " and ".join(name for name, _ in _ENCODERS)
        needed = f"{names} in Spark SQL need pyspark 4.1 or later, got {pyspark.__version__}"
        warnings.warn(needed, stacklevel=2)
        return
    for name, mode in _ENCODERS:
        spark.udf.register(name, messages(mode))
