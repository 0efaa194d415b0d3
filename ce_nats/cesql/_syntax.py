"""
Syntax of CESQL: nodes of expressions, their canonical text, and the parser.

CESQL 2 and 3.6. The parser climbs precedences, in linear time. A parser generator with the grammar of the
specification would be larger and slower, and would read ``1-1`` as two numbers, as the lexer there does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Final, TypeAlias

from ..errors import preview
from ._functions import FUNCTION_NAME, Function, Functions, Value, cast

# Characters of a text, and levels of a tree: recursion in the parser, the evaluation and translations is bounded by it.
MAX_TEXT: Final = 2**17
MAX_DEPTH: Final = 64

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_TOKEN: Final = re.compile(
    r"""'[^'\\]*(?:\\.[^'\\]*)*' | "[^"\\]*(?:\\.[^"\\]*)*" | [A-Za-z0-9_]+ | <> | [!<>]= | [=<>+\-*/%(),] | \Z""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPED: Final = {quote: re.compile(rf"\\(?:({quote})|.)", re.DOTALL) for quote in "'\""}
ATTRIBUTE: Final = re.compile("[A-Za-z0-9]*[A-Za-z][A-Za-z0-9]*")
# Precedences. A chain of AND, OR and XOR is one node; LIKE and IN follow their operand.
_LOGIC, _COMPARISON, _ADDITIVE, _MULTIPLICATIVE, _POSTFIX, _UNARY, _ATOM = range(1, 8)
_LEVELS: Final = {
    **dict.fromkeys(("AND", "OR", "XOR"), _LOGIC),
    **dict.fromkeys(("=", "!=", "<>", "<", "<=", ">", ">="), _COMPARISON),
    **dict.fromkeys(("+", "-"), _ADDITIVE),
    **dict.fromkeys(("*", "/", "%"), _MULTIPLICATIVE),
    **dict.fromkeys(("NOT", "LIKE", "IN"), _POSTFIX),
}
_KEYWORDS: Final = frozenset({"AND", "OR", "XOR", "NOT", "LIKE", "IN", "EXISTS", "TRUE", "FALSE"})


class ParseError(ValueError):
    """
    A text is not an expression of CESQL.

    Attributes:
        position: Characters before the fault.
        expected: What was expected instead.
    """

    def __init__(self, position: int, expected: str, got: str) -> None:
        super().__init__(position, expected, got)
        self.position = position
        self.expected = expected

    def __str__(self) -> str:
        return "expected {1} at position {0}, got {2}".format(*self.args)


@dataclass(frozen=True)
class _Node:
    """
    A part of an expression. Two are equal if their texts differ in layout only.

    Attributes:
        position: Characters of the text before its operator, name or value.
    """

    position: int = field(compare=False)
    level: ClassVar[int] = _ATOM

    @property
    def children(self) -> Iterator[Node]:
        """Parts of this part, from left to right."""
        for value in vars(self).values():
            yield from value if isinstance(value, tuple) and value and isinstance(value[0], _Node) else ()
            if isinstance(value, _Node):
                yield value  # type: ignore[misc]


@dataclass(frozen=True)
class Literal(_Node):
    """A string, an integer or a Boolean."""

    value: Value

    def __str__(self) -> str:
        return quoted(self.value) if isinstance(self.value, str) else str(self.value).upper()


@dataclass(frozen=True)
class Attribute(_Node):
    """The value of an attribute."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Exists(_Node):
    """Whether the event has an attribute."""

    name: str
    level = _UNARY

    def __str__(self) -> str:
        return f"EXISTS {self.name}"


@dataclass(frozen=True)
class Unary(_Node):
    """``NOT`` or ``-``."""

    operator: str
    operand: Node
    level = _UNARY

    def __str__(self) -> str:
        text = _within(self.operand, _UNARY)
        if self.operator == "-":
            return f"-({text})" if text[0].isdigit() else f"-{text}"
        return f"NOT {text}"


@dataclass(frozen=True)
class Binary(_Node):
    """An operator of arithmetic or a comparison; ``<>`` is ``!=``."""

    operator: str
    left: Node
    right: Node

    @property
    def level(self) -> int:  # type: ignore[override]
        return _LEVELS[self.operator]

    def __str__(self) -> str:
        return f"{_within(self.left, self.level)} {self.operator} {_within(self.right, self.level + 1)}"


@dataclass(frozen=True)
class Logic(_Node):
    """A chain of ``AND``, ``OR`` and ``XOR``, which associates to the right; operators are between operands."""

    operators: tuple[str, ...]
    operands: tuple[Node, ...]
    level = _LOGIC

    def __str__(self) -> str:
        # Parentheses before another operator: a reader may expect AND before OR, or the left before the right.
        text = _within(self.operands[0], _COMPARISON)
        following = (*self.operators[1:], self.operators[-1])
        changes = [one != other for one, other in zip(self.operators, following, strict=True)]
        for operator, operand, changes_after in zip(self.operators, self.operands[1:], changes, strict=True):
            text += f" {operator} {'(' * changes_after}{_within(operand, _COMPARISON)}"
        return text + ")" * sum(changes)


@dataclass(frozen=True)
class Like(_Node):
    """``LIKE`` or ``NOT LIKE``."""

    operand: Node
    pattern: str
    negated: bool
    level = _POSTFIX

    def __str__(self) -> str:
        return f"{_within(self.operand, _POSTFIX)} {'NOT ' * self.negated}LIKE {quoted(self.pattern)}"


@dataclass(frozen=True)
class In(_Node):
    """``IN`` or ``NOT IN``."""

    operand: Node
    elements: tuple[Node, ...]
    negated: bool
    level = _POSTFIX

    def __str__(self) -> str:
        return f"{_within(self.operand, _POSTFIX)} {'NOT ' * self.negated}IN ({', '.join(map(str, self.elements))})"


@dataclass(frozen=True)
class Call(_Node):
    """A call of a function; None if no function has the name and accepts as many arguments."""

    name: str
    arguments: tuple[Node, ...]
    function: Function | None

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"


Node: TypeAlias = Literal | Attribute | Exists | Unary | Binary | Logic | Like | In | Call


def walk(node: Node) -> Iterator[Node]:
    """Return a node and all parts of it, from left to right."""
    yield node
    for child in node.children:
        yield from walk(child)


def quoted(value: str) -> str:
    """
    Return a string as a literal.

    Raises:
        ValueError: No literal has this value: a backslash at its end, or before both kinds of quotes.
    """
    for quote in "'\"":
        text = quote + value.replace(quote, "\\" + quote) + quote
        if _TOKEN.fullmatch(text) and _unquoted(text) == value:
            return text
    raise ValueError(f"CESQL has no literal for {preview(value)}")


def _unquoted(text: str) -> str:
    r"""Return the value of a literal: only ``\'``, or ``\"`` in double quotes, is an escape."""
    return _ESCAPED[text[0]].sub(lambda found: found[1] or found[0], text[1:-1])


def _within(node: Node, level: int) -> str:
    """Return the text of an operand, in parentheses if its precedence is lower."""
    return str(node) if node.level >= level else f"({node})"


def parse(text: str, functions: Functions) -> Node:
    """
    Return the tree of an expression.

    Raises:
        ParseError: The text is not an expression, too long or nested too deeply.
    """
    if len(text) > MAX_TEXT:
        raise ParseError(MAX_TEXT, "the end of the text", f"{len(text):,} characters")
    parser = _Parser(text, functions)
    node, _ = parser.expression(_LOGIC)
    if parser.token:
        raise parser.error("an operator or the end")
    return node


class _Parser:
    """
    A text and the next token in it. Methods that read a node return it and its depth.

    Attributes:
        token: Text of the token, with its quotes; keywords in upper case, empty at the end.
        start: Position of the token.
    """

    token = ""

    def __init__(self, text: str, functions: Functions) -> None:
        self.text = text
        self.functions = functions
        self.nesting = 0
        self.end = 0
        self.advance()

    def advance(self) -> str:
        """Go to the next token; return the last one."""
        last = self.token
        self.start = _SPACE.match(self.text, self.end).end()  # type: ignore[union-attr]
        found = _TOKEN.match(self.text, self.start)
        if found is None:
            self.token = self.text[self.start :]
            raise self.error("a closing quote" if self.token[0] in "'\"" else "a token")
        self.token, self.end = found[0], found.end()
        if self.token.upper() in _KEYWORDS:
            self.token = self.token.upper()
        return last

    def error(self, expected: str) -> ParseError:
        """Return the error for the token."""
        return ParseError(self.start, expected, preview(self.token[:40]) if self.token else "the end")

    def expect(self, token: str) -> None:
        """Go past a token."""
        if self.token != token:
            raise self.error(repr(token))
        self.advance()

    def deeper(self, depth: int) -> int:
        """Return the depth of a node above one of a depth."""
        if depth >= MAX_DEPTH:
            raise ParseError(self.start, f"at most {MAX_DEPTH} levels", "a deeper expression")
        return depth + 1

    def nested(self, level: int = _LOGIC) -> tuple[Node, int]:
        """Read an expression, or the operand of a unary operator, within another expression."""
        self.nesting = self.deeper(self.nesting)
        found = self.operand() if level == _UNARY else self.expression(level)
        self.nesting -= 1
        return found

    def expression(self, level: int) -> tuple[Node, int]:
        """Read an expression whose operators have at least a precedence."""
        node, depth = self.operand()
        while (found := _LEVELS.get(self.token, 0)) >= level:
            start, operator = self.start, self.token
            if found == _LOGIC:
                node, depth = self.logic(node, depth)
            elif found == _POSTFIX:
                node, depth = self.postfix(node, depth)
            else:
                self.advance()
                right, right_depth = self.expression(found + 1)
                node = Binary(start, "!=" if operator == "<>" else operator, node, right)
                depth = self.deeper(max(depth, right_depth))
        return node, depth

    def logic(self, first: Node, depth: int) -> tuple[Node, int]:
        """Read the rest of a chain of AND, OR and XOR."""
        start = self.start
        operands, operators = [first], []
        while _LEVELS.get(self.token) == _LOGIC:
            operators.append(self.advance())
            operand, operand_depth = self.expression(_COMPARISON)
            operands.append(operand)
            depth = max(depth, operand_depth)
        if isinstance(operand, Logic):  # a AND (b OR c) is a AND b OR c
            operands[-1:] = operand.operands
            operators += operand.operators
        depth += sum(one != other for one, other in pairwise(operators))
        return Logic(start, tuple(operators), tuple(operands)), self.deeper(depth)

    def postfix(self, operand: Node, depth: int) -> tuple[Node, int]:
        """Read LIKE or IN, with NOT or without, and what follows it."""
        start = self.start
        negated = self.token == "NOT" and bool(self.advance())
        if self.token == "LIKE":
            self.advance()
            if self.token[:1] not in _ESCAPED:
                raise self.error("a string as the pattern")
            return Like(start, operand, _unquoted(self.advance()), negated), self.deeper(depth)
        if self.token != "IN":
            raise self.error("LIKE or IN")
        self.advance()
        self.expect("(")
        elements, elements_depth = self.several()
        return In(start, operand, elements, negated), self.deeper(max(depth, elements_depth))

    def several(self) -> tuple[tuple[Node, ...], int]:
        """Read one expression or more, and go past the closing parenthesis."""
        read = [self.nested()]
        while self.token == ",":
            self.advance()
            read.append(self.nested())
        self.expect(")")
        return tuple(node for node, _ in read), max(depth for _, depth in read)

    def operand(self) -> tuple[Node, int]:
        """Read a value, a call, a unary operator with its operand, or an expression in parentheses."""
        start, token = self.start, self.token
        if token[:1] in _ESCAPED:
            return Literal(start, _unquoted(self.advance())), 1
        if token == "(":
            self.advance()
            found = self.nested()
            self.expect(")")
            return found
        if token.isdigit() or (token in ("+", "-") and self.text[start + 1 : start + 2].isdigit()):
            return self.integer(), 1
        if token in ("-", "NOT"):
            self.advance()
            node, depth = self.nested(level=_UNARY)
            return Unary(start, token, node), self.deeper(depth)
        if token in ("TRUE", "FALSE"):
            return Literal(start, self.advance() == "TRUE"), 1
        if token == "EXISTS":
            self.advance()
            return Exists(start, self.attribute()), 1
        if FUNCTION_NAME.fullmatch(token) and token not in _KEYWORDS:
            follows = _SPACE.match(self.text, self.end).end()  # type: ignore[union-attr]
            if self.text.startswith("(", follows):
                return self.call()
        return Attribute(start, self.attribute()), 1

    def integer(self) -> Literal:
        """Read an integer, with a sign or without."""
        start = self.start
        text = self.advance()
        if text in ("+", "-"):
            text += self.advance()
        number = cast(text, int)
        if number is None:
            raise ParseError(start, "an integer of 32 bits", preview(text[:40]))
        return Literal(start, number)

    def attribute(self) -> str:
        """Read the name of an attribute."""
        if not ATTRIBUTE.fullmatch(self.token) or self.token in _KEYWORDS:
            raise self.error("a value" if self.token[:1] in "(),=<>!*/%+" else "the name of an attribute")
        return self.advance().lower()

    def call(self) -> tuple[Node, int]:
        """Read a call of a function."""
        start, name = self.start, self.advance().upper()
        self.advance()
        arguments: tuple[Node, ...] = ()
        depth = 0
        if self.token == ")":
            self.advance()
        else:
            arguments, depth = self.several()
        return Call(start, name, arguments, self.functions._find(name, len(arguments))), self.deeper(depth)
