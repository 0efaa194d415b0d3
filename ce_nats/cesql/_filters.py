"""Filters of the Subscriptions API of CloudEvents, as expressions of CESQL."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..codec.attributes import REQUIRED
from ..errors import preview
from ._expression import Expression, compile
from ._syntax import ATTRIBUTE, MAX_DEPTH, ParseError, quoted

_DIALECTS: Final = ("exact", "prefix", "suffix", "all", "any", "not", "sql")


def from_filters(filters: str | Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Expression:
    """
    Return the expression of filters of the Subscriptions API (section 3.2.4), as Knative's triggers have them.

        cesql.from_filters([{"prefix": {"type": "com.example."}}, {"not": {"exact": {"tier": "silver"}}}])

    An event passes if it passes all of them. A missing attribute does not match ``exact``, ``prefix`` and ``suffix``,
    so that it passes their ``not``; so does an event on which ``sql`` has an error. For that, an ``sql`` is an argument
    of the function MATCHES, which other engines do not have, unless it is at the top.

    Args:
        filters: Filters or one filter, as JSON text or as its values.

    Raises:
        ParseError: The filters are not of the Subscriptions API, are nested too deeply, or have a value that CESQL
            cannot express: an attribute that is named as a keyword, a backslash at the end of an ``exact`` value.
    """
    if isinstance(filters, str):
        try:
            filters = json.loads(filters)
        except (ValueError, RecursionError) as error:
            raise ParseError(0, "filters in JSON", preview(str(error))) from error
    found = [filters] if isinstance(filters, Mapping) else filters
    return compile(_all(found, "AND", is_top=True))


def _all(filters: object, operator: str, depth: int = 0, *, is_top: bool = False) -> str:
    """Return the expression of several filters."""
    if not isinstance(filters, Sequence) or isinstance(filters, str) or not filters:
        raise ParseError(0, "a list of filters", preview(filters))
    return f" {operator} ".join(f"({_text(one, depth + 1, is_top=is_top)})" for one in filters)


def _text(given: object, depth: int, *, is_top: bool) -> str:
    """Return the expression of one filter."""
    if not isinstance(given, Mapping) or len(given) != 1 or next(iter(given)) not in _DIALECTS:
        raise ParseError(0, f"an object with one of {', '.join(_DIALECTS)}", preview(given))
    if depth > MAX_DEPTH:
        raise ParseError(0, f"at most {MAX_DEPTH} levels", "a deeper filter")
    ((dialect, value),) = given.items()
    if dialect in ("all", "any"):
        return _all(value, "AND" if dialect == "all" else "OR", depth, is_top=is_top and dialect == "all")
    if dialect == "not":
        return f"NOT ({_text(value, depth + 1, is_top=False)})"
    if dialect == "sql":
        if not isinstance(value, str):
            raise ParseError(0, "an expression", preview(value))
        return str(compile(value)) if is_top else f"MATCHES({compile(value)})"
    if not isinstance(value, Mapping) or not value:
        raise ParseError(0, "an object with attributes", preview(value))
    return " AND ".join(_comparison(dialect, name, text) for name, text in value.items())


def _comparison(dialect: str, name: object, text: object) -> str:
    """Return the expression of an attribute with a text, with the beginning of one, or with its end."""
    if not isinstance(name, str) or not ATTRIBUTE.fullmatch(name) or not isinstance(text, str) or not text:
        raise ParseError(0, "an attribute and a text that is not empty", preview({name: text}))
    pattern = re.sub("[%_]", r"\\\g<0>", text)
    try:
        if dialect == "exact":
            found = f"{name} = {quoted(text)}"
        elif "\\" in text:  # cannot be escaped before a wildcard
            found = f"{'LEFT' if dialect == 'prefix' else 'RIGHT'}({name}, {len(text)}) = {quoted(text)}"
        else:
            found = f"{name} LIKE {quoted(f'{pattern}%' if dialect == 'prefix' else f'%{pattern}')}"
    except ValueError as error:
        raise ParseError(0, "a text of CESQL", preview(text)) from error
    return found if name in REQUIRED else f"EXISTS {name} AND {found}"
