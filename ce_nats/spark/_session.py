"""Register the data source and the SQL functions in a Spark session."""

from __future__ import annotations

import warnings
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from ..codec.mode import ContentMode
from ._pipelines import in_pipeline
from .columns import _decoding as columns
from .columns import _filter as filters
from .columns._arrow_functions import HAS_ARROW_FUNCTIONS
from .columns._encoding import messages
from .connector import _source as source

# SQL functions that encode events, and the content mode of their messages.
_ENCODERS: Final = (("to_nats", ContentMode.BINARY), ("to_nats_structured", ContentMode.STRUCTURED))


def register(spark: SparkSession, *, functions: bool = True) -> None:
    """
    Register ``format("nats")`` in a session, and for Spark SQL the temporary functions ``from_nats(headers, data)``,
    ``to_nats(event)``, ``to_nats_structured(event)`` and ``cesql(event, expression)``.

    They return the same structs as :func:`ce_nats.spark.from_nats` and :func:`ce_nats.spark.to_nats`, or whether an
    event passes an expression of CloudEvents SQL, and run in Python workers. If the session accepts a jar,
    ``ce_nats.from_nats(headers, data)`` is the faster equivalent of ``from_nats`` on the JVM. The temporary functions
    need pyspark 4.1 or later; with 4.0 they are not registered, and a warning is issued.

    In a declarative pipeline (``spark-pipelines run``), call it in a file of the pipeline, outside of query functions.
    Spark then refuses the temporary functions, which are left out.

    Args:
        spark: The session.
        functions: False registers only the data source, without the SQL functions.

    Raises:
        ImportError: Workers on this machine run a Python that cannot import ce_nats.
    """
    source.register(spark)
    if not functions:
        return
    columns.register(spark)
    if in_pipeline():
        return
    if not HAS_ARROW_FUNCTIONS:
        names = ", ".join(("from_nats", *(name for name, _ in _ENCODERS)))
        text = f"{names} and cesql in Spark SQL need pyspark 4.1 or later, got {pyspark.__version__}"
        warnings.warn(text, stacklevel=2)
        return
    for name, content_mode in _ENCODERS:
        spark.udf.register(name, messages(content_mode))
    filters.register(spark)
