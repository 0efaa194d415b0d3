"""
Results of other SDKs on the conformance cases equal docs/conformance.md and judged.json.

``python -m tests.interop.judge`` writes both.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ce_nats.conformance import Case, Command, Result, Verdict, load_cases
from tests.support import caching, programs
from tests.support.caching import BuildFailedError, NotAvailable, available

from . import judge, peers
from .faults import faults
from .judges import SDKS, Judged

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "judged",
    [pytest.param(one, marks=[pytest.mark.long] if one.key != "python" else []) for one in SDKS],
    ids=lambda judged: judged.key,
)
def test_results_equal_the_page(judged: Judged) -> None:
    """Each case has the result, the faults and the causes on the page."""
    program = available(judged.program, judged.name)
    found, kept = judge.run(judged, program, load_cases()), judge.read_summaries()[judged.key]
    different = {one for one in {*found, *kept} if found.get(one) != kept.get(one)}
    assert {one: found.get(one) for one in different} == {one: kept.get(one) for one in different}


def test_page_is_generated_from_the_results() -> None:
    """The page is up to date with judged.json."""
    assert judge.page(judge.read_summaries()) == judge.PAGE.read_text("utf-8")


def test_versions() -> None:
    """The page has the versions that are built."""
    sources = {
        "go": (peers.HERE / "go" / "go.mod").read_text("utf-8"),
        "rust": (peers.HERE / "rust" / "Cargo.toml").read_text("utf-8"),
        "javascript": (peers.HERE / "js" / "package.json").read_text("utf-8"),
        "python": Path(peers.__file__).read_text("utf-8"),
    }
    for judged in SDKS:
        for version in re.findall(r"\d+\.\d+\.\d+", judged.version):
            assert version in sources[judged.key.split("-")[0]], judged.name


def test_runner_of_the_readme(tmp_path: Path) -> None:
    """It answers its operation, skips others, and has the results stated in the README."""
    readme = (ROOT / "spec-fixtures" / "README.md").read_text("utf-8")
    [source] = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (tmp_path / "runner.py").write_text(source, "utf-8")
    known = load_cases()
    one_of_each = {case.op: case for case in known if case.op != "percent.decode"}
    cases = [*one_of_each.values(), *(case for case in known if case.op == "percent.decode")]
    with Command(f"'{sys.executable}' '{tmp_path / 'runner.py'}'", timeout=60) as program:
        results = {case.id: program.run(case).result for case in cases}
    answered = [results[case.id] for case in cases if case.op == "percent.decode"]
    assert f"fails {answered.count(Result.FAILED)} of {len(answered)} cases" in " ".join(readme.split())
    assert {results[case.id] for case in cases if case.op != "percent.decode"} == {Result.SKIPPED}


# --- Faults ---------------------------------------------------------------------------------------------------------


def _faults(outcome: dict[str, object], got: dict[str, object]) -> list[str]:
    case = Case("s", "c", "from_nats_message", "MUST", "", (), {}, (outcome,), {})
    return [str(fault) for fault in faults(Verdict(case, Result.FAILED, got))]


def test_faults() -> None:
    """Texts of faults do not change between runs."""
    event = {"attributes": {"id": {"type": "String", "value": "1"}}, "data": {"absent": True}}
    other = {"attributes": {"time": {"type": "Timestamp", "value": "2020-01-01T00:00:00Z"}}, "data": {"text": "a"}}
    assert _faults({"error": "invalid-json"}, {"result": event}) == ["expected error invalid-json, got a result"]
    assert _faults({"expected": event}, {"error": "at 0x7f"}) == ["expected a result, got an error"]
    assert _faults({"expected": event}, {}) == ["no answer to compare"]
    assert _faults({"expected": event}, {"result": other}) == [
        'id: expected "1", got nothing',
        "time: expected nothing, got a value",
        'data: expected no data, got text "a"',
    ]


# --- Unavailable programs -------------------------------------------------------------------------------------------

FAILS = [sys.executable, "-c", "import sys; sys.exit('no route to host')"]


def test_failed_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests are skipped, because a machine may have no network, and fail with CI=true."""
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(NotAvailable, match="no route to host"):
        caching.download(FAILS, tmp_path)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(BuildFailedError, match="no route to host"):
        caching.download(FAILS, tmp_path)


def test_missing_toolchain_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with CI=true; the reason names the tool."""
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("PATH", "")
    for make, tool in ((peers.go_peer, "go"), (peers.node_peer, "node"), (peers.rust_peer, "cargo")):
        with pytest.raises(NotAvailable, match=f"{tool} must be on PATH"):
            make()


def test_failed_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure with and without CI=true, with the output of the tool."""
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(BuildFailedError, match="no route to host"):
        caching.build(FAILS, tmp_path)


@pytest.mark.parametrize(
    ("output", "ci", "raised"),
    [
        ("ERROR: No matching distribution found for x==1", "true", NotAvailable),
        (
            "WARNING: Retrying after connection broken by 'E'\nERROR: No matching distribution found",
            "true",
            BuildFailedError,
        ),
        ("WARNING: Retrying after connection broken by 'E'\nERROR: No matching distribution found", "", NotAvailable),
        ("ERROR: disk full", "true", BuildFailedError),
    ],
)
def test_unavailable_python_packages(
    output: str, ci: str, raised: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Skipped without a wheel for this Python; an unreachable registry is a failure with CI=true."""
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = subprocess.CompletedProcess([], 1, "", output)
    monkeypatch.setattr(programs, "run", lambda *_: done)
    with pytest.raises(raised):
        programs.python_packages("x==1")
