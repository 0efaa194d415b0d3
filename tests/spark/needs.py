"""Marks of tests that older versions of pyspark cannot run."""

import pytest

from ce_nats.spark.columns.arrow_functions import HAS_ARROW_FUNCTIONS

try:
    from pyspark.sql.streaming import datasource as limits
except ImportError:
    limits = None

needs_arrow_functions = pytest.mark.skipif(not HAS_ARROW_FUNCTIONS, reason="pyspark is older than 4.1")
# Streaming readers are told from where, and how much.
needs_limits = pytest.mark.skipif(limits is None, reason="pyspark is older than 4.2")
