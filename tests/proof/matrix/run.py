"""Run the tests of a cell, and read what pytest reports."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.proof.record import ROOT
from tests.support.caching import BuildFailedError, NotAvailable

from . import environments
from .cells import Cell

PASSED: Final = "passed"
FAILED: Final = "failed"
NOT_AVAILABLE: Final = "not available"

# A cell takes one to five minutes, longer on a busy machine.
_SECONDS: Final = 1800
# Failed tests that the record names.
_NAMED: Final = 10


@dataclass(frozen=True)
class Result:
    """
    Outcome of a cell.

    Attributes:
        outcome: PASSED, FAILED or NOT_AVAILABLE.
        passed: Number of tests.
        failed: Number of tests, including those with an error in a fixture.
        skipped: Number of tests.
        seconds: Duration of pytest.
        versions: Versions that the programs of the environment reported.
        skips: Number of skipped tests by reason.
        notes: Failed tests, or why there is no result.
    """

    outcome: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    skips: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def run(cell: Cell, workers: int, log: Path) -> Result:
    """
    Create the environment of a cell, and run its tests.

    Args:
        cell: The cell.
        workers: Number of processes of tests in parallel.
        log: File for the output of pytest.
    """
    try:
        environment = environments.create(cell)
    except NotAvailable as missing:
        return Result(NOT_AVAILABLE, notes=[str(missing)])
    except (BuildFailedError, ValueError) as error:
        return Result(FAILED, notes=[str(error)])
    with tempfile.TemporaryDirectory(prefix="ce-nats-matrix-") as scratch:
        folder = Path(scratch)
        report = folder / "report.xml"
        tests = [*cell.options, *cell.tests]
        if cell.wheel:  # away from the checkout and its conftest, so that the installed package is tested
            tests = [shutil.copy(ROOT / test, folder / f"test_{Path(test).name}") for test in cell.tests]
            tests = [*cell.options, "-c", "/dev/null", *tests]
        processes = ["--numprocesses", str(workers)] if workers > 1 and cell.in_parallel else []
        command = [str(environment.python), "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}"]
        begin = time.monotonic()
        status = _pytest([*command, *processes, *tests], folder if cell.wheel else ROOT, environment, log)
        seconds = round(time.monotonic() - begin)
        return read(status, report, seconds, environment.versions)


def _pytest(command: list[str], folder: Path, environment: environments.Environment, log: Path) -> int | None:
    """Return the exit status of pytest; None if it was ended after the time limit."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment.variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # its servers and JVMs end with it
        )
        try:
            return process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def read(status: int | None, report: Path, seconds: int, versions: dict[str, str]) -> Result:
    """
    Read the report of pytest. A cell passed if pytest did, and at least one test ran.

    Args:
        status: Exit status of pytest; None if it was ended after the time limit.
        report: Its file in the format of JUnit.
        seconds: Its duration.
        versions: Versions of the environment.
    """
    cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [skip for case in cases if case not in failed and (skip := case.find("skipped")) is not None]
    passed = len(cases) - len(failed) - len(skipped)
    # A test that fails at its end, too, has two entries.
    notes = list(dict.fromkeys(f"{case.get('classname', '')}::{case.get('name', '')}" for case in failed))
    if status is None:
        notes.insert(0, f"ended after {_SECONDS} seconds")
    elif status and not failed:
        notes.insert(0, f"exit status {status} of pytest")
    elif not passed and not failed:
        notes.insert(0, "no test ran")
    return Result(
        outcome=FAILED if status != 0 or failed or not passed else PASSED,
        passed=passed,
        failed=len(failed),
        skipped=len(skipped),
        seconds=seconds,
        versions=versions,
        skips=dict(Counter(_reason(skip.get("message", "")) for skip in skipped)),
        notes=[*notes[:_NAMED], *([f"{len(notes) - _NAMED} more"] if len(notes) > _NAMED else [])],
    )


def _reason(message: str) -> str:
    """Return the reason of a skipped test without what differs between tests and machines."""
    return re.sub(r"\s+", " ", message).replace(str(ROOT), ".")[:120]
