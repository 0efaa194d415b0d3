"""Compiled expressions, and results of their evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from ..codec.event import EventLike
from ..errors import preview
from ._evaluate import MISSING, EvaluationError, StopError, compiled, stop, zero
from ._functions import Functions, Value
from ._syntax import Attribute, Exists, Node, parse, walk


class Result(NamedTuple):
    """
    The result of an evaluation.

    Attributes:
        value: A string, an integer of 32 bits or a Boolean; after an error the zero value of its type, unless the
            language has another one.
        errors: Errors in the order in which they occurred.
    """

    value: Value
    errors: tuple[EvaluationError, ...]


class Expression:
    """
    An expression of CESQL, from :func:`compile`.

    ``str()`` of it is its canonical text, with parentheses between different ones of AND, OR and XOR. Two expressions
    are equal if their canonical texts and their functions are. It can be used by several threads, and be pickled if its
    functions can.
    """

    def __init__(self, tree: Node, functions: Functions) -> None:
        self._tree = tree
        self._functions = functions
        self._evaluate = compiled(tree)

    @cached_property
    def attributes(self) -> tuple[str, ...]:
        """Names of the attributes that it reads, in the order of the text."""
        names = (node.name for node in walk(self._tree) if isinstance(node, Attribute | Exists))
        return tuple(dict.fromkeys(names))

    def matches(self, event: EventLike | Mapping[str, Any]) -> bool:
        """
        Whether an event passes: the value is the Boolean true, without errors (CESQL 1.2).

        Args:
            event: An event, or the attributes of one by their names; other objects are a TypeError.
        """
        try:
            return self._evaluate(_attributes(event), stop) is True
        except StopError:
            return False

    def evaluate(self, event: EventLike | Mapping[str, Any], *, fail_fast: bool = True) -> Result:
        """
        Return the value of the expression, and errors.

        Args:
            event: An event, or the attributes of one by their names; other objects are a TypeError.
            fail_fast: Stop at the first error. Otherwise the evaluation continues with the value that the language
                gives to the failed part (CESQL 4.1).
        """
        errors: list[EvaluationError] = []

        def note(error: EvaluationError, value: Any) -> Any:
            errors.append(error)
            return value

        try:
            value = self._evaluate(_attributes(event), stop if fail_fast else note)
        except StopError as stopped:
            errors.append(stopped.error)
            value = stopped.value if stopped.error.position == self._tree.position else zero(self._tree)
        return Result(zero(self._tree) if value is MISSING else value, tuple(errors))

    @cached_property
    def _text(self) -> str:
        return str(self._tree)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"cesql.compile({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return self._tree == other._tree if isinstance(other, Expression) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[Callable[..., Expression], tuple[Node, Functions]]:
        return Expression, (self._tree, self._functions)


def compile(text: str | Expression, *, functions: Functions | None = None) -> Expression:
    """
    Return the expression of a text.

    Args:
        text: An expression of CESQL 1.0, of at most 131,072 characters and 64 levels; a compiled one is returned.
        functions: Functions besides the built-in ones. Those that are added later are not used.

    Raises:
        ParseError: The text is not an expression.
    """
    if isinstance(text, Expression):
        return text
    if not isinstance(text, str):
        raise TypeError(f"an expression must be a str, got {preview(text)}")
    table = Functions() if functions is None else functions
    return Expression(parse(text, table), table)


def _attributes(event: Any) -> Mapping[str, Any]:
    """Return the attributes of an event."""
    get = getattr(event, "get_attributes", None)
    if get is not None:
        return get()  # type: ignore[no-any-return]
    if isinstance(event, Mapping):
        return event
    raise TypeError(f"an event must have get_attributes(), or be a mapping of attributes, got {preview(event)}")
