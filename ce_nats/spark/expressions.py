"""
Building blocks of column expressions that know nothing of CloudEvents.

Only functions of ``pyspark.sql.functions`` are used, here and everywhere in this folder: no Python worker, no JVM
object, so that the columns also run on Spark Connect and on platforms that refuse jars.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column

from ..errors import ErrorCode
from .functions import F

__all__ = ["at", "code", "find", "full", "let", "matches", "printable", "runs", "uncompiled", "when_first"]

_FIRST: Final = 0


def let(value: Column, body: Callable[[Column], Column]) -> Column:
    """
    ``body(value)`` with the value computed once, however often the body names it.

    Spark interprets the body instead of generating code for it. For what few rows need that is right: it keeps the
    generated code of the other rows small enough to be compiled to machine code.
    """
    return F.get(F.zip_with(F.array(value), F.array(F.lit(_FIRST)), lambda bound, _: body(bound)), F.lit(_FIRST))


def uncompiled(value: Column) -> Column:
    """
    The value, which is hardly ever NULL, in a projection that is no part of whole-stage code generation.

    That makes one method of many expressions, and the JVM compiles no method of more than 8,000 bytes. The code of a
    projection by itself is divided into smaller ones. Its mark is a function for which Spark generates no code; it is
    not called. Where Spark can tell that the value is never NULL, it takes the mark away.
    """
    return F.coalesce(value, let(value, lambda bound: bound))


def at(array: Column, index: Column | int) -> Column:
    """The element at a 0-based index; NULL outside of the array."""
    return F.get(array, F.lit(index) if isinstance(index, int) else index)


def find(names: Column, name: Column | str, values: Column) -> Column:
    """The value that stands where the first of the equal names does; NULL where none is equal."""
    return F.get(values, (F.array_position(names, name) - 1).cast("int"))


def code(error: ErrorCode) -> Column:
    return F.lit(str(error))


def when_first(*rules: tuple[Column, ErrorCode]) -> Column:
    """The code of the first rule that is broken, a rule being true where it is broken; NULL where all are kept."""
    broken, error = rules[0]
    chain = F.when(broken, code(error))
    for broken, error in rules[1:]:
        chain = chain.when(broken, code(error))
    return chain


def matches(text: Column, pattern: str) -> Column:
    """Whether a pattern is found in a text; Java's dialect, ``.`` is any character at all."""
    return text.rlike(f"(?s){pattern}")


def full(pattern: str) -> str:
    r"""A pattern for the whole text; Java's ``$`` would let a final line feed pass."""
    return rf"\A(?:{pattern})\z"


def printable(without: str = "") -> str:
    """
    A class of printable ASCII characters, but for some, for a pattern.

    One by one: Java keeps single characters of a class in a table, and ranges in a chain of function calls.
    """
    characters = (chr(code) for code in range(0x20, 0x7F))
    return "[" + "".join(each if each.isalnum() else f"\\{each}" for each in characters if each not in without) + "]"


def runs(common: str, *others: str) -> str:
    """
    A pattern of texts that are mostly characters of one class, and here and there something else.

    Java is fast where it loops over a table, as long as nothing else is in the loop. What stands between must not begin
    with a character of the class; nothing is tried twice, and no stack is needed.
    """
    return f"{common}*(?:(?:{'|'.join(others)}){common}*)*+"
