"""
Build or install the external programs that tests need once, in a cache directory.

A tool that is not installed is Missing, and the test is skipped. So is what cannot be downloaded, on a machine that may
be without a network; with CI=true in the environment it is a failure, and what does not build always is.

The directory is ``ce-nats-tests`` below ``$XDG_CACHE_HOME`` or ``~/.cache``. The name of an entry includes a digest of
its sources, so that a change of the sources makes a new entry.
"""

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path


class Missing(Exception):  # noqa: N818 - not an error, but a reason to skip a test
    """A program is not available on this machine; the text is the reason."""


class NotMadeError(Exception):
    """Something does not build, or with CI=true cannot be downloaded; the text says why."""


def not_downloaded(reason: str) -> Exception:
    """What to raise where something cannot be downloaded although the tool for it is there."""
    return NotMadeError(reason) if os.environ.get("CI") == "true" else Missing(reason)


def cached(name: str, ingredients: Sequence[str], make: Callable[[Path], None]) -> Path:
    """Return the cached directory for a name and its ingredients; ``make`` fills it if it does not exist."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ce-nats-tests"
    digest = hashlib.sha256("\0".join(ingredients).encode()).hexdigest()[:16]
    target = root / f"{name}-{digest}"
    if not target.exists():
        root.mkdir(parents=True, exist_ok=True)
        # Made in a temporary directory and renamed, so that an interrupted run leaves no incomplete entry.
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=root) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            make(made)
            try:
                made.rename(target)
            except OSError:
                if not target.exists():  # otherwise a concurrent run has made it
                    raise
    return target


def run(command: list[str], directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **variables}
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=600)


def download(command: list[str], directory: Path, **variables: str) -> None:
    """
    Run a command that downloads files.

    Raises:
        Missing: The command failed.
        NotMadeError: The command failed, with CI=true.
    """
    done = run(command, directory, **variables)
    if done.returncode:
        reason = last_line(done)
        raise not_downloaded(f"{Path(command[0]).name} could not download what it needs: {reason}")


def build(command: list[str], directory: Path) -> None:
    """
    Run a command that needs nothing but what is there.

    Raises:
        NotMadeError: It failed.
    """
    done = run(command, directory)
    if done.returncode:
        raise NotMadeError(f"{Path(command[0]).name} failed: {(done.stdout + done.stderr)[-4000:]}")


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    return lines[-1] if lines else "no reason"
