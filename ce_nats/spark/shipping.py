"""
What runs in a worker before it is known whether there is any of this package: functions that are sent by value.

So nothing here may use anything but the standard library, imported inside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["advice", "can_import", "found", "loaded"]


def advice(fault: str) -> str:
    """A sentence about the Python of workers, and what to do."""
    return (
        f"{fault}. Set the environment variable PYSPARK_PYTHON to a Python that has ce_nats before the session is "
        "created (os.environ['PYSPARK_PYTHON'] = sys.executable where workers run on this machine), or "
        "spark.pyspark.python with spark-submit"
    )


def found(module: str, name: str) -> Any:
    """
    A class of this package.

    Raises:
        ImportError: The package cannot be imported.
    """
    from importlib import import_module

    return _imported(lambda: getattr(import_module(module), name))


def loaded(pickled: bytes) -> Any:
    """
    What was pickled with references to this package.

    Raises:
        ImportError: The package cannot be imported.
    """
    from pickle import loads

    return _imported(lambda: loads(pickled))  # noqa: S301 - Spark has unpickled this one


def _imported(load: Callable[[], Any]) -> Any:
    import os
    import sys

    try:
        return load()
    except ImportError as error:
        fault = f"Spark's worker runs {sys.executable}, which cannot import ce_nats ({error})"
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # so that what the driver shows begins with this; the worker ends here
    raise ImportError(advice(fault))


def can_import(_: object) -> bool:
    """Whether the package can be imported."""
    from importlib import import_module

    try:
        import_module("ce_nats")
    except ImportError:
        return False
    return True
