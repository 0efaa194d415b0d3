"""Error numbers of nats-server: a single module has them."""

import ast
from pathlib import Path

import ce_nats.aio
from ce_nats.aio import _server_codes

PACKAGE = Path(ce_nats.aio.__file__).parents[1]


def _is_number(node):
    return isinstance(node, ast.Constant) and type(node.value) is int and 10_000 < node.value < 10_300


def test_no_other_module_has_error_numbers():
    numbers = [value for value in vars(_server_codes).values() if isinstance(value, int)]
    assert len(set(numbers)) == len(numbers) > 20
    assert all(10_000 < number < 10_300 for number in numbers)
    found = {
        path.name
        for path in PACKAGE.rglob("*.py")
        if any(map(_is_number, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found == {"_server_codes.py"}
