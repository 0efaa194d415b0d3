"""CPU time and memory of processes and their descendants, from /proc."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_SAMPLE_SECONDS: Final = 0.25

# Parent, name, CPU seconds, and CPU seconds of children that have exited.
_Process = tuple[int, str, float, float]


def _processes() -> dict[int, _Process]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            front, _, rest = path.read_text("utf-8", "replace").rpartition(")")
        except OSError:
            continue  # the process has exited meanwhile
        # proc(5): process id, name in brackets, state, parent; fields 14 to 17 are the CPU times.
        fields = rest.split()
        own, children = (sum(map(int, fields[place : place + 2])) / _TICKS for place in (11, 13))
        found[int(path.parent.name)] = int(fields[1]), front.partition("(")[2], own, children
    return found


def _tree(root: int, processes: dict[int, _Process]) -> list[int]:
    children: dict[int, list[int]] = defaultdict(list)
    for pid, (parent, *_) in processes.items():
        children[parent].append(pid)
    tree = [root]
    for pid in tree:
        tree += children[pid]
    return [pid for pid in tree if pid in processes]


def cpu_seconds(root: int) -> dict[str, float]:
    """
    Return the CPU seconds of a process and its descendants by kind, ``jvm`` and ``python``.

    Exited processes are included, if their parent has waited for them. They count as Python: Spark's JVM starts only
    Python processes.
    """
    processes = _processes()
    seconds = {"jvm": 0.0, "python": 0.0}
    for pid in _tree(root, processes):
        _, name, own, children = processes[pid]
        seconds["jvm" if name == "java" else "python"] += own
        seconds["python"] += children
    return seconds


def own_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of one process."""
    return _processes()[pid][2]


class Memory:
    """
    Samples the proportional set size of a process and its descendants, as a context manager.

    Pages that several processes share, such as those of forked Python workers, count once.

    """

    def __init__(self, root: int) -> None:
        self._peak = 0
        self._root = root
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()

    def peak(self) -> int:
        """Return the maximum of the sum in bytes since the previous call."""
        self._sample()
        peak, self._peak = self._peak, 0
        return peak

    def _run(self) -> None:
        while not self._stopping.wait(_SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        self._peak = max(self._peak, sum(map(_pss, _tree(self._root, _processes()))))


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
