"""Mutants of a small package with its own tests, judged as by the command."""

import shutil
from pathlib import Path

import pytest

from tests.proof import record
from tests.proof.mutants import judge, run
from tests.proof.mutants.mutate import make

PATH = "ce_nats/_ranges.py"
SOURCE = """
import subprocess, sys
from functools import cache

LIMIT = 10

def make_adder(number):
    def add(other):
        return other + number
    return add

add_two = make_adder(2)

@cache
def cached(number):
    return number * 2

class Range:
    step = 1

    def __init__(self, first, last=5):
        self.first, self.last = first, last

    def numbers(self):
        number = self.first
        while number <= self.last:
            yield number
            number += self.step

    def even(self):
        return [number for number in self.numbers() if number % 2 == 0]

    def unused(self):
        return 1

def nested(numbers):
    def key(number):
        return -number
    return sorted(numbers, key=key)

def is_below(number):
    return number < LIMIT

def in_process(number):
    return subprocess.run([sys.executable, "-c", f"import ce_nats._ranges as r; print(r.is_below({number}))"],
        check=True, capture_output=True, text=True).stdout.strip()

def while_collected():
    return 5
"""
TESTS = """
import pytest
from ce_nats import _ranges
from ce_nats._ranges import Range, while_collected

def test_range(): assert list(Range(1).numbers()) == [1, 2, 3, 4, 5]
def test_even(): assert Range(1).even() == [2, 4]
def test_nested(): assert _ranges.nested([1, 3, 2]) == [3, 2, 1]
def test_adder(): assert _ranges.add_two(1) == 3
def test_cached(): assert _ranges.cached(2) == _ranges.cached(2)
def test_limit(): assert _ranges.is_below(9)
def test_process(): assert _ranges.in_process(10) == "False"

@pytest.mark.parametrize("number", [while_collected()])
def test_collected(number): assert while_collected() == number
def test_value(): assert while_collected() < 6
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("package")
    shutil.copytree(record.ROOT / "tests/proof/mutants", root / "tests/proof/mutants")
    for name in judge.COPIED:
        (root / name).parent.mkdir(exist_ok=True)
        if "." in name:
            (root / name).touch()
        else:
            (root / name).mkdir(exist_ok=True)
    (root / "ce_nats/testing").mkdir()
    for name, text in {
        "ce_nats/__init__.py": "",
        "ce_nats/testing/__init__.py": "",
        "ce_nats/testing/pytest_plugin.py": "",
        "tests/proof/__init__.py": "",
        PATH: SOURCE,
        "tests/test_ranges.py": TESTS,
        "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['slow', 'interop']\n",
    }.items():
        (root / name).write_text(text, "utf-8")
    return root


@pytest.fixture(scope="module")
def copy(root):
    with judge.Copy(root, [PATH], confirm=True) as copy:
        run.select(root, [copy], budget=20)
        yield copy


def test_selection(copy):
    selection = copy.selection
    assert not selection.failed
    assert {name for _, _, name in selection.early} >= {"<module>", "make_adder", "Range", "while_collected"}
    assert not {name for _, _, name in selection.early} & {"add", "even", "is_below"}
    line = 1 + SOURCE[: SOURCE.index("def is_below")].count("\n")
    tests = selection.executing(PATH, {(PATH, line, "is_below")})
    names = {selection.name(test).partition("::")[2] for test in tests}
    assert names == {"test_limit", "test_process"}


def first(*cases):
    """Return cases as parameters; all but the first are long."""
    return [pytest.param(*case, marks=pytest.mark.long if place else ()) for place, case in enumerate(cases)]


@pytest.mark.parametrize(
    ("old", "new", "by"),
    first(
        ("number <= self.last", "number < self.last", {"test_range"}),
        ("% 2 == 0", "% 2 != 0", {"test_even"}),
        ("return -number", "return +number", {"test_nested"}),
        ("key=key", "key=None", {"test_nested"}),
        ("return other + number", "return other - number", {"test_adder"}),
        ("number < LIMIT", "number <= LIMIT", {"test_process"}),
        ("number < LIMIT", "number > LIMIT", {"test_limit"}),
        # Of code that runs at import.
        ("LIMIT = 10", "LIMIT = 9", {"test_limit"}),
        ("step = 1", "step = 2", {"test_range", "test_even"}),
        ("last=5", "last=4", {"test_range"}),
        ("make_adder(2)", "make_adder(3)", {"test_adder"}),
        ("return add\n", "return None\n", {"test_adder"}),
        ("import subprocess", "import subproces", {"status 3", "tests/test_ranges.py"}),
        # A value that tests have from before.
        ("return 5", "return 6", {"test_value"}),
    ),
)
def test_killed(copy, old, new, by):
    assert SOURCE.count(old) == 1
    mutant = make(PATH, SOURCE, SOURCE.replace(old, new), "", "")
    for _ in range(2):  # the second time after an earlier killer
        verdict = copy.verdict(mutant)
        assert verdict.outcome == judge.KILLED
        assert verdict.by.removeprefix("tests/test_ranges.py::") in by


@pytest.mark.long
def test_endless_loop_is_killed(copy):
    verdict = copy.verdict(make(PATH, SOURCE, SOURCE.replace("number += self.step", "pass"), "", ""))
    assert (verdict.outcome, verdict.by) == (judge.KILLED, judge.TIMEOUT)


@pytest.mark.parametrize(
    ("old", "new", "by"),
    first(
        ("return number * 2", "return number * 3", ""),
        ("other + number", "number + other", ""),
        ("LIMIT = 10", "LIMIT = 2 * 5", ""),
        ("step = 1", "step = True", ""),
        ("return 5", "return 4", ""),
        ("return 1", "return 2", judge.NOT_EXECUTED),
    ),
)
def test_survived(copy, old, new, by):
    assert SOURCE.count(old) == 1
    verdict = copy.verdict(make(PATH, SOURCE, SOURCE.replace(old, new), "", ""))
    assert (verdict.outcome, verdict.by) == (judge.SURVIVED, by)
