"""Measured costs over a number, with exponent and marginal cost."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

# The fit uses points with at least this fraction of the largest number.
_FITTED: Final = 1 / 16


@dataclass(frozen=True)
class Point:
    """
    Cost of one number of messages, attributes or bytes.

    Attributes:
        n: The number.
        cpu: CPU seconds.
        wall: Seconds.
        memory: Peak of memory in bytes; 0 if it was not measured.
        parts: CPU seconds of each kind of process.
    """

    n: int
    cpu: float
    wall: float
    memory: int = 0
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Curve:
    """
    Points with increasing numbers, of one way to process messages or events.

    Attributes:
        name: Description of the way.
        points: Costs of warmed-up runs.
        start: Cost of the first run, which starts processes and compiles code; None if it was not measured.
    """

    name: str
    points: Sequence[Point]
    start: Point | None = None

    @property
    def exponent(self) -> float:
        """Exponent of the CPU time that is added to that of the smallest number; NaN if it cannot be fitted."""
        return exponent([(point.n, point.cpu) for point in self.points])

    @property
    def marginal(self) -> float:
        """CPU seconds for each further message, attribute or byte, between the smallest and the largest number."""
        first, last = self.points[0], self.points[-1]
        return (last.cpu - first.cpu) / (last.n - first.n)


def exponent(points: Sequence[tuple[int, float]]) -> float:
    """
    Return the slope of log(cost) over log(number) of the points after the first one, less the first one.

    Args:
        points: Numbers, increasing, and their costs.
    """
    least, base = points[0]
    largest = points[-1][0]
    added = [(n - least, cost - base) for n, cost in points[1:] if n >= largest * _FITTED]
    logs = [(math.log(n), math.log(cost)) for n, cost in added if cost > 0]
    if len(logs) < 2:
        return math.nan
    mean_x, mean_y = (sum(values) / len(logs) for values in zip(*logs))
    slope: float = sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)
    return slope


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Return the parts of a file that :func:`write` wrote; none if it does not exist."""
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def curves(part: dict[str, Any]) -> list[Curve]:
    return [
        Curve(
            one["name"], [Point(**point) for point in one["points"]], Point(**one["start"]) if "start" in one else None
        )
        for one in part["curves"]
    ]


def write(path: Path, part: str, machine: str, found: Sequence[Curve]) -> None:
    """Replace one part of the file, and keep the others."""
    parts = read(path) | {part: {"machine": machine, "curves": [_as_json(curve) for curve in found]}}
    path.write_text(json.dumps(parts, indent=1) + "\n", "utf-8")


def _as_json(curve: Curve) -> dict[str, Any]:
    start = {} if curve.start is None else {"start": _rounded(curve.start)}
    return {"name": curve.name, **start, "points": [_rounded(point) for point in curve.points]}


def _rounded(point: Point) -> dict[str, Any]:
    def four(value: float) -> float:
        return float(f"{value:.4g}")

    values = asdict(point) | {"cpu": four(point.cpu), "wall": four(point.wall)}
    values["parts"] = {kind: four(seconds) for kind, seconds in point.parts.items()}
    return {name: value for name, value in values.items() if name not in ("memory", "parts") or value}
