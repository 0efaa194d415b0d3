"""
Detect definitions of Spark Declarative Pipelines (``spark-pipelines run``, pyspark 4.1 or later).

While Spark imports the files of a pipeline, it refuses changes of the session, and in query functions also the analysis
of a DataFrame, for example for its schema.
"""

from __future__ import annotations

import sys
from typing import Final

from pyspark.errors import PySparkException

_REGISTRY: Final = "pyspark.pipelines.graph_element_registry"


def in_pipeline() -> bool:
    """Return whether this thread imports a file of a pipeline."""
    registry = sys.modules.get(_REGISTRY)
    if registry is None:
        return False
    try:
        registry.get_active_graph_element_registry()
    except PySparkException:
        return False
    return True
