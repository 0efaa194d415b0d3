"""Processes of this machine: descendants, sessions, CPU time and memory, from /proc."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_SAMPLE_SECONDS: Final = 0.25


class Process(NamedTuple):
    """
    A process.

    Attributes:
        parent: Process that has started it.
        session: Session; Spark's Python workers leave the process group of their parent, but not the session.
        name: Name of the program.
        is_alive: Whether it has not exited; one that has exited stays until its parent has waited for it.
        cpu_seconds: CPU time.
        cpu_seconds_of_children: CPU time of children that have exited, if it has waited for them.
    """

    parent: int
    session: int
    name: str
    is_alive: bool
    cpu_seconds: float
    cpu_seconds_of_children: float


def processes() -> dict[int, Process]:
    """Return all processes by their identifiers."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            front, _, rest = path.read_text("utf-8", "replace").rpartition(")")
        except OSError:
            continue  # the process has exited meanwhile
        # proc(5): identifier, name in brackets, state, parent, process group, session; fields 14 to 17 are CPU times.
        fields = rest.split()
        own, children = (sum(map(int, fields[place : place + 2])) / _TICKS for place in (11, 13))
        parent, session = int(fields[1]), int(fields[3])
        name = front.partition("(")[2]
        found[int(path.parent.name)] = Process(parent, session, name, fields[0] not in "ZX", own, children)
    return found


def sessions() -> dict[int, dict[int, Process]]:
    """Return the live processes of each session; none without /proc."""
    found: dict[int, dict[int, Process]] = defaultdict(dict)
    for pid, process in processes().items():
        if process.is_alive:
            found[process.session][pid] = process
    return found


def _tree(root: int, every: dict[int, Process]) -> list[int]:
    children: dict[int, list[int]] = defaultdict(list)
    for pid, process in every.items():
        children[process.parent].append(pid)
    tree = [root]
    for pid in tree:
        tree += children[pid]
    return [pid for pid in tree if pid in every]


def cpu_seconds(root: int) -> dict[str, float]:
    """
    Return the CPU seconds of a process and its descendants by kind, ``jvm`` and ``python``.

    Exited processes are included, if their parent has waited for them. They count as Python: Spark's JVM starts only
    Python processes.
    """
    every = processes()
    seconds = {"jvm": 0.0, "python": 0.0}
    for pid in _tree(root, every):
        process = every[pid]
        seconds["jvm" if process.name == "java" else "python"] += process.cpu_seconds
        seconds["python"] += process.cpu_seconds_of_children
    return seconds


def own_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of one process."""
    return processes()[pid].cpu_seconds


def memory(pid: int) -> int:
    """
    Return the proportional set size of a process in bytes: of pages that processes share, each one has its part.

    It is 0 for a process that has exited.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


class Memory:
    """Samples the memory of a process and its descendants, as a context manager."""

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
        self._peak = max(self._peak, sum(map(memory, _tree(self._root, processes()))))
