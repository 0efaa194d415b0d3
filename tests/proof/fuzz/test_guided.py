"""The engine that is guided by coverage, and the stored corpus."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof.fuzz import corpus, guided
from tests.proof.fuzz.targets import TARGETS
from tests.proof.fuzz.test_fuzz import planted

MODULE = "tests.proof.fuzz.planted"


@pytest.fixture(scope="module")
def atheris() -> None:
    if not guided.is_available():
        pytest.skip("needs Atheris: pip install --group fuzz")


@pytest.mark.long
@pytest.mark.usefixtures("atheris")
def test_fault_after_four_branches_is_found(tmp_path: Path) -> None:
    """Four bytes have four thousand million values, but each character that is right reaches a new branch."""
    run = guided.GuidedRun(planted(), tmp_path, seed=1, inputs=60_000, module=MODULE)
    run.run()
    (finding,) = run.result.findings
    assert finding.inputs[0].startswith(b"word")
    assert finding.error.startswith("KeyError: 'planted' (fails_for_a_word, line ")
    assert run.result.inputs >= 60_000
    assert run.result.edges >= 4
    assert run.result.kept >= 4

    merged = guided.merge(planted(), [tmp_path / "planted"], module=MODULE)
    assert 3 <= len(merged) <= 10
    assert any(data.startswith(b"word") for data in merged)
    assert b"abcd" not in merged


@pytest.mark.long
@pytest.mark.usefixtures("atheris")
def test_process_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"ended with status 1: .*KeyError: 'other'"):
        guided.GuidedRun(planted(name="other"), tmp_path, seed=1, inputs=1, module=MODULE).run()


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


def test_stored_inputs_are_read_in_a_fixed_order(tmp_path: Path) -> None:
    inputs = [b"", b"\x00\xff", b"long" * 100, b"a\nb", b"\x00\xff"]
    corpus.write("a", inputs, tmp_path)
    assert corpus.read("a", tmp_path) == [b"", b"\x00\xff", b"a\nb", b"long" * 100]
    assert corpus.read("b", tmp_path) == []


def test_stored_inputs_have_a_target() -> None:
    assert {path.stem for path in corpus.FOLDER.glob("*")} <= {*TARGETS}


def test_stored_inputs_are_run_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    corpus.write("planted", [b"stored", b"abd"], tmp_path)
    monkeypatch.setattr(corpus, "read", lambda name, read=corpus.read: read(name, tmp_path))
    assert planted().initial() == [b"abd", b"stored", b"abc"]
