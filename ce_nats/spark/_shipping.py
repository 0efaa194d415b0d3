"""
Functions that also run in workers that cannot import this package, so that the error states what to configure.

They are sent by value, so they may use only the standard library, imported inside the functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def advice(problem: str) -> str:
    """Return the description of a problem with the Python of workers, with instructions."""
    return (
        f"{problem}. Set the environment variable PYSPARK_PYTHON to a Python that has ce_nats before the session is "
        "created (os.environ['PYSPARK_PYTHON'] = sys.executable if workers run on this machine), or "
        "spark.pyspark.python with spark-submit"
    )


def found(module: str, name: str) -> Any:
    """
    Return a class of this package by module and name.

    Raises:
        ImportError: The package cannot be imported; the text states what to configure.
    """
    from importlib import import_module

    _discard_empty_profiles()
    return _imported(lambda: getattr(import_module(module), name))


def loaded(pickled: bytes) -> Any:
    """
    Unpickle an object that refers to this package.

    Raises:
        ImportError: The package cannot be imported; the text states what to configure.
    """
    from pickle import loads

    return _imported(lambda: loads(pickled))  # noqa: S301 - the argument comes from Spark's own pickle


def _imported(load: Callable[[], Any]) -> Any:
    import os
    import sys

    try:
        return load()
    except ImportError as error:
        problem = f"Spark's worker runs {sys.executable}, which cannot import ce_nats ({error})"
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # for this worker, which exits: the driver shows the text first
    raise ImportError(advice(problem))


def _discard_empty_profiles() -> None:
    """
    Discard the profiles of a worker if nothing is profiled.

    The workers of a data source return them in any case (Spark 4.2 and 4.3), and when ``spark-pipelines`` receives
    them, it fails after the end of the run (SPARK-59135).
    """
    import sys

    from pyspark import accumulators

    monitoring = getattr(sys, "monitoring", None)  # cProfile uses it from Python 3.12 on
    if sys.getprofile() or sys.gettrace() or (monitoring and monitoring.get_tool(monitoring.PROFILER_ID)):
        return
    # Internal names, which a later version may not have.
    registry = getattr(accumulators, "_accumulatorRegistry", {})
    for number, accumulator in list(registry.items()):
        # Numbers of Spark's own accumulators are negative. That of a driver is not deserialized.
        if number < 0 and getattr(accumulator, "_deserialized", False) and not getattr(accumulator, "_value", True):
            del registry[number]


def can_import(_: object) -> bool:
    """Return whether the package can be imported."""
    from importlib import import_module

    try:
        import_module("ce_nats")
    except ImportError:
        return False
    return True
