"""Column functions that run in Python workers, on Arrow arrays (``arrow_udf``). They need pyspark 4.1 or later."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pyarrow as pa
import pyspark
from pyspark.sql import Column, SparkSession, functions
from pyspark.sql.types import DataType

from .._workers import check_workers, sent

HAS_ARROW_FUNCTIONS = hasattr(functions, "arrow_udf")


def arrow_function(work: Callable[..., pa.Array], result: DataType, what: str) -> Callable[..., Column]:
    """
    Return a column function that calls a function of Arrow arrays.

    ``work``: Accepts arrays and returns an array of the same length. It is sent to workers, so it must be picklable.

    Raises:
        ImportError: pyspark is older than 4.1, or workers on this machine run a Python that cannot import ce_nats.
    """
    if not HAS_ARROW_FUNCTIONS:
        raise ImportError(f"{what} needs pyspark 4.1 or later (functions over Arrow), got {pyspark.__version__}")
    if session := SparkSession.getActiveSession():
        check_workers(session)
    shipped = sent(work)

    def run(*arrays: pa.Array) -> pa.Array:  # a plain function, because pyspark inspects the signature
        return shipped(*arrays)

    return cast("Callable[..., Column]", functions.arrow_udf(run, result))  # type: ignore[attr-defined]  # untyped
