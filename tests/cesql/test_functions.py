"""Functions of users in CESQL."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import pytest

from ce_nats import cesql
from tests.support.tables import each


def region(source: str) -> str:
    return source.split("/")[1]


def one(x: str) -> int:
    return 1


def two(x: str, y: str) -> int:
    return 2


def three(x: object, y: object, *more: object) -> int:
    return 3


def several(*x: int) -> int:
    return sum(x)


def table(*functions: Any, name: str = "F") -> cesql.Functions:
    found = cesql.Functions()
    for function in functions:
        found.add(function, name=name)
    return found


def test_function() -> None:
    """A function has its own name in any case, and gets casted arguments."""
    functions = cesql.Functions()
    assert functions.add(region) is region
    expression = cesql.compile("region(source) = 'eu'", functions=functions)
    assert expression.matches({"source": "/eu/x"})
    assert str(expression) == "REGION(source) = 'eu'"
    assert pickle.loads(pickle.dumps(expression)).matches({"source": "/eu/x"})
    assert expression != cesql.compile("region(source) = 'eu'")
    assert cesql.compile("REGION(source)").evaluate({"source": "/"}).errors[0].kind == "missing-function"


def test_overloads() -> None:
    """The number of arguments selects a function."""
    functions = table(one, partial_of_two := two)
    functions.add(several, name="SUM")
    assert partial_of_two is two
    assert cesql.compile("F(1) * 10 + F('a', 2)", functions=functions).evaluate({}).value == 12
    assert cesql.compile("SUM() + SUM('1', TRUE, 3)", functions=functions).evaluate({}).value == 5
    assert cesql.compile("F()", functions=functions).evaluate({}).errors[0].kind == "missing-function"


def test_variadic_after_fixed() -> None:
    """A function of any number of arguments needs more than all others accept."""
    functions = table(one, three)
    assert cesql.compile("F('a')", functions=functions).evaluate({}).value == 1
    assert cesql.compile("F('a', 2)", functions=functions).evaluate({}).value == 3


@each(
    "first, second",
    [(one, one), (two, three), (three, two), (several, one), (one, several), (several, several), (three, several)],
)
def test_ambiguous_functions(first: Any, second: Any) -> None:
    """Two functions that could both be called are refused."""
    functions = table(first)
    with pytest.raises(ValueError, match="as many arguments"):
        functions.add(second, name="f")


@each("name", ["LENGTH", "int"])
def test_built_in_functions_stay(name: str) -> None:
    """A built-in function cannot be replaced, but overloaded."""
    with pytest.raises(ValueError, match="as many arguments"):
        table(one, name=name)
    functions = table(two, name=name)
    assert cesql.compile(f"{name}('7', 1)", functions=functions).evaluate({}).value == 2
    assert cesql.compile(f"{name}('7')", functions=functions).evaluate({}) == cesql.compile(f"{name}('7')").evaluate({})


def untyped(x):  # type: ignore[no-untyped-def]
    return x


def floats(x: float) -> int:
    return int(x)


def keywords(*, x: int) -> int:
    return x


def nothing(x: int) -> None: ...


@each("function", [untyped, floats, keywords, nothing])
def test_types_of_the_language(function: Any) -> None:
    """Annotations must be types of the language."""
    with pytest.raises(TypeError, match=f"the function {function.__name__} must"):
        cesql.Functions().add(function)


@each("name", ["", "F1", "_f", "a-b", "é"])
def test_names(name: str) -> None:
    """A name that no expression can have is refused."""
    with pytest.raises(ValueError, match="letters and underscores"):
        cesql.Functions().add(one, name=name)


def fails(x: str) -> int:
    raise RuntimeError("no")


def with_value(x: str) -> int:
    raise cesql.FunctionError("half of it", 7)


def with_kind(x: str) -> int:
    raise cesql.FunctionError("no", "text", kind="generic")


def wrong_type(x: str) -> int:
    return x  # type: ignore[return-value]


def too_large(x: str) -> int:
    return 2**31


@each(
    "function, value, kind, message",
    [
        (fails, 0, "function-evaluation", "F raised RuntimeError: no"),
        (with_value, 7, "function-evaluation", "half of it"),
        (with_kind, 0, "generic", "no"),
        (wrong_type, 0, "function-evaluation", "F returned 'a'"),
        (too_large, 0, "function-evaluation", "F returned 2147483648"),
    ],
)
def test_failures(function: Any, value: int, kind: str, message: str) -> None:
    """An exception, or a value of another type, is an error with a value of the function's type."""
    result = cesql.compile("F('a')", functions=table(function)).evaluate({})
    assert result.value == value
    assert result.errors == (cesql.EvaluationError(kind, 0, message),)  # type: ignore[arg-type]


def test_partial_functions() -> None:
    """Callables without annotations are refused, with a name and without."""
    with pytest.raises(ValueError, match="letters and underscores"):
        cesql.Functions().add(partial(two, "a"))
    with pytest.raises(TypeError):
        cesql.Functions().add(partial(two, "a"), name="f")
