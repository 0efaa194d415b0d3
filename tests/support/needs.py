"""Marks of tests that need a newer version of pyspark."""

import pytest

from ce_nats.spark.columns._arrow_functions import HAS_ARROW_FUNCTIONS

try:
    from pyspark.sql.streaming import datasource as limits
except ImportError:
    limits = None

needs_arrow_functions = pytest.mark.skipif(not HAS_ARROW_FUNCTIONS, reason="pyspark is older than 4.1")
# latestOffset() of streaming readers has arguments: the start and a limit.
needs_limits = pytest.mark.skipif(limits is None, reason="pyspark is older than 4.2")
