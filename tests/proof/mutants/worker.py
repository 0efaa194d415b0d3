"""
Run tests in forks of a process that has imported what tests import, except ce_nats itself and the tests.

Requests and results are lines of JSON on standard input and output; the working directory is a copy of the project.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Collection
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

# Imported once: what the tests of pure modules need most of their start for.
PRELOADED: Final = (
    *("asyncio", "email", "hypothesis", "hypothesis.strategies", "msgspec", "nats", "pyarrow", "pyarrow.parquet"),
    *("cloudevents.core.v1.event", "google.protobuf.message", "typer.testing", "rich.console", "pydantic", "_pytest"),
    *("xml.etree.ElementTree", "urllib.request", "jsonschema", "pydantic.fields"),
)
# Address space of a fork: a mutant may allocate without end.
MEMORY: Final = 8 << 30
# Limits of a test. CPU time ends endless loops, also on a busy machine. Elapsed time ends tests that wait, and is
# generous, because it depends on the machine.
CPU_SECONDS: Final = 30
ELAPSED_SECONDS: Final = 300
_TIMERS: Final = {signal.ITIMER_PROF: CPU_SECONDS, signal.ITIMER_REAL: ELAPSED_SECONDS}
_BY_TIMER: Final = (-signal.SIGPROF, -signal.SIGALRM)
# Tests with these fixtures need Spark, which takes seconds to start; tests of columns and connector run without it.
LEFT_OUT: Final = frozenset({"spark", "connect_url"})
# Modules of plugins are imported before pytest could rewrite their assertions, which is no concern here.
_OPTIONS: Final = ("-m", "not slow and not interop", "-W", "ignore::pytest.PytestAssertRewriteWarning")
_SUBREAPER: Final = 36


class Plugin:
    """
    Leave out tests that need Spark, limit the time of each test, and write the first failure to a file.

    Args:
        failure: The file.
        first: Tests that run before the others.
    """

    def __init__(self, failure: Path, first: Collection[str]) -> None:
        self._failure = failure
        self._first = frozenset(first)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if LEFT_OUT.isdisjoint(getattr(item, "fixturenames", ()))]
        items.sort(key=lambda item: (item.nodeid not in self._first, _has_examples(item)))

    def pytest_runtest_logstart(self) -> None:
        start_timers()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._note(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._note(report.nodeid)

    def _note(self, test: str) -> None:
        if not self._failure.exists():
            self._failure.write_text(test, encoding="utf-8")


def start_timers() -> None:
    """Kill this process when a limit is reached, unless the timers are started again."""
    for timer, seconds in _TIMERS.items():
        signal.setitimer(timer, seconds)


def _has_examples(item: pytest.Item) -> bool:
    """Return whether Hypothesis runs a test, many times: it takes longer than others."""
    return hasattr(getattr(item, "obj", None), "hypothesis")


def main() -> None:
    """Answer requests until standard input ends."""
    if sys.platform == "linux":  # servers of a killed fork become children of this process, which kills them
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    for name in PRELOADED:
        with suppress(ImportError):
            import_module(name)
    signal.signal(signal.SIGTERM, _stop)
    with suppress(BrokenPipeError):  # the command was killed
        for line in sys.stdin:
            print(json.dumps(_run(json.loads(line))), flush=True)


def _stop(*_: object) -> None:
    _kill_children()
    os._exit(0)


def _run(request: dict[str, Any]) -> dict[str, Any]:
    """Run tests in a fork, and return the status of pytest, None after a timeout, and the first failure."""
    failure = Path("failure.txt")
    failure.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        _test(request, failure)
    _, waited = os.waitpid(child, 0)
    status = os.waitstatus_to_exitcode(waited)
    _kill_children()
    by = failure.read_text(encoding="utf-8") if failure.exists() else ""
    return {"status": None if status in _BY_TIMER else status, "by": by}


def _test(request: dict[str, Any], failure: Path) -> None:
    """Run pytest in this process, and exit."""
    status = 70
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        start_timers()
        sys.dont_write_bytecode = not request["bytecode"]
        arguments = ["-x", "-q", "-p", "no:cacheprovider", *_OPTIONS, *request["tests"]]
        status = pytest.main([*arguments, "--hypothesis-seed=0"], plugins=[Plugin(failure, request["first"])])
        package = sys.modules.get("ce_nats")
        if not status and package is not None and not Path(str(package.__file__)).is_relative_to(Path.cwd()):
            status = 71  # the tests used another copy
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _kill_children() -> None:
    """Kill the processes that tests have started, until there are none."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while children.exists() and (left := children.read_text().split()):
        for child in map(int, left):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
