"""Registers the data source and the SQL functions in a Spark session."""

from __future__ import annotations

import warnings
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from ..codec.mode import ContentMode
from .columns import decoding as columns
from .columns.arrow_functions import HAS_ARROW_FUNCTIONS
from .columns.encoding import messages
from .connector import source

# SQL functions that encode, and the content mode of their messages.
_ENCODERS: Final = (("to_nats", ContentMode.BINARY), ("to_nats_structured", ContentMode.STRUCTURED))


def register(spark: SparkSession, *, functions: bool = True) -> None:
    """
    Register ``format("nats")`` in a session, and for Spark SQL the function ``ce_nats.from_nats(headers, data)`` and
    the temporary functions ``to_nats(event)`` and ``to_nats_structured(event)``.

    They return the same structs as :func:`ce_nats.spark.from_nats` and :func:`ce_nats.spark.to_nats`. In a session that
    does not accept a jar, the name of the first one is ``from_nats``. The other two need pyspark 4.1 or later; with 4.0
    they are not registered, and a warning says so.

    Args:
        spark: The session.
        functions: False registers the data source only, without the SQL functions.

    Raises:
        ImportError: Workers on this machine run a Python that cannot import ce_nats.
    """
    source.register(spark)
    if not functions:
        return
    columns.register(spark)
    if not HAS_ARROW_FUNCTIONS:
        names = " and ".join(name for name, _ in _ENCODERS)
        text = f"{names} in Spark SQL need pyspark 4.1 or later, got {pyspark.__version__}"
        warnings.warn(text, stacklevel=2)
        return
    for name, mode in _ENCODERS:
        spark.udf.register(name, messages(mode))
