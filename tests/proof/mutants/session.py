"""
Collect tests once, and run some of them in forks with a mutant that is installed in the imported modules.

Requests and answers are lines of JSON on standard input and output; the working directory is a copy of the project.
The arguments are those of pytest. The first answer has the tests, and the code that ran while they were collected.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TextIO

import pytest

from . import codes, forks
from .executed import Recorder
from .worker import ARGUMENTS, preload

KILLED: Final = "killed"
SURVIVED: Final = "survived"
TIMEOUT: Final = "timeout"
# A test reached the limit of elapsed time, perhaps because the machine is busy.
WAITED: Final = "waited"
# The mutant must be imported.
FRESH: Final = "fresh"
OUTCOMES: Final = {0: SURVIVED, forks.BY_CPU_TIME: TIMEOUT, forks.BY_ELAPSED_TIME: WAITED}
_NOT_INSTALLABLE: Final = "not installable"
# Tests with these fixtures need Spark, which takes seconds to start; tests of columns and connector run without it.
_LEFT_OUT: Final = frozenset({"spark", "connect_url"})


class Session:
    """
    A plugin of pytest that answers requests instead of running all tests.

    Args:
        requests: Where requests come from.
        answers: Where answers go to.
        recorder: Records code since the start of the process.
    """

    def __init__(self, requests: TextIO, answers: TextIO, recorder: Recorder) -> None:
        self._requests = requests
        self._answers = answers
        self._recorder = recorder
        self._items: list[pytest.Item] = []
        self._functions: codes.Functions = {}
        self._result = Path("result.txt")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        once = {item.nodeid: item for item in items if not _has_spark(item)}
        items[:] = once.values()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Answer requests until there are no more."""
        self._items = session.items
        early = sorted(self._recorder.stop())
        sys.dont_write_bytecode = True
        self._functions = codes.functions()
        gc.collect()
        gc.freeze()
        self._answer({"tests": [item.nodeid for item in self._items], "early": early})
        for line in self._requests:
            request = json.loads(line)
            self._answer(self._record(*request["part"]) if "part" in request else self._judge(request))
        return True

    def _answer(self, answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=self._answers, flush=True)

    # --- Tests with a mutant ------------------------------------------------------------------------------------------

    def _judge(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run tests in a fork until one fails, with a mutant if the request has one."""
        self._result.write_text("", encoding="utf-8")
        status = forks.run(partial(self._run, request))
        written = self._result.read_text(encoding="utf-8")
        if written == _NOT_INSTALLABLE:
            return {"outcome": FRESH, "by": ""}
        return {"outcome": OUTCOMES.get(status, KILLED), "by": written}

    def _run(self, request: dict[str, Any]) -> int:
        if "mutated" in request:
            try:
                codes.install(request["path"], request["original"], request["mutated"], self._functions)
            except codes.NotInstallableError:
                self._result.write_text(_NOT_INSTALLABLE, encoding="utf-8")
                return 1
        items = [self._items[place] for place, _ in request["tests"]]
        _restart_capture(items[0].config)
        items[0].config.pluginmanager.register(_Failure(self._result))
        for (_, seconds), item, following in zip(request["tests"], items, [*items[1:], None]):
            self._result.write_text(item.nodeid, encoding="utf-8")
            forks.limit_test(seconds, request["patience"])
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        self._result.write_text("", encoding="utf-8")
        return 0

    # --- Tests without a mutant ---------------------------------------------------------------------------------------

    def _record(self, part: int, parts: int) -> dict[str, Any]:
        """Run a part of the tests without a mutant, and return duration and code of those that pass."""
        recorded: dict[int, Any] = {}
        for group in _groups(self._items)[part::parts]:
            self._result.write_text("", encoding="utf-8")
            forks.run(partial(self._record_group, group))
            for line in self._result.read_text(encoding="utf-8").splitlines():
                recorded.update({int(place): one for place, one in json.loads(line).items()})
        return {"recorded": recorded}

    def _record_group(self, group: Sequence[int]) -> int:
        items = [self._items[place] for place in group]
        _restart_capture(items[0].config)
        passed = _Passed()
        items[0].config.pluginmanager.register(passed)
        with self._result.open("w", encoding="utf-8") as out:
            for place, item, following in zip(group, items, [*items[1:], None]):
                forks.start_timers()
                passed.is_passed = True
                started = time.perf_counter()
                self._recorder.start()
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                keys = sorted(self._recorder.stop())
                if passed.is_passed:
                    seconds = time.perf_counter() - started
                    one = {place: [round(seconds, 4), None if self._recorder.starts_processes else keys]}
                    print(json.dumps(one), file=out, flush=True)
        return 0


class _Failure:
    """Ends the process at the first failure, of the test that is in the file."""

    def __init__(self, result: Path) -> None:
        self._result = result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._result.write_text(report.nodeid, encoding="utf-8")
            print(report.longreprtext, file=sys.__stderr__, flush=True)
            os._exit(1)


class _Passed:
    """Notes whether a test passes: it neither fails nor is it skipped."""

    is_passed = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.is_passed &= report.passed or hasattr(report, "wasxfail")


def _restart_capture(config: pytest.Config) -> None:
    """Capture output in other files than forks before this one did."""
    manager = config.pluginmanager.getplugin("capturemanager")
    manager.stop_global_capturing()
    forks.redirect()
    manager.start_global_capturing()


def _groups(items: Sequence[pytest.Item]) -> list[list[int]]:
    """
    Return the places of tests that run in one process: those of a file that share fixtures, and those of a function.

    A test does not execute what the ones before it have cached.
    """
    groups: defaultdict[object, list[int]] = defaultdict(list)
    for place, item in enumerate(items):
        groups[item.path if _shares_fixtures(item) else item.nodeid.partition("[")[0]].append(place)
    return list(groups.values())


def _shares_fixtures(item: pytest.Item) -> bool:
    """Return whether a test has fixtures of the project for more than one test, such as a server."""
    definitions = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009
    return any(
        one.scope != "function" and one.func.__module__.startswith(("tests.", "ce_nats."))
        for several in definitions
        for one in several
    )


def _has_spark(item: pytest.Item) -> bool:
    """Return whether a test needs Spark."""
    return not _LEFT_OUT.isdisjoint(getattr(item, "fixturenames", ()))


def main() -> None:
    """Collect the tests of the arguments, and answer requests until standard input ends."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    forks.prepare()
    forks.redirect()
    preload()
    modules, arguments = sys.argv[1].split(), sys.argv[2:]
    recorder = Recorder()
    recorder.start()
    for module in modules:
        import_module(module)
    sys.dont_write_bytecode = False
    with suppress(BrokenPipeError):  # the command was killed
        sys.exit(pytest.main([*ARGUMENTS, *arguments], plugins=[Session(requests, answers, recorder)]))


if __name__ == "__main__":
    main()
