"""Run a table of cases as one test."""

import functools
import inspect
import reprlib
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

_PARAM = type(pytest.param())
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 200
_REPR.maxdict = 20


def each(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Any], Any]:
    """
    Call a test for each case, as ``pytest.mark.parametrize`` does, but as one test, which takes less time.

    All cases are tried; each one that fails is in the error, with its values. They share the fixtures of the test.

    Args:
        names: Arguments of the test that a case sets.
        cases: A value for each name, or for one name the value itself; or ``pytest.param`` with a name of the case.
    """
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [
        case if isinstance(case, _PARAM) else pytest.param(*([case] if len(names) == 1 else case)) for case in cases
    ]
    assert table, "a table has cases"
    assert all(len(case.values) == len(names) for case in table), "a case has a value for each name"

    def decorate(test: Any) -> Any:
        assert not inspect.iscoroutinefunction(test), "nobody would await it"

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            errors = []
            for case in table:
                values = dict(zip(names, case.values, strict=True))
                try:
                    test(**fixtures, **values)
                except (Exception, pytest.fail.Exception):
                    errors.append(f"{case.id or _REPR.repr(values)}\n{traceback.format_exc()}")
            if errors:
                pytest.fail("\n".join([f"{len(errors)} of {len(table)} cases failed:", *errors]), pytrace=False)

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in names]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate
