"""
Run the tests of each cell: a version of Python, of dependencies, of pyspark, of Java, of nats-server.

The exit status is 0 if all chosen cells passed, apart from those of versions that are not supported yet; 1 otherwise,
130 after Ctrl-C or SIGTERM. Results of finished cells are kept.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.proof import record

from . import report
from .cells import Cell, all_cells
from .environments import FOLDER
from .run import PASSED, Result, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    options = _options(arguments)
    entries = report.load()
    cells = all_cells()
    passed = {name for name, entry in entries.items() if entry.result.outcome == PASSED}
    chosen = choose(cells, options.only, passed if options.missing else frozenset())
    if options.list:
        print("\n".join(cell.name for cell in chosen))
        return 0
    if not chosen:
        print("no cell has been chosen", file=sys.stderr)
        return 2
    if options.table:
        _record(cells, entries)
        return 0
    return _run(cells, chosen, entries, options)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.matrix", description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], metavar="PART", help="only cells with TEXT in their name"
    )
    parser.add_argument("--missing", action="store_true", help="only cells that did not pass in the record")
    parser.add_argument("--duration", type=float, metavar="SECONDS", help="time after which no further cell starts")
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest, without Spark (default: 2)")
    parser.add_argument("--list", action="store_true", help="print the names of cells, and run nothing")
    parser.add_argument("--table", action="store_true", help="write the tables from kept results, and run nothing")
    parser.add_argument("--record", action="store_true", help="write the record into docs/proof.md")
    return parser.parse_args(arguments)


def choose(cells: Sequence[Cell], only: Sequence[str], without: set[str] | frozenset[str] = frozenset()) -> list[Cell]:
    """Return the cells with one of the texts in their name, in the order of the texts; all without a text."""
    named = [cell for text in only or [""] for cell in cells if text in cell.name]
    return [cell for cell in dict.fromkeys(named) if cell.name not in without]


def _record(cells: Sequence[Cell], entries: Mapping[str, report.Entry]) -> None:
    report.save(entries)
    record.replace("matrix", report.lines(cells, entries))


def _run(
    cells: Sequence[Cell], chosen: Sequence[Cell], entries: dict[str, report.Entry], options: argparse.Namespace
) -> int:
    """Run the chosen cells, record each when it has ended, and return the exit status."""
    commit, begin = record.commit(), time.monotonic()
    machine = record.machine().rpartition(", Python ")[0]
    succeeded = True
    FOLDER.mkdir(exist_ok=True)
    try:
        for number, cell in enumerate(chosen):
            if options.duration is not None and time.monotonic() - begin > options.duration:
                print(f"{len(chosen) - number} cells were not run: the time is over")
                return 1
            log = FOLDER / f"{cell.name}.log"
            result = run(cell, options.workers, log)
            print(_line(cell, result, log), flush=True)
            entries[cell.name] = report.Entry(result, record.today(), commit, machine)
            if options.record:
                _record(cells, entries)
            succeeded &= result.outcome == PASSED or not cell.is_promised
    except KeyboardInterrupt:
        return 130
    return 0 if succeeded else 1


def _line(cell: Cell, result: Result, log: Path) -> str:
    counts = f"{result.passed} passed, {result.failed} failed, {result.skipped} skipped, {result.seconds} s"
    notes = "".join(f"\n    {note}" for note in result.notes)
    return f"{cell.name}: {result.outcome}: {counts}{notes}" + ("" if result.outcome == PASSED else f"\n    {log}")


if __name__ == "__main__":
    # A shell ignores SIGINT for programs in the background.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
