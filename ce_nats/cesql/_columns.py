"""
Translate an expression to columns: what a library for tables has to offer, and the translation to it.

A failed part, one with an error or a missing attribute, is NULL; a filter passes only rows that are true, so NULL does
not pass. NULL is passed on by every operator; AND, OR and IN ignore what the language does not evaluate.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, Final, Protocol, TypeVar

from ._evaluate import COMPARISONS
from ._functions import MAX_STRING, cast
from ._like import tokens
from ._syntax import Attribute, Binary, Call, Exists, In, Like, Literal, Logic, Node, Unary

C = TypeVar("C")

_CASTS: Final = {"INT": int, "BOOL": bool, "STRING": str}
_CHECKS: Final = {"IS_INT": int, "IS_BOOL": bool}
# Columns of events that are not attributes: extensions with these names have no column.
NOT_ATTRIBUTES: Final = frozenset({"extensions", "data", "mode", "error"})
# Parts of a chain, or elements of a set that are not constants: each is a level of the column.
_MAX_CHAIN: Final = 200


class UntranslatableError(ValueError):
    """A part of an expression has no equivalent in columns."""


class Columns(Protocol[C]):
    """
    Operations on columns of strings, integers and Booleans.

    Unless it is described otherwise, a result is NULL if an argument is.
    """

    def literal(self, value: Any) -> C:
        """Return a constant; None is NULL."""

    def attribute(self, name: str) -> tuple[C, type]:
        """Return the column of an attribute, NULL if it is missing, and the type of its values."""

    def exists(self, name: str) -> C:
        """Return whether events have an attribute; never NULL."""

    def is_valid(self, value: C) -> C:
        """Return whether values are not NULL; never NULL."""

    def choose(self, condition: C, yes: C, no: C) -> C:
        """Return one of two values, which may be NULL."""

    def both(self, one: C, other: C) -> C:
        """Return AND: true if both values are, or else false or NULL."""

    def invert(self, value: C) -> C:
        """Return NOT."""

    def compare(self, operator: str, left: C, right: C) -> C:
        """Return a comparison of values of one type: ``=``, ``<``, ``<=``, ``>``, ``>=``."""

    def calculate(self, operator: str, left: C, right: C) -> C:
        """Return an integer that wraps around at 32 bits; of a division by 0, NULL."""

    def cast(self, value: C, source: type, target: type) -> C:
        """Return values of another type; NULL if they cannot be cast."""

    def like(self, value: C, tokens: list[str]) -> C:
        """Return whether texts match the elements of a pattern."""

    def contains(self, values: list[Any], value: C) -> C:
        """Return whether values are among constants of their type."""

    def call(self, name: str, arguments: list[C]) -> C:
        """
        Return the result of a function of texts, or of ABS; NULL for an error.

        Raises:
            UntranslatableError: The library has no such function of these arguments.
        """


def translated(node: Node, columns: Columns[C]) -> C:
    """
    Return the column that is true for events that pass.

    Raises:
        UntranslatableError: A part has no equivalent.
    """
    translation = _Translation(columns)
    value, kind = (translation.conjunction(node), bool) if _is_conjunction(node) else translation.of(node)
    return value if kind is bool else columns.literal(False)


def _is_conjunction(node: Node) -> bool:
    return isinstance(node, Logic) and node.operators[0] == "AND"


def _check_chain(parts: tuple[Node, ...]) -> None:
    if len(parts) > _MAX_CHAIN:
        raise UntranslatableError(f"a chain or a set must have at most {_MAX_CHAIN} parts in columns, has {len(parts)}")


class _Translation:
    """The translation of the parts of an expression; each is a column and its type."""

    def __init__(self, columns: Columns[Any]) -> None:
        self._columns = columns

    def of(self, node: Node) -> tuple[Any, type]:
        columns = self._columns
        match node:
            case Literal(value=value):
                return columns.literal(value), type(value)
            case Attribute(name="data"):
                return columns.literal(None), bool
            case Attribute(name=name):
                return columns.attribute(name)
            case Exists(name=name):
                return columns.literal(False) if name == "data" else columns.exists(name), bool
            case Unary(operator="NOT", operand=operand):
                return columns.invert(self.cast(operand, bool)), bool
            case Unary(operand=operand):
                return columns.calculate("-", columns.literal(0), self.cast(operand, int)), int
            case Binary():
                return self.binary(node)
            case Logic():
                return self.logic(node), bool
            case Like(operand=operand, pattern=pattern, negated=negated):
                found = columns.like(self.cast(operand, str), tokens(pattern))
                return columns.invert(found) if negated else found, bool
            case In():
                return self.contains(node), bool
            case Call():
                return self.call(node)

    def conjunction(self, node: Node) -> Any:
        """
        Return a condition of which only the true rows count.

        Its parts remain separate, so that the library can use each for itself, such as for the statistics of a file.
        """
        if not isinstance(node, Logic) or not _is_conjunction(node):
            return self.cast(node, bool)
        _check_chain(node.operands)
        count = next((at for at, operator in enumerate(node.operators) if operator != "AND"), len(node.operators))
        *parts, last = node.operands[: count + 1]
        if count < len(node.operators):
            last = Logic(node.position, node.operators[count:], node.operands[count:])
        return reduce(self._columns.both, map(self.conjunction, (*parts, last)))

    def cast(self, node: Node, target: type) -> Any:
        value, kind = self.of(node)
        return value if kind is target else self._columns.cast(value, kind, target)

    def binary(self, node: Binary) -> tuple[Any, type]:
        columns, operator = self._columns, node.operator
        if operator in ("=", "!="):
            right, kind = self.of(node.right)
            equal = columns.compare("=", self.cast(node.left, kind), right)
            return equal if operator == "=" else columns.invert(equal), bool
        left, right = self.cast(node.left, int), self.cast(node.right, int)
        if operator in COMPARISONS:
            return columns.compare(operator, left, right), bool
        return columns.calculate(operator, left, right), int

    def logic(self, node: Logic) -> Any:
        columns = self._columns
        _check_chain(node.operands)
        *operands, result = [self.cast(operand, bool) for operand in node.operands]
        for operator, operand in zip(reversed(node.operators), reversed(operands), strict=True):
            if operator == "AND":
                result = columns.choose(operand, result, columns.literal(False))
            elif operator == "OR":
                result = columns.choose(operand, columns.literal(True), result)
            else:
                result = columns.invert(columns.compare("=", operand, result))
        return result

    def contains(self, node: In) -> Any:
        columns = self._columns
        value, kind = self.of(node.operand)
        literals = [cast(element.value, kind) for element in node.elements if isinstance(element, Literal)]
        if len(literals) == len(node.elements) and None not in literals:
            found = columns.contains(literals, value)
            return columns.invert(found) if node.negated else found
        _check_chain(node.elements)
        result = columns.choose(columns.is_valid(value), columns.literal(False), columns.literal(None))
        for element in reversed(node.elements):
            equal = columns.compare("=", value, self.cast(element, kind))
            result = columns.choose(equal, columns.literal(True), result)
        return columns.invert(result) if node.negated else result

    def call(self, node: Call) -> tuple[Any, type]:
        columns, function, name = self._columns, node.function, node.name
        if function is None:
            return columns.literal(None), bool
        if not function.is_built_in:
            raise UntranslatableError(f"{name} is a function of the program")
        if name in _CASTS:
            return self.cast(node.arguments[0], _CASTS[name]), _CASTS[name]
        if name in _CHECKS:
            value, kind = self.of(node.arguments[0])
            valid = columns.is_valid(value if kind is _CHECKS[name] else columns.cast(value, kind, _CHECKS[name]))
            return columns.choose(columns.is_valid(value), valid, columns.literal(None)), bool
        if name == "MATCHES":
            value, kind = self.of(node.arguments[0])
            passes = columns.choose(columns.is_valid(value), value, columns.literal(False))
            return passes if kind is bool else columns.literal(False), bool
        types = [function.type_of(index) for index in range(len(node.arguments))]
        arguments = [self.cast(argument, kind) for argument, kind in zip(node.arguments, types, strict=True)]
        result = columns.call(name, arguments)
        if name in ("CONCAT", "CONCAT_WS"):
            fits = columns.compare("<=", columns.call("LENGTH", [result]), columns.literal(MAX_STRING))
            result = columns.choose(fits, result, columns.literal(None))
        return result, function.result
