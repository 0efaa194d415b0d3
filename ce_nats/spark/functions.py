"""
``F``: the functions of ``pyspark.sql.functions``, which can also be written down as SQL.

Spark SQL knows functions by their text, and a Column cannot be turned into text. So the expressions of this folder are
built with ``F`` from here. It hands everything to pyspark, but inside of :func:`as_sql` it makes :class:`Sql` in place
of Columns: the same calls, as text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions
from pyspark.sql.types import DataType
from pyspark.sql.utils import is_remote

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["F", "apply", "as_sql"]

# Numbers lambda variables while SQL is made.
_numbers: ContextVar[count[int] | None] = ContextVar("numbers", default=None)


def as_sql(make: Callable[..., Column], *parameters: str) -> str:
    """
    The text of an expression of parameters of a SQL function.

    Args:
        make: Makes the expression of columns, one for each parameter, with ``F``.
        parameters: Names.
    """
    token = _numbers.set(count())
    try:
        return _text(make(*map(Sql, parameters)))
    finally:
        _numbers.reset(token)


def apply(make: Callable[..., Column], *columns: Column) -> Column:
    """
    ``make(*columns)``, for an expression that is nested deep.

    Spark Connect sends columns as messages that must not be nested so deep; to it, the expression goes as text.
    """
    if _numbers.get() is not None or not is_remote():
        return make(*columns)
    names = [f"c{number}" for number in range(len(columns))]
    record = functions.struct(*(column.alias(name) for name, column in zip(names, columns)))
    body = as_sql(make, *(f"given.{name}" for name in names))
    made = functions.call_function("transform", functions.array(record), functions.expr(f"given -> {body}"))
    return functions.get(made, functions.lit(0))


class Sql:
    """Stands for a Column, and has its text. Every method that this folder uses is here, as pyspark has it."""

    def __init__(self, text: str, *, cases: str = "") -> None:
        self.text = text
        self._cases = cases

    def when(self, condition: Sql, value: Any) -> Sql:
        return _case(f"{self._cases} WHEN {_text(condition)} THEN {_text(value)}")

    def otherwise(self, value: Any) -> Sql:
        return Sql(f"CASE{self._cases} ELSE {_text(value)} END")

    def __getitem__(self, key: str) -> Sql:
        return Sql(f"{self.text}[{_text(key)}]" if not self.text.startswith("CASE") else f"({self.text})[{_text(key)}]")

    def alias(self, name: str) -> Sql:
        return Sql(f"{self.text} AS `{name}`")

    def cast(self, to: DataType | str) -> Sql:
        return Sql(f"CAST({self.text} AS {_type(to)})")

    def try_cast(self, to: DataType | str) -> Sql:
        return Sql(f"TRY_CAST({self.text} AS {_type(to)})")

    def isin(self, *values: Any) -> Sql:
        return _call("`in`")(self, *values)

    def between(self, low: Any, high: Any) -> Sql:
        return _call("`and`")(self >= low, self <= high)

    def isNull(self) -> Sql:  # noqa: N802
        return _call("isnull")(self)

    def isNotNull(self) -> Sql:  # noqa: N802
        return _call("isnotnull")(self)

    def __ne__(self, other: object) -> Sql:  # type: ignore[override]  # as a Column does
        return ~_call("`=`")(self, other)

    def __invert__(self) -> Sql:
        return _call("`not`")(self)

    def __neg__(self) -> Sql:
        return _call("negative")(self)

    def __hash__(self) -> int:
        return hash(self.text)


def _method(name: str) -> Callable[[Sql, Any], Sql]:
    return lambda self, other: _call(name)(self, other)


# Functions instead of operators: the parser takes its time over every bracket that might begin a lambda function.
_OPERATORS: Final = {"and": "and", "or": "or", "eq": "=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_OPERATORS_OF_NUMBERS: Final = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "mod": "%"}

for _name, _sign in (_OPERATORS | _OPERATORS_OF_NUMBERS).items():
    setattr(Sql, f"__{_name}__", _method(f"`{_sign}`"))
for _name in ("startswith", "endswith", "contains", "rlike"):
    setattr(Sql, _name, _method(_name))


def _case(cases: str) -> Sql:
    return Sql(f"CASE{cases} END", cases=cases)


def _type(to: DataType | str) -> str:
    return to if isinstance(to, str) else to.simpleString()


def _text(value: Any) -> str:
    if isinstance(value, Sql):
        return value.text
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        # No quote, no backslash: what those mean depends on the session.
        return f"CAST(X'{value.encode().hex()}' AS STRING)" if not _is_simple(value) else f"'{value}'"
    if isinstance(value, (bytes, bytearray)):
        return f"X'{value.hex()}'"
    if value is None or isinstance(value, bool):
        return str(value).upper() if value is not None else "NULL"
    if isinstance(value, Mapping):
        return f"map({', '.join(_text(item) for pair in value.items() for item in pair)})"
    if isinstance(value, float):
        return f"{value!r}D"
    if isinstance(value, int):
        return f"{value}L" if abs(value) > 0x7FFFFFFF else str(value)
    if isinstance(value, DataType):
        return _text(value.simpleString())
    if callable(value):
        return _lambda(value)
    raise TypeError(f"no SQL is known for {value!r}")


def _is_simple(text: str) -> bool:
    return text.isascii() and text.isprintable() and not set(text) & set("'\"\\")


def _lambda(body: Callable[..., Sql]) -> str:
    numbers = _numbers.get()
    assert numbers is not None
    names = [f"v{next(numbers)}" for _ in range(body.__code__.co_argcount)]
    head = names[0] if len(names) == 1 else f"({', '.join(names)})"
    return f"{head} -> {_text(body(*map(Sql, names)))}"


def _call(name: str) -> Callable[..., Sql]:
    if name == "lit":
        return lambda value: Sql(_text(value))
    if name == "when":
        return lambda condition, value: _case(f" WHEN {_text(condition)} THEN {_text(value)}")
    return lambda *arguments: Sql(f"{name}({', '.join(map(_text, arguments))})")


class _Functions:
    def __getattr__(self, name: str) -> Any:
        return getattr(functions, name) if _numbers.get() is None else _call(name)


if TYPE_CHECKING:
    F = functions
else:
    F = _Functions()
