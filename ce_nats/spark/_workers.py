"""
Check that the Python of Spark's workers can import this package.

Spark starts workers with the interpreter in ``PYSPARK_PYTHON``, or the first ``python3`` on PATH. For a program in a
virtual environment, this may be another interpreter that does not have ce_nats.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from abc import ABCMeta
from copyreg import pickle as pickle_by
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from pyspark import cloudpickle

from . import _shipping as shipping

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_PROBE: Final = 'import sys; sys.stdout.write("%d.%d\\n" % sys.version_info[:2]); sys.stdout.flush(); import ce_nats'
_PROBE_SECONDS: Final = 60.0


class Shipped(ABCMeta):
    """
    Metaclass of classes that are sent to workers: in a worker without ce_nats, the error states what to configure.

    The function that imports the class is sent by value, because the worker may not be able to import this package.
    """


def _reduce(shipped: Shipped) -> tuple[Any, ...]:
    return shipping.found, (shipped.__module__, shipped.__qualname__)


class _Sent:
    """A function to be sent to workers; unpickling it there returns the function itself."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self._work = work

    def __call__(self, *arguments: Any) -> Any:
        return self._work(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return shipping.loaded, (cloudpickle.dumps(self._work),)  # type: ignore[no-untyped-call]


def sent(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function to be sent to workers: in a worker without ce_nats, the error states what to configure."""
    return _Sent(work)


pickle_by(Shipped, _reduce)
cloudpickle.register_pickle_by_value(shipping)  # type: ignore[no-untyped-call]


def context_of(spark: SparkSession) -> SparkContext | None:
    """Return the context of a session; None with Spark Connect, whose context is on the server."""
    return getattr(spark, "sparkContext", None)


def check_workers(spark: SparkSession) -> None:
    """
    Check that workers on this machine run the same version of Python as this process, and can import ce_nats.

    Nothing is checked if workers run on other machines, or with Spark Connect: there the client cannot determine which
    Python the server's workers run.

    Raises:
        ImportError: The check failed; the text states what to configure.
    """
    context = context_of(spark)
    if context is None or not str(context.master).startswith("local"):
        return
    python = context.pythonExec
    path = shutil.which(python)
    if path is None:
        raise ImportError(shipping.advice(f"Spark's workers cannot start: {python!r} was not found"))
    if _is_this_python(path):
        return
    version, problem = _probe(path)
    own = "{}.{}".format(*sys.version_info)
    if version is not None and version != own:
        text = f"Spark's workers must run Python {own} as this process does, got Python {version} ({path})"
        raise ImportError(shipping.advice(text))
    # A real worker decides, because its path also has files that were added to the session.
    if problem and not _worker_imports_package(context):
        raise ImportError(shipping.advice(f"Spark's workers run {path}, which cannot import ce_nats ({problem})"))


def _is_this_python(path: str) -> bool:
    """Return whether a path is this interpreter, also by another name; a link from elsewhere is another Python."""
    own = sys.executable
    return bool(own) and os.path.dirname(os.path.abspath(path)) == os.path.dirname(own) and os.path.samefile(path, own)


@lru_cache
def _probe(path: str) -> tuple[str | None, str]:
    """
    Start an interpreter and try to import this package.

    Returns its version, such as ``3.11``, or None if it did not print one; and the reason why it cannot import this
    package, or ``""`` if it can.
    """
    try:
        done = subprocess.run(  # noqa: S603
            [path, "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    last_line = done.stderr.strip().rpartition("\n")[2]
    problem = "" if done.returncode == 0 else last_line or f"it exited with status {done.returncode}"
    return done.stdout.strip() or None, problem


def _worker_imports_package(context: SparkContext) -> bool:
    return all(context.parallelize([0], 1).map(shipping.can_import).collect())
