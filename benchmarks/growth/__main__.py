"""Command line of the measurements of growth."""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import growth
from benchmarks.growth import _curve
from benchmarks.growth._curve import Curve
from benchmarks.growth._picture import Panel, draw
from benchmarks.table import show
from tests.proof.record import machine, today

PARTS = ("messages", "attributes", "data")
_LARGEST = {"messages": 10**7, "attributes": 1000, "data": 2**24}
_ROUNDS = {"messages": 3, "attributes": 7, "data": 5}
_UNITS = {"messages": "message", "attributes": "attribute", "data": "KB"}
_LABELS = {
    "messages": "CPU time, time and memory of jobs over the number of messages",
    "attributes": "CPU time and memory for an event over the number of its extension attributes",
    "data": "CPU time and memory for an event over the size of its data",
}


def measure(part: str, largest: int, rounds: int) -> Iterator[list[Curve]]:
    """Yield the curves of a part, each time with more points or curves."""
    if part == "messages":
        from benchmarks.growth import _messages

        return _messages.measure(largest, rounds)
    from benchmarks.growth import _events

    return (_events.data if part == "data" else _events.attributes)(largest, rounds)


def rows(part: str, curves: Sequence[Curve]) -> list[list[str]]:
    """Return the cells of a table: marginal cost, exponent, and the costs of the smallest and the largest number."""
    unit = 1024 if part == "data" else 1
    found = []
    for curve in curves:
        first, last = curve.points[0], curve.points[-1]
        sides = [f"{_time(point.cpu)} | {_time(point.wall)} | {_memory(point.memory)}" for point in (first, last)]
        power = "" if math.isnan(curve.exponent) else f"{curve.exponent:.2f}"
        cells = " | ".join([curve.name, power, f"{curve.marginal * unit * 1e6:.3g}", *sides]).split(" | ")
        found.append(cells)
    return found


def titles(part: str, curves: Sequence[Curve]) -> list[str]:
    ends = [_count(part, curves[0].points[place].n) for place in (0, -1)]
    sides = [title for end in ends for title in (f"{end}: CPU", "time", "memory")]
    return ["", "exponent", f"CPU µs for each further {_UNITS[part]}", *sides]


def _count(part: str, n: int) -> str:
    return f"{n // 1024:,} KB" if part == "data" else f"{n:,}"


def _time(seconds: float) -> str:
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}" if seconds * factor < 1000 else f"{seconds * factor:,.0f} {unit}"
    return f"{seconds * 1e6:.2g} µs"


def _memory(size: int) -> str:
    if not size:
        return ""
    for power, unit in ((2, "MB"), (1, "KB")):
        if size >= 1024**power:
            return f"{size / 1024**power:,.0f} {unit}"
    return f"{size} B"


def panels(part: str, curves: Sequence[Curve]) -> list[Panel]:
    if part == "messages":
        axis = "messages"
        return [
            Panel("CPU seconds, all processes", axis, curves, lambda point: point.cpu),
            Panel("Seconds", axis, curves, lambda point: point.wall),
            Panel("Maximum memory without the server, MB", axis, curves, lambda point: point.memory / 2**20),
        ]
    axis, binary = ("size of data", True) if part == "data" else ("extension attributes", False)
    groups = {"Codec": "to from", "Columns": "columns", "Through a server": "through"}
    chosen = {
        title: [curve for curve in curves if curve.name.startswith(tuple(prefixes.split()))]
        for title, prefixes in groups.items()
    }
    found = [
        Panel(f"{title}: CPU µs for an event", axis, some, lambda point: point.cpu * 1e6, binary)
        for title, some in chosen.items()
        if some
    ]
    some = [curve for curve in curves if curve.points[-1].memory and "structured" in curve.name]
    return [*found, Panel("Memory for an event, KB", axis, some, lambda point: point.memory / 1024, binary)]


def show_part(part: str, given: dict[str, Any], *, markdown: bool) -> None:
    curves = _curve.curves(given)
    show(titles(part, curves), rows(part, curves), given["machine"], markdown=markdown)


def main() -> int:
    parser = argparse.ArgumentParser(description=growth.__doc__.strip().splitlines()[0])
    parser.add_argument("part", choices=[*PARTS, "show"], help="what grows; show: tables and pictures of --json")
    parser.add_argument("--largest", type=int, help="largest number of messages or attributes, or bytes of data")
    parser.add_argument("--rounds", type=int, help="repetitions; medians are shown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, beside those of other parts")
    parser.add_argument("--svg", type=Path, metavar="FOLDER", help="draw growth-PART.svg")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown, for docs/growth.md")
    arguments = parser.parse_args()
    part = arguments.part
    # A shell starts background processes with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if part != "show":
        target = arguments.json or Path("growth.json")
        for found in measure(part, arguments.largest or _LARGEST[part], arguments.rounds or _ROUNDS[part]):
            _curve.write(target, part, f"{today()}, {machine()}", found)
        parts = {part: _curve.read(target)[part]}
    elif arguments.json:
        parts = _curve.read(arguments.json)
    else:
        parser.error("show needs --json")
    for name, given in parts.items():
        show_part(name, given, markdown=arguments.markdown)
        if arguments.svg:
            draw(panels(name, _curve.curves(given)), _LABELS[name], arguments.svg / f"growth-{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
