import subprocess
import sys
from collections import defaultdict
from types import FunctionType, ModuleType

import pytest

from tests.proof.mutants import codes
from tests.proof.mutants.executed import Recorder

PATH = "ce_nats/m.py"
SOURCE = """
def outer(a, b=1):
    def inner(c):
        return a + c
    return inner(b), [x + 1 for x in (a, b)], (lambda: a < b)()

class C:
    X = 1

    def method(self):
        return self.X

PAIR = (lambda: 1), (lambda: 2)
"""


@pytest.mark.parametrize(
    ("old", "new", "names", "at_import"),
    [
        ("a + c", "a - c", {"inner"}, False),
        ("x + 1", "x + 2", {"<listcomp>" if sys.version_info < (3, 12) else "outer"}, False),
        ("a < b", "a <= b", {"<lambda>"}, False),
        ("inner(b)", "inner(a)", {"outer"}, False),
        ("return inner(b)", "return None #", {"outer"}, False),
        ("self.X", "self.Y", {"method"}, False),
        ("X = 1", "X = True", {"C"}, True),
        ("b=1", "b=2", {"<module>"}, True),
        ("a + c", "a  +  c", set(), False),
        ("lambda: 2", "lambda: 3", {"<lambda>"}, False),
    ],
)
def test_changes(old, new, names, at_import):
    change = codes.change(PATH, SOURCE, SOURCE.replace(old, new, 1))
    assert {name for _, _, name in change.keys} == names
    assert change.at_import is at_import


def installed(old, new):
    """Return a module in which a mutant was installed after its import."""
    module = ModuleType("m")
    exec(compile(SOURCE, PATH, "exec"), module.__dict__)
    existing = defaultdict(list)
    for one in (module.outer, module.C.method, *module.PAIR):
        assert isinstance(one, FunctionType)
        existing[codes.key(PATH, one.__code__)].append(one)
    codes.install(PATH, SOURCE, SOURCE.replace(old, new, 1), existing)
    return module


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        ("a + c", "a - c", (1, [3, 2], False)),
        ("x + 1", "x + 2", (3, [4, 3], False)),
        ("a < b", "a > b", (3, [3, 2], True)),
        ("inner(b)", "inner(a)", (4, [3, 2], False)),
    ],
)
def test_mutants_are_installed(old, new, result):
    assert installed(old, new).outer(2) == result


@pytest.mark.parametrize(("old", "new"), [("X = 1", "X = 2"), ("lambda: 2", "lambda: 3")])
def test_mutants_that_must_be_imported(old, new):
    with pytest.raises(codes.NotInstallableError):
        installed(old, new)


def test_processes_are_recorded():
    recorder = Recorder()
    recorder.start()
    subprocess.run([sys.executable, "-c", ""], check=True)
    recorder.stop()
    assert recorder.starts_processes
    recorder.start()
    recorder.stop()
    assert not recorder.starts_processes
