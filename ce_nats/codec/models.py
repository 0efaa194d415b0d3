"""
Event data as types of the program, and back: msgspec's Structs, dataclasses, TypedDicts, pydantic's models.

pydantic reads and writes what is its own, or holds something of its own; msgspec everything else. pydantic is imported
only for such a type, so that it need not be there.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NoReturn, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from ..errors import preview, shortened

__all__ = ["as_plain", "convert", "is_model", "read_json"]

# The last one holds the bounds of pydantic's PositiveInt and the like, which msgspec does not look at.
_PYDANTIC: Final = {"pydantic", "pydantic_core", "annotated_types"}
_VALIDATOR: Final = "__pydantic_validator__"  # of models and pydantic's own dataclasses
_HOOK: Final = "__get_pydantic_core_schema__"
# As JSON has them, for dates, decimals and bytes too.
_NO_TYPES: Final = ()

Readers: TypeAlias = tuple[Callable[[bytes], Any], Callable[[Any], Any]]


def read_json(text: bytes, model: Any) -> Any:
    """
    A value of a type, from JSON text that is known to be valid.

    Raises:
        ValueError: The text has no such value; :func:`error_summary` says it in a line.
        TypeError: Neither msgspec nor pydantic knows the type.
    """
    return _call(0, text, model)


def convert(value: str | bytes, model: Any) -> Any:
    """
    A value of a type, from text or bytes that are not JSON.

    Raises:
        ValueError: As :func:`read_json`.
        TypeError: As :func:`read_json`.
    """
    return _call(1, value, model)


def error_summary(error: ValueError) -> str:
    """What is wrong with the data, in one line without the data itself as far as the library leaves it out."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return shortened(str(error))
    first, *others = errors(include_url=False, include_context=False, include_input=False)
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
    more = f" (and {len(others)} more)" if others else ""
    return f"{shortened(first['msg'])} - at `{shortened(f'${place}')}`{more}"


def name_of(model: Any) -> str:
    """A type as messages name it."""
    return model.__qualname__ if isinstance(model, type) and not get_args(model) else preview(model)


def is_model(value: object) -> bool:
    """Whether a value is a Struct, or an instance of a dataclass or a pydantic model."""
    kind = type(value)
    return isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(kind) or hasattr(kind, _VALIDATOR)


def as_plain(value: object) -> Any:
    """
    A model as dicts, lists, strings and numbers, as its library writes it in JSON.

    Fields of pydantic's models have their aliases, by which they are read. NaN stays NaN.

    Raises:
        Exception: It holds something that has no such form.
    """
    kind: Any = type(value)
    adapter = _adapter(kind)
    if adapter is not None:
        return adapter.dump_python(value, mode="json", by_alias=True)
    return msgspec.to_builtins(value, builtin_types=_NO_TYPES, str_keys=True, enc_hook=_dump)


def _call(which: int, value: Any, model: Any) -> Any:
    try:
        readers = _readers(model)
    except TypeError:
        readers = _readers.__wrapped__(model)  # not hashable, as an Annotated with a dict; or no type at all
    try:
        return readers[which](value)
    except NotImplementedError as error:
        raise TypeError(f"the type must be one that msgspec or pydantic can read, got {error}") from error


@lru_cache(maxsize=256)
def _readers(model: Any) -> Readers:
    """Functions of JSON text, and of text or bytes that are not JSON."""
    adapter = _adapter.__wrapped__(model)
    if adapter is not None:
        return adapter.validate_json, adapter.validate_python
    decoder = msgspec.json.Decoder(model, dec_hook=_refuse)
    return decoder.decode, lambda value: msgspec.convert(value, model, dec_hook=_refuse)


@lru_cache(maxsize=256)
def _adapter(kind: Any) -> Any:
    """Reader and writer of a type that has to be left to pydantic; None for other types."""
    if "pydantic" not in sys.modules or not _needs_pydantic(kind, set()):
        return None
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _needs_pydantic(kind: Any, seen: set[int]) -> bool:
    """Whether a type is pydantic's, or is made of types of which one is."""
    if id(kind) in seen:
        return False
    seen.add(id(kind))
    if _uses_pydantic(kind) or type(kind).__module__.partition(".")[0] in _PYDANTIC:
        return True
    parts = get_args(kind)
    origin = get_origin(kind) or kind
    if hasattr(origin, "__dataclass_fields__") or hasattr(origin, "__required_keys__"):
        parts = (*parts, *get_type_hints(origin, include_extras=True).values())
    return any(_needs_pydantic(part, seen) for part in parts)


def _uses_pydantic(kind: Any) -> bool:
    return hasattr(kind, _VALIDATOR) or hasattr(kind, _HOOK)


def _dump(value: Any) -> Any:
    """What msgspec has no form for, inside of something that it has one for."""
    if not _uses_pydantic(type(value)):
        raise NotImplementedError(f"{type(value).__name__} has no form in JSON")
    return as_plain(value)


def _refuse(kind: type, _: object) -> NoReturn:
    raise NotImplementedError(kind.__qualname__)
