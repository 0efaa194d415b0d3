"""Count mutants by module and outcome."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.proof import record

from .judge import INVALID, KILLED, NOT_EXECUTED, SURVIVED, TIMEOUT
from .mutate import Mutant

EQUIVALENT: Final = "equivalent"


class Summary:
    """
    The outcomes of mutants.

    Args:
        total: Number of mutants that the sources have, tested or not.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._counts: dict[str, Counter[str]] = {}
        self._outcomes: list[dict[str, Any]] = []

    def add(self, mutant: Mutant, outcome: str, by: str = "") -> None:
        self._counts.setdefault(mutant.path.removeprefix("ce_nats/"), Counter())[outcome] += 1
        self._outcomes.append({"key": mutant.key, "line": mutant.line, "outcome": outcome, "by": by})

    def share(self) -> float:
        """Return the share that was killed of the mutants that are not equivalent; 0 if there are none."""
        counts = sum(self._counts.values(), Counter())
        judged = counts[KILLED] + counts[SURVIVED]
        return counts[KILLED] / judged if judged else 0.0

    def lines(self) -> list[str]:
        """Return the figures as Markdown, with the mutants that survived."""
        counts = sum(self._counts.values(), Counter())
        by_timeout = sum(one["by"] == TIMEOUT for one in self._outcomes)
        judged = counts[KILLED] + counts[SURVIVED]
        rows = [_row(f"`{module}`", counted) for module, counted in sorted(self._counts.items())]
        return [
            f"{judged + counts[EQUIVALENT]:,} of {self._total:,} mutants: {counts[KILLED]:,} of {judged:,} that are "
            f"not equivalent were killed ({100 * self.share():.1f} %), {by_timeout:,} of these by the time limit."
            + (f" {counts[INVALID]:,} others do not compile." if counts[INVALID] else ""),
            "",
            *record.table(("module", "mutants", "killed", "survived", "equivalent"), [*rows, _row("all", counts)]),
            *self._survivors(),
        ]

    def _survivors(self) -> list[str]:
        survivors = [one for one in self._outcomes if one["outcome"] == SURVIVED]
        if not survivors:
            return []
        return ["", "Survivors:", "", *map(_described, survivors)]

    def write(self, file: Path) -> None:
        """Write the outcome of each mutant as JSON."""
        file.write_text(json.dumps(self._outcomes, indent=1), encoding="utf-8")


def _row(name: str, counts: Counter[str]) -> list[object]:
    return [name, counts.total() - counts[INVALID], counts[KILLED], counts[SURVIVED], counts[EQUIVALENT]]


def _described(outcome: dict[str, Any]) -> str:
    """Return a mutant as an item of a list, with the changed words and a few around them."""
    path, function, before, after = outcome["key"]
    old, new = before.split(" "), after.split(" ")
    start = next((at for at, (one, other) in enumerate(zip(old, new)) if one != other), min(len(old), len(new)))
    rest = min(len(old), len(new)) - start
    end = next((at for at in range(rest) if old[-1 - at] != new[-1 - at]), rest)
    texts = (" ".join(words[max(0, start - 2) : min(len(words), len(words) - end + 2)]) for words in (old, new))
    was, becomes = (f"``{text or ' '}``" for text in texts)
    executed = f" ({NOT_EXECUTED})" if outcome["by"] == NOT_EXECUTED else ""
    return f"- `{path.removeprefix('ce_nats/')}:{outcome['line']}` in `{function}`: {was} becomes {becomes}{executed}"
