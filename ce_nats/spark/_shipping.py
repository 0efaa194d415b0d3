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


def can_import(_: object) -> bool:
    """Return whether the package can be imported."""
    from importlib import import_module

    try:
        import_module("ce_nats")
    except ImportError:
        return False
    return True
