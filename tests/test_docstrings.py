"""Docstrings: what is not exported has a sentence, and no sections."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(path.read_text("utf-8"))
    for path in (ROOT / "ce_nats").rglob("*.py")
}
SECTION = re.compile(r"^(Args|Returns|Yields|Attributes|Raises):$", re.MULTILINE)
# Structs have a section with their fields, and functions one with the errors that they make.
ALLOWED = {"Attributes", "Raises"}

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def exported() -> set[tuple[str, str]]:
    """Return module and name of all objects in ``__all__`` of public modules, and of the bases of classes."""
    found = set()
    for name, tree in SOURCES.items():
        if any(isinstance(node, ast.Name) and node.id == "__all__" for node in ast.walk(tree)):
            module = importlib.import_module(name)
            for one in getattr(module, "__all__", []):
                value = getattr(module, one)
                for kind in value.__mro__ if isinstance(value, type) else [value]:
                    found.add((getattr(kind, "__module__", ""), getattr(kind, "__qualname__", one)))
    return found


def private_definitions(
    module: str, node: ast.AST, names: set[tuple[str, str]], path: str = ""
) -> Iterator[Definition]:
    """Yield the definitions that users do not see: not exported, or with an underscore in an exported class."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Definition):
            continue
        is_member = isinstance(node, ast.ClassDef) and not re.match(r"_(?!_\w+__$)", child.name)
        is_public = is_member if path else (module, child.name) in names
        if not is_public:
            yield child
        inner = f"{path}{child.name}."
        yield from private_definitions(module, child, names if is_public else set(), inner if is_public else "")


def test_private_definitions_have_no_sections() -> None:
    names = exported()
    assert ("ce_nats.codec.binding", "to_nats_message") in names
    wrong = [
        f"{module}.{one.name}: {section}"
        for module, tree in SOURCES.items()
        for one in private_definitions(module, tree, names)
        for section in SECTION.findall(ast.get_docstring(one) or "")
        if section not in ALLOWED
    ]
    assert wrong == []
