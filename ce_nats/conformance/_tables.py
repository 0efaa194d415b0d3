"""
Generate the tables in spec-fixtures/README.md: suites, error codes, and the number of cases for each requirement.

``python -m ce_nats.conformance._tables`` writes them; with ``--check`` it exits with status 1 if they are out of date.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ..errors import CeNatsError, ErrorCode
from ._cases import LEVELS, Requirement, Suite, fixture_folder, load_requirements, load_suites

_BEGIN: Final = "<!-- begin generated: {} -->\n"
_END: Final = "<!-- end generated: {} -->\n"


def with_tables(readme: str, suites: Sequence[Suite], requirements: Mapping[str, Requirement]) -> str:
    """
    Return the README with new tables between its markers.

    Raises:
        ValueError: A marker is missing.
    """
    tables = {
        "suites": _suites(suites),
        "error codes": _codes(suites, requirements),
        "coverage": _coverage(suites, requirements.values()),
    }
    for name, lines in tables.items():
        before, begin, rest = readme.partition(_BEGIN.format(name))
        _, end, after = rest.partition(_END.format(name))
        if not begin or not end:
            raise ValueError(f"the README must have markers for the table of {name}")
        readme = before + begin + "\n" + "\n".join(lines) + "\n\n" + end + after
    return readme


def _suites(suites: Sequence[Suite]) -> Iterable[str]:
    yield f"| file | {' | '.join(LEVELS)} | subject |"
    yield f"|---|{'---:|' * len(LEVELS)}---|"
    for suite in suites:
        counts = Counter(case.level for case in suite.cases)
        cells = " | ".join(str(counts[level]) for level in LEVELS)
        yield f"| `{suite.name}.json` | {cells} | {_escape(suite.description)} |"
    totals = Counter(case.level for suite in suites for case in suite.cases)
    yield f"| all | {' | '.join(str(totals[level]) for level in LEVELS)} | |"


def _codes(suites: Sequence[Suite], requirements: Mapping[str, Requirement]) -> Iterable[str]:
    used = Counter(
        outcome["error"] for suite in suites for case in suite.cases for outcome in case.outcomes if "error" in outcome
    )
    yield "| code | cases | requirement, unless the error names another one |"
    yield "|---|---:|---|"
    for code in ErrorCode:
        rule = CeNatsError(code, "").requirement
        text = f"{rule}: {_escape(requirements[rule].text)}" if rule else ""
        yield f"| `{code}` | {used[str(code)]} | {text} |"


def _coverage(suites: Sequence[Suite], requirements: Iterable[Requirement]) -> Iterable[str]:
    cited = Counter(name for suite in suites for case in suite.cases for name in case.requirements)
    yield "| requirement | level | cases | text |"
    yield "|---|---|---:|---|"
    for rule in requirements:
        covered = str(cited[rule.id]) if cited[rule.id] else rule.covered_by
        reason = f" *{_escape(rule.reason)}*" if rule.reason else ""
        yield f"| {rule.id} | {rule.level} | {covered} | {_escape(rule.text)}{reason} |"


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: Sequence[str]) -> int:
    """Write or check the tables; return 1 if a check finds them out of date."""
    path = fixture_folder() / "README.md"
    old = path.read_text(encoding="utf-8")
    new = with_tables(old, load_suites(), load_requirements())
    if arguments == ["--check"]:
        return int(old != new)
    path.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
