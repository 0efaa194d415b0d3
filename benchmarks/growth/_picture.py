"""Draw curves with logarithmic axes, as an SVG file for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.growth._curve import Curve, Point

_WIDTH, _HEIGHT = 300, 220
_LEFT, _TOP, _BOTTOM, _GAP = 64, 56, 52, 76
_LEGEND_LINE = 18
_COLORS = (("#0969da", "#58a6ff"), ("#bc4c00", "#ffa657"), ("#1a7f37", "#56d364"), ("#8250df", "#d2a8ff"))
_SIZES = ("", "k", "M", "G")


@dataclass(frozen=True)
class Panel:
    """
    A diagram of a picture.

    Attributes:
        title: Title with the unit.
        axis: Name of the horizontal axis.
        curves: At most four curves.
        value: The value of a point, in the unit of the title.
        binary: Whether the numbers are sizes in bytes.
    """

    title: str
    axis: str
    curves: Sequence[Curve]
    value: Callable[[Point], float]
    binary: bool = False

    def lines(self) -> list[tuple[str, list[tuple[int, float]]]]:
        pairs = [(one.name, [(point.n, self.value(point)) for point in one.points]) for one in self.curves]
        return [(name, [(n, value) for n, value in points if n > 0 and value > 0]) for name, points in pairs]


def draw(panels: Sequence[Panel], label: str, path: Path) -> None:
    """Write a picture of panels side by side."""
    legend = max(len(panel.curves) for panel in panels) * _LEGEND_LINE
    width = len(panels) * (_WIDTH + _GAP) + 12
    height = _TOP + _HEIGHT + _BOTTOM + legend
    classes = [f".c{place} {{ stroke: {light} }}" for place, (light, _) in enumerate(_COLORS)]
    dark = [f".c{place} {{ stroke: {color} }}" for place, (_, color) in enumerate(_COLORS)]
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(label, {chr(34): "&quot;"})}" font-family="system-ui, sans-serif" font-size="13">',
        "  <style>",
        "    text { fill: #24292f } .title { font-weight: 600 }",
        "    .end { text-anchor: end } .middle { text-anchor: middle }",
        "    .line { fill: none; stroke-width: 2 } .grid { stroke: #d0d7de; fill: none }",
        "    .background { fill: #ffffff }",
        f"    {' '.join(classes)}",
        "    @media (prefers-color-scheme: dark) {",
        "      text { fill: #d1d7de } .grid { stroke: #3d444d } .background { fill: #1b2026 }",
        f"      {' '.join(dark)}",
        "    }",
        "  </style>",
        f'  <rect class="background" width="{width}" height="{height}" rx="8"/>',
    ]
    for place, panel in enumerate(panels):
        body += _panel(panel, _LEFT + place * (_WIDTH + _GAP))
    path.write_text("\n".join([*body, "</svg>", ""]), "utf-8")


def _panel(panel: Panel, left: int) -> list[str]:
    lines = panel.lines()
    points = [point for _, found in lines for point in found]
    xs = math.log10(min(n for n, _ in points)), math.log10(max(n for n, _ in points))
    ys = math.floor(math.log10(min(v for _, v in points))), math.ceil(math.log10(max(v for _, v in points)))

    def x(n: float) -> float:
        return left + (math.log10(n) - xs[0]) / (xs[1] - xs[0]) * _WIDTH

    def y(value: float) -> float:
        return _TOP + _HEIGHT - (math.log10(value) - ys[0]) / (ys[1] - ys[0]) * _HEIGHT

    bottom = _TOP + _HEIGHT
    body = [f'  <text class="title" x="{left - 52}" y="28">{escape(panel.title)}</text>']
    for power in range(ys[0], ys[1] + 1):
        height = y(10**power)
        body.append(f'  <path class="grid" d="M{left} {height:.0f}h{_WIDTH}"/>')
        body.append(f'  <text class="end" x="{left - 8}" y="{height + 4:.0f}">{_number(10**power)}</text>')
    ticks = sorted({n for n, _ in points})
    for n in ticks if len(ticks) < 6 else ticks[:: 2 if panel.binary else 1]:
        if panel.binary or math.log10(n) % 1 == 0:
            text = _size(n) if panel.binary else _number(n)
            body.append(f'  <path class="grid" d="M{x(n):.0f} {_TOP}V{bottom}"/>')
            body.append(f'  <text class="middle" x="{x(n):.0f}" y="{bottom + 18}">{text}</text>')
    body.append(f'  <text class="middle" x="{left + _WIDTH / 2:.0f}" y="{bottom + 38}">{escape(panel.axis)}</text>')
    for place, (name, found) in enumerate(lines):
        coordinates = " ".join(f"{x(n):.1f},{y(value):.1f}" for n, value in found)
        body.append(f'  <polyline class="line c{place}" points="{coordinates}"/>')
        at = bottom + _BOTTOM + place * _LEGEND_LINE
        body.append(f'  <path class="line c{place}" d="M{left} {at}h24"/>')
        body.append(f'  <text x="{left + 32}" y="{at + 4}">{escape(name)}</text>')
    return body


def _number(value: float) -> str:
    for power, suffix in ((9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power:
            return f"{value / 10**power:g}{suffix}"
    return f"{value:g}"


def _size(value: float) -> str:
    power = min(3, int(math.log2(value) // 10))
    return f"{value / 1024**power:g} {_SIZES[power].upper()}B"
