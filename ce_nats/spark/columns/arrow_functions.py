"""
Functions that run in Python workers, on columns as Arrow arrays.

pyspark 4.1 and later have them (``arrow_udf``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pyarrow as pa
import pyspark
from pyspark.sql import Column, SparkSession, functions
from pyspark.sql.types import DataType

from ..workers import check_workers, sent

__all__ = ["HAS_ARROW_FUNCTIONS", "arrow_function"]

HAS_ARROW_FUNCTIONS = hasattr(functions, "arrow_udf")


def arrow_function(work: Callable[..., pa.Array], result: DataType, what: str) -> Callable[..., Column]:
    """
    A function of columns.

    Args:
        work: Makes an array of arrays of the same length; it goes to the workers, so it has to pickle.
        result: Type of what it makes.
        what: Who needs it, for the error.

    Raises:
        ImportError: pyspark is older than 4.1; workers on this machine run a Python that cannot import ce_nats.
    """
    if not HAS_ARROW_FUNCTIONS:
        raise ImportError(f"{what} needs pyspark 4.1 or later (functions over Arrow), got {pyspark.__version__}")
    if session := SparkSession.getActiveSession():
        check_workers(session)
    shipped = sent(work)

    def run(*arrays: pa.Array) -> pa.Array:  # pyspark looks at the signature
        return shipped(*arrays)

    return cast("Callable[..., Column]", functions.arrow_udf(run, result))  # type: ignore[attr-defined]  # untyped
