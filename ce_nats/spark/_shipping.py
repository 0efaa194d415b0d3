"""
Functions that run in a worker before it is known whether the worker can import this package.

They are sent by value, so they may use only the standard library, imported inside the functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def advice(problem: str) -> str:
    """A problem with the Python of workers, followed by what to do."""
    return (
        f"{problem}. Set the environment variable PYSPARK_PYTHON to a Python that has ce_nats before the session is "
        "created (os.environ['PYSPARK_PYTHON'] = sys.executable where workers run on this machine), or "
        "spark.pyspark.python with spark-submit"
    )


def found(module: str, name: str) -> Any:
    """
    A class of this package, by module and name.

    Raises:
        ImportError: The package cannot be imported; the text says what to set.
    """
    from importlib import import_module

    return _imported(lambda: getattr(import_module(module), name))


def loaded(pickled: bytes) -> Any:
    """
    An object that was pickled with references to this package.

    Raises:
        ImportError: The package cannot be imported; the text says what to set.
    """
    from pickle import loads

    return _imported(lambda: loads(pickled))  # noqa: S301 - Spark has unpickled this one


def _imported(load: Callable[[], Any]) -> Any:
    import os
    import sys

    try:
        return load()
    except ImportError as error:
        problem = f"Spark's worker runs {sys.executable}, which cannot import ce_nats ({error})"
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # the driver then shows this text first; the worker ends after this error
    raise ImportError(advice(problem))


def can_import(_: object) -> bool:
    """Whether the package can be imported."""
    from importlib import import_module

    try:
        import_module("ce_nats")
    except ImportError:
        return False
    return True
