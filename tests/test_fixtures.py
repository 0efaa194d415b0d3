"""Conformance cases: ce_nats passes all of them, and the files follow their schema and rules."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ce_nats import ErrorCode
from ce_nats.conformance import (
    Case,
    FixtureError,
    Result,
    fixture_folder,
    load_cases,
    load_requirements,
    load_suites,
    run_case,
)
from ce_nats.conformance._adapter import OPERATIONS
from ce_nats.conformance._cases import NOT_SUITES
from tests.support.vectors import cases

ROOT = Path(__file__).parents[1]
FOLDER = fixture_folder()
SUITES = load_suites()
CASES = load_cases()
SCHEMA = json.loads((FOLDER / "schema.json").read_text(encoding="utf-8"))

# Codes without a case, and the reason.
CODES_WITHOUT_CASES = {
    ErrorCode.INVALID_MESSAGE: "is for Python objects that are neither message nor event",
    ErrorCode.DATA_MISMATCH: "is for a type of the caller",
    ErrorCode.DATA_NOT_DELIVERED: "is for columns; events have a placeholder",
    ErrorCode.FORBIDDEN_SUBJECT: "is for a subject that the caller has from a message",
    ErrorCode.EVENT_EXPIRED: "is for an extension, and depends on the time",
    ErrorCode.UNSUPPORTED_DATAREF: "is for an extension, which the codec treats as any other",
    ErrorCode.DIGEST_MISMATCH: "is for data in an object store",
    ErrorCode.DATA_TOO_LARGE: "depends on a limit of the program",
    ErrorCode.INVALID_OPTION: "is for options of a connection",
    ErrorCode.INVALID_BATCH: "is for several events",
    ErrorCode.PAYLOAD_TOO_LARGE: "depends on a limit of the server",
    ErrorCode.HEADERS_NOT_SUPPORTED: "depends on a server without headers",
    ErrorCode.INVALID_TRACE_CONTEXT: "is for an extension, which the codec treats as any other",
    **dict.fromkeys(list(ErrorCode)[list(ErrorCode).index(ErrorCode.CONNECTION_FAILED) :], "needs a server"),
}


@pytest.mark.parametrize("case", cases())
def test_case(case: Case) -> None:
    """ce_nats returns the expected outcome, including the error code."""
    verdict = run_case(case)
    assert verdict.result is Result.PASSED, (
        f"{case.description}: wanted {case.outcomes}, got {verdict.got} {verdict.problem}"
    )


# --- The files ------------------------------------------------------------------------------------------------------


def test_folder_is_that_of_the_checkout() -> None:
    """The cases under test are not those of an installed package."""
    assert FOLDER == ROOT / "spec-fixtures"


def test_every_file_is_read() -> None:
    """Each JSON file of the folder is a suite, except two."""
    assert {f"{suite.name}.json" for suite in SUITES} | NOT_SUITES == {path.name for path in FOLDER.rglob("*.json")}


@pytest.mark.parametrize("name", [suite.name for suite in SUITES])
def test_file_is_valid_by_the_schema(name: str) -> None:
    """Each fixture file is valid by schema.json."""
    content = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"), object_pairs_hook=_distinct)
    faults = jsonschema.Draft202012Validator(SCHEMA).iter_errors(content)
    assert [f"{_place(content, fault)}: {fault.message}" for fault in faults] == []


def _distinct(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    assert len(found) == len(members), f"duplicate member in {members}"
    return found


def _place(content: Any, fault: jsonschema.ValidationError) -> str:
    path = list(fault.absolute_path)
    return str(content["cases"][path[1]].get("id", path)) if path[:1] == ["cases"] and len(path) > 1 else str(path)


def test_schema_is_valid_and_complete() -> None:
    """schema.json is a valid JSON Schema with all operations and error codes of ce_nats."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert set(SCHEMA["$defs"]["case"]["properties"]["op"]["enum"]) == set(OPERATIONS)
    assert SCHEMA["$defs"]["errorCode"]["enum"] == [str(code) for code in ErrorCode]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"op": "percent.guess"}, id="unknown-op"),
        pytest.param({"extra": 1}, id="unknown-member"),
        pytest.param({"input": {"text": "a"}}, id="input-of-another-op"),
        pytest.param({"expected": {"value": "a"}}, id="expected-of-another-op"),
        pytest.param({"error": "invalid-utf8"}, id="expected-and-error"),
        pytest.param({"accept": [{"error": "invalid-utf8"}, {"error": "invalid-json"}]}, id="expected-and-accept"),
        pytest.param({"level": "must"}, id="unknown-level"),
        pytest.param({"requirements": []}, id="no-requirement"),
        pytest.param({"description": "x" * 91}, id="long-description"),
    ],
)
def test_schema_is_strict(change: dict[str, Any]) -> None:
    """A case with one error is not valid by schema.json."""
    case = {
        "id": "a",
        "op": "percent.decode",
        "requirements": ["NB-3.1.3.2-07"],
        "level": "MUST",
        "description": "a letter stays",
        "input": {"value": "a"},
        "expected": {"text": "a"},
    }
    validator = jsonschema.Draft202012Validator({"$ref": "#/$defs/case", "$defs": SCHEMA["$defs"]})
    assert validator.is_valid(case)
    assert not validator.is_valid(case | change)


