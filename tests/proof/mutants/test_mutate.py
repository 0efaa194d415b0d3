import pytest

from tests.proof.mutants.mutate import python_mutants


def bodies(line):
    """Return the mutants of a statement in a function."""
    source = f"def f(a, b):\n    {line}\n"
    return [mutant.after for mutant in python_mutants("m.py", source)]


@pytest.mark.parametrize(
    ("line", "mutants"),
    [
        ("c = a < b", ["c = a <= b"]),
        ("c = (a) is not (b)", ["c = (a) is (b)"]),
        ("c = 'é' in b", ["c = 'mutant' in b", "c = 'é' not in b"]),
        ("c = a and b", ["c = a or b"]),
        ("c = not a", ["c = (a)"]),
        ("c = a if b else 5", ["c = a if not (b) else 5", "c = a if b else 4", "c = a if b else 6"]),
        ("c = True", ["c = False"]),
        ("c = 'ab'", ["c = 'a'"]),
        ("c = b''", ["c = b'mutant'"]),
        ("c = a - b", ["c = a + b"]),
        ("c = f(a, b)", ["c = f(b, a)"]),
        ("c = max(a, b)", []),
        ("return a", ["return None"]),
        ("a += b", ["pass", "a -= b"]),
        ("a.x = b", ["pass"]),
        ("raise ValueError('a text')", ["pass"]),
        ("f(a)", ["pass"]),
        ("c = f'{a < b}'", []),
        ("c: 'int' = a", []),
        ("'a docstring'", []),
        ("c = 'a text for people'", []),
    ],
)
def test_mutants_of_a_statement(line, mutants):
    assert sorted(bodies(line)) == sorted(mutants)


def test_mutants_say_where_they_are():
    source = "class C:\n    def f(self, n=0):\n        return None\n\n\nX = 5\n"
    first, *_, last = python_mutants("m.py", source)
    assert first.key == ("m.py", "C.f", "def f(self, n=0):", "def f(self, n=(-1)):")
    assert (last.function, last.line, last.source) == ("<module>", 6, source.replace("5", "6"))
    assert last.diff(source).splitlines()[-2:] == ["-X = 5", "+X = 6"]
