"""
Run the conformance vectors of ``spec-fixtures`` on an implementation: ce_nats itself, or any program that exchanges
JSON lines.

:func:`load_cases` loads the vectors, :func:`answer` runs one on ce_nats, :class:`Command` runs another program, and
:func:`judge` compares an answer with the expected outcomes. spec-fixtures/README.md describes the format and the
protocol.
"""

from ._adapter import answer, answer_lines
from ._cases import (
    Answer,
    Case,
    FixtureError,
    Outcome,
    Requirement,
    Suite,
    expand,
    fixture_folder,
    load_cases,
    load_requirements,
    load_suites,
)
from ._external import Command, CommandError
from ._verdicts import Result, Verdict, judge, matches, run_case

__all__ = [
    "Answer",
    "Case",
    "Command",
    "CommandError",
    "FixtureError",
    "Outcome",
    "Requirement",
    "Result",
    "Suite",
    "Verdict",
    "answer",
    "answer_lines",
    "expand",
    "fixture_folder",
    "judge",
    "load_cases",
    "load_requirements",
    "load_suites",
    "matches",
    "run_case",
]
