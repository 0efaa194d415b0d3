"""The engine that is guided by coverage, and the stored corpus."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from ce_nats.codec import percent
from tests.proof import record
from tests.proof.fuzz import __main__ as command
from tests.proof.fuzz import arcs, corpus, guided
from tests.proof.fuzz.target import one_by_one
from tests.proof.fuzz.targets import TARGETS
from tests.proof.fuzz.test_fuzz import planted


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A corpus without inputs."""
    monkeypatch.setattr(corpus, "FOLDER", tmp_path / "stored")
    return tmp_path / "stored"


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers with the target of ``planted.py``, which has another check than the one here."""
    if not guided.is_available():
        pytest.skip("needs Atheris: pip install --group fuzz")
    monkeypatch.setattr(guided, "MODULE", "tests.proof.fuzz.planted")
    monkeypatch.setattr(command, "TARGETS", {"planted": planted()})


@pytest.mark.long
@pytest.mark.usefixtures("worker")
def test_fault_after_four_branches_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four bytes have four thousand million values, but each character that is right reaches a new branch."""
    records: list[tuple[object, ...]] = []
    monkeypatch.setattr(record, "write", lambda *args: records.append(args))
    folders = ["--findings", str(tmp_path / "findings"), "--corpus", str(tmp_path / "corpus")]
    assert command.main(["--coverage", "--inputs", "60000", "--record", *folders]) == 1
    (finding,) = (tmp_path / "findings").iterdir()
    assert finding.read_bytes().startswith(b"word")
    assert "planted: KeyError: 'planted' (fails_for_a_word, line " in capsys.readouterr().out
    ((section, _, lines),) = records
    assert section == "fuzz-coverage"
    cells = lines[-1].split(" | ")
    assert cells[0] == "| planted"
    assert int(cells[1].replace(",", "")) >= 60_000
    assert [int(cell) >= 4 for cell in cells[4:7]] == [True] * 3


@pytest.mark.long
@pytest.mark.usefixtures("worker")
def test_input_that_ends_the_process_is_found(tmp_path: Path) -> None:
    run = guided.GuidedRun(planted(one_by_one(len), b"crash", name="crash"), tmp_path, seed=1, inputs=100)
    run.run()
    assert [(found.inputs, found.error) for found in run.result.findings] == [
        ([b"crash"], "SUMMARY: libFuzzer: deadly signal")
    ]


@pytest.mark.long
@pytest.mark.usefixtures("worker")
def test_process_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"ended with status 1: .*KeyError: 'other'"):
        guided.GuidedRun(planted(name="other"), tmp_path, seed=1, inputs=1).run()


def test_coverage_needs_atheris(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(guided, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        command.main(["--coverage", "--seconds", "1"])
    assert "pip install --group fuzz" in capsys.readouterr().err


def test_coverage_needs_a_limit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(guided, "is_available", lambda: True)
    with pytest.raises(SystemExit, match="2"):
        command.main(["--coverage"])
    assert "--seconds or --inputs" in capsys.readouterr().err


def test_numbers_are_read_from_lines_of_libfuzzer() -> None:
    result = guided.Guided("a")
    for line in (
        "INFO: seed corpus: files: 40 min: 1b max: 95b total: 911b rss: 181Mb\n",
        "#41\tINITED cov: 40 ft: 88 corp: 27/570b exec/s: 0 rss: 181Mb\n",
        "#65536\tpulse  cov: 42 ft: 101 corp: 31/650b lim: 652 exec/s: 13107 rss: 187Mb\n",
    ):
        guided.read_line(line, result)
    assert (result.inputs, result.edges, result.features, result.kept) == (65_536, 42, 101, 31)
    guided.read_line("#70000\tDONE   cov: 43 ft: 102 corp: 32/651b lim: 652 exec/s: 13107 rss: 187Mb\n", result)
    guided.read_line("stat::number_of_executed_units: 70123\n", result)
    assert (result.inputs, result.edges, result.features, result.kept) == (70_123, 43, 102, 32)


def test_dictionary_escapes_every_byte() -> None:
    assert guided.dictionary([b'"\\\n\xff', b"", b"a"]) == '"\\x22\\x5c\\x0a\\xff"\n"\\x61"\n'


def test_stored_inputs_are_read_in_a_fixed_order(stored: Path) -> None:
    corpus.write("a", [b"", b"\x00\xff", b"long" * 100, b"a\nb", b"\x00\xff"])
    assert corpus.read("a") == [b"", b"\x00\xff", b"a\nb", b"long" * 100]
    assert corpus.read("b") == []
    corpus.write("a", [])
    assert [*stored.iterdir()] == []


def test_stored_inputs_have_a_target() -> None:
    assert {path.stem for path in corpus.FOLDER.glob("*")} <= {*TARGETS}


@pytest.mark.usefixtures("stored")
def test_stored_inputs_are_run_first() -> None:
    corpus.write("planted", [b"stored", b"abd"])
    assert planted().initial() == [b"abd", b"stored", b"abc"]


def test_inputs_that_reach_new_code_are_stored(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeds have no quotes, the stored input and a found one have; one needs the branch of wrong escapes."""
    target = dataclasses.replace(TARGETS["percent"], seeds=lambda: [b"abc", b"a%20b", b""])
    monkeypatch.setattr(command, "TARGETS", {"percent": target})
    corpus.write("percent", [b'"aaaa"'])
    folder = corpus.unpack([b"xyz", b'"a"', b"%4", b"%41%", b"b%20c"], tmp_path / "corpus" / "percent")
    assert command.main(["--store", "--corpus", str(folder.parent)]) == 0
    assert corpus.read("percent") == [b'"a"', b"%4"]
    assert [path.name for path in stored.iterdir()] == ["percent.txt"]
    before = sys.gettrace()
    assert arcs.reached(lambda: percent.decode("%4")) != arcs.reached(lambda: percent.decode("%41"))
    assert arcs.reached(lambda: len("a")) == set()
    assert sys.gettrace() is before
