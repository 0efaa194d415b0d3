"""Streams of the README, the guides and the examples can exist on one server."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
# add_stream(name="ORDERS", subjects=["orders.>"])
CREATED = re.compile(r'add_stream\(\s*name="([A-Z_]+)",\s*subjects=(\["[^]{]*"\])')
# In a docstring: WEB_ORDERS (web-orders.>)
DESCRIBED = re.compile(r"([A-Z_]+)\s+\(([a-z.-]+[a-z>])\)")


def streams(paths):
    found = set()
    for path in paths:
        text = path.read_text(encoding="utf-8")
        found |= {(name, tuple(ast.literal_eval(subjects))) for name, subjects in CREATED.findall(text)}
        if path.suffix == ".py":
            found |= {(name, (subject,)) for name, subject in DESCRIBED.findall(ast.get_docstring(ast.parse(text)))}
    return found


async def test_streams_do_not_overlap(js):
    of_pages, of_examples = streams(PAGES), streams(EXAMPLES)
    assert ("ORDERS", ("orders.>",)) in of_pages
    assert ("DEAD_WEB_ORDERS", ("dead.web-orders",)) in of_examples
    assert len(of_pages) > 20
    assert not {name for name, _ in of_pages} & {name for name, _ in of_examples}
    for name, subjects in sorted(of_pages | of_examples):
        await js.add_stream(name=name, subjects=list(subjects))
