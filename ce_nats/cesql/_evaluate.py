"""
Evaluation of CESQL: a tree becomes one function of the attributes.

CESQL 3. Each function gets the attributes of an event and a function to report errors to, which returns the value that
the language gives to the failed part (complete evaluation), or raises :class:`StopError` (fail fast).
"""

from __future__ import annotations

import operator as operators
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

from ..codec.attributes import REQUIRED, canonical
from ..errors import CeNatsError, preview
from . import _like
from ._functions import TYPE_NAMES, ErrorKind, Function, FunctionError, Value, cast, wrapped
from ._syntax import Attribute, Binary, Call, Exists, In, Like, Literal, Logic, Node, Unary


@dataclass(frozen=True, slots=True)
class EvaluationError:
    """
    An error of an evaluation.

    Attributes:
        kind: ``math``, ``cast``, ``missing-attribute``, ``missing-function``, ``function-evaluation`` or ``generic``
            (CESQL 3.3).
        position: Characters of the expression before the part at fault.
        message: A sentence for humans.
    """

    kind: ErrorKind
    position: int
    message: str

    def __str__(self) -> str:
        return f"{self.kind} at position {self.position}: {self.message}"


class StopError(Exception):
    """The end of an evaluation at its first error; ``value`` is that of the failed part."""

    def __init__(self, error: EvaluationError, value: Any) -> None:
        self.error = error
        self.value = value


Attributes: TypeAlias = Mapping[str, Any]
Fail: TypeAlias = Callable[[EvaluationError, Any], Any]
Evaluate: TypeAlias = Callable[[Attributes, Fail], Any]

# The value of a missing attribute: the operator that wants it yields the zero value of its type (CESQL 3.2).
MISSING: Final = object()

COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operators.lt,
    "<=": operators.le,
    ">": operators.gt,
    ">=": operators.ge,
}


