"""The fit of the measurements of growth: benchmarks/growth."""

import math
import os
import subprocess
import sys

import pytest

from benchmarks.growth._curve import Curve, Point, curves, exponent, read, write
from benchmarks.processes import cpu_seconds, own_cpu_seconds
from tests.support.tables import each

NUMBERS = (1, 10, 100, 1000, 10_000)


@each("power", [1, 1.5, 2])
def test_exponent_is_that_of_the_added_cost(power):
    """A constant cost, such as the start of Spark, does not hide it."""
    assert exponent([(n, 30 + 1e-6 * n**power) for n in NUMBERS]) == pytest.approx(power, abs=0.02)


def test_exponent_is_that_of_large_numbers():
    """A linear cost that is dominated by a quadratic one is quadratic."""
    assert exponent([(n, 5 * n + n**2) for n in NUMBERS]) > 1.9


def test_constant_cost_has_no_exponent():
    assert math.isnan(exponent([(n, 30) for n in NUMBERS]))


def test_marginal_cost_excludes_the_start():
    curve = Curve("job", [Point(n, 30 + 2e-5 * n, 1) for n in NUMBERS])
    assert curve.marginal == pytest.approx(2e-5)


def test_parts_of_a_file_are_replaced_separately(tmp_path):
    path = tmp_path / "growth.json"
    points = [Point(1, 0.5, 0.25, 100, {"jvm": 0.5}), Point(10, 5, 0)]
    write(path, "data", "a machine", [Curve("old", [])])
    write(path, "messages", "a machine", [Curve("job", points, points[0])])
    write(path, "data", "another", [])
    parts = read(path)
    assert curves(parts["messages"]) == [Curve("job", points, points[0])]
    assert parts["data"] == {"machine": "another", "curves": []}


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
def test_cpu_time_of_exited_children_counts():
    """Of a process of its own: those of the test process end at any time, and not each is waited for."""

    def running(code: str) -> str:
        return f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {code!r}], check=True)"

    burn = "import time\nwhile time.process_time() < 0.1: pass"
    root = running(running(burn)) + "\nprint('ended', flush=True)\ninput()"
    command = [sys.executable, "-c", root]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ended\n"
        seconds = cpu_seconds(process.pid)["python"]
        own = own_cpu_seconds(process.pid)
        process.communicate("\n")
    assert seconds - own >= 0.08
