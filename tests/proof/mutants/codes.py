"""Compare the code objects of a module with those of a mutant, and install a mutant in functions that exist."""

from __future__ import annotations

import gc
import inspect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

# Path of the module relative to the project, first line, and name of a function, class, lambda or comprehension.
Key = tuple[str, int, str]
Functions = Mapping[Key, Sequence[FunctionType]]

_FIELDS: Final = (
    *("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags"),
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_exceptiontable"),
)


class NotInstallableError(Exception):
    """A mutant must be imported."""


@dataclass(frozen=True)
class Change:
    """
    What a mutant changes.

    Attributes:
        keys: Code with other instructions or constants, without the code nested in it.
        at_import: Whether some of it runs when the module is imported, not in a function.
    """

    keys: frozenset[Key]
    at_import: bool


@dataclass(frozen=True)
class _Pair:
    """
    Code of the original and of the mutant.

    Attributes:
        is_function: Whether it runs in a function, rather than at import.
        is_outermost: Whether it is a function that is not nested in another one.
        is_changed: Whether it differs, apart from nested code.
        is_affected: Whether it or code nested in it differs.
    """

    old: CodeType
    new: CodeType
    is_function: bool
    is_outermost: bool
    is_changed: bool
    is_affected: bool


def change(path: str, original: str, mutated: str) -> Change:
    """Compare the texts of a module."""
    changed = [pair for pair in _pairs(path, original, mutated) if pair.is_changed]
    return Change(frozenset(key(path, pair.old) for pair in changed), not all(pair.is_function for pair in changed))


def key(path: str, code: CodeType) -> Key:
    return path, code.co_firstlineno, code.co_name


def relative(code: CodeType, root: str) -> str | None:
    """Return the path of the module that contains code, None if it is not a module of the package."""
    path = code.co_filename
    return path[len(root) + 1 :] if path.startswith(f"{root}/ce_nats/") else None


def functions() -> Functions:
    """Return the existing functions of the package by their code."""
    root = str(Path.cwd())
    found: defaultdict[Key, list[FunctionType]] = defaultdict(list)
    for one in gc.get_objects():
        if type(one) is FunctionType and (path := relative(one.__code__, root)) is not None:
            found[key(path, one.__code__)].append(one)
    return found


def install(path: str, original: str, mutated: str, existing: Functions) -> None:
    """
    Replace the code of existing functions with that of a mutant.

    Raises:
        NotInstallableError: The mutant changes code that runs at import, or functions that cannot be found.
    """
    pairs = _pairs(path, original, mutated)
    count = Counter(key(path, pair.old) for pair in pairs)
    for pair in pairs:
        if pair.is_changed and not pair.is_function:
            raise NotInstallableError(f"{pair.old} runs at import")
        if not pair.is_affected or not pair.is_function:
            continue
        if count[key(path, pair.old)] > 1:
            raise NotInstallableError(f"{pair.old} is not the only one in its line")
        found = existing.get(key(path, pair.old), ())
        if pair.is_outermost and not found:
            raise NotInstallableError(f"no function has {pair.old}")
        for function in found:
            _replace(function, pair.new)


def _replace(function: FunctionType, code: CodeType) -> None:
    try:
        function.__code__ = code
    except ValueError as error:  # it has another number of variables of outer functions
        raise NotInstallableError(str(error)) from error


def _pairs(path: str, original: str, mutated: str) -> list[_Pair]:
    old, new = (compile(text, path, "exec", dont_inherit=True) for text in (original, mutated))
    return list(_walk(old, new, in_function=False))


def _walk(old: CodeType, new: CodeType, *, in_function: bool) -> Iterator[_Pair]:
    """Yield the pairs of code and of all code nested in it; nothing nested if its number or the names differ."""
    is_function = in_function or bool(old.co_flags & inspect.CO_OPTIMIZED)
    inner = list(zip(_nested(old), _nested(new)))
    if [one.co_name for one in _nested(old)] != [one.co_name for one in _nested(new)]:
        inner = []
    below = [pair for one, other in inner for pair in _walk(one, other, in_function=is_function)]
    is_changed = _own(old) != _own(new)
    is_affected = is_changed or any(pair.is_affected for pair in below)
    yield _Pair(old, new, is_function, is_function and not in_function, is_changed, is_affected)
    yield from below


def _nested(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _own(code: CodeType) -> tuple[object, ...]:
    """Return the instructions and constants, without positions and nested code."""
    constants: Iterable[object] = (None if isinstance(one, CodeType) else one for one in code.co_consts)
    names = [one.co_name for one in _nested(code)]
    return (*(getattr(code, field, None) for field in _FIELDS), repr(list(constants)), names)
