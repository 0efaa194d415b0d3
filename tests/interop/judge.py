"""
Run other SDKs on the conformance cases; write the results to judged.json and docs/conformance.md.

``python -m tests.interop.judge`` runs all SDKs and writes both files; the tests compare both with their runs.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from ce_nats.conformance import Case, Command, Result, load_cases
from ce_nats.conformance._cases import LEVELS
from tests.support.caching import NotAvailable

from .faults import Fault, Kind, faults
from .judges import ARGUMENTS, SDKS, Cause, Judged

PAGE: Final = Path(__file__).parents[2] / "docs" / "conformance.md"
SUMMARY: Final = Path(__file__).with_name("judged.json")
BEGIN: Final = "<!-- begin generated -->\n"
END: Final = "<!-- end generated -->\n"

# Number of causes on the page.
_MOST: Final = 12

# By case: its faults, each as cause and short fact, or an empty list if it passed. Skipped cases are absent.
Summary = Mapping[str, Sequence[Sequence[str]]]

# Titles for faults without a known cause.
_ELSE: Final = {
    Kind.ACCEPTED: "Invalid input is accepted: `{}`.",
    Kind.REJECTED: "Valid input is rejected.",
    Kind.MISSING: "A value is missing: {}.",
    Kind.ADDED: "A value is added: {}.",
    Kind.CHANGED: "A value is changed: {}.",
}


def run(judged: Judged, program: Sequence[str], cases: Sequence[Case]) -> Summary:
    """Run all cases with an SDK."""
    command = shlex.join([*program, *ARGUMENTS.get(judged.key, [])])
    found: dict[str, list[list[str]]] = {}
    with Command(command, timeout=60) as answers:
        for case in cases:
            verdict = answers.run(case)
            if verdict.result is Result.PASSED:
                found[case.id] = []
            elif verdict.result is Result.FAILED:
                found[case.id] = [[_cause(judged, case, fault).title, str(fault)] for fault in faults(verdict)]
    return found


def _cause(judged: Judged, case: Case, fault: Fault) -> Cause:
    for cause in judged.causes:
        if cause.match(case, fault):
            return cause
    place = {"header": "a header", "text": "text"}.get(fault.where.split(" ")[0], "an attribute")
    return Cause(_ELSE[fault.kind].format(fault.where if fault.kind is Kind.ACCEPTED else place), lambda *_: True)


# --- The page -------------------------------------------------------------------------------------------------------


def page(summaries: Mapping[str, Summary]) -> str:
    """Return docs/conformance.md with these results."""
    before, begin, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError("the page must have markers for its generated part")
    cases = load_cases()
    lines = ["", *_totals(summaries, cases), "", *_causes(summaries, cases), ""]
    return before + begin + "\n".join(lines) + "\n" + end + after


def _totals(summaries: Mapping[str, Summary], cases: Sequence[Case]) -> Iterator[str]:
    yield f"| SDK | version | {' | '.join(LEVELS)} |"
    yield f"|---|---|{'---|' * len(LEVELS)}"
    for judged in SDKS:
        cells = [_counts(summaries[judged.key], [case.id for case in cases if case.level == level]) for level in LEVELS]
        yield f"| {judged.name} | {judged.version} | {' | '.join(cells)} |"
    yield ""
    yield f"Passed / failed / not applicable, of {len(cases)} cases."


def _counts(summary: Summary, ids: Iterable[str]) -> str:
    found = Counter(_outcome(summary, one) for one in ids)
    return " / ".join(str(found[result]) for result in Result)


def _outcome(summary: Summary, case_id: str) -> Result:
    if case_id not in summary:
        return Result.SKIPPED
    return Result.FAILED if summary[case_id] else Result.PASSED


def _causes(summaries: Mapping[str, Summary], cases: Sequence[Case]) -> Iterator[str]:
    """Yield a table of the causes that concern most cases."""
    counts = {judged.key: dict(_by_cause(summaries[judged.key], cases)) for judged in SDKS}
    issues: dict[str, dict[str, None]] = {}
    for cause in (cause for judged in SDKS for cause in judged.causes if cause.issue):
        issues.setdefault(cause.title, {})[cause.issue] = None
    total: Counter[str] = Counter()
    for found in counts.values():
        total.update({title: len(failed) for title, failed in found.items()})
    yield f"| {' | '.join(judged.key for judged in SDKS)} | failed cases |"
    yield f"|{'---:|' * len(SDKS)}---|"
    for title, _ in sorted(total.items(), key=lambda item: (-item[1], item[0]))[:_MOST]:
        cells = " | ".join(str(len(counts[judged.key].get(title, ()))) for judged in SDKS)
        yield f"| {cells} | {' '.join([title, *map(_link, issues.get(title, ()))])} |"
    yield ""
    for judged in SDKS:
        yield f"- {judged.key}, {judged.name}: {len(counts[judged.key])} causes. Called: {judged.calls}."


def _by_cause(summary: Summary, cases: Sequence[Case]) -> list[tuple[str, list[str]]]:
    """Return ids of failed cases by cause, most frequent causes first; a case may have several causes."""
    found: dict[str, list[str]] = {}
    for case in cases:
        for title in dict.fromkeys(title for title, _ in summary.get(case.id, ())):
            found.setdefault(title, []).append(case.id)
    return sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))


def _link(issue: str) -> str:
    repository, _, number = issue.partition("#")
    return f"[{issue}](https://github.com/{repository}/issues/{number})"


# --- The summary ----------------------------------------------------------------------------------------------------


def read_summaries() -> dict[str, Summary]:
    """Return the contents of judged.json, by the keys of SDKs."""
    return dict(json.loads(SUMMARY.read_text("utf-8")))


def _write(summaries: Mapping[str, Summary]) -> None:
    lines: list[str] = []
    for key, summary in summaries.items():
        cases = ",\n".join(f"{json.dumps(one)}: {json.dumps(found)}" for one, found in summary.items())
        lines.append(f"{json.dumps(key)}: {{\n{cases}\n}}")
    SUMMARY.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    PAGE.write_text(page(summaries), "utf-8")


def main() -> None:
    """Run the SDKs that are available; keep the results of others."""
    cases, summaries = load_cases(), read_summaries()
    for judged in SDKS:
        try:
            summaries[judged.key] = run(judged, judged.program(), cases)
        except NotAvailable as missing:
            print(f"not run: {judged.name}: {missing}")
    _write(summaries)


if __name__ == "__main__":
    main()
