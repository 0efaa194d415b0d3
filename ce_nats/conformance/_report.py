"""Convert verdicts to tables and to JSON. Needs the extra ``cli``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from ._cases import LEVELS, Requirement
from ._verdicts import Result, Verdict

_MAX_VALUE_LENGTH: Final = 400  # characters of an expected or actual value
_STYLES: Final = {Result.PASSED: "green", Result.FAILED: "bold red", Result.SKIPPED: "yellow"}


def has_failed_must(verdicts: Iterable[Verdict]) -> bool:
    """Return whether the implementation failed a case of level MUST."""
    return any(verdict.result is Result.FAILED and verdict.case.level == "MUST" for verdict in verdicts)


def suite_table(verdicts: Sequence[Verdict]) -> Table:
    """Return the numbers of passed, failed and skipped cases, by suite and level, and by level over all suites."""
    table = _table("suite", "level")
    for suite in dict.fromkeys(verdict.case.suite for verdict in verdicts):
        _add_levels(table, suite, [verdict for verdict in verdicts if verdict.case.suite == suite])
    _add_levels(table, "all", verdicts)
    return table


def _add_levels(table: Table, title: str, verdicts: Sequence[Verdict]) -> None:
    for level in LEVELS:
        results = [verdict.result for verdict in verdicts if verdict.case.level == level]
        if results:
            table.add_row(title, level, *_counts(results))
            title = ""
    table.add_section()


def requirement_table(verdicts: Sequence[Verdict], requirements: Mapping[str, Requirement]) -> Table | None:
    """Return the requirements with a case that did not pass, or None if all passed."""
    results: dict[str, list[Result]] = {}
    for verdict in verdicts:
        for name in verdict.case.requirements:
            results.setdefault(name, []).append(verdict.result)
    not_passed = sorted(name for name, found in results.items() if set(found) != {Result.PASSED})
    if not not_passed:
        return None
    table = _table("requirement", "level")
    table.add_column("text")
    for name in not_passed:
        known = requirements.get(name)
        row = _counts(results[name])
        table.add_row(name, known.level if known else "", *row, Text(known.text if known else ""))
    return table


def failures(verdicts: Iterable[Verdict]) -> Iterator[Text]:
    """Yield a paragraph for each failed case: id, description, expected outcomes and answer."""
    for verdict in verdicts:
        if verdict.result is not Result.FAILED:
            continue
        case = verdict.case
        lines = Text()
        lines.append(f"{case.suite}/{case.id}", "bold")
        lines.append(f"  {case.level}  {', '.join(case.requirements)}\n", "dim")
        lines.append(f"  {case.description}\n")
        lines.append(f"  wanted  {' or '.join(_line(outcome) for outcome in case.outcomes)}\n")
        got = "  ".join(part for part in (_line(verdict.got) if verdict.got else "", verdict.problem) if part)
        lines.append(f"  got     {got}\n")
        yield lines


def as_json(verdicts: Sequence[Verdict], implementation: str) -> dict[str, Any]:
    """Return all results of a run as JSON values."""
    totals: dict[str, dict[str, int]] = {}
    for level in LEVELS:
        found = Counter(verdict.result for verdict in verdicts if verdict.case.level == level)
        totals[level] = {str(result): found[result] for result in Result}
    return {"implementation": implementation, "totals": totals, "cases": [_case_json(verdict) for verdict in verdicts]}


def _case_json(verdict: Verdict) -> dict[str, Any]:
    case = verdict.case
    described: dict[str, Any] = {
        "suite": case.suite,
        "id": case.id,
        "level": case.level,
        "requirements": list(case.requirements),
        "description": case.description,
        "result": str(verdict.result),
    }
    if verdict.problem:
        described["problem"] = verdict.problem
    if verdict.result is Result.FAILED:
        described |= {"wanted": list(case.outcomes), "got": verdict.got}
    return described


def _table(*columns: str) -> Table:
    table = Table(*columns)
    for result in Result:
        table.add_column(str(result), justify="right")
    return table


def _counts(results: Sequence[Result]) -> list[Text]:
    found = Counter(results)
    return [Text(str(found[result]), _STYLES[result]) if found[result] else Text("-", "dim") for result in Result]


def _line(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, ensure_ascii=False)
    text = text if len(text) <= _MAX_VALUE_LENGTH else text[:_MAX_VALUE_LENGTH] + "..."
    # Some cases have unpaired surrogates, which a terminal cannot display.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
