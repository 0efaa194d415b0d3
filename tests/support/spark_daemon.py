"""
Start Python workers of Spark as pyspark.daemon does, in forks of a process that has imported what most of them need.

Otherwise each worker imports pyarrow, pandas and ce_nats again, half a second of CPU time, and a query has several.
pyspark does not import them before a fork, because packages may start threads, which a fork does not have; those of
pyarrow (jemalloc) and numpy (OpenBLAS) are started again in the fork.
"""

import importlib
import sys
from contextlib import suppress

from pyspark import daemon

MODULES = ("pandas", "pyarrow.parquet", "nats", "ce_nats.spark.connector._sink", "ce_nats.spark.columns._python_engine")

if __name__ == "__main__":
    for name in (*MODULES, *sys.argv[1:]):
        with suppress(ImportError):  # tests have workers that lack packages
            importlib.import_module(name)
    daemon.manager()