def test_ids_are_unique() -> None:
    """All cases of all files have different ids."""
    assert _repeated(case.id for case in CASES) == []


def test_descriptions_are_unique() -> None:
    """Descriptions are single lines, and differ."""
    assert _repeated((case.suite, case.op, case.description) for case in CASES) == []
    style = re.compile(r"\b(should|tests?|checks? that|verif(y|ies)|ensures?)\b|\.$", re.IGNORECASE)
    assert [case.description for case in CASES if style.search(case.description)] == []


def test_cited_documents_are_declared() -> None:
    """A case cites documents that its file declares, and each declared document is cited."""
    for suite in SUITES:
        cited = {item["doc"] for case in suite.cases for item in case.source.get("spec", [])}
        assert cited == set(suite.documents), suite.name


def test_documents_are_the_same_everywhere() -> None:
    """A name refers to the same version of a document in all files."""
    known: dict[str, Any] = {}
    for name, document in chain.from_iterable(suite.documents.items() for suite in SUITES):
        assert known.setdefault(name, document) == document, name


def test_quotes_are_short() -> None:
    """A quotation identifies a passage and does not copy it."""
    quotes = [item["quote"] for case in CASES for item in case.source.get("spec", []) if "quote" in item]
    assert quotes
    assert [quote for quote in quotes if len(quote.split()) >= 15] == []


def test_flags_have_notes() -> None:
    """Each flag is explained in its file, and each explained flag is used."""
    for suite in SUITES:
        assert {flag for case in suite.cases for flag in case.source.get("flags", [])} == set(suite.notes), suite.name


def test_every_error_code_is_expected_by_a_case() -> None:
    """Each code is expected by a case, or has a reason in CODES_WITHOUT_CASES."""
    used = {ErrorCode(outcome["error"]) for case in CASES for outcome in case.outcomes if "error" in outcome}
    assert set(ErrorCode) - used == set(CODES_WITHOUT_CASES)


def test_every_operation_has_cases() -> None:
    """Each operation has at least one case."""
    assert {case.op for case in CASES} == set(OPERATIONS)


def _repeated(values: Any) -> list[Any]:
    return [value for value, count in Counter(values).items() if count > 1]


# --- Requirements ---------------------------------------------------------------------------------------------------


def test_cited_requirements_are_listed() -> None:
    """A case cites ids of requirements.json."""
    listed = load_requirements()
    assert {name for case in CASES for name in case.requirements} - set(listed) == set()


def test_every_requirement_is_covered() -> None:
    """Each requirement has a case, or a test that names it, or a reason why it is not testable."""
    cited = {name for case in CASES for name in case.requirements}
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    named = set(re.findall(r"[A-Z][A-Z0-9]*-[A-Za-z0-9.-]*[A-Za-z0-9]", tests))
    for one in load_requirements().values():
        if one.covered_by == "vector":
            assert one.id in cited, f"{one.id} has no case"
            assert not one.reason, f"{one.id} has a case, so it must have no reason"
        elif one.covered_by == "test":
            assert one.id in named, f"{one.id} must be named in a test"
        else:
            assert one.covered_by == "not-testable", one.id
            assert one.reason, f"{one.id} must have a case or a reason"
            assert one.id not in cited, f"{one.id} has a case, so it is testable"


def test_cases_of_decisions_are_unspecified() -> None:
    """A case with only decisions of this project as requirements is UNSPECIFIED."""
    texts = [case for case in CASES if all(name.startswith("A-") for name in case.requirements)]
    assert [case.id for case in texts if case.level != "UNSPECIFIED"] == []


def test_tables_of_the_readme_are_up_to_date() -> None:
    """``python -m ce_nats.conformance._tables`` changes nothing."""
    command = [sys.executable, "-m", "ce_nats.conformance._tables", "--check"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0


# --- Loading --------------------------------------------------------------------------------------------------------


def test_selection_without_cases_is_an_error() -> None:
    """So is a known failure that is not a case."""
    with pytest.raises(LookupError):
        cases("percent-encoding", "from_nats_message")
    with pytest.raises(FixtureError, match="the suite must be one of"):
        cases("percent")
    with pytest.raises(LookupError, match="known failures"):
        cases("percent-encoding", known_failures={"no-such-case": "it was renamed"})


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="no-file"),
        pytest.param('{"suite": "a", "description": "", "documents": {}, "notes": {}, "cases": []}', id="no-case"),
        pytest.param('{"suite": "b", "description": "", "documents": {}, "notes": {}, "cases": []}', id="other-name"),
        pytest.param('{"suite": "a"}', id="no-cases"),
        pytest.param("[]", id="no-object"),
        pytest.param("", id="no-json"),
    ],
)
def test_empty_fixtures_are_an_error(tmp_path: Path, content: str | None) -> None:
    """A folder without files, and a file without cases."""
    if content is not None:
        (tmp_path / "a.json").write_text(content, encoding="utf-8")
    with pytest.raises(FixtureError):
        load_suites(tmp_path)
