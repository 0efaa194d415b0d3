"""The fast path can be deleted: the full codec passes all tests of the codec, and all fixtures, without it."""

import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

from ce_nats import to_nats_message
from tests.support.strategies import plain_event

ROOT = Path(__file__).parents[2]
PARTS = ("ce_nats", "tests", "spec-fixtures")

pytestmark = pytest.mark.long


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a folder with a copy of the package and its tests that lacks the fast path and its tests."""
    for part in PARTS:
        copytree(
            ROOT / part, tmp_path / part, ignore=ignore_patterns("fast", "test_fast_path.py", "__pycache__", "*.jar")
        )
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    return tmp_path


def run(folder: Path, *arguments: str) -> str:
    """Run Python with the copy of the package; return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "HYPOTHESIS_PROFILE": "brief"}
    ran = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-10_000:] + ran.stderr
    return ran.stdout


def test_tests_of_the_codec_pass_without_the_fast_path(copy: Path) -> None:
    tests = ("tests/codec", "tests/test_fixtures.py", "tests/aio/core/test_raw_decoder.py")
    summary = run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert " passed" in summary


@pytest.mark.parametrize("leftover", [False, True])
def test_events_are_encoded_without_the_fast_path(copy: Path, leftover: bool) -> None:
    """A folder with nothing but compiled files of Python, as ``git`` leaves it, is the same as none."""
    if leftover:
        (copy / "ce_nats/codec/fast/__pycache__").mkdir(parents=True)
    program = """
from ce_nats import to_nats_message
from ce_nats.codec import _fast_path
from tests.support.strategies import plain_event
assert _fast_path.encode_headers is _fast_path.decode is _fast_path.block_decoder is _fast_path._decline
print(to_nats_message(plain_event({"total": 1}), "orders"))
"""
    assert run(copy, "-c", program).rstrip() == repr(to_nats_message(plain_event({"total": 1}), "orders"))
