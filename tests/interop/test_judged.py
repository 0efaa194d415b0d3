"""
Other SDKs on the conformance vectors: docs/conformance.md and judged.json say what this run says.

``python -m tests.interop.judge`` writes both.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ce_nats.conformance import Case, Command, Result, Verdict, load_cases
from tests.support import caching, programs
from tests.support.caching import BuildFailedError, NotAvailable

from . import judge, peers
from .faults import faults
from .judges import SDKS, Judged

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("judged", SDKS, ids=lambda judged: judged.key)
def test_judged(judged: Judged) -> None:
    """Each case has the result, the faults and the causes that the page gives it."""
    try:
        program = judged.program()
    except NotAvailable as missing:
        pytest.skip(f"no {judged.name}: {missing}")
    found, kept = judge.run(judged, program, load_cases()), judge.read_summaries()[judged.key]
    different = {one for one in {*found, *kept} if found.get(one) != kept.get(one)}
    assert {one: found.get(one) for one in different} == {one: kept.get(one) for one in different}


def test_page() -> None:
    """The page is what the summaries give."""
    assert judge.page(judge.read_summaries()) == judge.PAGE.read_text("utf-8")


def test_versions() -> None:
    """The page names the versions that are built."""
    sources = {
        "go": (peers.HERE / "go" / "go.mod").read_text("utf-8"),
        "rust": (peers.HERE / "rust" / "Cargo.toml").read_text("utf-8"),
        "javascript": (peers.HERE / "js" / "package.json").read_text("utf-8"),
        "python": Path(peers.__file__).read_text("utf-8"),
    }
    for judged in SDKS:
        for version in re.findall(r"\d+\.\d+\.\d+", judged.version):
            assert version in sources[judged.key.split("-")[0]], judged.name


def test_the_runner_of_the_readme(tmp_path: Path) -> None:
    """It answers what it has, skips the rest, and does as well as the text says."""
    readme = (ROOT / "spec-fixtures" / "README.md").read_text("utf-8")
    [source] = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (tmp_path / "runner.py").write_text(source, "utf-8")
    cases = load_cases()
    with Command(f"'{sys.executable}' '{tmp_path / 'runner.py'}'", timeout=60) as program:
        results = {case.id: program.run(case).result for case in cases}
    of_its_own = [results[case.id] for case in cases if case.op == "percent.decode"]
    assert f"fails {of_its_own.count(Result.FAILED)} of {len(of_its_own)} cases" in " ".join(readme.split())
    assert {results[case.id] for case in cases if case.op != "percent.decode"} == {Result.SKIPPED}


# --- Faults ---------------------------------------------------------------------------------------------------------


def _faults(outcome: dict[str, object], got: dict[str, object]) -> list[str]:
    case = Case("s", "c", "from_nats_message", "MUST", "", (), {}, (outcome,), {})
    return [str(fault) for fault in faults(Verdict(case, Result.FAILED, got))]


def test_faults() -> None:
    """What is wrong, in words that do not change from run to run."""
    event = {"attributes": {"id": {"type": "String", "value": "1"}}, "data": {"absent": True}}
    other = {"attributes": {"time": {"type": "Timestamp", "value": "2020-01-01T00:00:00Z"}}, "data": {"text": "a"}}
    assert _faults({"error": "invalid-json"}, {"result": event}) == ["wanted the error invalid-json, came a result"]
    assert _faults({"expected": event}, {"error": "at 0x7f"}) == ["wanted a result, came an error"]
    assert _faults({"expected": event}, {}) == ["no answer to compare"]
    assert _faults({"expected": event}, {"result": other}) == [
        'id: wanted "1", came none',
        "time: wanted none, came one",
        'data: wanted no data, came text "a"',
    ]


# --- What cannot be had ---------------------------------------------------------------------------------------------

FAILS = [sys.executable, "-c", "import sys; sys.exit('no route to host')"]


def test_downloads_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are skipped where nobody promised a network, and are failures with CI=true."""
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(NotAvailable, match="no route to host"):
        caching.download(FAILS, tmp_path)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(BuildFailedError, match="no route to host"):
        caching.download(FAILS, tmp_path)


def test_a_missing_toolchain_is_skipped_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """With CI=true too, and by its name."""
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("PATH", "")
    for make, tool in ((peers.go_peer, "go"), (peers.node_peer, "node"), (peers.rust_peer, "cargo")):
        with pytest.raises(NotAvailable, match=f"{tool} must be on PATH"):
            make()


def test_a_build_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is a failure everywhere, with what the tool said."""
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(BuildFailedError, match="no route to host"):
        caching.build(FAILS, tmp_path)


@pytest.mark.parametrize(
    ("said", "ci", "raised"),
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
def test_python_packages_that_cannot_be_had(
    said: str, ci: str, raised: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without a build for this Python is skipped; a registry out of reach is none with CI=true."""
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = subprocess.CompletedProcess([], 1, "", said)
    monkeypatch.setattr(programs, "run", lambda *_: done)
    with pytest.raises(raised):
        programs.python_packages("x==1")
