"""
Generate the mutants of a Java source file, from its tokens.

Types are not known, so that some mutants do not compile; they do not count. Binary operators are recognized by the
spaces around them, which the style of the sources requires.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from .mutate import PROSE, Edit, Mutant, make

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)|(?P<block>\"{3}.*?\"{3})|(?P<string>"(?:\\.|[^"\\])*")|(?P<char>'(?:\\.|[^'\\])+')
    |(?P<number>0[xX][0-9A-Fa-f_]+[lL]?|[0-9][0-9_]*[lL]?)|(?P<word>[A-Za-z_$][\w$]*)
    |(?P<operator>>>>=|>>=|<<=|>>>|->|::|&&|\|\||\+\+|--|<<|>>|[-+*/%&|^=!<>]=|[-+*/%&|^=!<>?:~@(){}\[\];,.])""",
    re.VERBOSE | re.DOTALL,
)
_BINARY: Final = {
    "==": "!=",
    "!=": "==",
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "&&": "||",
    "||": "&&",
    "+": "-",
    "-": "+",
    "*": "/",
    "/": "*",
    "%": "*",
    "<<": ">>",
    ">>": "<<",
    ">>>": "<<",
    "&": "|",
    "|": "&",
    "^": "|",
    "+=": "-=",
    "-=": "+=",
    "|=": "&=",
    "&=": "|=",
}
_LOGICAL: Final = {"==", "!=", "<", "<=", ">", ">=", "&&", "||", "!", "instanceof"}
_BEFORE_CONDITION: Final = {"=", "return", "yield", "(", ",", ";", "{", "?", ":", "->", "+", "-", "*", "|", "&"}
_NO_STATEMENT: Final = {
    *("return", "yield", "if", "for", "while", "do", "try", "switch", "else", "case", "default", "throw", "break"),
    *("continue", "import", "package", "assert", "super"),
}
_NO_CALL: Final = {"if", "for", "while", "switch", "catch", "return", "record"}
_NUMBERS: Final = {"int", "long", "byte", "char", "short", "double"}
_DECLARATION: Final = re.compile(r"(?:final )?[\w.<>\[\], ?]*[\w>\]] \w+(?: =.*|;)?", re.DOTALL)
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "s": " "}
_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")


def java_mutants(path: str, source: str) -> list[Mutant]:
    """
    Return the mutants of a Java file, in the order of the text, without two of the same text.

    Sentences, texts of exceptions, annotations and version numbers of serialized classes are not changed.
    """
    mutants: dict[str, Mutant] = {}
    for edit in sorted(_Tokens(source).edits()):
        text = edit.applied(source)
        if text != source and text not in mutants:
            mutants[text] = make(path, source, text, edit.function, edit.operator)
    return list(mutants.values())


@dataclass(frozen=True)
class _Token:
    """
    A token, without white space and comments.

    Attributes:
        kind: Group of ``_TOKEN``.
        text: Its text.
        start: Index of its first character.
        is_spaced: Whether there is white space before and after it.
    """

    kind: str
    text: str
    start: int
    is_spaced: bool

    @property
    def end(self) -> int:
        return self.start + len(self.text)


