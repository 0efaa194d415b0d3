"""Generate the mutants of a Python source file: each differs in one operator, constant, condition or statement."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from typing import Final

MODULE: Final = "<module>"

_COMPARISONS: Final = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_ARITHMETIC: Final = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
# Three words make a sentence: text for people, whose wording no program depends on.
PROSE: Final = re.compile(r"\w+ \w+ \w+")
# Functions for which the order of arguments does not matter.
_COMMUTATIVE: Final = {"max", "min"}
# Python also knows UTF-8 as "utf-".
_UTF8: Final = "utf-8"
# Calls whose arguments only type checkers read.
_TYPING: Final = {"cast", "TypeVar", "NewType", "ParamSpec"}


@dataclass(frozen=True)
class Mutant:
    """
    One changed version of a file.

    Attributes:
        path: The file, relative to the root of the project.
        function: Qualified name of the function or class with the change, or ``<module>``.
        operator: Kind of the change.
        line: Line number.
        before: The changed lines of the file, without indentation.
        after: The same lines of the mutant.
        source: The whole text of the mutant.
    """

    path: str
    function: str
    operator: str
    line: int
    before: str
    after: str
    source: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What identifies the mutant when other lines of the file change."""
        return self.path, self.function, self.before, self.after

    def __str__(self) -> str:
        return f"{self.path}:{self.line} in {self.function} ({self.operator})"

    def diff(self, original: str) -> str:
        lines = unified_diff(original.splitlines(), self.source.splitlines(), n=2, lineterm="")
        return "\n".join(list(lines)[2:])


def python_mutants(path: str, source: str) -> list[Mutant]:
    """
    Return all mutants of a Python file, in the order of the text, without two of the same text.

    Strings in ``raise`` statements, f-strings, sentences, docstrings, annotations, decorators and what only type
    checkers read are not changed.
    """
    mutants: dict[str, Mutant] = {}
    tree = ast.parse(source)
    visitor = _Visitor(source)
    for statement in tree.body:
        start, end = visitor.lines_of(statement)
        expected = ast.dump(ast.parse(source[start:end]))
        for edit in sorted(visitor.edits(statement)):
            text = edit.applied(source)
            changed = text[start : end + len(text) - len(source)]
            if text not in mutants and _is_another_program(changed, expected):
                mutants[text] = make(path, source, text, edit.function, edit.operator)
    return list(mutants.values())


def make(path: str, source: str, mutated: str, function: str, operator: str) -> Mutant:
    """Return a mutant; the changed lines are those between the first and the last that differ."""
    old, new = source.splitlines(), mutated.splitlines()
    first = next((at for at, (one, other) in enumerate(zip(old, new)) if one != other), min(len(old), len(new)))
    rest = min(len(old), len(new)) - first
    last = next((at for at in range(rest) if old[-1 - at] != new[-1 - at]), rest)
    before, after = (_joined(lines[first : len(lines) - last]) for lines in (old, new))
    return Mutant(path, function, operator, first + 1, before, after, mutated)


def _joined(lines: list[str]) -> str:
    return " ".join(stripped for line in lines if (stripped := line.strip()))


def _is_another_program(text: str, original: str) -> bool:
    try:
        return ast.dump(ast.parse(text)) != original
    except SyntaxError:
        return False


