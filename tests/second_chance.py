"""
Run pytest, and run the tests that failed once more, alone: ``python -m tests.second_chance ARGUMENTS_OF_PYTEST``.

A test that fails beside others and passes alone does not make the run red. It is reported in the last lines, with the
text of its failure, and appended to ``second-chances.txt``. More than five failures, a failed collection, a crashed
worker and an interrupted run are red at once.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

_MOST_FAILURES: Final = 5
_RECORD: Final = Path("second-chances.txt")


class _Failures:
    """Text of each failed test, and whether the run tells about all tests."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.is_complete = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.texts[report.nodeid] = report.longreprtext
            # xdist's report of a test whose worker has crashed has another name for the phase.
            self.is_complete &= report.when in ("setup", "call", "teardown")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.is_complete &= not report.failed

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.is_complete &= not (session.shouldstop or session.shouldfail)


def main(arguments: list[str]) -> int:
    """Run pytest with these arguments; return its exit status, 0 if all failed tests pass alone."""
    failures = _Failures()
    status = pytest.main(arguments, [failures])
    failed = list(failures.texts)
    if status != pytest.ExitCode.TESTS_FAILED or not failures.is_complete or not 0 < len(failed) <= _MOST_FAILURES:
        return int(status)
    print("\nrun once more, alone:", *failed, sep="\n", flush=True)
    status = subprocess.run([sys.executable, "-m", "pytest", *failed]).returncode
    if status == pytest.ExitCode.OK:
        texts = [f"{name}\n{text}" for name, text in failures.texts.items()]
        report = "\n\n".join([*texts, f"passed alone, failed beside others: {' '.join(failed)}\n"])
        print(f"\n{report}", end="")
        with _RECORD.open("a", encoding="utf-8") as record:
            record.write(report)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
