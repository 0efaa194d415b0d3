"""One jar for all of Spark 4: the columns of another version of pyspark are those of the one that is installed."""

import os
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.test_connect import results

ROOT = Path(__file__).parents[2]
# Path of a Python in whose environment ce-nats[spark] is, with an older pyspark.
OTHER_PYTHON = "CE_NATS_OTHER_PYSPARK"


@pytest.mark.skipif(OTHER_PYTHON not in os.environ, reason=f"{OTHER_PYTHON} names no Python with another pyspark")
def test_another_pyspark(spark: SparkSession) -> None:
    python = os.environ[OTHER_PYTHON]
    environment = {**os.environ, "PYSPARK_PYTHON": python, "PYTHONPATH": str(ROOT)}
    command = [python, "-m", "tests.spark.test_versions"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    version, *found = done.stdout.splitlines()
    assert version != spark.version
    assert found == results(spark)


if __name__ == "__main__":
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    print(session.version, *results(session), sep="\n")
    session.stop()
