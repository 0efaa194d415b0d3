"""Signals while the command starts. The signal is sent at a number of calls of functions, most of them in imports."""

import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signals")

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os, sys
number, at, sys.argv[:3] = int(sys.argv[1]), int(sys.argv[2]), ["ce-nats"]
calls = 0

def count(frame, event, _):
    global calls
    calls += 1
    if calls == at:
        sys.setprofile(None)  # the rest is as fast as without
        os.kill(os.getpid(), number)

from _ce_nats_command import main
sys.setprofile(count)
try:
    main()
finally:
    sys.setprofile(None)
    print(calls, file=sys.stderr)
"""


def run(number, at, *arguments, **options):
    command = [sys.executable, "-c", PROGRAM, f"{int(number)}", f"{at}", *arguments]
    return subprocess.run(command, capture_output=True, timeout=60, check=False, **options)


@pytest.fixture(scope="module")
def calls():
    """Number of calls before and in a command."""
    return int(run(0, 0, "--version").stderr)


@pytest.mark.parametrize(
    ("number", "percent"),
    [
        pytest.param(number, percent, marks=pytest.mark.long if place % 9 else ())
        for place, (percent, number) in enumerate(
            product((1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95), (signal.SIGINT, signal.SIGTERM))
        )
    ],
)
def test_signal_during_the_start_ends_the_command_quietly(calls, number, percent):
    ended = run(number, 10 + calls * percent // 100, "--version")
    assert (ended.returncode, ended.stdout, ended.stderr) == (128 + number, b"", b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_that_the_caller_ignores_is_ignored(calls, number):
    """As of a command that a shell runs in the background."""
    ended = run(number, calls // 4, "--version", preexec_fn=lambda: signal.signal(number, signal.SIG_IGN))
    assert (ended.returncode, ended.stdout[:8]) == (0, b"ce-nats ")


def test_installed_command_starts_in_this_module():
    """Not in the package, whose import takes time."""
    assert '\nce-nats = "_ce_nats_command:main"\n' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_nothing_is_imported_before_signals_are_handled():
    """The import of ``typing`` takes long enough to be interrupted."""
    program = "import sys; known = {*sys.modules}; import _ce_nats_command; print(*sorted({*sys.modules} - known))"
    added = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {*added.split()} <= {"__future__", "_ce_nats_command", "_signal"}
