"""
Build or install external programs for the tests, once, in a cache directory.

The directory is ``ce-nats-tests`` below ``$XDG_CACHE_HOME`` or ``~/.cache``. The name of an entry includes a digest of
its sources, so that a changed source gets a new entry.

A test is skipped if its program is not available: the tool that builds it is not installed, or a download fails. With
CI=true in the environment a failed download is a test failure. A failed build is always a test failure.
"""

import hashlib
import os
import re
import signal
import subprocess
import tempfile
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import pytest

T = TypeVar("T")

# pip may take more than ten minutes to fill an empty cache on a busy machine.
_SECONDS: Final = 3600
# The reason in pip's error for an unreachable registry.
_NO_REGISTRY: Final = re.compile("(?<=connection broken by ).*")


class NotAvailable(Exception):  # noqa: N818 - not an error, but a reason to skip a test
    """A program is not available on this machine; the text is the reason."""


class BuildFailedError(Exception):
    """A program does not build, or with CI=true cannot be downloaded; the text is the reason."""


def available(find: Callable[[], T], name: str) -> T:
    """Return a program, or skip the test with its name and the reason."""
    try:
        return find()
    except NotAvailable as missing:
        pytest.skip(f"no {name}: {missing}")


def download_error(reason: str) -> Exception:
    """Return the exception for a failed download by an installed tool."""
    return BuildFailedError(reason) if os.environ.get("CI") == "true" else NotAvailable(reason)


def cached(name: str, ingredients: Sequence[str], make: Callable[[Path], None]) -> Path:
    """
    Return the cache directory of a program, and create it if it does not exist.

    Args:
        name: First part of the directory's name.
        ingredients: Sources and versions; another value gets another directory.
        make: Fills a new directory.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ce-nats-tests"
    digest = hashlib.sha256("\0".join(ingredients).encode()).hexdigest()[:16]
    target = root / f"{name}-{digest}"
    if not target.exists():
        root.mkdir(parents=True, exist_ok=True)
        # Created in a temporary directory and renamed, so that an interrupted run leaves no incomplete entry.
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=root) as scratch:
            created = Path(scratch) / "created"
            created.mkdir()
            limit = signal.setitimer(signal.ITIMER_REAL, 0)  # that of pytest-timeout for the test
            make(created)
            signal.setitimer(signal.ITIMER_REAL, *limit)
            try:
                created.rename(target)
            except OSError:
                if not target.exists():  # otherwise a concurrent run has created it
                    raise
    return target


def run(command: list[str], directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a directory, with additional environment variables, and return its output."""
    env = {**os.environ, **variables}
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=_SECONDS)


def download(command: list[str], directory: Path, **variables: str) -> str:
    """
    Run a command that downloads files, and return its output.

    Raises:
        NotAvailable: The command failed.
        BuildFailedError: The command failed, with CI=true.
    """
    done = run(command, directory, **variables)
    if done.returncode:
        raise download_error(f"{Path(command[0]).name} failed to download: {last_line(done)}")
    return done.stdout


def python_environment(name: str, packages: Sequence[str], python: Path | None = None) -> Path:
    """
    Return the Python of a virtual environment with packages, which are installed once.

    Args:
        name: First part of the directory's name.
        packages: Requirements.
        python: Interpreter of the environment; by default that of the tests.

    Raises:
        NotAvailable: No package registry can be reached.
        BuildFailedError: The same, with CI=true.
    """

    def install(target: Path) -> None:
        if python is None:
            venv.create(target, with_pip=True)
        else:
            build([str(python), "-m", "venv", str(target)], target)
        pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "--retries", "1"]
        done = run([*pip, *packages], target)
        if done.returncode and (reason := _NO_REGISTRY.search(done.stderr)):
            raise download_error(f"no package registry can be reached: {reason[0]}")
        assert done.returncode == 0, done.stderr[-4000:]

    return cached(name, [venv.__file__ if python is None else str(python), *packages], install) / "bin" / "python"


def build(command: list[str], directory: Path) -> None:
    """
    Run a command that needs no network.

    Raises:
        BuildFailedError: The command failed.
    """
    done = run(command, directory)
    if done.returncode:
        raise BuildFailedError(f"{Path(command[0]).name} failed: {(done.stdout + done.stderr)[-4000:]}")


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line of a command's output, which usually is the reason of a failure."""
    lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
