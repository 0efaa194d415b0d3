"""Run the tests of mutants in copies of the project, and yield a verdict for each."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Final

from . import java_run, targets
from .errors import ProofError
from .java_run import JavaRunner
from .mutate import Mutant

# What tests need of the project.
COPIED: Final = (
    "ce_nats",
    "tests",
    "spec-fixtures",
    "benchmarks",
    "examples",
    "docs",
    "pyproject.toml",
    "hatch_build.py",
)
_NO_TESTS: Final = 5
# Number of tests that run first, because they killed most mutants before.
_FEW: Final = 50

KILLED: Final = "killed"
SURVIVED: Final = "survived"
INVALID: Final = "invalid"


@dataclass(frozen=True)
class Verdict:
    """
    Outcome of the tests of a mutant.

    Attributes:
        mutant: The mutant.
        outcome: ``killed``, ``survived``, or ``invalid`` if it does not compile.
        by: First test or row that failed; ``timeout``, or ``""`` if no test failed.
    """

    mutant: Mutant
    outcome: str
    by: str


class Copy:
    """A copy of the project in a temporary folder, with a process that runs tests in it."""

    def __init__(self, root: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ce-nats-mutants-")
        self._path = Path(self._folder.name)
        for name in COPIED:
            source = root / name
            if source.is_dir():
                shutil.copytree(source, self._path / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, self._path)
        environment = {**os.environ, "PYTHONPATH": str(self._path), "HYPOTHESIS_PROFILE": "mutants"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.proof.mutants.worker"],
            cwd=self._path,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C ends it through the context manager
        )
        self._java: JavaRunner | None = None
        self._passed: set[str] = set()
        self._killers: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)

    def __enter__(self) -> Copy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes and delete the copy; may be called again, and by another thread."""
        if self._java is not None:
            self._java.close()
        self._process.terminate()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._folder.cleanup()

    def verdict(self, mutant: Mutant) -> Verdict:
        """
        Run the tests of a mutant until one fails.

        Raises:
            ProofError: The test that failed also fails without the mutant.
        """
        if mutant.path.endswith(".java"):
            return self._java_verdict(mutant)
        for tests in targets.stages(self._path, mutant.path):
            result = self._mutated(mutant, tests)
            if result["status"] is None:
                return Verdict(mutant, KILLED, "timeout")
            if result["status"] not in (0, _NO_TESTS):
                by = result["by"] or f"status {result['status']}"
                self._check_passes(by)
                self._killers[tuple(tests)][by] += 1
                return Verdict(mutant, KILLED, by)
        return Verdict(mutant, SURVIVED, "")

    def _java_verdict(self, mutant: Mutant) -> Verdict:
        if self._java is None:
            self._java = JavaRunner(self._path)
        found = self._java.outcome(mutant)
        if found in (java_run.SURVIVED, java_run.INVALID):
            return Verdict(mutant, SURVIVED if found == java_run.SURVIVED else INVALID, "")
        return Verdict(mutant, KILLED, found)

    def _mutated(self, mutant: Mutant, tests: Sequence[str]) -> dict[str, Any]:
        """Run tests with the text of a mutant."""
        file = self._path / mutant.path
        original, times = file.read_bytes(), file.stat()
        try:
            file.write_text(mutant.source, encoding="utf-8")
            return self._request(tests, bytecode=False)
        finally:
            if file.exists():
                file.write_bytes(original)
                os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # cached bytecode is valid again

    def _check_passes(self, killer: str) -> None:
        """
        Check once that a test passes without a mutant.

        Raises:
            ProofError: It fails twice.
        """
        test, _, _ = killer.partition("[")
        if test in self._passed or "::" not in test:
            return
        if any(self._request([test])["status"] == 0 for _ in range(2)):  # the machine may be busy
            self._passed.add(test)
            return
        log = (self._path / "log.txt").read_text(encoding="utf-8", errors="replace")
        raise ProofError(f"a test must pass without a mutant: {test}\n{log[-3000:]}")

    def _request(self, tests: Sequence[str], *, bytecode: bool = True) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        first = [test for test, _ in self._killers[tuple(tests)].most_common(_FEW)]
        request = {"tests": list(tests), "first": first, "bytecode": bytecode}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def verdicts(root: Path, mutants: Sequence[Mutant], processes: int, duration: float | None = None) -> Iterator[Verdict]:
    """
    Yield the verdict of each mutant, as they come, for at most ``duration`` seconds.

    Raises:
        ProofError: A test fails without a mutant.
    """
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in mutants:
        waiting.put(mutant)
    done: queue.SimpleQueue[Verdict | BaseException] = queue.SimpleQueue()
    until = None if duration is None else time.monotonic() + duration
    copies = [Copy(root) for _ in range(min(processes, len(mutants)))]
    try:
        for copy in copies:
            Thread(target=_work, args=(copy, waiting, done), daemon=True).start()
        for _ in mutants:
            try:
                verdict = done.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
            except queue.Empty:
                return
            if isinstance(verdict, BaseException):
                raise verdict
            yield verdict
    finally:
        for copy in copies:
            copy.close()


def _work(copy: Copy, waiting: queue.SimpleQueue[Mutant], done: queue.SimpleQueue[Verdict | BaseException]) -> None:
    try:
        while True:
            done.put(copy.verdict(waiting.get_nowait()))
    except queue.Empty:
        return
    except BaseException as error:
        done.put(error)
