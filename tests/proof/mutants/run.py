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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Final

from . import targets
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
# Time limit of the tests of a mutant: seconds, and a factor of the time without a mutant.
SECONDS: Final = 20.0
FACTOR: Final = 4.0
_NO_TESTS: Final = 5

KILLED: Final = "killed"
SURVIVED: Final = "survived"


class ProofError(Exception):
    """The tests cannot judge mutants."""


@dataclass(frozen=True)
class Verdict:
    """
    Outcome of the tests of a mutant.

    Attributes:
        mutant: The mutant.
        outcome: ``killed`` or ``survived``.
        by: First test that failed; ``timeout``, or ``""`` if the mutant survived.
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
        self._limits: dict[tuple[str, ...], float | None] = {}

    def __enter__(self) -> Copy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process and delete the copy; may be called again, and by another thread."""
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
            ProofError: The tests fail without the mutant.
        """
        for tests in targets.stages(self._path, mutant.path):
            limit = self._limit(tests)
            if limit is None:
                continue
            result = self._mutated(mutant, tests, limit)
            if result["status"] is None:
                return Verdict(mutant, KILLED, "timeout")
            if result["status"]:
                return Verdict(mutant, KILLED, result["by"] or f"status {result['status']}")
        return Verdict(mutant, SURVIVED, "")

    def _mutated(self, mutant: Mutant, tests: Sequence[str], limit: float) -> dict[str, Any]:
        """Run tests with the text of a mutant."""
        file = self._path / mutant.path
        original, times = file.read_bytes(), file.stat()
        try:
            file.write_text(mutant.source, encoding="utf-8")
            return self._request(tests, limit)
        finally:
            if file.exists():
                file.write_bytes(original)
                os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # cached bytecode is valid again

    def _limit(self, tests: Sequence[str]) -> float | None:
        """Return the time limit of tests, from a run without a mutant; None if all of them are left out."""
        key = tuple(tests)
        if key not in self._limits:
            result = self._request(tests, 1200, bytecode=True)
            if result["status"] not in (0, _NO_TESTS):
                log = (self._path / "log.txt").read_text(encoding="utf-8", errors="replace")
                raise ProofError(f"tests must pass without a mutant: {' '.join(tests)}\n{log[-3000:]}")
            found = result["status"] == 0
            self._limits[key] = SECONDS + FACTOR * float(result["seconds"]) if found else None
        return self._limits[key]

    def _request(self, tests: Sequence[str], timeout: float, *, bytecode: bool = False) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"tests": list(tests), "timeout": timeout, "bytecode": bytecode}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def verdicts(root: Path, mutants: Sequence[Mutant], processes: int, duration: float | None = None) -> Iterator[Verdict]:
    """
    Yield the verdict of each mutant, as they come, for at most ``duration`` seconds.

    Raises:
        ProofError: The tests of a module fail without a mutant.
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