def _quotient(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def _remainder(x: int, y: int) -> int:
    return abs(x) % abs(y) * (-1 if x < 0 else 1)


_ARITHMETIC: Final[dict[str, Callable[[int, int], int]]] = {
    "+": operators.add,
    "-": operators.sub,
    "*": operators.mul,
    "/": _quotient,
    "%": _remainder,
}


def type_of(node: Node) -> type | None:
    """Return the type of an expression; None for an attribute, whose value decides."""
    match node:
        case Literal(value=value):
            return type(value)
        case Attribute():
            return None
        case Call(function=Function(result=result)):
            return result
        case Unary(operator="-") | Binary(operator="+" | "-" | "*" | "/" | "%"):
            return int
        case _:
            return bool


def zero(node: Node) -> Value:
    """Return the zero value of the type of an expression; an unknown type is Boolean (CESQL 3.2)."""
    return (type_of(node) or bool)()  # type: ignore[no-any-return]


def compiled(node: Node) -> Evaluate:
    """Return the function that evaluates a tree; a missing attribute that is the whole tree is ``MISSING``."""
    match node:
        case Literal(value=value):
            return lambda attributes, fail: value
        case Attribute():
            return _attribute(node)
        case Exists(name=name):
            if name in REQUIRED:
                return lambda attributes, fail: True
            return lambda attributes, fail: name != "data" and attributes.get(name) is not None
        case Unary():
            return _unary(node)
        case Binary(operator="=" | "!="):
            return _equality(node)
        case Binary():
            return _integers(node)
        case Logic():
            return _logic(node)
        case Like():
            return _like_operator(node)
        case In():
            return _in_operator(node)
        case Call():
            return _call(node)


def _attribute(node: Attribute) -> Evaluate:
    name = node.name
    reason = "the data of events cannot be read" if name == "data" else f"the event has no attribute {name}"
    missing = EvaluationError("missing-attribute", node.position, reason)
    if name == "data":
        return lambda attributes, fail: fail(missing, MISSING)

    def evaluate(attributes: Attributes, fail: Fail) -> Any:
        value: Any = attributes.get(name)
        kind = value.__class__
        if kind is str or kind is bool or (kind is int and -0x80000000 <= value <= 0x7FFFFFFF):
            return value
        if value is None:
            return fail(missing, MISSING)
        try:
            text = canonical(value, name)
        except CeNatsError as error:
            return fail(EvaluationError("generic", node.position, str(error)), MISSING)
        return int(text) if isinstance(value, int) else text

    return evaluate


def _operand(node: Node, target: type) -> Evaluate:
    """Return the function that evaluates an operand and casts it; a missing attribute stays ``MISSING``."""
    evaluate = compiled(node)
    if type_of(node) is target:
        return evaluate

    def evaluate_and_cast(attributes: Attributes, fail: Fail) -> Any:
        value = evaluate(attributes, fail)
        return value if value.__class__ is target else _cast(value, target, node, fail)

    return evaluate_and_cast


def _cast(value: Any, target: type, node: Node, fail: Fail) -> Any:
    """Cast the value of a node; the zero value and an error if it cannot be cast."""
    if value is MISSING:
        return MISSING
    result = cast(value, target)
    if result is None:
        message = f"{preview(value)} is not {TYPE_NAMES[target]}"
        return fail(EvaluationError("cast", node.position, message), target())
    return result


def _unary(node: Unary) -> Evaluate:
    if node.operator == "NOT":
        truth = _operand(node.operand, bool)
        return lambda attributes, fail: truth(attributes, fail) is False
    number = _operand(node.operand, int)

    def negate(attributes: Attributes, fail: Fail) -> Any:
        value = number(attributes, fail)
        return 0 if value is MISSING else wrapped(-value)

    return negate


def _equality(node: Binary) -> Evaluate:
    left, right = compiled(node.left), compiled(node.right)
    equal = node.operator == "="

    def evaluate(attributes: Attributes, fail: Fail) -> bool:
        x = left(attributes, fail)
        y = right(attributes, fail)
        if x.__class__ is not y.__class__ or x is MISSING:
            if x is MISSING or y is MISSING:
                return False
            x = _cast(x, y.__class__, node.left, fail)
        return (x == y) is equal

    return evaluate


def _integers(node: Binary) -> Evaluate:
    left, right = _operand(node.left, int), _operand(node.right, int)
    if node.operator in COMPARISONS:
        compare = COMPARISONS[node.operator]

        def comparison(attributes: Attributes, fail: Fail) -> bool:
            x = left(attributes, fail)
            y = right(attributes, fail)
            return False if x is MISSING or y is MISSING else compare(x, y)

        return comparison
    calculate = _ARITHMETIC[node.operator]
    divides = node.operator in "/%"

    def arithmetic(attributes: Attributes, fail: Fail) -> Any:
        x = left(attributes, fail)
        y = right(attributes, fail)
        if x is MISSING or y is MISSING:
            return 0
        if divides and y == 0:
            return fail(EvaluationError("math", node.position, "division by zero"), 0)
        return wrapped(calculate(x, y))

    return arithmetic


def _logic(node: Logic) -> Evaluate:
    operands = [_operand(operand, bool) for operand in node.operands]
    if len(set(node.operators)) > 1 or node.operators[0] == "XOR":
        return _mixed_logic(node.operators, operands)
    going_on = node.operators[0] == "AND"  # the value after which the right operand is evaluated

    def evaluate(attributes: Attributes, fail: Fail) -> bool:
        for operand in operands:
            value = operand(attributes, fail)
            if value is not going_on:
                return value is True
        return going_on

    return evaluate


def _mixed_logic(operators: tuple[str, ...], operands: list[Evaluate]) -> Evaluate:
    # Each operand, the value that decides its operator, and whether it is one of XOR, or the last.
    deciding = {"AND": False, "OR": True}
    steps = [
        (operand, deciding.get(operator), operator in ("XOR", ""), operator == "")
        for operand, operator in zip(operands, (*operators, ""), strict=True)
    ]

    def evaluate(attributes: Attributes, fail: Fail) -> bool:
        # The value is "flips XOR rest"; "before" is without the last operand of XOR.
        flips = before = False
        for operand, decides, can_flip, is_last in steps:
            value = operand(attributes, fail)
            if value is MISSING:
                return before if is_last else flips
            if value is decides:
                return flips is not value
            before = flips
            if can_flip:
                flips = flips is not value
        return flips

    return evaluate


def _like_operator(node: Like) -> Evaluate:
    operand = _operand(node.operand, str)
    matches = _like.matcher(node.pattern)
    wanted = not node.negated

    def evaluate(attributes: Attributes, fail: Fail) -> bool:
        value = operand(attributes, fail)
        return value is not MISSING and matches(value) is wanted

    return evaluate


def _in_operator(node: In) -> Evaluate:
    operand = compiled(node.operand)
    elements = [(element, compiled(element)) for element in node.elements]
    wanted = not node.negated
    # Strings of a set of literals: casts to String cannot fail.
    literals = [element.value for element in node.elements if isinstance(element, Literal)]
    strings = {cast(value, str) for value in literals} if len(literals) == len(elements) else None

    def evaluate(attributes: Attributes, fail: Fail) -> bool:
        x = operand(attributes, fail)
        if strings is not None and x.__class__ is str:
            return (x in strings) is wanted
        if x is MISSING:
            return False
        for element, evaluate_element in elements:
            y = _cast(evaluate_element(attributes, fail), x.__class__, element, fail)
            if y is MISSING:
                return False
            if x == y:
                return wanted
        return not wanted

    return evaluate


def stop(error: EvaluationError, value: Any) -> NoReturn:
    """Report an error by ending the evaluation."""
    raise StopError(error, value)


def _passes(condition: Evaluate) -> Evaluate:
    """Return the function MATCHES: whether the value is the Boolean true, without errors."""

    def evaluate(attributes: Attributes, fail: Fail) -> bool:
        try:
            return condition(attributes, stop) is True
        except StopError:
            return False

    return evaluate


def _call(node: Call) -> Evaluate:
    function = node.function
    if function is None:
        message = f"no function {node.name} accepts {len(node.arguments)} arguments"
        unknown = EvaluationError("missing-function", node.position, message)
        return lambda attributes, fail: fail(unknown, False)
    if node.name == "MATCHES":
        return _passes(compiled(node.arguments[0]))
    types = [function.type_of(index) for index in range(len(node.arguments))]
    arguments = [
        compiled(argument) if target is object else _operand(argument, target)
        for argument, target in zip(node.arguments, types, strict=True)
    ]
    call, result = function.call, function.result

    def evaluate(attributes: Attributes, fail: Fail) -> Any:
        values = [argument(attributes, fail) for argument in arguments]
        if MISSING in values:
            return result()
        kind: ErrorKind = "function-evaluation"
        value = None
        try:
            value = call(*values)
            problem = "" if value.__class__ is result else f"{node.name} returned {preview(value)}"
        except FunctionError as error:
            kind, value, problem = error.kind, error.value, str(error)
        except Exception as error:
            problem = f"{node.name} raised {type(error).__name__}: {error}"
        if value.__class__ is result and result is int and wrapped(value) != value:  # type: ignore[arg-type]
            problem = f"{node.name} returned {preview(value)}"
            value = None
        if not problem:
            return value
        return fail(EvaluationError(kind, node.position, problem), value if value.__class__ is result else result())

    return evaluate
