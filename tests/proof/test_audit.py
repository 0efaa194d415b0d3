"""The result of an audit: a package that was not checked is a failure."""

import json

import pytest
from packaging.requirements import Requirement

from tests.proof.audit import closure, read_report

CHECKED = {"name": "a", "version": "1", "vulns": []}
SKIPPED = {"name": "b", "skip_reason": "Dependency not found on PyPI"}
VULNERABLE = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1"}, {"id": "PYSEC-2"}]}


def report(*entries, expected=("a", "b")):
    return read_report(json.dumps({"dependencies": entries, "fixes": []}), expected)


def test_all_packages_were_checked():
    found = report(CHECKED, {"name": "B", "version": "2", "vulns": []})
    assert found.succeeded
    assert found.lines() == ["2 of 2 packages were checked, 0 are vulnerable"]


def test_skipped_package_is_a_failure():
    found = report(CHECKED, SKIPPED)
    assert not found.succeeded
    assert found.lines() == [
        "b was not checked: Dependency not found on PyPI",
        "1 of 2 packages were checked, 0 are vulnerable",
    ]


@pytest.mark.parametrize("entries", [[CHECKED], [CHECKED, {"name": "b", "version": "2"}]])
def test_package_without_a_result_is_a_failure(entries):
    found = report(*entries)
    assert not found.succeeded
    assert found.unchecked.keys() == {"b"}


def test_vulnerable_package_is_a_failure():
    found = report(CHECKED, VULNERABLE)
    assert not found.succeeded
    assert found.lines() == ["b 2: PYSEC-1, PYSEC-2", "2 of 2 packages were checked, 1 are vulnerable"]


def test_audit_of_nothing_is_a_failure():
    assert not report(expected=()).succeeded


@pytest.mark.parametrize("text", ["", "No known vulnerabilities found", "[]", "{}"])
def test_other_output_is_an_error(text):
    with pytest.raises(ValueError, match="must have dependencies"):
        read_report(text, ["a"])


def test_closure_follows_extras_and_markers():
    tree = {
        "p": ["p[x]; extra == 'all'", "q[more]; extra == 'x'", "never; python_version < '3'", "r; extra == 'y'"],
        "q": ["s; extra == 'more'", "T_t"],
        "t-t": ["q"],
    }
    found = closure(Requirement("p[all]"), lambda name: [Requirement(line) for line in tree.get(name, ())])
    assert {name: depth for name, (_, depth) in found.items()} == {"p": 0, "q": 1, "s": 2, "t-t": 2}
