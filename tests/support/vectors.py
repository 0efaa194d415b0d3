"""Conformance cases as pytest parameters."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from ce_nats.conformance import Case, load_cases

_NONE: Mapping[str, str] = MappingProxyType({})


def cases(
    suite: str | None = None, op: str | None = None, *, known_failures: Mapping[str, str] = _NONE
) -> list[ParameterSet]:
    """
    Return the cases of a suite, of an operation, of both, or all of them, with the case's id as id of the test.

    Args:
        suite: Name of a fixture file without ``.json``.
        op: Operation, for example ``from_nats_message``.
        known_failures: Reason by case id; such a case must fail, and the test fails if it passes.

    Raises:
        LookupError: No case matches, or a known failure is not one of the cases. With an empty list the test would pass
            without testing anything.
    """
    chosen = [case for case in load_cases([suite] if suite else ()) if op in (None, case.op)]
    if not chosen:
        raise LookupError(f"suite {suite} must have cases of operation {op}, got none")
    if unknown := known_failures.keys() - {case.id for case in chosen}:
        raise LookupError(f"known failures must be ids of the cases, got {sorted(unknown)}")
    return [_parameter(case, known_failures.get(case.id)) for case in chosen]


def _parameter(case: Case, reason: str | None) -> ParameterSet:
    marks: tuple[Any, ...] = (pytest.mark.xfail(strict=True, reason=reason),) if reason else ()
    return pytest.param(case, id=case.id, marks=marks)
