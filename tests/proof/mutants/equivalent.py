"""
Mutants that no test can kill, each with the argument, in equivalent.yaml.

An entry names module, function and changed lines rather than a line number, so that it
remains valid when other lines change. Without ``becomes`` it is for all changes of its line.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from .mutate import Mutant

FILE: Final = Path(__file__).with_name("equivalent.yaml")

Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Entry:
    """
    An equivalent mutant.

    Attributes:
        key: As :attr:`.Mutant.key`; ``""`` as last part for all changes of the line.
        why: Why no test can tell it from the original.
    """

    key: Key
    why: str

    def __str__(self) -> str:
        path, function, before, after = self.key
        return f"{path} in {function}: {before} -> {after or 'any change'}"


class _Loader(yaml.SafeLoader):
    """Rejects duplicate keys, of which PyYAML keeps the last one only."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        if twice := {key for key in keys if keys.count(key) > 1}:
            raise ValueError(f"keys must differ, got {', '.join(sorted(twice))} twice")
        return super().construct_mapping(node, deep)


def load(file: Path = FILE) -> dict[Key, Entry]:
    """
    Return the entries of the file.

    Raises:
        ValueError: An entry has no argument, or is duplicated.
    """
    entries: dict[Key, Entry] = {}
    for path, functions in (yaml.load(file.read_text(encoding="utf-8"), _Loader) or {}).items():
        for function, items in functions.items():
            for item in items:
                entry = Entry(
                    (path, function, item["line"], item.get("becomes", "")), str(item.get("why") or "").strip()
                )
                if not entry.why:
                    raise ValueError(f"an entry must say why, got none for {entry}")
                if entry.key in entries:
                    raise ValueError(f"entries must differ, got two for {entry}")
                entries[entry.key] = entry
    return entries


def is_equivalent(mutant: Mutant, entries: Container[Key]) -> bool:
    """Return whether a mutant has an entry."""
    return any(key in entries for key in _keys(mutant))


def stale(entries: Iterable[Entry], mutants: Iterable[Mutant], modules: Collection[str]) -> list[Entry]:
    """Return the entries of modules for which no mutant exists any more."""
    keys = {key for mutant in mutants for key in _keys(mutant)}
    return [entry for entry in entries if entry.key[0] in modules and entry.key not in keys]


def _keys(mutant: Mutant) -> tuple[Key, Key]:
    path, function, before, after = mutant.key
    return (path, function, before, after), (path, function, before, "")
