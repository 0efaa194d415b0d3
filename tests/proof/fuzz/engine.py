"""Run inputs of a target at a high rate, without instrumentation, and collect findings."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.proof.fuzz import limits
from tests.proof.fuzz.mutate import Mutator
from tests.proof.fuzz.target import Target

MAX_FINDINGS = 10  # of a run; more of them mostly have the same cause
_MAX_OUTCOMES = 5_000  # whose inputs are mutated further
_FEW = 12
_LONG_EVERY = 4  # batches of changed inputs


@dataclass(frozen=True)
class Finding:
    """
    Inputs for which a promise does not hold.

    Attributes:
        target: Name of the target.
        inputs: One input, or several if they fail only together.
        error: The exception, as text.
    """

    target: str
    inputs: list[bytes]
    error: str


@dataclass
class Result:
    """Outcome of the run of one target; it stays true if the run is interrupted."""

    target: str
    inputs: int = 0
    seconds: float = 0.0
    outcomes: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def rate(self) -> int:
        return round(self.inputs / self.seconds) if self.seconds else 0


class Run:
    """
    Inputs of one target, which can be run in turns with those of others.

    Args:
        target: What to run.
        seed: The same seed and number of inputs run the same inputs, in whatever turns.
        inputs: Maximum number of inputs.
        seconds: Maximum time, of this run only.
    """

    def __init__(self, target: Target, seed: int, *, inputs: int | None = None, seconds: float | None = None) -> None:
        self.result = Result(target.name)
        self._target = target
        self._seconds = float("inf") if seconds is None else seconds
        self._limit = float("inf") if inputs is None else inputs
        self._initial = target.initial()
        self._mutator = Mutator(self._initial, seed)
        self._known: set[Any] = set()
        self._changed_batches = 0

    @property
    def is_done(self) -> bool:
        result = self.result
        return result.inputs >= self._limit or result.seconds >= self._seconds or len(result.findings) >= MAX_FINDINGS

    def turn(self, seconds: float) -> None:
        """Run batches for some time, at least one."""
        end = self.result.seconds + seconds
        while not self.is_done:
            began = time.perf_counter()
            batch = self._batch(int(min(self._target.batch, self._limit - self.result.inputs)))
            found = findings_in(self._target, batch, self._learn)
            self.result.findings = [*self.result.findings, *found][:MAX_FINDINGS]
            self.result.inputs += len(batch)
            self.result.seconds += time.perf_counter() - began
            if self.result.seconds >= end:
                break

    def _batch(self, size: int) -> list[bytes]:
        """Return seeds in every other batch while there are any, so that a short run mutates some of them, too."""
        if self._initial and self.result.inputs // self._target.batch % 2 == 0:
            made, self._initial = self._initial[:size], self._initial[size:]
            return made
        made = self._mutator.batch(size, _FEW if self._target.is_aligned else 0)
        if self._changed_batches % _LONG_EVERY == 0:
            made[-1] = self._mutator.long(self._target.long)
        self._changed_batches += 1
        if self._target.is_aligned:
            made = [self._target.with_options_of(made[0], data) for data in made]
        return made

    def _learn(self, data: bytes, outcome: Any) -> None:
        """Mutate an input further if its outcome is new."""
        if outcome not in self._known and len(self._known) < _MAX_OUTCOMES:
            self._known.add(outcome)
            self._mutator.pool.append(data)
            self.result.outcomes = len(self._known)


def findings_in(
    target: Target, batch: list[bytes], new_outcome: Callable[[bytes, Any], None] = lambda *_: None
) -> list[Finding]:
    """Run a batch; if it fails or takes too long, find the inputs that do."""
    began = time.process_time()
    try:
        with limits.interrupted():
            for data, outcome in zip(batch, target.check(batch)):
                new_outcome(data, outcome)
    except limits.RunsWithoutEnd:
        return _singly(target, batch)
    except Exception as error:  # every exception is a finding
        return _singly(target, batch) or [Finding(target.name, _smallest(target, batch), _described(error))]
    return _singly(target, batch) if time.process_time() - began > limits.LIMIT else []


def _singly(target: Target, batch: list[bytes]) -> list[Finding]:
    return [found for data in batch if (found := _finding(target, [data]))]


def _finding(target: Target, inputs: list[bytes]) -> Finding | None:
    try:
        with limits.interrupted():
            seconds = limits.too_slow(lambda: list(target.check(inputs)))
    except (Exception, limits.RunsWithoutEnd) as error:
        return Finding(target.name, inputs, _described(error))
    if seconds is None:
        return None
    size = sum(map(len, inputs))
    return Finding(target.name, inputs, f"too slow: {size} bytes took {seconds:.1f} s of processor time")


def _smallest(target: Target, batch: list[bytes]) -> list[bytes]:
    """Remove parts of inputs that fail only together, while they still fail."""
    size = len(batch) // 2
    while size:
        for start in range(0, len(batch), size):
            fewer = batch[:start] + batch[start + size :]
            if fewer and _finding(target, fewer):
                batch = fewer
                break
        else:
            size //= 2
    return batch


def _described(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {str(error)[:500]} ({last.name}, line {last.lineno} of {last.filename})"
