"""
Compare what each part of a run has with what it must have: lost, twice, invented, changed, reordered.

Pure functions of what was read; ``results.py`` reads it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

# Identity of a message: its id, or its sequence in the stream.
Key: TypeAlias = Hashable

FAULTS: Final = ("lost", "twice", "invented", "changed", "reordered")
# Number of messages that are named for each fault.
_EXAMPLES: Final = 5


@dataclass
class Place:
    """
    What one part of a run has.

    Attributes:
        name: The part.
        promised: Faults that ce_nats promises not to have. Others are observations.
        expected: Number of messages that it must have.
        found: Number of different messages that it has.
        faults: Messages, by fault. A fault that is missing here was not looked for.
    """

    name: str
    promised: Collection[str]
    expected: int = 0
    found: int = 0
    faults: dict[str, list[Key]] = field(default_factory=dict)

    @property
    def broken(self) -> list[str]:
        """Descriptions of promises that did not hold."""
        return [
            f"{self.name}: {len(keys):,} {fault}, such as {', '.join(map(str, keys[:_EXAMPLES]))}"
            for fault, keys in self.faults.items()
            if keys and fault in self.promised
        ]

    def row(self) -> list[object]:
        """Return a row of the table; observations are in brackets."""
        cells: list[object] = [self.name, self.expected, self.found]
        for fault in FAULTS:
            if fault not in self.faults:
                cells.append("")
            elif fault in self.promised:
                cells.append(len(self.faults[fault]))
            else:
                cells.append(f"({len(self.faults[fault]):,})")
        return cells


def compare(
    name: str, expected: Mapping[Key, int], found: Iterable[tuple[Key, int]], *, promised: Collection[str]
) -> Place:
    """
    Compare messages with those that a place must have.

    Args:
        name: The place.
        expected: Digest of each message that the place must have.
        found: Messages in the place, with their digests.
        promised: As in :class:`Place`.
    """
    seen: set[Key] = set()
    twice, invented, changed = [], [], []
    for key, digest in found:
        if key in seen:
            twice.append(key)
        seen.add(key)
        if key not in expected:
            invented.append(key)
        elif expected[key] != digest:
            changed.append(key)
    lost = [key for key in expected if key not in seen]
    faults: dict[str, list[Key]] = {"lost": lost, "twice": twice, "invented": invented, "changed": changed}
    return Place(name, promised, len(expected), len(seen), faults)


def reordered(numbers: Iterable[tuple[Hashable, int]]) -> list[Key]:
    """Return the numbers that follow a higher one of their group; repeated numbers are not counted."""
    highest: dict[Hashable, int] = {}
    seen: set[tuple[Hashable, int]] = set()
    found: list[Key] = []
    for group, number in numbers:
        if (group, number) in seen:
            continue
        seen.add((group, number))
        if number < highest.get(group, number):
            found.append(f"{group} {number}")
        highest[group] = max(number, highest.get(group, number))
    return found


@dataclass(frozen=True)
class Begun:
    """A handler was called with the message at a sequence, at a time in nanoseconds."""

    sequence: int
    time: int


@dataclass(frozen=True)
class Done:
    """A handler has returned."""

    sequence: int


def begun_too_early(
    keys: Mapping[int, str], steps: Iterable[Begun | Done], dead_letters: Mapping[int, int]
) -> list[Key]:
    """
    Return the sequences with which a handler was called before an earlier message of their key was settled.

    Args:
        keys: Key of each message, by its sequence in the stream, ascending.
        steps: What the handlers did, in order.
        dead_letters: Times, in nanoseconds, at which messages were dead-lettered, by their sequences.
    """
    of_key: dict[str, list[int]] = defaultdict(list)
    places: dict[int, int] = {}
    for sequence, key in keys.items():
        places[sequence] = len(of_key[key])
        of_key[key].append(sequence)
    settled: dict[str, int] = defaultdict(int)  # number of first messages of each key that are settled
    done: set[int] = set()
    found: list[Key] = []
    for step in steps:
        if isinstance(step, Done):
            done.add(step.sequence)
            continue
        key = keys.get(step.sequence)
        if key is None:
            continue  # was not stored, which is another fault
        place, queue = places[step.sequence], of_key[key]
        while settled[key] < place and (
            queue[settled[key]] in done or dead_letters.get(queue[settled[key]], step.time + 1) <= step.time
        ):
            settled[key] += 1
        if settled[key] < place:
            found.append(step.sequence)
    return found


def table(places: Sequence[Place]) -> tuple[list[str], list[list[object]]]:
    """Return header and rows of the table of all places."""
    return ["", "expected", "found", *FAULTS], [place.row() for place in places]
