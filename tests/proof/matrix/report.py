"""Keep the last result of each cell, and write the tables of docs/proof.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.proof import record

from .cells import Cell
from .run import NOT_AVAILABLE, Result

RESULTS = Path(__file__).with_name("results.json")
_HEADER: Final = ("cell", "versions", "result", "passed", "failed", "skipped", "seconds", "run")


@dataclass(frozen=True)
class Entry:
    """
    The last run of a cell.

    Attributes:
        result: Its result.
        date: Day of the run.
        commit: Commit that was tested.
        machine: Cores, and processor.
    """

    result: Result
    date: str
    commit: str
    machine: str


def load() -> dict[str, Entry]:
    """Return the last run of each cell, by name of the cell."""
    if not RESULTS.exists():
        return {}
    return {
        name: Entry(**{**entry, "result": Result(**entry["result"])})
        for name, entry in json.loads(RESULTS.read_text(encoding="utf-8")).items()
    }


def save(entries: Mapping[str, Entry]) -> None:
    """Write the last run of each cell."""
    content = {name: asdict(entry) for name, entry in entries.items()}
    RESULTS.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def lines(cells: Sequence[Cell], entries: Mapping[str, Entry]) -> list[str]:
    """
    Return the record in Markdown: a table for each group of cells, skipped tests, and what did not pass.

    Args:
        cells: All cells; one without an entry is shown as not run.
        entries: Last run of each cell.
    """
    known = {cell.name: entries[cell.name] for cell in cells if cell.name in entries}
    passed = sum(entry.result.outcome == "passed" for entry in known.values())
    machines = " and ".join(sorted({entry.machine for entry in known.values()})) or "no machine"
    text = [f"{passed} of {len(cells)} cells passed, {len(cells) - len(known)} were not run, on {machines}.", ""]
    for group in dict.fromkeys(cell.group for cell in cells):
        rows = [_row(cell, known.get(cell.name)) for cell in cells if cell.group == group]
        text += [f"{group}:", "", *record.table(_HEADER, rows), ""]
    notes = [(name, note) for name, entry in known.items() for note in entry.result.notes]
    if notes:
        text += ["Not passed:", "", *_table(("cell", "test or reason"), notes), ""]
    skips = [(name, str(count), why) for name, entry in known.items() for why, count in entry.result.skips.items()]
    if skips:
        text += ["Skipped:", "", *_table(("cell", "tests", "reason"), skips), ""]
    return text[:-1]


def _row(cell: Cell, entry: Entry | None) -> list[object]:
    name = f"`{cell.name}`"
    if entry is None:
        return [name, "", "not run", *[""] * 5]
    result = entry.result
    versions = ", ".join(f"{package} {version}" for package, version in result.versions.items())
    run = f"{entry.date}, `{entry.commit}`"
    if result.outcome == NOT_AVAILABLE:
        return [name, "", NOT_AVAILABLE, *[""] * 4, run]
    return [name, versions, result.outcome, result.passed, result.failed, result.skipped, result.seconds, run]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table whose last column is literal text."""
    return record.table(header, [[f"`{row[0]}`", *row[1:-1], f"`{_literal(row[-1])}`"] for row in rows])


def _literal(text: str) -> str:
    return text.replace("|", "/").replace("`", "'").replace("\n", " ")