class _Tokens:
    """The tokens of a file, and the edits of each."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._tokens = list(_tokens(source))
        self._partners = _partners(self._tokens)
        self._scopes = list(_scopes(self._tokens, self._partners))

    def edits(self) -> Iterator[Edit]:
        """Yield the edits of all tokens."""
        skipped_to = 0
        for at, token in enumerate(self._tokens):
            if at < skipped_to:
                continue
            if token.text in ("import", "package", "@") or self._begins_version(at):
                skipped_to = self._end_of_skipped(at)
                continue
            yield from self._of_token(at)
            if token.text == "throw":  # its text is for people
                skipped_to = self._end_of_statement(at) or at

    def _begins_version(self, at: int) -> bool:
        return any(token.text == "serialVersionUID" for token in self._tokens[at : at + 5]) and self._is_start(at)

    def _end_of_skipped(self, at: int) -> int:
        return at + 2 if self._text(at) == "@" else self._end_of_statement(at) or at + 1

    def _of_token(self, at: int) -> Iterator[Edit]:
        token = self._tokens[at]
        if token.kind == "operator":
            yield from self._of_operator(at)
        elif token.kind == "word":
            yield from self._of_word(at)
        elif token.kind == "number":
            yield from (self._replaced(at, at, text, "constant") for text in _other_numbers(token.text))
        elif token.kind == "char":
            code = _code(token.text)
            yield from (self._replaced(at, at, f"(char) {other}", "constant") for other in (code - 1, code + 1))
        elif token.kind == "string" and not PROSE.search(token.text):
            yield self._replaced(at, at, _shorter(token.text), "string")
        elif token.kind == "block":
            yield from self._of_block(at)
        if self._is_start(at) and self._scope(at)[1] is not None:
            yield from self._of_statement(at)

    def _of_operator(self, at: int) -> Iterator[Edit]:
        token = self._tokens[at]
        if token.is_spaced and token.text in _BINARY:
            yield self._replaced(at, at, _BINARY[token.text], "operator")
        elif token.text in ("++", "--"):
            yield self._replaced(at, at, "--" if token.text == "++" else "++", "operator")
        elif token.text in ("!", "-") and not token.is_spaced:
            yield self._replaced(at, at, "", "removed sign")
        elif token.text == "?" and token.is_spaced:
            yield from self._of_ternary(at)
        elif token.text == "(" and self._tokens[at - 1].kind == "word" and self._text(at - 1) not in _NO_CALL:
            yield from self._of_arguments(at)

    def _of_word(self, at: int) -> Iterator[Edit]:
        text = self._text(at)
        if text in ("true", "false"):
            yield self._replaced(at, at, "false" if text == "true" else "true", "constant")
        elif text in ("if", "while"):
            yield from self._negated(at + 2, self._partners[at + 1] - 1)
        elif text in ("return", "yield"):
            yield from self._of_return(at)
        elif text in ("break", "continue"):
            yield self._replaced(at, at, "continue" if text == "break" else "break", "loop")
        elif text == "throw":
            end = self._end_of_statement(at)
            if end:
                yield self._replaced(at, end - 1, ";", "removed statement")

    def _of_return(self, at: int) -> Iterator[Edit]:
        end = self._end_of_statement(at)
        kind = self._scope(at)[1]
        if not end or end == at + 2 or kind is None:
            return
        expression = self._source[self._tokens[at + 1].start : self._tokens[end - 2].end]
        constant = "0" if kind in _NUMBERS else "null"
        other = f"!({expression})" if kind == "boolean" else constant
        if other != expression:
            yield self._replaced(at + 1, end - 2, other, "returned value")

    def _of_ternary(self, at: int) -> Iterator[Edit]:
        start = at
        while self._text(start - 1) not in _BEFORE_CONDITION:
            start = self._partners[start - 1] if self._text(start - 1) in _CLOSE else start - 1
        yield from self._negated(start, at - 1)

    def _negated(self, first: int, last: int) -> Iterator[Edit]:
        """Yield the negation of a condition without operators, which have mutants already."""
        if not any(self._text(at) in _LOGICAL for at in range(first, last + 1)):
            text = self._source[self._tokens[first].start : self._tokens[last].end]
            yield self._replaced(first, last, f"!({text})", "negated condition")

    def _of_arguments(self, at: int) -> Iterator[Edit]:
        if self._text(at - 3) == "Set":
            return  # Set.of: their order has no meaning
        parts, first = [], at + 1
        place = first
        while place <= self._partners[at]:
            if place == self._partners[at] or self._text(place) == ",":
                parts.append((first, place - 1))
                first = place + 1
            place = self._partners[place] + 1 if self._text(place) in _OPEN else place + 1
        for left, right in pairwise(parts):
            texts = [self._source[self._tokens[one].start : self._tokens[last].end] for one, last in (left, right)]
            if left[1] >= left[0] and not any(_DECLARATION.fullmatch(text) for text in texts):
                yield self._replaced(left[0], right[1], f"{texts[1]}, {texts[0]}", "swapped arguments")

    def _of_block(self, at: int) -> Iterator[Edit]:
        """Yield edits of a text block: in each, a line is without its last word."""
        token = self._tokens[at]
        for line in re.finditer(r"\S+[ ]*$", token.text, re.MULTILINE):
            if '"""' not in line[0]:
                start, end = token.start + line.start(), token.start + line.end()
                yield Edit(start, end, "", "string", self._scope(at)[0])

    def _of_statement(self, at: int) -> Iterator[Edit]:
        end = self._end_of_statement(at)
        if not end or self._text(at) in _NO_STATEMENT or self._tokens[at].kind not in ("word", "operator"):
            return
        text = self._source[self._tokens[at].start : self._tokens[end - 1].start]
        if self._text(at) not in _CLOSE and not _DECLARATION.fullmatch(text):
            yield self._replaced(at, end - 1, ";", "removed statement")

    def _end_of_statement(self, at: int) -> int | None:
        """Return the index after the semicolon that ends a statement; None if a block ends it."""
        place = at
        while place < len(self._tokens) and self._text(place) != ";":
            if self._text(place) in _CLOSE:
                return None
            place = self._partners[place] + 1 if self._text(place) in _OPEN else place + 1
        return place + 1

    def _is_start(self, at: int) -> bool:
        """Return whether a statement or a member begins; not in the parentheses of a loop."""
        return at > 0 and self._text(at - 1) in ";{}" and not self._scopes[at][2]

    def _scope(self, at: int) -> tuple[str, str | None]:
        name, kind, _ = self._scopes[at]
        return name, kind

    def _text(self, at: int) -> str:
        return self._tokens[at].text

    def _replaced(self, first: int, last: int, text: str, operator: str) -> Edit:
        return Edit(self._tokens[first].start, self._tokens[last].end, text, operator, self._scope(first)[0])


