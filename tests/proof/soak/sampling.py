"""Memory and descriptors of all processes of a run over time."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import sessions

from .processes import usage

MB = 1_000_000
_HOUR = 3600.0
# A process must live this long, in seconds, for a growth to be stated.
_LONG = 60.0


@dataclass(frozen=True)
class Sample:
    """
    Use of memory and descriptors by one role at one time.

    Attributes:
        seconds: Time since the start of the run.
        pid: The role's first process, by which its lives are distinguished.
        memory: Resident memory in bytes.
    """

    seconds: float
    pid: int
    memory: int
    descriptors: int


@dataclass(frozen=True)
class Life:
    """
    Longest life of a role: from the start of its process to its end.

    Attributes:
        seconds: Duration.
        count: Number of lives of the role.
        highest: Highest resident memory in bytes, of all lives.
        last: Resident memory in bytes at the end of this life.
        growth: Growth of resident memory in bytes per hour, in the second half of this life; None if it was short.
        descriptors: Highest number of open descriptors, of all lives.
        descriptor_growth: Growth of their number per hour, in the second half of this life; None if it was short.
    """

    seconds: float
    count: int
    highest: int
    last: int
    growth: float | None
    descriptors: int
    descriptor_growth: float | None

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Life:
        """Return the longest life in the samples of a role, which are at least one, by time."""
        lives: dict[int, list[Sample]] = defaultdict(list)
        for sample in samples:
            lives[sample.pid].append(sample)
        longest = max(lives.values(), key=lambda life: life[-1].seconds - life[0].seconds)
        seconds = longest[-1].seconds - longest[0].seconds
        half = [sample for sample in longest if sample.seconds >= longest[0].seconds + seconds / 2]
        is_long = seconds >= _LONG
        return cls(
            seconds,
            len(lives),
            max(sample.memory for sample in samples),
            longest[-1].memory,
            slope([(sample.seconds, sample.memory) for sample in half]) * _HOUR if is_long else None,
            max(sample.descriptors for sample in samples),
            slope([(sample.seconds, sample.descriptors) for sample in half]) * _HOUR if is_long else None,
        )

    def row(self, role: str) -> list[object]:
        """Return a row of the table of processes."""
        growth = "" if self.growth is None else f"{self.growth / MB:+.1f}"
        descriptor_growth = "" if self.descriptor_growth is None else f"{self.descriptor_growth:+.1f}"
        memory = [round(self.highest / MB), round(self.last / MB), growth]
        return [role, self.count, round(self.seconds), *memory, self.descriptors, descriptor_growth]


HEADER = (
    "process", "lives", "longest life, s", "highest MB", "MB at its end", "MB/hour", "descriptors", "descriptors/hour",
)  # fmt: skip


def slope(points: Iterable[tuple[float, float]]) -> float:
    """Return the slope of the line of least squares; 0 for fewer than two points."""
    points = list(points)
    if len(points) < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    variance = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / variance if variance else 0.0


class Sampler(threading.Thread):
    """
    Measure processes at an interval, until :meth:`stop`.

    Args:
        roles: Returns the process of each running role, which is also its session.
        interval: Seconds.
        file: Is written with all samples, as CSV.

    Attributes:
        samples: Samples by role. Processes of Java count as a separate role.
    """

    def __init__(self, roles: Callable[[], Mapping[str, int]], interval: float, file: Path) -> None:
        super().__init__(daemon=True)
        self.samples: dict[str, list[Sample]] = defaultdict(list)
        self._roles, self._interval, self._file = roles, interval, file
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def run(self) -> None:
        start = time.monotonic()
        with self._file.open("w", encoding="utf-8") as file:
            file.write("role,seconds,pid,processes,memory,descriptors\n")
            while not self._stopping.wait(self._interval):
                for role, count, sample in self._measure(time.monotonic() - start):
                    self.samples[role].append(sample)
                    text = f"{sample.seconds:.1f},{sample.pid},{count},{sample.memory},{sample.descriptors}"
                    file.write(f"{role},{text}\n")
                file.flush()

    def _measure(self, seconds: float) -> Iterable[tuple[str, int, Sample]]:
        members = sessions()
        for role, leader in self._roles().items():
            java = [pid for pid, process in members[leader].items() if process.name == "java"]
            others = [pid for pid in members[leader] if pid not in java]
            for name, group in ((role, others), (f"{role} (JVM)", java)):
                if group:
                    used = usage(group)
                    yield name, len(group), Sample(seconds, leader, used.memory, used.descriptors)
