"""
Run tests in forks of a process that has imported what tests import, except ce_nats itself and the tests.

Requests and results are lines of JSON on standard input and output; the working directory is a copy of the project.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

from . import forks

# Imported once: what the tests of pure modules need most of their start for.
PRELOADED: Final = (
    *("asyncio", "email", "hypothesis", "hypothesis.strategies", "msgspec", "nats", "pyarrow", "pyarrow.parquet"),
    *("cloudevents.core.v1.event", "google.protobuf.message", "typer.testing", "rich.console", "pydantic", "_pytest"),
    *("xml.etree.ElementTree", "urllib.request", "jsonschema", "pydantic.fields", "pandas", "pyspark.sql"),
    *("pytest_asyncio.plugin", "xdist.plugin", "pytest_timeout", "_hypothesis_pytestplugin"),
)
# Modules of plugins are imported before pytest could rewrite their assertions, which is no concern here.
ARGUMENTS: Final = (
    *("-q", "-p", "no:cacheprovider", "-m", "not slow and not interop", "--hypothesis-seed=0"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)


class Plugin:
    """
    Run chosen tests, limit the time of each, and write the first failure to a file.

    Args:
        failure: The file.
        running: A file for the test that runs.
        seconds: The tests in their order, each with the time that it needs without a mutant.
        patience: Factor of the limits of elapsed time.
    """

    def __init__(self, failure: Path, running: Path, seconds: Mapping[str, float], patience: float) -> None:
        self._failure = failure
        self._running = running
        self._patience = patience
        self._seconds = seconds
        self._places = {test: place for place, test in enumerate(seconds)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept = {item.nodeid: item for item in items if item.nodeid in self._places}
        items[:] = sorted(kept.values(), key=lambda item: self._places[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running.write_text(nodeid, encoding="utf-8")
        forks.limit_test(self._seconds[nodeid], self._patience)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._note(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._note(report.nodeid)

    def _note(self, test: str) -> None:
        if not self._failure.exists():
            self._failure.write_text(test, encoding="utf-8")


def preload() -> None:
    """Import what tests import, except the package and the tests."""
    for name in PRELOADED:
        with suppress(ImportError):
            import_module(name)


def main() -> None:
    """Answer requests until standard input ends."""
    forks.prepare()
    preload()
    with suppress(BrokenPipeError):  # the command was killed
        for line in sys.stdin:
            print(json.dumps(_run(json.loads(line))), flush=True)


def _run(request: dict[str, Any]) -> dict[str, Any]:
    """Run tests in a fork, and return the status of pytest, or minus a signal, and the first failure."""
    failure, running = Path("failure.txt"), Path("running.txt")
    for file in (failure, running):
        file.unlink(missing_ok=True)
    status = forks.run(partial(_test, request, failure, running))
    written = running if status in (forks.BY_CPU_TIME, forks.BY_ELAPSED_TIME) else failure
    by = written.read_text(encoding="utf-8") if written.exists() else ""
    return {"status": status, "by": by}


def _test(request: dict[str, Any], failure: Path, running: Path) -> int:
    """Run pytest, and return its status."""
    sys.dont_write_bytecode = True
    plugin = Plugin(failure, running, dict(request["tests"]), request["patience"])
    status = pytest.main(["-x", *ARGUMENTS, *request["arguments"]], plugins=[plugin])
    package = sys.modules.get("ce_nats")
    if not status and package is not None and not Path(str(package.__file__)).is_relative_to(Path.cwd()):
        return 71  # the tests used another copy
    return int(status)


if __name__ == "__main__":
    main()
