"""A table that is run as one test tries all cases, and reports each one that fails."""

from __future__ import annotations

import inspect

import pytest

from tests.support.tables import each


def test_all_cases_are_tried_with_the_fixtures() -> None:
    tried = []

    @each("number", [1, 2])
    @each("letter", ["a", "b"])
    def note(fixture: str, number: int, letter: str) -> None:
        tried.append((fixture, number, letter))

    assert list(inspect.signature(note).parameters) == ["fixture"]
    note(fixture="f")
    assert tried == [("f", 1, "a"), ("f", 1, "b"), ("f", 2, "a"), ("f", 2, "b")]


def test_each_failed_case_is_in_the_error() -> None:
    @each(("given", "wanted"), [(1, 1), (2, 1), pytest.param(3, 1, id="three"), (4, None)])
    def square(given: int, wanted: int | None) -> None:
        if wanted is None:
            pytest.fail("no square")
        assert given * given == wanted

    with pytest.raises(pytest.fail.Exception) as error:
        square()
    text = str(error.value)
    assert text.startswith("3 of 4 cases failed:\n{'given': 2, 'wanted': 1}\n")
    assert [part for part in ("(2 * 2) == 1", "\nthree\n", "(3 * 3) == 1", "no square") if part not in text] == []
