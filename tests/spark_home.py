"""
A home of Spark for tests whose Python processes start fast.

Spark lets them import pyspark from archives in its home, so they compile each module at each start, which takes two
thirds of the CPU time until they connect. That of a streaming source has ten seconds, by a constant in Spark, and a
busy machine exceeds them. Without the archives they import the installed pyspark, which is compiled already.
"""

import os
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from tests.caching import cached


def link_home(package: Path, home: Path) -> None:
    """Fill a directory with links to an installed pyspark, without the archives."""
    for path in package.iterdir():
        if path.name != "python":
            (home / path.name).symlink_to(path)


def use_fast_home() -> None:
    """Let this process and its children start Spark from such a home, unless the environment names another one."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None or "SPARK_HOME" in os.environ:
        return
    package = Path(spec.origin).parent
    home = cached("spark-home", [str(package), version("pyspark")], lambda home: link_home(package, home))
    os.environ["SPARK_HOME"] = str(home)
