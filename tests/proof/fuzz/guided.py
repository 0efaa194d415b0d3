"""Run inputs of a target guided by the code that they reach: Atheris (libFuzzer), in a process for each target."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.proof import record
from tests.proof.fuzz import corpus
from tests.proof.fuzz.engine import Finding, Result
from tests.proof.fuzz.mutate import MAX_SIZE, TOKENS
from tests.proof.fuzz.target import Target

MODULE = "tests.proof.fuzz.targets"  # that a worker imports
MARK = "FINDING "  # of lines of a worker
_OPTIONS = (f"-max_len={MAX_SIZE}", "-timeout=300", "-rss_limit_mb=4096", "-print_final_stats=1", "-verbosity=1")
_INPUTS = re.compile(r"#(\d+)\t|stat::number_of_executed_units: (\d+)")
_COVERAGE = re.compile(r"\bcov: (\d+) ft: (\d+)(?: corp: (\d+))?")


@dataclass
class Guided(Result):
    """
    Outcome of the run of one target.

    Attributes:
        edges: Number of branches of ce_nats that were taken.
        features: Number of these with different numbers of times, as libFuzzer counts.
        kept: Number of inputs with features that no smaller input has.
    """

    edges: int = 0
    features: int = 0
    kept: int = 0


def is_available() -> bool:
    return find_spec("atheris") is not None


class GuidedRun:
    """
    A run of one target.

    Args:
        target: What to run.
        folder: Where new inputs are kept for later runs, in a folder for each target.
        seed, inputs, seconds: As for ``engine.Run``.
    """

    def __init__(
        self, target: Target, folder: Path, seed: int, *, inputs: int | None = None, seconds: float | None = None
    ) -> None:
        self.result = Guided(target.name)
        self._target = target
        self._folder = folder / target.name
        self._options = [f"-seed={seed}"]
        if inputs is not None:
            self._options.append(f"-runs={inputs}")
        if seconds is not None:
            self._options.append(f"-max_total_time={max(round(seconds), 1)}")

    def run(self) -> None:
        """Run until the limit; a KeyboardInterrupt leaves a true result."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="ce-nats-fuzz-") as name:
            work = Path(name)
            seeds = corpus.unpack(self._target.initial(), work / "seeds")
            (work / "tokens").write_text(dictionary(TOKENS), encoding="ascii")
            arguments = [f"-dict={work / 'tokens'}", f"-artifact_prefix={work}/stopped-", *self._options]
            with _process(self._target.name, [*arguments, str(self._folder), str(seeds)]) as process:
                tail = self._follow(process.stdout or ())
                status = process.wait()
            self.result.findings += self._stopped(work, tail)
            if status and not self.result.findings:
                raise RuntimeError(f"the process of {self._target.name} ended with status {status}: {'; '.join(tail)}")

    def _follow(self, lines: Iterable[str]) -> list[str]:
        """Read the output of the process while it runs, and return its last lines."""
        tail: deque[str] = deque(maxlen=8)
        began = None
        for line in lines:
            if line.startswith(MARK):
                fields = json.loads(line.removeprefix(MARK))
                inputs = [b64decode(text) for text in fields["inputs"]]
                self.result.findings.append(Finding(self._target.name, inputs, fields["error"]))
                continue
            tail.append(line.strip())
            read_line(line, self.result)
            if self.result.inputs:
                began = began or time.perf_counter()
                self.result.seconds = time.perf_counter() - began
        return [*tail]

    def _stopped(self, work: Path, tail: list[str]) -> list[Finding]:
        """Return the input that ended the process: it crashed, took minutes or needed too much memory."""
        text = next((line for line in tail if "libFuzzer: " in line), "; ".join(tail))
        return [Finding(self._target.name, [path.read_bytes()], text[:500]) for path in sorted(work.glob("stopped-*"))]


def read_line(line: str, result: Guided) -> None:
    """Take numbers from a line of libFuzzer's output."""
    if found := _INPUTS.match(line):
        result.inputs = max(result.inputs, int(found[1] or found[2]))
    if found := _COVERAGE.search(line):
        result.edges, result.features = int(found[1]), int(found[2])
        result.kept = int(found[3] or result.kept)


def summary(results: Iterable[Guided]) -> list[str]:
    """Return a table of targets, as Markdown."""
    header = ("target", "inputs", "seconds", "inputs/s", "edges", "features", "inputs kept", "findings")
    rows = [
        (one.target, one.inputs, round(one.seconds), one.rate, one.edges, one.features, one.kept, len(one.findings))
        for one in results
    ]
    return record.table(header, rows)


def dictionary(tokens: Iterable[bytes]) -> str:
    """Return tokens as a dictionary of libFuzzer."""
    return "".join(f'"{"".join(f"{chr(92)}x{code:02x}" for code in token)}"\n' for token in tokens if token)


@contextmanager
def _process(name: str, options: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a worker in a separate session, so that Ctrl-C is handled here, and end it."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.proof.fuzz.worker", name, MODULE, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        cwd=record.ROOT,
        start_new_session=True,
        text=True,
        errors="replace",
    ) as process:
        try:
            yield process
        finally:
            process.kill()
