"""Run the tests of mutants in copies of the project, and yield a verdict for each."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from threading import Thread
from typing import Any

from .errors import ProofError
from .judge import Copy, Verdict
from .mutate import Mutant
from .selection import Selection


@dataclass(frozen=True)
class Options:
    """
    How mutants are tested.

    Attributes:
        processes: Mutants tested at once.
        duration: Seconds after which no further verdict is yielded.
        budget: Seconds that the tests of a mutant may need without it.
        confirm: Whether tests of a module's own file run again with each survivor, imported rather than installed.
    """

    processes: int = 2
    duration: float | None = None
    budget: float = 20.0
    confirm: bool = False


def verdicts(root: Path, mutants: Sequence[Mutant], options: Options) -> Iterator[Verdict]:
    """
    Yield the verdict of each mutant, as they come.

    Raises:
        ProofError: A process cannot run tests.
    """
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in mutants:
        waiting.put(mutant)
    done: queue.SimpleQueue[Verdict | BaseException] = queue.SimpleQueue()
    until = None if options.duration is None else time.monotonic() + options.duration
    modules = sorted({mutant.path for mutant in mutants if mutant.path.endswith(".py")})
    copies = [Copy(root, modules, confirm=options.confirm) for _ in range(min(options.processes, len(mutants)))]
    try:
        if modules:
            select(root, copies, options.budget)
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


def select(root: Path, copies: Sequence[Copy], budget: float) -> None:
    """
    Run all tests without a mutant, each in one of the copies, for the selection of all copies.

    Raises:
        ProofError: A process cannot run tests.
    """
    sessions = [copy.session for copy in copies if copy.session is not None]
    collected = [session.answer() for session in sessions]
    first = collected[0]["tests"]
    if other := next((one["tests"] for one in collected if one["tests"] != first), None):
        different = next(pair for pair in zip_longest(first, other) if pair[0] != pair[1])
        raise ProofError(f"all processes must collect the same tests, got {different[0]} and {different[1]}")
    for part, session in enumerate(sessions):
        session.send({"part": (part, len(sessions))})
    recorded: dict[int, Any] = {}
    for session in sessions:
        for place, (seconds, keys) in session.answer()["recorded"].items():
            recorded[int(place)] = seconds, None if keys is None else [tuple(key) for key in keys]
    selection = Selection(root, first, map(tuple, collected[0]["early"]), recorded, budget)
    if selection.failed:
        print("tests that do not pass without a mutant, and run for none:", *selection.failed, sep="\n- ")
    for copy in copies:
        copy.selection = selection


def _work(copy: Copy, waiting: queue.SimpleQueue[Mutant], done: queue.SimpleQueue[Verdict | BaseException]) -> None:
    try:
        while True:
            done.put(copy.verdict(waiting.get_nowait()))
    except queue.Empty:
        return
    except BaseException as error:
        done.put(error)
