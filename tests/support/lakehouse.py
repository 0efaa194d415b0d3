"""Environments with Spark, Delta or Iceberg, delta-rs and pyiceberg: none of them supports the newest pyspark."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Final

from tests.support.caching import cached, download_error, last_line, python_environment

ROOT: Final = Path(__file__).parents[2]
# Newest Spark for which each format has a package, by format.
VERSIONS: Final = {"delta": "4.2", "iceberg": "4.1"}
_PACKAGES: Final = (
    *("pyarrow>=15", "pandas>=2.2,<3", "cloudevents>=2.1,<3", "msgspec>=0.21", "nats-py>=2.16,<3"),
    *("deltalake~=1.6", "pyiceberg[sql-sqlite]~=0.12.0"),
)
_JAR: Final = re.compile('"spark.jars.packages": f"(.+)"')


class Lakehouse:
    """
    Runs programs in the environment.

    Attributes:
        python: Its Python.
        variables: Environment variables of the programs, in addition to those of this process.
    """

    def __init__(self, python: Path, ivy: Path) -> None:
        self.python = python
        settings = {"spark.jars.ivy": ivy, "spark.ui.enabled": "false", "spark.log.level": "ERROR"}
        options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        self.variables = {
            "PYTHONPATH": str(ROOT),
            "SPARK_HOME": str(next(python.parents[1].glob("lib/*/site-packages/pyspark"))),
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_SUBMIT_ARGS": shlex.join([*options, "pyspark-shell"]),
        }

    def run(self, *command: str | Path) -> str:
        """Run a Python program, and return its output."""
        done = self.try_run(*command)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
        return done.stdout

    def try_run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **self.variables}
        return subprocess.run([self.python, *command], env=env, capture_output=True, text=True, timeout=600)


def jars(spark: str) -> list[str]:
    """Return the jars of DELTA and ICEBERG in examples/lakehouse/lake.py that exist for a version of Spark."""
    delta, iceberg = _JAR.findall((ROOT / "examples/lakehouse/lake.py").read_text("utf-8"))
    found = [delta, iceberg] if spark == VERSIONS["iceberg"] else [delta]
    return [jar.replace("{SPARK}", spark) for jar in found]


def lakehouse(spark: str = VERSIONS["iceberg"]) -> Lakehouse:
    """
    Return an environment, which is installed once: half a gigabyte of packages, and the jars of Delta and Iceberg.

    Args:
        spark: Minor version of Spark.

    Raises:
        NotAvailable: No package registry can be reached.
        BuildFailedError: The same, with CI=true.
    """

    python = python_environment("lakehouse", [f"pyspark~={spark}.0", *_PACKAGES])
    packages = jars(spark)

    def download_jars(target: Path) -> None:
        code = "from pyspark.sql import SparkSession as S; S.builder.config('spark.jars.packages', '{}').getOrCreate()"
        done = Lakehouse(python, target).try_run("-c", code.format(",".join(packages)))
        if done.returncode:
            raise download_error(f"Spark failed to download jars: {last_line(done)}")

    return Lakehouse(python, cached("lakehouse-jars", packages, download_jars))
