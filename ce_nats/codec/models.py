"""
Convert event data to user-defined types and back: msgspec Structs, dataclasses, TypedDicts, pydantic models.

pydantic converts its own types and types that contain them; msgspec converts all others. pydantic is optional, and is
imported only for such a type.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NoReturn, TypeAlias, get_args, get_origin, get_type_hints

import msgspec
import msgspec.inspect

from ..errors import preview, shortened

__all__ = ["as_plain", "check_model", "convert", "is_model", "read_json"]

# annotated_types has the bounds of types such as pydantic's PositiveInt, which msgspec ignores.
_PYDANTIC: Final = {"pydantic", "pydantic_core", "annotated_types"}
_VALIDATOR: Final = "__pydantic_validator__"  # of pydantic models and pydantic's dataclasses
_HOOK: Final = "__get_pydantic_core_schema__"
# None of msgspec's types is kept: dates, decimals and bytes have their form in JSON.
_NO_TYPES: Final = ()

# Exceptions for unsuitable values, which the code of a type and of its library may raise for any data: an unhashable
# value in a set, a number that is too large, data that is nested too deep.
_BY_DATA: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError)

Readers: TypeAlias = tuple[Callable[[bytes], Any], Callable[[Any], Any]]


class UnsuitableDataError(ValueError):
    """The validation of a type has raised an exception that is not one of validation, which is the ``__cause__``."""


def read_json(text: bytes, model: Any) -> Any:
    """
    Convert valid JSON text to a type.

    Raises:
        ValueError: The text does not match the type; :func:`error_summary` returns the reason. An
            :class:`UnsuitableDataError` for other exceptions of its validation.
        TypeError: Neither msgspec nor pydantic supports the type.
    """
    return _call(0, text, model)


def convert(value: str | bytes, model: Any) -> Any:
    """
    Convert text or bytes that are not JSON to a type.

    Raises:
        ValueError: As :func:`read_json`.
        TypeError: As :func:`read_json`.
    """
    return _call(1, value, model)


def check_model(model: Any) -> None:
    """
    Check that msgspec or pydantic can read a type.

    Raises:
        TypeError: Neither supports it.
    """
    try:
        if _adapter.__wrapped__(model) is None:
            info = msgspec.inspect.type_info(model)
            types = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
            if any(isinstance(one, msgspec.inspect.CustomType) for one in types):
                raise TypeError("it is neither a model nor a type of JSON")
    except Exception as error:  # evaluating annotations of a model may raise anything
        text = f"the type must be one that msgspec or pydantic can read, got {name_of(model)}: {shortened(str(error))}"
        raise TypeError(text) from error


def error_summary(error: ValueError) -> str:
    """Return the reason of an error in one line, without the data itself if the library can omit it."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return shortened(str(error))
    first, *others = errors()
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
    more = f" (and {len(others)} more)" if others else ""
    return f"{shortened(first['msg'])} - at `{shortened(f'${place}')}`{more}"


def name_of(model: Any) -> str:
    """Return the name of a type for error messages."""
    return model.__qualname__ if isinstance(model, type) and not get_args(model) else preview(model)


def is_model(value: object) -> bool:
    """Whether a value is a Struct, or an instance of a dataclass or a pydantic model."""
    kind = type(value)
    return isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(kind) or hasattr(kind, _VALIDATOR)


def as_plain(value: object) -> Any:
    """
    Return a model as dicts, lists, strings and numbers, as its library writes it in JSON.

    Fields of pydantic models have the names of their aliases, by which they are also read. NaN stays NaN.

    Raises:
        Exception: The model contains a value that JSON cannot represent.
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
        readers = _readers.__wrapped__(model)  # not hashable, for example an Annotated with a dict; or not a type
    try:
        return readers[which](value)
    except NotImplementedError as error:
        raise TypeError(f"the type must be one that msgspec or pydantic can read, got {error}") from error
    except _BY_DATA as error:  # its text may contain the data
        raise UnsuitableDataError(f"the validation raised {type(error).__name__}") from error


@lru_cache(maxsize=256)
def _readers(model: Any) -> Readers:
    """Return the functions that convert JSON text, and text or bytes that are not JSON."""
    adapter = _adapter.__wrapped__(model)
    if adapter is not None:
        return adapter.validate_json, adapter.validate_python
    decoder = msgspec.json.Decoder(model, dec_hook=_refuse)
    return decoder.decode, lambda value: msgspec.convert(value, model, dec_hook=_refuse)


@lru_cache(maxsize=256)
def _adapter(kind: Any) -> Any:
    """Return the reader and writer of a type that pydantic has to convert; None for other types."""
    if "pydantic" not in sys.modules or not _needs_pydantic(kind, set()):
        return None
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _needs_pydantic(kind: Any, seen: set[int]) -> bool:
    """Whether a type is defined by pydantic, or is composed of types of which one is."""
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
    """Convert a value inside of a model that msgspec does not support."""
    if not _uses_pydantic(type(value)):
        raise NotImplementedError(f"{type(value).__name__} cannot be represented in JSON")
    return as_plain(value)


def _refuse(kind: type, _: object) -> NoReturn:
    raise NotImplementedError(kind.__qualname__)
