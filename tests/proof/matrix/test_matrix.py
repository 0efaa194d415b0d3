"""The record of the matrix: what failed, ran no test or was not run is never shown as passed."""

import pytest

from tests.proof import record
from tests.proof.matrix import __main__ as command
from tests.proof.matrix import report
from tests.proof.matrix.cells import all_cells
from tests.proof.matrix.run import FAILED, NOT_AVAILABLE, PASSED, Result, read

CELLS = all_cells()[:3]
PASS = '<testcase classname="a" name="passes"/>'
SKIP = '<testcase classname="a" name="skips"><skipped message="needs 2.12"/></testcase>'
FAIL = '<testcase classname="a" name="fails"><failure message="no"/></testcase>'
ERROR = '<testcase classname="a" name="passes"><error message="at teardown"/></testcase>'


def result(tmp_path, status, *cases):
    report = tmp_path / "report.xml"
    if cases:
        report.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>", encoding="utf-8")
    return read(status, report, 7, {"Python": "3.10.13"})


def test_passed_cell(tmp_path):
    found = result(tmp_path, 0, PASS, SKIP, PASS, SKIP)
    assert (found.outcome, found.passed, found.failed, found.skipped, found.notes) == (PASSED, 2, 0, 2, [])
    assert found.skips == {"needs 2.12": 2}


@pytest.mark.parametrize(
    ("status", "cases", "note"),
    [
        (1, [PASS, FAIL], "a::fails"),
        (0, [PASS, FAIL], "a::fails"),
        (1, [PASS, PASS, ERROR], "a::passes"),
        (2, [PASS], "exit status 2 of pytest"),
        (5, [], "exit status 5 of pytest"),
        (0, [], "no test ran"),
        (0, [SKIP], "no test ran"),
        (None, [PASS], "ended after 1800 seconds"),
        (-9, [], "exit status -9 of pytest"),
    ],
)
def test_failed_cell(tmp_path, status, cases, note):
    found = result(tmp_path, status, *cases)
    assert found.outcome == FAILED
    assert note in found.notes[0]


def test_many_failures_are_counted(tmp_path):
    cases = [FAIL.replace("fails", f"fails_{number}") for number in range(12)]
    found = result(tmp_path, 1, *cases)
    assert found.failed == 12
    assert found.notes[0] == "a::fails_0"
    assert found.notes[-1] == "2 more"


def entry(outcome, commit, **rest):
    return report.Entry(Result(outcome, versions={"Python": "3.10.13"}, **rest), "2026-01-01", commit, "2 cores of X")


def test_partial_run_keeps_other_rows(tmp_path, monkeypatch, capsys):
    page, results = tmp_path / "proof.md", tmp_path / "results.json"
    page.write_text("<!-- begin matrix -->\n<!-- end matrix -->\n", encoding="utf-8")
    first, second, third = (cell.name for cell in CELLS)
    outcomes = {first: Result(PASSED, passed=5), second: Result(FAILED, passed=4, failed=1, notes=["a::fails"])}
    monkeypatch.setattr(report, "RESULTS", results)
    monkeypatch.setattr(record, "PAGE", page)
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    monkeypatch.setattr(command, "all_cells", lambda: CELLS)
    monkeypatch.setattr(command, "run", lambda cell, *_: outcomes[cell.name])
    monkeypatch.setattr(record, "commit", lambda: "1111111")
    assert command.main(["--only", first, "--record"]) == 0
    monkeypatch.setattr(record, "commit", lambda: "2222222")
    assert command.main(["--only", second, "--record"]) == 1
    text = page.read_text("utf-8")
    assert "1 of 3 cells passed, 1 were not run" in text
    (row,) = (line for line in text.splitlines() if line.startswith(f"| `{first}` "))
    assert "| passed | 5 | 0 | 0 |" in row
    assert "`1111111`" in row
    rows = [line for line in text.splitlines() if line.startswith(f"| `{second}` ")]
    assert "| failed | 4 | 1 |" in rows[0]
    assert "`2222222`" in rows[0]
    assert rows[1:] == [f"| `{second}` | `a::fails` |"]
    (row,) = (line for line in text.splitlines() if line.startswith(f"| `{third}` "))
    assert "| not run |" in row
    assert "passed" not in row
    assert command.main(["--missing", "--list"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [second, third]


def test_unavailable_version_is_not_a_success(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    monkeypatch.setattr(command, "run", lambda *_: Result(NOT_AVAILABLE, notes=["Python 3.10 must be installed"]))
    assert command.main(["--only", "core-3.10-lowest"]) == 1
    assert command.main(["--only", "core-3.14-lowest"]) == 0  # not promised
    assert command.main(["--only", "no-such-cell"]) == 2
    text = "\n".join(report.lines(CELLS, {CELLS[0].name: entry(NOT_AVAILABLE, "3", notes=["a | b"])}))
    assert "0 of 3 cells passed, 2 were not run" in text
    assert f"| `{CELLS[0].name}` | `a / b` |" in text


def test_page_is_the_record_of_the_results():
    page = record.PAGE.read_text("utf-8")
    assert "\n".join(report.lines(all_cells(), report.load())) in page


def test_names_of_cells_are_unique():
    names = [cell.name for cell in all_cells()]
    assert len(set(names)) == len(names)
