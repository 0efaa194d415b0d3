"""Run the tests of mutants in a copy of the project, until one fails."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol

from . import codes, java_run, session, targets
from .errors import ProofError
from .java_run import JavaRunner
from .mutate import Mutant
from .process import Process
from .selection import Selection, covering

# What tests need of the project.
COPIED: Final = (
    "ce_nats",
    "tests",
    "spec-fixtures",
    "benchmarks",
    "examples",
    "docs",
    "_ce_nats_command.py",
    "pyproject.toml",
    "hatch_build.py",
)
KILLED: Final = session.KILLED
SURVIVED: Final = session.SURVIVED
INVALID: Final = java_run.INVALID
# As ``by``: the time limit of a test; no test runs the changed code.
TIMEOUT: Final = session.TIMEOUT
NOT_EXECUTED: Final = "not executed"
# By status of pytest, or of a fork; pytest exits with 5 if no test was collected.
_OUTCOMES: Final = {**session.OUTCOMES, 5: SURVIVED}
# Factor of the limit of elapsed time for a test that reached it, alone.
_PATIENCE: Final = 4.0


@dataclass(frozen=True)
class Verdict:
    """
    Outcome of the tests of a mutant.

    Attributes:
        mutant: The mutant.
        outcome: ``killed``, ``survived``, or ``invalid`` if it does not compile.
        by: First test or row that failed; ``timeout``, ``not executed``, or ``""`` if no test failed.
    """

    mutant: Mutant
    outcome: str
    by: str


class Result(NamedTuple):
    """Outcome of some tests, and the test that failed or reached a limit."""

    outcome: str
    by: str


class Run(Protocol):
    """Runs tests in order until one fails, with or without the mutant."""

    def __call__(self, tests: Sequence[int], *, mutated: bool = True, patience: float = 1.0) -> Result: ...


class Copy:
    """
    A copy of the project in a temporary folder, with processes that run tests in it.

    Args:
        root: Root of the project.
        modules: Python modules that have mutants.
        confirm: Whether tests of a module's own file run again with each survivor, imported rather than installed.
    """

    def __init__(self, root: Path, modules: Sequence[str] = (), *, confirm: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ce-nats-mutants-")
        self._path = Path(self._folder.name).resolve() / "project"
        self._path.mkdir()
        for name in COPIED:
            source = root / name
            if source.is_dir():
                shutil.copytree(source, self._path / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, self._path)
        self._options = [f"--basetemp={self._folder.name}/tests", *targets.DESELECTED]
        self._confirm = confirm
        self._java: JavaRunner | None = None
        self._worker: Process | None = None
        self.selection: Selection | None = None
        self.session: Process | None = None
        if modules:
            tests = covering(test for module in modules for stage in targets.stages(root, module) for test in stage)
            names = " ".join(map(_imported_name, modules))
            self.session = Process(self._path, "tests.proof.mutants.session", names, *self._options, *tests)

    def __enter__(self) -> Copy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes and delete the copy; may be called again, and by another thread."""
        for process in (self._java, self.session, self._worker):
            if process is not None:
                process.close()
        self._folder.cleanup()

    def verdict(self, mutant: Mutant) -> Verdict:
        """
        Run the tests of a mutant until one fails.

        Raises:
            ProofError: A process cannot run tests.
        """
        if mutant.path.endswith(".java"):
            return self._java_verdict(mutant)
        assert self.selection is not None
        original = (self._path / mutant.path).read_text(encoding="utf-8")
        change = codes.change(mutant.path, original, mutant.source)
        result = Result(session.FRESH, "")
        if not change.at_import:
            result = self._installed(mutant, original, change, self.selection)
        if result.outcome == session.FRESH:
            result = self._imported(mutant, change, self.selection)
        elif result == (SURVIVED, "") and self._confirm:
            result = self._imported(mutant, change, self.selection, only_own=True)
        if result.outcome == SURVIVED:
            return Verdict(mutant, SURVIVED, result.by)
        return Verdict(mutant, KILLED, result.by if result.outcome == KILLED else TIMEOUT)

    def _java_verdict(self, mutant: Mutant) -> Verdict:
        if self._java is None:
            self._java = JavaRunner(self._path)
        found = self._java.outcome(mutant)
        if found in (java_run.SURVIVED, java_run.INVALID):
            return Verdict(mutant, SURVIVED if found == java_run.SURVIVED else INVALID, "")
        return Verdict(mutant, KILLED, found)

    def _installed(self, mutant: Mutant, original: str, change: codes.Change, selection: Selection) -> Result:
        """Run the tests that execute changed code, with the mutant installed in imported modules."""
        if not change.keys:  # the compiler makes the same code of both
            return Result(SURVIVED, "")

        def run(tests: Sequence[int], *, mutated: bool = True, patience: float = 1.0) -> Result:
            seconds = [(test, selection.seconds(test)) for test in tests]
            request: dict[str, Any] = {"tests": seconds, "patience": patience}
            if not mutated:
                return self._in_session(request)
            with self._written(mutant):
                return self._in_session(
                    {**request, "path": mutant.path, "original": original, "mutated": mutant.source}
                )

        result = self._killer(run, selection.executing(mutant.path, change.keys), change, mutant.path)
        if not selection.early.isdisjoint(change.keys):  # what the code did before, it may do otherwise with the mutant
            return result if self._kills_imported(mutant, result, selection) else Result(session.FRESH, "")
        if result.outcome == SURVIVED and not selection.is_executed(change.keys):
            return Result(SURVIVED, NOT_EXECUTED)
        return result

    def _in_session(self, request: dict[str, Any]) -> Result:
        assert self.session is not None
        result = Result(**self.session.ask(request))
        if result.outcome == KILLED and not result.by:
            raise ProofError(f"a process must run tests, it has ended\n{self.session.log()}")
        return result

    def _imported(
        self, mutant: Mutant, change: codes.Change, selection: Selection, *, only_own: bool = False
    ) -> Result:
        """Run the tests of the module's own file, then its others, in processes that import the mutant."""

        def run(tests: Sequence[int], *, mutated: bool = True, patience: float = 1.0) -> Result:
            with self._written(mutant) if mutated else nullcontext():
                return self._in_worker(tests, selection, patience)

        result = self._killer(run, selection.own(mutant.path, change.keys), change, mutant.path)
        if result.outcome == SURVIVED and not only_own:
            return self._killer(run, selection.further(mutant.path, change.keys), change, mutant.path)
        return result

    def _kills_imported(self, mutant: Mutant, result: Result, selection: Selection) -> bool:
        """Return whether the test that killed an installed mutant kills it if it is imported."""
        if result.outcome == SURVIVED or not result.by:
            return False
        with self._written(mutant):
            return self._in_worker([selection.place(result.by)], selection, _PATIENCE).outcome != SURVIVED

    def _in_worker(self, tests: Sequence[int], selection: Selection, patience: float) -> Result:
        if self._worker is None:
            self._worker = Process(self._path, "tests.proof.mutants.worker")
        seconds = [(selection.name(test), selection.seconds(test)) for test in tests]
        files = dict.fromkeys(name.partition("::")[0] for name, _ in seconds)
        request = {"tests": seconds, "patience": patience, "arguments": [*self._options, *files]}
        answer = self._worker.ask(request)
        outcome = _OUTCOMES.get(answer["status"], KILLED)
        return Result(outcome, "" if outcome == SURVIVED else answer["by"] or f"status {answer['status']}")

    def _killer(self, run: Run, tests: Sequence[int], change: codes.Change, path: str) -> Result:
        """Return the outcome of tests, of which all pass without the mutant; those that fail by chance do not count."""
        assert self.selection is not None
        left = list(tests)
        while left:
            result = run(left)
            killer = next((test for test in left if self.selection.name(test) == result.by), None)
            if result.outcome not in (KILLED, session.WAITED) or killer is None:
                return result
            if _fails_again(run, left[: left.index(killer) + 1]):
                self.selection.killed(path, change.keys, killer)
                return result
            left.remove(killer)
        return Result(SURVIVED, "")

    @contextmanager
    def _written(self, mutant: Mutant) -> Iterator[None]:
        """Write the text of a mutant, for processes that import it."""
        file = self._path / mutant.path
        original, times = file.read_bytes(), file.stat()
        try:
            file.write_text(mutant.source, encoding="utf-8")
            yield
        finally:
            if file.exists():
                file.write_bytes(original)
                os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # cached bytecode is valid again


def _fails_again(run: Run, tests: Sequence[int]) -> bool:
    """Return whether the last test fails again with the mutant: alone, or after others, and after these not without."""
    if run(tests[-1:], patience=_PATIENCE).outcome != SURVIVED:
        return True
    if len(tests) == 1 or run(tests, patience=_PATIENCE).outcome == SURVIVED:
        return False
    return run(tests, mutated=False).outcome == SURVIVED


def _imported_name(module: str) -> str:
    return module.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
