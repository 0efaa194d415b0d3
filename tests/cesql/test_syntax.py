"""Syntax of CESQL: what is an expression, and its canonical text."""

from __future__ import annotations

import pickle
from time import process_time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ce_nats import cesql
from ce_nats.cesql._syntax import MAX_DEPTH, MAX_TEXT, quoted
from tests.support.expressions import TEXTS
from tests.support.tables import each


@each(
    "text, canonical",
    [
        ("a", "a"),
        ("  ID\n=\t'1' ", "id = '1'"),
        ("a<>1", "a != 1"),
        ("not a and b", "NOT a AND b"),
        ("NOT (a AND b)", "NOT (a AND b)"),
        ("(NOT a) LIKE 'x'", "NOT a LIKE 'x'"),
        ("NOT (a LIKE 'x')", "NOT (a LIKE 'x')"),
        ("a AND b AND c", "a AND b AND c"),
        ("a AND (b AND c)", "a AND b AND c"),
        ("(a AND b) AND c", "(a AND b) AND c"),
        ("a AND b OR c", "a AND (b OR c)"),
        ("a AND (b OR c)", "a AND (b OR c)"),
        ("(a AND b) OR c", "(a AND b) OR c"),
        ("a OR b AND c AND d XOR e", "a OR (b AND c AND (d XOR e))"),
        ("(1 + 2) * 3 - (4 - 5)", "(1 + 2) * 3 - (4 - 5)"),
        ("1 - 2 - 3", "1 - 2 - 3"),
        ("(a = b) = (c = d)", "a = b = (c = d)"),
        ("1-1", "1 - 1"),
        ("1 - -1", "1 - -1"),
        ("- 1", "-(1)"),
        ("--1", "--1"),
        ("-(1 + a)", "-(1 + a)"),
        ("+7", "7"),
        ("length ( concat( ) )", "LENGTH(CONCAT())"),
        ("a not  in (1,'x')", "a NOT IN (1, 'x')"),
        ("(a + 1) IN (b)", "(a + 1) IN (b)"),
        ('"it\'s"', r"'it\'s'"),
        (r'"a\'b"', r'"a\'b"'),
        ("length = 3", "length = 3"),
        ("exists A", "EXISTS a"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    """Layout and superfluous parentheses go; parentheses show how AND, OR and XOR associate."""
    expression = cesql.compile(text)
    assert str(expression) == canonical
    assert cesql.compile(canonical) == expression
    assert hash(cesql.compile(canonical)) == hash(expression)


@given(TEXTS)
def test_canonical_text_is_equal(text: str) -> None:
    """The canonical text of any expression compiles to an equal one, and is its own canonical text."""
    try:
        expression = cesql.compile(text)
    except cesql.ParseError:
        return
    again = cesql.compile(str(expression))
    assert again == expression
    assert str(again) == str(expression)
    assert pickle.loads(pickle.dumps(expression)) == expression


@each(
    "text, position, expected",
    [
        ("", 0, "a value"),
        ("  ", 2, "a value"),
        ("1 +", 3, "a value"),
        ("(1", 2, "')'"),
        ("1)", 1, "an operator or the end"),
        ("a b", 2, "an operator or the end"),
        ("a = 'x", 4, "a closing quote"),
        (r"a = 'x\'", 4, "a closing quote"),
        ("a = 'x'' '", 7, "an operator or the end"),
        ("a # b", 2, "a token"),
        ("a = \u00a01", 4, "a token"),
        ("a LIKE b", 7, "a string as the pattern"),
        ("a NOT b", 6, "LIKE or IN"),
        ("a IN 1", 5, "'('"),
        ("a IN ()", 6, "a value"),
        ("f(1,)", 4, "a value"),
        ("a_b", 0, "the name of an attribute"),
        ("EXISTS 7", 7, "the name of an attribute"),
        ("EXISTS in", 7, "the name of an attribute"),
        ("a = 2147483648", 4, "an integer of 32 bits"),
        ("-2147483649", 0, "an integer of 32 bits"),
        ("1" * 5000, 0, "an integer of 32 bits"),
        ("a AND AND b", 6, "the name of an attribute"),
    ],
)
def test_parse_errors(text: str, position: int, expected: str) -> None:
    """An error has its position, and what was expected there."""
    with pytest.raises(cesql.ParseError) as caught:
        cesql.compile(text)
    assert (caught.value.position, caught.value.expected) == (position, expected)
    assert f"expected {expected} at position {position}, got " in str(caught.value)
    assert len(str(caught.value)) < 200
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_expressions_of_expressions() -> None:
    """A compiled expression is its own; anything else but text is a TypeError."""
    expression = cesql.compile("id = '1'")
    assert cesql.compile(expression) is expression
    with pytest.raises(TypeError, match="must be a str"):
        cesql.compile(b"id")  # type: ignore[arg-type]
    assert expression != "id = '1'"
    assert repr(expression) == "cesql.compile(\"id = '1'\")"


def test_attributes() -> None:
    """The attributes that an expression reads are known."""
    text = "EXISTS tier AND CONCAT(SOURCE, -hops) IN (id, 'x') OR NOT tier LIKE 'type'"
    assert cesql.compile(text).attributes == ("tier", "source", "hops", "id")
    assert cesql.compile("1 = 1").attributes == ()


@given(st.text() | st.text(st.sampled_from("()'\"\\ANDORLIKEIN,-+*/%=<>!1_ \n")))
@example("'" * 100)
@example("\ud800")
def test_any_text(text: str) -> None:
    """Nothing but a ParseError leaves the parser."""
    position = 0
    try:
        cesql.compile(text)
    except cesql.ParseError as error:
        position = error.position
    assert 0 <= position <= len(text)


@each("opening", ["(", "NOT ", "- ", "ABS(", "a IN (", "a AND (", "1 + (", "CONCAT('x', "])
def test_nesting_is_bounded(opening: str) -> None:
    """A deep expression is an error, at any size, and not a RecursionError."""
    for levels in (MAX_DEPTH + 2, 10_000):
        with pytest.raises(cesql.ParseError, match="levels"):
            cesql.compile(opening * levels + "1")


@each("operator", [" + ", " = ", " - ", " * ", " LIKE 'x' * "])
def test_chains_are_bounded(operator: str) -> None:
    """So is a long chain, whose tree is deep."""
    assert cesql.compile(operator.join("1" * 20)).evaluate({})
    with pytest.raises(cesql.ParseError, match="levels"):
        cesql.compile(operator.join("1" * 1000))


def test_wide_expressions() -> None:
    """Chains of one operator, sets and arguments may be as long as the text."""
    chain = cesql.compile(" OR ".join(f"id = '{number}'" for number in range(5000)))
    assert chain.matches({"id": "4999"})
    assert not chain.matches({"id": "5000"})
    assert cesql.compile(f"id IN ({', '.join(map(str, range(10_000)))})").matches({"id": "9999"})
    with pytest.raises(cesql.ParseError, match="levels"):
        cesql.compile("TRUE AND FALSE OR " * 100 + "TRUE")


@each("piece", ["(", "'", "a ", "a AND ", "\\", "1+", " ", "\U0001f600"])
def test_long_texts_are_errors(piece: str) -> None:
    """A megabyte is an error at once, and half the limit takes linear time."""
    with pytest.raises(cesql.ParseError, match="characters"):
        cesql.compile(piece * (2**20 // len(piece)))
    start = process_time()
    with pytest.raises(cesql.ParseError):
        cesql.compile(piece * (MAX_TEXT // 2 // len(piece)))
    assert process_time() - start < 5


def test_values_without_a_literal() -> None:
    """A backslash cannot be the last character of a literal."""
    with pytest.raises(ValueError, match="no literal"):
        quoted("a\\")
