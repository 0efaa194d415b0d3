"""
Run the conformance cases of NATS Streaming on ce_nats, as in ``_adapter``.

Needs the extra ``stan``; without it these cases are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from typing import Any, Final

from ._cases import octets, spell, text


def _encode(given: Mapping[str, Any]) -> dict[str, Any]:
    kind = _message(given["message"])
    known = {field.metadata["label"]: field for field in fields(kind)}
    values = {known[label].name: _value(known[label], value) for label, value in given["fields"].items()}
    return {"data": spell(kind(**values).encode())}


def _decode(given: Mapping[str, Any]) -> dict[str, Any]:
    kind = _message(given["message"])
    message = kind.decode(octets(given["data"]))
    values = {field.metadata["label"]: getattr(message, field.name) for field in fields(kind)}
    return {"fields": {label: _spelled(value) for label, value in values.items() if value}}


def _message(name: str) -> Any:
    from ..stan import wire as stan

    return stan.MESSAGES[name]


def _value(field: Field[Any], spelling: Any) -> Any:
    if isinstance(field.default, str):
        return text(spelling)
    if isinstance(field.default, bytes):
        return octets(spelling)
    return spelling if isinstance(spelling, bool) else int(spelling)


def _spelled(value: Any) -> Any:
    if isinstance(value, bytes):
        return spell(value)
    return str(value) if type(value) is int else value


STAN_OPERATIONS: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "wire.stan.encode": _encode,
    "wire.stan.decode": _decode,
}
