"""A Spark session for benchmarks of the source and the sink."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from ce_nats.spark import register


def local_spark() -> SparkSession:
    """Return a session with two threads, in which ``format("nats")`` is registered."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.log.level", "ERROR").getOrCreate()
    register(spark, functions=False)
    return spark