@dataclass(frozen=True, order=True)
class Edit:
    """A replacement of the text between two indexes of a source, within a function."""

    start: int
    end: int
    text: str
    operator: str
    function: str

    def applied(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


class _Visitor:
    """Walks a tree, and collects edits of its text."""

    def __init__(self, source: str) -> None:
        self._source = source
        lines = source.splitlines(keepends=True)
        self._lines = [line.encode() for line in lines]
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))
        self._function: tuple[str, ...] = ()
        self._in_raise = False

    def lines_of(self, statement: ast.stmt) -> tuple[int, int]:
        """Return where the lines of a statement of the module begin and end; other statements need not be parsed."""
        assert statement.end_lineno is not None
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
        return self._starts[first - 1], self._starts[statement.end_lineno]

    def edits(self, tree: ast.AST) -> Iterator[Edit]:
        """Yield the edits of a node and of all nodes below."""
        if isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from self._of_definition(tree)
            return
        if self._is_skipped(tree):
            return
        outer, self._in_raise = self._in_raise, self._in_raise or isinstance(tree, ast.Raise)
        yield from self._of_node(tree)
        for child in self._children(tree):
            yield from self.edits(child)
        self._in_raise = outer

    def _of_definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Iterator[Edit]:
        if any(_name(decorator) == "overload" for decorator in node.decorator_list):
            return
        outer, self._function = self._function, (*self._function, node.name)
        if not isinstance(node, ast.ClassDef):
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    yield from self.edits(default)
        for statement in node.body:
            yield from self.edits(statement)
        self._function = outer

    @staticmethod
    def _is_skipped(node: ast.AST) -> bool:
        if isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING":
            return True
        if isinstance(node, ast.Assign) and _name(node.targets[0]) == "__all__":
            return True
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return True  # a docstring, or ...
        if isinstance(node, ast.AnnAssign) and _name(node.annotation) == "TypeAlias":
            return True
        is_typing = isinstance(node, ast.Call) and _name(node.func) in _TYPING
        # Before Python 3.12, nodes in f-strings have no usable positions.
        return is_typing or isinstance(node, (ast.JoinedStr, ast.Import, ast.ImportFrom))

    @staticmethod
    def _children(node: ast.AST) -> Iterator[ast.AST]:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_comment"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield child

    def _of_node(self, node: ast.AST) -> Iterator[Edit]:
        if isinstance(node, ast.Compare):
            yield from self._of_comparison(node)
        elif isinstance(node, ast.BoolOp):
            yield from self._of_boolean(node)
        elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            old, new = _ARITHMETIC[type(node.op)]
            yield from self._between(node.left, node.right, old, new, "arithmetic")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield self._edit(node, f"({self._text(node.operand)})", "removed not")
        elif isinstance(node, ast.Constant):
            yield from self._of_constant(node)
        elif isinstance(node, ast.Call):
            yield from self._of_call(node)
        elif isinstance(node, ast.stmt):
            yield from self._of_statement(node)
        for condition in _conditions(node):
            if not isinstance(condition, (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Constant)):
                yield self._edit(condition, f"not ({self._text(condition)})", "negated condition")

    def _of_comparison(self, node: ast.Compare) -> Iterator[Edit]:
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:]):
            old, new = _COMPARISONS[type(operator)]
            yield from self._between(left, right, old, new, "comparison")

    def _of_boolean(self, node: ast.BoolOp) -> Iterator[Edit]:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:]):
            yield from self._between(left, right, old, new, "boolean")

    def _of_constant(self, node: ast.Constant) -> Iterator[Edit]:
        value = node.value
        if isinstance(value, bool):
            yield self._edit(node, str(not value), "constant")
        elif isinstance(value, (int, float)):
            yield self._edit(node, f"{value + 1}", "constant")
            yield self._edit(node, f"{value - 1}" if value >= 1 else f"({value - 1})", "constant")
        elif isinstance(value, str):
            if not self._in_raise and not PROSE.search(value) and value != _UTF8:
                yield self._edit(node, repr(value[:-1] or "mutant"), "string")
        elif isinstance(value, bytes):
            yield self._edit(node, repr(value[:-1] or b"mutant"), "string")

    def _of_call(self, node: ast.Call) -> Iterator[Edit]:
        if isinstance(node.func, ast.Name) and node.func.id in _COMMUTATIVE:
            return
        for left, right in zip(node.args, node.args[1:]):
            if not isinstance(left, ast.Starred) and not isinstance(right, ast.Starred):
                text = f"{self._text(right)}, {self._text(left)}"
                yield self._edit(left, text, "swapped arguments", last=right)

    def _of_statement(self, node: ast.stmt) -> Iterator[Edit]:
        if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
            yield self._edit(node, "return None", "returned value")
        elif isinstance(node, ast.AugAssign):
            if type(node.op) in _ARITHMETIC:
                old, new = _ARITHMETIC[type(node.op)]
                yield from self._between(node.target, node.value, f"{old}=", f"{new}=", "arithmetic")
            yield self._edit(node, "pass", "removed statement")
        elif isinstance(node, (ast.Expr, ast.Raise, ast.Delete)) or (
            isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Attribute, ast.Subscript))
        ):
            yield self._edit(node, "pass", "removed statement")
        elif isinstance(node, (ast.Break, ast.Continue)):
            yield self._edit(node, "continue" if isinstance(node, ast.Break) else "break", "loop")

    def _between(self, left: ast.AST, right: ast.AST, old: str, new: str, operator: str) -> Iterator[Edit]:
        """Yield the edit of an operator between two operands, from which only parentheses and comments separate it."""
        start, end = self._span(left)[1], self._span(right)[0]
        gap = self._source[start:end]
        place = gap.find(old)
        if place >= 0 and "#" not in gap[:place]:
            yield Edit(start + place, start + place + len(old), new, operator, self._name())

    def _edit(self, node: ast.AST, text: str, operator: str, last: ast.AST | None = None) -> Edit:
        return Edit(self._span(node)[0], self._span(last or node)[1], text, operator, self._name())

    def _name(self) -> str:
        return ".".join(self._function) or MODULE

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._source[start:end]

    def _span(self, node: ast.AST) -> tuple[int, int]:
        """Return where the text of a node begins and ends; the positions of ast are in bytes of a line."""
        assert isinstance(node, (ast.expr, ast.stmt))
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._place(node.lineno, node.col_offset), self._place(node.end_lineno, node.end_col_offset)

    def _place(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1][:column].decode())


def _conditions(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        return [node.test]
    return list(node.ifs) if isinstance(node, ast.comprehension) else []


def _name(node: ast.AST) -> str:
    """Return the last part of a dotted name, ``""`` for other expressions."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
