"""
The Python of Spark's workers, which has to find what this package ships to them.

Spark starts workers with an interpreter of its own choice: ``PYSPARK_PYTHON``, or the first ``python3`` on PATH. A
program in a virtual environment easily gets another one than its own, without ce_nats.
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

from . import shipping

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["Shipped", "check_workers", "sent"]

_PROBE: Final = 'import sys; sys.stdout.write("%d.%d\\n" % sys.version_info[:2]); sys.stdout.flush(); import ce_nats'
_PROBE_SECONDS: Final = 60.0


class Shipped(ABCMeta):
    """
    The metaclass of classes that go to workers: a worker without ce_nats says so, and what to set.

    What it calls to find the class goes by value, because nothing of this package can be taken for granted there.
    """


def _reduce(shipped: Shipped) -> tuple[Any, ...]:
    return shipping.found, (shipped.__module__, shipped.__qualname__)


class _Sent:
    """A function that goes to workers; there it is the function itself."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self._work = work

    def __call__(self, *arguments: Any) -> Any:
        return self._work(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return shipping.loaded, (cloudpickle.dumps(self._work),)  # type: ignore[no-untyped-call]


def sent(work: Callable[..., Any]) -> Callable[..., Any]:
    """A function that goes to workers: a worker without ce_nats says so, and what to set."""
    return _Sent(work)


pickle_by(Shipped, _reduce)
cloudpickle.register_pickle_by_value(shipping)  # type: ignore[no-untyped-call]


def check_workers(spark: SparkSession) -> None:
    """
    See that workers on this machine run a Python like this one, which finds ce_nats.

    Says nothing where workers run on other machines, and on Spark Connect, where the client does not know what the
    server starts.

    Args:
        spark: The session.

    Raises:
        ImportError: They do not; the message says what to set.
    """
    context = getattr(spark, "sparkContext", None)  # a session of Spark Connect has none
    if context is None or not context.master.startswith("local"):
        return
    python = context.pythonExec
    path = shutil.which(python)
    if path is None:
        raise ImportError(shipping.advice(f"Spark's workers cannot start: there is no {python!r}"))
    if _is_this_python(path):
        return
    version, fault = _probe(path)
    own = "{}.{}".format(*sys.version_info)
    if version is not None and version != own:
        raise ImportError(shipping.advice(f"Spark's workers run Python {version} ({path}), and this is Python {own}"))
    # The worker itself has the last word: files that were added to the session are on its path, too.
    if fault and not _worker_imports_package(context):
        raise ImportError(shipping.advice(f"Spark's workers run {path}, which cannot import ce_nats ({fault})"))


def _is_this_python(path: str) -> bool:
    """Whether it is the running one, by another name perhaps: links out of virtual environments are not followed."""
    own = sys.executable
    return bool(own) and os.path.dirname(os.path.abspath(path)) == os.path.dirname(own) and os.path.samefile(path, own)


@lru_cache
def _probe(path: str) -> tuple[str | None, str]:
    """Version of an interpreter, None where it does not say, and why it cannot import this package, "" where it can."""
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
    said = done.stderr.strip().rpartition("\n")[2]
    return done.stdout.strip() or None, "" if done.returncode == 0 else said or f"it ended with {done.returncode}"


def _worker_imports_package(context: SparkContext) -> bool:
    return all(context.parallelize([0], 1).map(shipping.can_import).collect())
