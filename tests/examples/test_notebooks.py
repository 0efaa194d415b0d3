"""Run the notebooks of examples/; their outputs equal those in the repository."""

import re
import subprocess
import sys
from html import unescape

import nbformat
import pytest

from hatch_build import build_jar
from tests.support.notebooks import NOTEBOOKS, ROOT


def outputs(cell):
    """Return the outputs of a cell as (kind, text)."""
    found = []
    for output in cell.outputs:
        if output.output_type == "stream":
            found.append((output.name, output.text))
        else:
            found += sorted(output.data.items())
    return found


def words(kind, text):
    """Return the words of an output without layout, because versions of libraries draw tables differently."""
    if kind == "text/html":
        text = unescape(re.sub("<[^>]*>", " ", re.sub("(?s)<style.*?</style>", "", text)))
    return kind, re.findall(r"[\w.:/'+-]*\w[\w.:/'+-]*", text)


def cells(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def test_notebooks_were_found():
    assert [path.stem for path in NOTEBOOKS] == ["duckdb_capture", "spark_columns"]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.spark, pytest.mark.long] if "spark" in path.stem else (), id=path.stem)
        for path in NOTEBOOKS
    ],
)
def test_outputs_are_those_in_the_repository(path, tmp_path):
    if path.stem == "spark_columns":
        assert build_jar(), "a JDK is needed, 17 or 21"
    command = [sys.executable, "-m", "tests.support.notebooks", path, "--into", tmp_path]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    for ran, kept in zip(cells(tmp_path / path.name), cells(path), strict=True):
        assert [words(*output) for output in outputs(ran)] == [words(*output) for output in outputs(kept)], kept.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_contain_nothing_of_the_machine(path):
    """Every cell was executed, in order, without a warning."""
    code = cells(path)
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    kinds = {kind for cell in code for kind, _ in outputs(cell)}
    assert {"stdout", "text/plain", "text/html"} >= kinds >= {"stdout", "text/html"}
    text = path.read_text("utf-8")
    for word in ("/tmp", "/home", "/root", "/usr", "127.0.0.1", "Warning", "Traceback", "iopub"):
        assert word not in text
