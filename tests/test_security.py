"""The tests that SECURITY.md names exist."""

import ast
import re
from functools import cache
from pathlib import Path

from tests.support.tables import each

ROOT = Path(__file__).parents[1]
NAMED = re.findall(r"\[`(\w+)`\]\(([\w/.]+)\)", (ROOT / "SECURITY.md").read_text("utf-8"))


@cache
def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_bytes())
    return {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def test_each_edge_names_a_test() -> None:
    _, _, section = (ROOT / "SECURITY.md").read_text("utf-8").partition("## Trust boundaries")
    section = section.partition("\n## ")[0]
    edges = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert edges
    assert all("](tests/" in edge for edge in edges)


@each(("name", "path"), NAMED)
def test_named_test_exists(name: str, path: str) -> None:
    assert name.startswith("test_")
    assert name in functions(ROOT / path)
