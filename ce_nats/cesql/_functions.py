"""
Values and functions of CESQL: casts, built-in functions, and tables of functions of users.

CESQL 3.5, 3.7. A value is a ``str``, an ``int`` of 32 bits or a ``bool``; the types of the language are these classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_type_hints

from .._callables import name_of
from ..codec.attributes import scalar_text
from ..errors import preview

Value: TypeAlias = str | int | bool
ErrorKind: TypeAlias = Literal[
    "math", "cast", "missing-attribute", "missing-function", "function-evaluation", "generic"
]
_FunctionT = TypeVar("_FunctionT", bound=Callable[..., Any])

TYPE_NAMES: Final[dict[type, str]] = {str: "String", int: "Integer", bool: "Boolean"}
# Characters of a result of CONCAT; otherwise a text of 100 kB could make strings of gigabytes.
MAX_STRING: Final = 2**20
# The property White_Space of Unicode. ``str.strip()`` also removes the separators U+001C to U+001F.
WHITESPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
)
_INTEGER: Final = re.compile("([+-]?)0*([0-9]{1,10})")
FUNCTION_NAME: Final = re.compile("[A-Za-z][A-Za-z_]*")


class FunctionError(Exception):
    """
    An error of a function, which functions of users raise.

    Attributes:
        value: What the function returns nevertheless; None for the zero value of its type.
        kind: Kind of the error.
    """

    def __init__(self, message: str, value: Value | None = None, *, kind: ErrorKind = "function-evaluation") -> None:
        super().__init__(message)
        self.value = value
        self.kind = kind


def wrapped(value: int) -> int:
    """Return an integer as one of 32 bits: the text has no error for an overflow, other engines wrap it."""
    return value if -0x80000000 <= value <= 0x7FFFFFFF else (value + 0x80000000) % 0x100000000 - 0x80000000


def cast(value: Any, target: type) -> Any:
    """Return a value as another type (CESQL 3.7), or None if it cannot be cast."""
    if target is str:
        return scalar_text(value)
    if value.__class__ is not str:
        return target(value)
    if target is bool:
        lower = value.lower()
        return True if lower == "true" else False if lower == "false" else None
    found = _INTEGER.fullmatch(value)
    number = int(found[1] + found[2]) if found else 2**31
    return number if -(2**31) <= number < 2**31 else None


@dataclass(frozen=True, slots=True)
class Function:
    """
    A function, with types of parameters and of its result; ``object`` is any type.

    Attributes:
        parameters: Types of the parameters before ``variadic``.
        variadic: Type of any number of parameters, or None.
    """

    name: str
    call: Callable[..., Any]
    parameters: tuple[type, ...]
    variadic: type | None
    result: type

    @property
    def is_built_in(self) -> bool:
        """Whether it is a function of the language."""
        return self in _BUILT_IN.get(self.name, ())

    def accepts(self, count: int) -> bool:
        """Whether it can be called with a number of arguments."""
        fixed = len(self.parameters)
        return count == fixed if self.variadic is None else count >= fixed

    def type_of(self, index: int) -> type:
        """Return the type of an argument."""
        return self.parameters[index] if index < len(self.parameters) else self.variadic or object


_BUILT_IN: Final[dict[str, list[Function]]] = {}  # filled below


class Functions:
    """
    Functions for expressions, besides the built-in ones.

        functions = cesql.Functions()

        @functions.add
        def region(source: str) -> str: ...

        cesql.compile("REGION(source) = 'eu'", functions=functions)

    Annotations are the types: ``str``, ``int``, ``bool``, and ``object`` for a parameter of any type. The name in
    expressions is that of the function, in any case. Functions of one name are distinguished by their numbers of
    arguments. A function should be pure; an exception in it is the error ``function-evaluation``.
    """

    def __init__(self) -> None:
        self._overloads: dict[str, list[Function]] = dict(_BUILT_IN)

    def add(self, function: _FunctionT, *, name: str | None = None) -> _FunctionT:
        """
        Add a function; usable as a decorator.

        Args:
            function: A function with annotations; a parameter ``*args`` takes any number of arguments.
            name: Name in expressions: letters and underscores. Default: the name of the function.

        Raises:
            TypeError: A parameter is only a keyword, or a type is not of the language.
            ValueError: The name is not one of the language, or a function of the name accepts as many arguments: one
                may accept any number, if it needs more than all others accept (CESQL 3.5).
        """
        new = _described(function, getattr(function, "__name__", "") if name is None else name)
        others = self._overloads.get(new.name, [])
        _check_overload(new, others)
        self._overloads[new.name] = [*others, new]
        return function

    def _find(self, name: str, count: int) -> Function | None:
        """Return the function of a name, in upper case, that accepts a number of arguments, or None."""
        return next((function for function in self._overloads.get(name, ()) if function.accepts(count)), None)


def _check_overload(new: Function, others: list[Function]) -> None:
    """Raise ValueError if a number of arguments would not decide between functions."""
    for other in others:
        fixed, other_fixed = len(new.parameters), len(other.parameters)
        if new.variadic is not None and other.variadic is not None:
            clash = True
        elif new.variadic is not None:
            clash = fixed <= other_fixed
        elif other.variadic is not None:
            clash = other_fixed <= fixed
        else:
            clash = fixed == other_fixed
        if clash:
            raise ValueError(f"another function {new.name} accepts as many arguments")


def _described(function: Callable[..., Any], name: str) -> Function:
    """Return a function with the types of its annotations."""
    if not FUNCTION_NAME.fullmatch(name):
        raise ValueError(f"a function's name must have letters and underscores only, got {preview(name)}")
    hints = get_type_hints(function)
    fixed: list[type] = []
    variadic = None
    for parameter in signature(function).parameters.values():
        hint = hints.get(parameter.name)
        if hint not in (*TYPE_NAMES, object):
            raise TypeError(f"{name_of(function)} must have parameters of str, int, bool or object, not {hint}")
        if parameter.kind is Parameter.VAR_POSITIONAL:
            variadic = hint
        elif parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
            fixed.append(hint)
        else:
            raise TypeError(f"{name_of(function)} must not have the keyword {parameter.name}")
    if hints.get("return") not in TYPE_NAMES:
        raise TypeError(f"{name_of(function)} must return str, int or bool")
    return Function(name.upper(), function, tuple(fixed), variadic, hints["return"])


def _cast_to(target: type, value: object) -> Any:
    """Cast as the functions INT, BOOL and STRING do."""
    result = cast(value, target)
    if result is None:
        raise FunctionError(f"{preview(value)} is not {TYPE_NAMES[target]}", kind="cast")
    return result


def _int(value: object) -> int:
    return _cast_to(int, value)  # type: ignore[no-any-return]


def _bool(value: object) -> bool:
    return _cast_to(bool, value)  # type: ignore[no-any-return]


def _string(value: object) -> str:
    return _cast_to(str, value)  # type: ignore[no-any-return]


def _is_int(value: object) -> bool:
    return cast(value, int) is not None


def _is_bool(value: object) -> bool:
    return cast(value, bool) is not None


def _abs(number: int) -> int:
    if number == -(2**31):
        raise FunctionError("the absolute value of -2147483648 is not an Integer", 2**31 - 1, kind="math")
    return abs(number)


def _length(text: str) -> int:
    return len(text)


def _concat(*texts: str) -> str:
    return _joined("", texts)


def _concat_ws(delimiter: str, *texts: str) -> str:
    return _joined(delimiter, texts)


def _joined(delimiter: str, texts: tuple[str, ...]) -> str:
    if sum(map(len, texts)) + len(delimiter) * (len(texts) - 1) > MAX_STRING:
        raise FunctionError(f"the result must have at most {MAX_STRING:,} characters")
    return delimiter.join(texts)


def _lower(text: str) -> str:
    return text.lower()


def _upper(text: str) -> str:
    return text.upper()


def _trim(text: str) -> str:
    return text.strip(WHITESPACE)


def _left(text: str, count: int) -> str:
    if count < 0:
        raise FunctionError(f"the number of characters must not be negative, got {count}", text)
    return text[:count]


def _right(text: str, count: int) -> str:
    if count < 0:
        raise FunctionError(f"the number of characters must not be negative, got {count}", text)
    return text[max(len(text) - count, 0) :]


def _substring(text: str, position: int) -> str:
    return _substring_of_length(text, position, len(text))


def _substring_of_length(text: str, position: int, length: int) -> str:
    if position == 0:
        return ""
    if abs(position) > len(text) or length < 0:
        raise FunctionError(f"position {position} or length {length} is outside of a text of {len(text)} characters")
    start = position + len(text) if position < 0 else position - 1
    return text[start : start + length]


def _matches(passes: bool) -> bool:
    return passes


_built_in: Final = Functions()
_ALL: Final[dict[str, Callable[..., Value]]] = {
    "INT": _int,
    "BOOL": _bool,
    "STRING": _string,
    # Not in the text; the engines in Go and Java have them.
    "IS_INT": _is_int,
    "IS_BOOL": _is_bool,
    "MATCHES": _matches,  # not in the text: false instead of an error; see from_filters()
    "ABS": _abs,
    "LENGTH": _length,
    "CONCAT": _concat,
    "CONCAT_WS": _concat_ws,
    "LOWER": _lower,
    "UPPER": _upper,
    "TRIM": _trim,
    "LEFT": _left,
    "RIGHT": _right,
    "SUBSTRING": _substring,
}
for _name, _function in _ALL.items():
    _built_in.add(_function, name=_name)
_built_in.add(_substring_of_length, name="SUBSTRING")
_BUILT_IN.update(_built_in._overloads)
