"""The code of ce_nats that inputs reach: pairs of lines that were executed one after the other, and about how often."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import ce_nats

Arc = tuple[str, int, int]
_FOLDER = str(Path(ce_nats.__file__).parent)
_OFTEN = 4  # as are all larger numbers, in bits


def reached(call: Callable[[], object]) -> set[tuple[Arc, int]]:
    """Return the arcs of a call, also of one that fails, each with the number of bits of its count."""
    counts: Counter[Arc] = Counter()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(_FOLDER):
            return None
        last = 0

        def line(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal last
            if event == "line":
                counts[file, last, frame.f_lineno] += 1
                last = frame.f_lineno
            return line

        return line

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(Exception):
            call()
    finally:
        sys.settrace(before)
    return {(arc, min(count.bit_length(), _OFTEN)) for arc, count in counts.items()}


def fewest(check: Callable[[bytes], object], known: Iterable[bytes], inputs: Iterable[bytes]) -> list[bytes]:
    """Return inputs, small ones first, that reach code which neither known inputs nor those before them reach."""
    seen: set[tuple[Arc, int]] = set()
    for data in known:
        seen |= reached(lambda data=data: check(data))  # type: ignore[misc]
    chosen = []
    for data in sorted({*inputs}, key=lambda data: (len(data), data)):
        arcs = reached(lambda data=data: check(data))  # type: ignore[misc]
        if not arcs <= seen:
            chosen.append(data)
            seen |= arcs
    return chosen
