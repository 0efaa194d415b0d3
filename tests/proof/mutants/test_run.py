"""A checker that cannot fail is worthless: mutants are run as by the command, on a module and its own tests."""

import pytest

from tests.proof import record
from tests.proof.mutants import equivalent, judge, run, targets
from tests.proof.mutants.__main__ import in_random_order, sample, until_last
from tests.proof.mutants.mutate import make, python_mutants
from tests.proof.mutants.summary import EQUIVALENT, Summary

MODULE = "ce_nats/aio/_pull_status.py"


def test_every_module_has_tests():
    assert len(targets.modules(record.ROOT)) > 60
    for module in targets.modules(record.ROOT):
        if not module.endswith(("__init__.py", ".java")):
            own, _ = targets.stages(record.ROOT, module)
            assert own[0].startswith("tests/")


@pytest.mark.long
def test_mutants_are_killed_or_survive():
    source = (record.ROOT / MODULE).read_text(encoding="utf-8")
    same = make(MODULE, source, source + "\nUNUSED = 1\n", "<module>", "comment")
    endless = make(MODULE, source, source + "\nassert 0\n", "<module>", "assertion")
    verdicts = run.verdicts(record.ROOT, [endless, same, endless], run.Options(processes=1))
    assert [one.outcome for one in verdicts] == [judge.KILLED, judge.SURVIVED, judge.KILLED]


def test_samples_have_every_module():
    mutants = [one for name in ("a.py", "b.py") for one in python_mutants(name, "X = 1\nY = 2\nZ = 3\n")]
    assert len(mutants) == 12
    chosen = sample(mutants, 4, 1)
    assert [mutant.path for mutant in chosen] == ["a.py", "a.py", "b.py", "b.py"]
    assert sample(mutants, 4, 1) == chosen
    assert sample(mutants, None, 1) == mutants
    assert {mutant.path for mutant in sample(mutants, 1, 1)} == {"a.py", "b.py"}


def test_random_order_is_of_mutants():
    mutants = [one for name in "abcdef" for one in python_mutants(name, "X = 1\nY = 2\n")]
    shuffled = in_random_order(mutants, 1)
    assert sorted(shuffled, key=mutants.index) == mutants
    assert len({one.path for one in shuffled[:6]}) > 2


def test_equivalent_mutants_count_up_to_the_last_that_was_judged():
    mutants = python_mutants("a.py", "X = 1\nY = 2\nZ = 3\n")
    assert until_last(mutants, [mutants[3], mutants[1]], is_whole=False) == mutants[:4]
    assert until_last(mutants, [], is_whole=False) == []
    assert until_last(mutants, [mutants[0]], is_whole=True) == mutants


def test_entries_of_changed_lines_are_stale(tmp_path):
    file = tmp_path / "equivalent.yaml"
    file.write_text('a.py:\n  <module>:\n  - {line: "X = 1", becomes: "X = 2", why: it is not used}\n', "utf-8")
    entries = equivalent.load(file)
    assert list(entries) == [("a.py", "<module>", "X = 1", "X = 2")]
    for source, expected in (("X = 1\n", 0), ("\n\nX = 1\n", 0), ("X = 3\n", 1)):
        assert len(equivalent.stale(entries.values(), python_mutants("a.py", source), {"a.py"})) == expected


def test_entry_without_a_change_is_for_all_changes_of_its_line(tmp_path):
    file = tmp_path / "equivalent.yaml"
    file.write_text('a.py:\n  <module>:\n  - {line: "X = 1", why: it is not used}\n', "utf-8")
    entries = equivalent.load(file)
    mutants = python_mutants("a.py", "X = 1\nY = 1\n")
    assert [equivalent.is_equivalent(one, entries) for one in mutants] == [True, True, False, False]
    assert equivalent.stale(entries.values(), mutants, {"a.py"}) == []
    assert equivalent.stale(entries.values(), mutants[2:], {"a.py"}) == list(entries.values())


def test_duplicate_keys_are_rejected(tmp_path):
    file = tmp_path / "equivalent.yaml"
    file.write_text("a.py:\n  f:\n  - {line: x, why: a}\n  g: []\n  f:\n  - {line: y, why: b}\n", "utf-8")
    with pytest.raises(ValueError, match="keys must differ, got f twice"):
        equivalent.load(file)


@pytest.mark.long
def test_entries_of_the_file_are_mutants():
    entries = equivalent.load()
    modules = {path for path, *_ in entries}
    assert modules <= set(targets.modules(record.ROOT))
    mutants = [one for path in modules for one in targets.mutants(record.ROOT, path)]
    assert equivalent.stale(entries.values(), mutants, modules) == []


def test_share_is_of_mutants_that_are_not_equivalent():
    result = Summary(7)
    for mutant, outcome in zip(
        python_mutants("a.py", "X = 1\nY = 2\nZ = 3\n"), [judge.KILLED] * 3 + [judge.SURVIVED] + [EQUIVALENT] * 2
    ):
        result.add(mutant, outcome)
    assert result.share() == 0.75
    assert "| all | 6 | 3 | 1 | 2 |" in result.lines()
    assert result.lines()[0].startswith("6 of 7 mutants: 3 of 4 that are not equivalent were killed (75.0 %)")
    assert result.lines()[-1] == "- `a.py:2` in `<module>`: ``Y = 2`` becomes ``Y = 3``"
