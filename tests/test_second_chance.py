"""The second chance of failed tests, in runs of pytest with a test that fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORKERS = ["-p", "xdist", "--numprocesses=1"]
pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path):
    """Run tests with the second chance; return the process and the text of its record."""

    def run(tests, *arguments):
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        (tmp_path / "test_it.py").write_text(f"import os, pathlib, time, pytest\n\n{tests}")
        command = [sys.executable, "-m", "tests.second_chance", *arguments]
        known = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
        env = {**known, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # they take most of the time
        result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
        record = tmp_path / "second-chances.txt"
        return result, record.read_text("utf-8") if record.exists() else ""

    return run


FAILS_ONCE = """
@pytest.mark.parametrize("x", ["[a b::c]"])
def test_once(x):
    seen = pathlib.Path("seen")
    assert seen.exists() or seen.write_text("") == "failed once"

def test_other():
    with open("runs", "a") as runs:
        runs.write("x")
"""


@pytest.mark.parametrize("arguments", [[], WORKERS], ids=["one process", "workers"])
def test_test_that_passes_alone_is_reported(run, tmp_path, arguments):
    result, record = run(FAILS_ONCE, *arguments)
    last = "passed alone, failed beside others: test_it.py::test_once[[a b::c]]\n"
    assert (result.returncode, result.stdout[-len(last) :]) == (0, last)
    assert result.stdout.endswith(record)
    assert "failed once" in record
    assert record.endswith(last)
    assert (tmp_path / "runs").read_text() == "x"  # tests that passed are not run again


ALWAYS = "def test_always(): assert not 'always'"
WITHOUT_SECOND_CHANCE = {
    "six": "@pytest.mark.parametrize('n', range(6))\ndef test_six(n): assert pathlib.Path(str(n)).mkdir()",
    "worker dies": "def test_dies():\n    if not pathlib.Path('dead').exists():\n        pathlib.Path('dead').mkdir()\n"
    "        os._exit(1)",
    "collection": f"{ALWAYS}\nraise ValueError",
    "interrupted": f"{ALWAYS}\ndef test_interrupted(): raise KeyboardInterrupt",
    "stopped": FAILS_ONCE,
}


@pytest.mark.parametrize("name", WITHOUT_SECOND_CHANCE)
def test_run_without_a_second_chance_is_red(run, name):
    arguments = {"worker dies": WORKERS, "collection": WORKERS, "stopped": ["--exitfirst"]}.get(name, [])
    result, record = run(WITHOUT_SECOND_CHANCE[name], *arguments)
    assert result.returncode != 0
    assert (record, "run once more" in result.stdout) == ("", False)


def test_test_that_fails_twice_is_red(run):
    """Itself, or a fixture after it."""
    fixture = "@pytest.fixture\ndef broken():\n    yield\n    raise ValueError('always')\ndef test_it(broken): pass"
    result, record = run(f"{ALWAYS}\n{fixture}")
    assert (result.returncode, record) == (1, "")
    assert "run once more, alone:\ntest_it.py::test_always\ntest_it.py::test_it\n" in result.stdout


HANGS = """
import asyncio

async def wait_forever():
    await asyncio.Event().wait()

@pytest.mark.asyncio
async def test_hangs():
    task = asyncio.create_task(wait_forever())
    await task
"""


def test_test_that_hangs_fails_with_the_stacks_of_its_tasks(run):
    result, _ = run(HANGS, "-p", "asyncio", "-p", "timeout", "-p", "tests.conftest", "--timeout=1")
    assert "Timeout (>1.0s)" in result.stdout
    assert "await asyncio.Event().wait()" in result.stdout


def test_passed_and_empty_runs_keep_their_status(run):
    assert run("def test_it(): pass")[0].returncode == 0
    assert run("")[0].returncode == pytest.ExitCode.NO_TESTS_COLLECTED
