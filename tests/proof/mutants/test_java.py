"""Mutants of Java sources, and the process that tests them."""

import pytest

from tests.proof import record
from tests.proof.mutants import java_run
from tests.proof.mutants.java_source import java_mutants
from tests.proof.mutants.mutate import make

PERCENT = f"{java_run.FOLDER}/Percent.java"


def bodies(line, kind="int"):
    """Return the mutants of a statement in a method."""
    source = f"final class C {{\n    {kind} f(int a, boolean b) {{\n        {line}\n    }}\n}}\n"
    mutants = java_mutants("C.java", source)
    assert all((mutant.function, mutant.line) == ("C.f", 3) for mutant in mutants)
    return [mutant.after for mutant in mutants]


@pytest.mark.parametrize(
    ("line", "mutants"),
    [
        ("int c = a < 5;", ["int c = a < 4;", "int c = a < 6;", "int c = a <= 5;"]),
        ("int c = a + 0x0F;", ["int c = a + 0x10;", "int c = a + 0xe;", "int c = a - 0x0F;"]),
        ("long c = 1_000L;", ["long c = 1001L;", "long c = 999L;"]),
        ("boolean c = !b;", ["boolean c = b;"]),
        ("boolean c = b && true;", ["boolean c = b && false;", "boolean c = b || true;"]),
        ("char c = 'b';", ["char c = (char) 97;", "char c = (char) 99;"]),
        ('String c = "ab\\n";', ['String c = "ab";']),
        ('String c = "a text for people";', []),
        ("int c = b ? a : a;", ["int c = !(b) ? a : a;"]),
        ("if (b) {}", ["if (!(b)) {}"]),
        ("for (int c = a; c < a; c++) {}", ["for (int c = a; c < a; c--) {}", "for (int c = a; c <= a; c++) {}"]),
        ("f(a, b);", [";", "f(b, a);"]),
        ("a = -a;", [";", "a = a;"]),
        ("a |= a;", [";", "a &= a;"]),
        ("a++; // a comment, 5 < 6", ["; // a comment, 5 < 6", "a--; // a comment, 5 < 6"]),
        ("return a;", ["return 0;"]),
        ("List<List<Integer>> c = new ArrayList<>();", []),
        ('throw new E("got " + a);', [";"]),
        ("@Override int c;", []),
    ],
)
def test_mutants_of_a_statement(line, mutants):
    assert sorted(bodies(line)) == sorted(mutants)


def test_returned_values_are_of_the_type():
    assert bodies("return b;", "boolean") == ["return !(b);"]
    assert bodies("return b;", "List<Integer>") == ["return null;"]
    assert bodies("return;", "void") == []


def test_mutants_of_every_source():
    for path in (record.ROOT / java_run.FOLDER).glob("*.java"):
        source = path.read_text("utf-8")
        mutants = java_mutants(path.name, source)
        assert mutants
        assert len({mutant.source for mutant in mutants} | {source}) == len(mutants) + 1


@pytest.mark.long
def test_mutants_are_killed_or_survive():
    runner = java_run.JavaRunner(record.ROOT)
    source = (record.ROOT / PERCENT).read_text("utf-8")

    def outcome(old, new):
        assert old in source
        return runner.outcome(make(PERCENT, source, source.replace(old, new, 1), "Percent", "a change"))

    assert outcome("final class", "/* the same */ final class") == java_run.SURVIVED
    assert outcome("high << 4", "high << 3").startswith("event_columns, array<struct")
    assert outcome("return value;", "while (true) {}") == java_run.TIMEOUT
    assert outcome("return value;", "return 5;") == java_run.INVALID
    assert outcome("final class", "final  class") == java_run.SURVIVED
    runner.close()
