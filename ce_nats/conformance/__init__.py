"""
Judge an implementation by the fixtures of ``spec-fixtures``: ce_nats itself, or any program that speaks lines of JSON.

``cases`` loads the vectors, ``verdict`` compares an answer with what is wanted, ``answers`` is ce_nats as a peer among
peers, ``command`` runs somebody else's program. The format and the protocol are described in spec-fixtures/README.md.
"""

from .adapter import answer, answer_lines
from .cases import (
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
from .external import Command, CommandError
from .judge import Result, Verdict, in_process, judge, matches

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
