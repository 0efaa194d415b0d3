"""
CloudEvents SQL 1.0: filter events by their attributes.

    gold = cesql.compile("source LIKE '/eu/%' AND tier = 'gold' AND priority > 3")
    gold.matches(event)

An expression never fails: it has a value and a list of errors. As a filter, an event passes only if the value is true
without errors; an attribute that the event does not have is an error, ``EXISTS`` asks for it.

Decisions, because the text of the specification leaves them open or contradicts its grammar:

- AND, OR and XOR have one precedence and associate to the right, as in the grammar and in other engines;
- ``NOT`` binds more tightly than comparisons: ``NOT tier = 'gold'`` is ``(NOT tier) = 'gold'``;
- ``+``, ``-``, ``*`` and ``/`` wrap integers of 32 bits around, without an error;
- names of attributes are read as lower case; those of keywords, and ``data``, cannot be read;
- a string has no doubled quotes, and a character that is not of the language is an error;
- IN stops at the first element that is equal.
"""

from ._evaluate import EvaluationError
from ._expression import Expression, Result, compile
from ._filters import from_filters
from ._functions import ErrorKind, FunctionError, Functions, Value
from ._syntax import ParseError

__all__ = [
    "ErrorKind",
    "EvaluationError",
    "Expression",
    "FunctionError",
    "Functions",
    "ParseError",
    "Result",
    "Value",
    "compile",
    "from_filters",
]