def _tokens(source: str) -> Iterator[_Token]:
    at = 0
    while at < len(source):
        found = _TOKEN.match(source, at)
        if found is None:
            raise ValueError(f"source must consist of known tokens, got {source[at : at + 20]!r}")
        at = found.end()
        if found.lastgroup != "space":
            spaced = source[found.start() - 1].isspace() and source[at : at + 1].isspace()
            yield _Token(str(found.lastgroup), found[0], found.start(), spaced)


def _partners(tokens: Sequence[_Token]) -> dict[int, int]:
    """Return the index of the other bracket for each bracket."""
    partners, opened = {}, []
    for at, token in enumerate(tokens):
        if token.text in _OPEN:
            opened.append(at)
        elif token.text in _CLOSE:
            start = opened.pop()
            partners |= {start: at, at: start}
    return partners


def _scopes(tokens: Sequence[_Token], partners: dict[int, int]) -> Iterator[tuple[str, str | None, bool]]:
    """Yield the class and method of each token, the type that the method returns, and whether parentheses are open."""
    scopes: list[tuple[str, str | None]] = []
    parentheses = 0
    for at, token in enumerate(tokens):
        if token.text in "()":
            parentheses += 1 if token.text == "(" else -1
        if token.text == "}":
            scopes.pop()
        name = ".".join(name for name, _ in scopes if name) or "<file>"
        kind = next((kind for _, kind in reversed(scopes) if kind is not None), None)
        yield name, kind, parentheses > 0
        if token.text == "{":
            scopes.append(_opened(tokens, partners, at, is_in_method=kind is not None))


def _opened(
    tokens: Sequence[_Token], partners: dict[int, int], at: int, *, is_in_method: bool
) -> tuple[str, str | None]:
    """Return the name of what a brace opens, ``""`` for a block, and its type, None for a class."""
    start = at
    while start and tokens[start - 1].text not in (";", "{", "}"):
        start = partners[start - 1] if tokens[start - 1].text == ")" else start - 1
    words = [token.text for token in tokens[start:at]]
    for keyword in ("class", "record", "enum", "interface"):
        if keyword in words[:-1] and not is_in_method:
            return words[words.index(keyword) + 1], None
    if is_in_method or "(" not in words or "=" in words:
        return "", None
    name = words.index("(") - 1
    if words[name].isupper():  # a constant of an enum
        return words[name], None
    return words[name], words[name - 1] if name else "void"


def _other_numbers(text: str) -> list[str]:
    digits = text.rstrip("lL")
    others = [int(digits.replace("_", ""), 0) + change for change in (1, -1)]
    style = "#x" if digits[:2] == "0x" and others[1] >= 0 else "d"
    return [f"{other:{style}}{text[len(digits) :]}" for other in others]


def _code(literal: str) -> int:
    text = literal[1:-1]
    if text[0] != "\\":
        return ord(text)
    return int(text[2:], 16) if text[1] == "u" else ord(_ESCAPES.get(text[1], text[1]))


def _shorter(literal: str) -> str:
    """Return a string without its last character."""
    parts = re.findall(r"\\u[0-9A-Fa-f]{4}|\\.|[^\\]", literal[1:-1])
    return f'"{"".join(parts[:-1])}"' if parts else '"mutant"'
