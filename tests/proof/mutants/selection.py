"""Choose the tests of a mutant: those that run its code, first those that need least time for a mutant they kill."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from . import targets
from .codes import Key

# How much more likely a test kills a mutant for each mutant of the same function, or module, that it killed.
_BY_FUNCTION, _BY_MODULE = 50, 2
# How much more likely a test of the module's own file kills a mutant.
_OWN: Final = 4
# Number of tests of a module that run its code, below which tests of other modules run too.
_FEW: Final = 20
# Time that any test needs.
_LEAST: Final = 0.002


class Selection:
    """
    Tests without a mutant: their duration, the code that they run, and the mutants that they killed.

    Args:
        root: Root of the project.
        tests: The tests.
        early: Code that runs while modules are imported and tests collected.
        recorded: Duration and code of tests that pass, by their place; None as code for all code.
        budget: Seconds that the tests of a mutant may need without it.
    """

    def __init__(
        self,
        root: Path,
        tests: Sequence[str],
        early: Iterable[Key],
        recorded: Mapping[int, tuple[float, Iterable[Key] | None]],
        budget: float,
    ) -> None:
        self._root = root
        self._tests = tests
        self._places = {test: place for place, test in enumerate(tests)}
        self.early = frozenset(early)
        self._seconds = {place: seconds for place, (seconds, _) in recorded.items()}
        self._budget = budget
        self._everything = {place for place, (_, keys) in recorded.items() if keys is None}
        self._by_key: defaultdict[Key, set[int]] = defaultdict(set)
        for place, (_, keys) in recorded.items():
            for key in keys or ():
                self._by_key[key].add(place)
        self._kills: defaultdict[Key | str, Counter[int]] = defaultdict(Counter)
        self._stages: dict[str, list[list[int]]] = {}

    @property
    def failed(self) -> list[str]:
        """Tests that do not pass without a mutant."""
        return [test for place, test in enumerate(self._tests) if place not in self._seconds]

    def name(self, place: int) -> str:
        return self._tests[place]

    def place(self, test: str) -> int:
        return self._places[test]

    def seconds(self, place: int) -> float:
        return self._seconds[place]

    def is_executed(self, keys: Iterable[Key]) -> bool:
        """Return whether a test runs some code, apart from tests that start other processes."""
        return any(key in self._by_key for key in keys)

    def executing(self, path: str, keys: Collection[Key]) -> list[int]:
        """Return the tests that run some code of a module, in their order; those of other modules if there are few."""
        executing = {test for key in keys for test in self._by_key.get(key, ())}
        chosen = [place for stage in self.stages(path) for place in stage if place in executing | self._everything]
        if len(executing.intersection(chosen)) < _FEW:
            chosen = list(executing.union(chosen))
        return self._in_order(path, chosen, keys)

    def own(self, path: str, keys: Collection[Key]) -> list[int]:
        """Return all tests of a module's own file, in their order."""
        return self._in_order(path, self.stages(path)[0], keys)

    def further(self, path: str, keys: Collection[Key]) -> list[int]:
        """Return the other tests of a module that run any code of it, in their order; all of them if none does."""
        places = self.stages(path)[1]
        executing = self._everything.union(*(tests for key, tests in self._by_key.items() if key[0] == path))
        chosen = [place for place in places if place in executing]
        return self._in_order(path, chosen or places, keys)

    def stages(self, path: str) -> list[list[int]]:
        """Return the tests of a module's own file, and its others, without those that fail."""
        if path not in self._stages:
            seen: set[int] = set()
            stages = []
            for arguments in targets.stages(self._root, path):
                stage = [one for one in self._seconds if one not in seen and _is_in(self._tests[one], arguments)]
                seen.update(stage)
                stages.append(stage)
            self._stages[path] = stages
        return self._stages[path]

    def killed(self, path: str, keys: Iterable[Key], test: int) -> None:
        """Note that a test killed a mutant."""
        for place in (path, *keys):
            self._kills[place][test] += 1

    def _in_order(self, path: str, tests: Iterable[int], keys: Collection[Key]) -> list[int]:
        own = set(self.stages(path)[0])

        def seconds_per_kill(test: int) -> float:
            likely = (
                1.0 + _BY_MODULE * self._kills[path][test] + _BY_FUNCTION * sum(self._kills[key][test] for key in keys)
            )
            return max(_LEAST, self._seconds[test]) / likely / (_OWN if test in own else 1)

        return self._within_budget(sorted(tests, key=seconds_per_kill))

    def _within_budget(self, tests: Iterable[int]) -> list[int]:
        chosen: list[int] = []
        left = self._budget
        for test in tests:
            left -= self._seconds[test]
            if left < 0 and chosen:
                break
            chosen.append(test)
        return chosen


def covering(arguments: Iterable[str]) -> list[str]:
    """Return arguments of pytest without duplicates, and without those that are in others."""
    once = list(dict.fromkeys(arguments))
    return [one for one in once if not any(other != one and _is_in(one, [other]) for other in once)]


def _is_in(test: str, arguments: Iterable[str]) -> bool:
    """Return whether arguments of pytest choose a test, or a file."""
    return any(test == one or test.startswith((f"{one}/", f"{one}::", f"{one}[")) for one in arguments)
