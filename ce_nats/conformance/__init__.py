"""
Run the conformance vectors of ``spec-fixtures`` on an implementation: ce_nats itself, or any program that exchanges
JSON lines.

``cases`` loads the vectors, ``adapter`` runs them on ce_nats, ``external`` on another program, ``judge`` compares the
answers with the expected ones. spec-fixtures/README.md describes the format and the protocol.
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
from ._verdicts import Result, Verdict, in_process, judge, matches

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
    "in_process",
    "judge",
    "load_cases",
    "load_requirements",
    "load_suites",
    "matches",
]
