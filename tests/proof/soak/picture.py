"""Draw memory and descriptors of all processes over time, as SVG that is legible on light and dark pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from .sampling import MB, Sample

_COLUMNS = 3
_WIDTH, _HEIGHT, _GAP = 310, 118, 12
_CHART_WIDTH = 290
# Top and height of the lines, so that they do not cover each other.
_MEMORY, _DESCRIPTORS = (44, 40), (90, 20)
_HEAD = 62
_MAX_POINTS = 290

_STYLE = """
    text { font-family: system-ui, sans-serif; font-size: 12px; fill: #1f2933 }
    .title { font-size: 15px; font-weight: 600 }
    .name { font-size: 13px; font-weight: 600 }
    .note { fill: #52606d }
    .background { fill: #ffffff }
    .box { fill: #f7f9fb; stroke: #9aa5b1 }
    .memory { stroke: #2d5d9b; stroke-width: 1.6; fill: none }
    .memory-note { fill: #2d5d9b }
    .descriptors { stroke: #b5651d; stroke-width: 1.2; fill: none }
    .descriptors-note { fill: #b5651d }
    @media (prefers-color-scheme: dark) {
      text { fill: #e4e7eb }
      .note { fill: #9aa5b1 }
      .background { fill: #1b2026 }
      .box { fill: #262d35; stroke: #616e7c }
      .memory { stroke: #7fb2f0 }
      .memory-note { fill: #7fb2f0 }
      .descriptors { stroke: #f0a35e }
      .descriptors-note { fill: #f0a35e }
    }
"""


def draw(samples: Mapping[str, Sequence[Sample]], note: str) -> str:
    """
    Return a picture with a chart for each role.

    Args:
        samples: Samples of each role, at least one, by time.
        note: Line below the title.
    """
    rows = -(-len(samples) // _COLUMNS)
    width, height = _COLUMNS * (_WIDTH + _GAP) + _GAP, rows * (_HEIGHT + _GAP) + _HEAD
    end = max((sample.seconds for role in samples.values() for sample in role), default=1.0)
    title = "Memory and open descriptors of every process of a soak"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-labelledby="title">',
        f'  <title id="title">{title}</title>',
        f"  <style>{_STYLE}  </style>",
        f'  <rect class="background" width="{width}" height="{height}" rx="8"/>',
        f'  <text class="title" x="{_GAP}" y="24">{title}</text>',
        f'  <text class="note" x="{_GAP}" y="46">{escape(note)}</text>',
    ]
    for place, (role, its_samples) in enumerate(samples.items()):
        x = _GAP + place % _COLUMNS * (_WIDTH + _GAP)
        y = _HEAD + place // _COLUMNS * (_HEIGHT + _GAP)
        parts += _chart(role, its_samples, end, x, y)
    return "\n".join([*parts, "</svg>", ""])


def _chart(role: str, samples: Sequence[Sample], end: float, x: int, y: int) -> list[str]:
    memory = [sample.memory / MB for sample in samples]
    descriptors = [float(sample.descriptors) for sample in samples]
    times = [sample.seconds / end for sample in samples]
    return [
        f'  <g transform="translate({x} {y})">',
        f'    <rect class="box" width="{_WIDTH}" height="{_HEIGHT}" rx="4"/>',
        f'    <text class="name" x="10" y="18">{escape(role)}</text>',
        f'    <text class="memory-note" x="10" y="36">{_range(memory)} MB</text>',
        f'    <text class="descriptors-note" x="150" y="36">{_range(descriptors)} descriptors</text>',
        f'    <polyline class="descriptors" points="{_points(times, descriptors, *_DESCRIPTORS)}"/>',
        f'    <polyline class="memory" points="{_points(times, memory, *_MEMORY)}"/>',
        "  </g>",
    ]


def _range(values: Sequence[float]) -> str:
    return f"{min(values):,.0f} to {max(values):,.0f}"


def _points(times: Sequence[float], values: Sequence[float], top: int, height: int) -> str:
    """Return points of a line from zero to the highest value, at most as many as the chart has pixels."""
    highest = max(values) or 1.0
    step = -(-len(values) // _MAX_POINTS)
    return " ".join(
        f"{10 + time * _CHART_WIDTH:.0f},{top + height * (1 - value / highest):.1f}"
        for time, value in zip(times[::step], values[::step])
    )
