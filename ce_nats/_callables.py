"""Inspect functions that callers pass as arguments."""

from __future__ import annotations

import inspect


def is_async(function: object) -> bool:
    """Whether an object is an async function, or has an async ``__call__``, also below decorators and partials."""
    target = function
    while True:
        call = getattr(type(target), "__call__", None)  # noqa: B004 - whether it is async, not whether it exists
        if inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(call):
            return True
        inner = getattr(target, "__wrapped__", None) or getattr(target, "func", None)  # of a decorator or a partial
        if inner is None or inner is target:
            return False
        target = inner


def name_of(function: object) -> str:
    """Return the qualified name of a function for error messages, or the name of another object's class."""
    name = getattr(function, "__qualname__", None)
    return f"the function {name}" if isinstance(name, str) else type(function).__qualname__
