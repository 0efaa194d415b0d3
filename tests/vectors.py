"""
The conformance vectors as pytest parameters.
"""

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
    Cases of a suite, of an operation, of both, or all of them, with the case's id as the test's.

    Args:
        suite: Name of a fixture file without ``.json``.
        op: Operation, ``from_nats_message`` for one.
        known_failures: Reason by case id; such a case has to fail, and passing it is a failure of the test.

    Raises:
        LookupError: No case is left, or a known failure is not among them. An empty list would be a test that passes
            without a look at anything.
    """
    chosen = [case for case in load_cases([suite] if suite else ()) if op in (None, case.op)]
    if not chosen:
        raise LookupError(f"there is no case of suite {suite} and operation {op}")
    if unknown := known_failures.keys() - {case.id for case in chosen}:
        raise LookupError(f"known failures that are no cases: {sorted(unknown)}")
    return [_parameter(case, known_failures.get(case.id)) for case in chosen]


def _parameter(case: Case, reason: str | None) -> ParameterSet:
    marks: tuple[Any, ...] = (pytest.mark.xfail(strict=True, reason=reason),) if reason else ()
    return pytest.param(case, id=case.id, marks=marks)
