"""Marks of tests that older versions of pyspark cannot run."""

import pytest

from ce_nats.spark.columns.arrow_functions import HAS_ARROW_FUNCTIONS

try:
    from pyspark.sql.streaming import datasource as limits
except ImportError:
    limits = None

needs_arrow_functions = pytest.mark.skipif(not HAS_ARROW_FUNCTIONS, reason="pyspark is older than 4.1")
# The version whose streaming readers get a start offset and a read limit.
needs_limits = pytest.mark.skipif(limits is None, reason="pyspark is older than 4.2")
