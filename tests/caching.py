"""
What tests need beside the project, built or installed once, into a cache directory.

The directory is ``ce-nats-tests`` below ``$XDG_CACHE_HOME`` or ``~/.cache``. What is in it is named after a digest of
what it was made from, so that a change of the sources makes a new one.
"""

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path


class Missing(Exception):  # noqa: N818 - no fault of anybody
    """Something cannot be had on this machine; the text says why."""


def cached(name: str, ingredients: Sequence[str], make: Callable[[Path], None]) -> Path:
    """The directory of that name and made of that, which ``make`` fills where there is none yet."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ce-nats-tests"
    digest = hashlib.sha256("\0".join(ingredients).encode()).hexdigest()[:16]
    target = root / f"{name}-{digest}"
    if not target.exists():
        root.mkdir(parents=True, exist_ok=True)
        # Made beside its place and moved there whole: a run that is interrupted leaves nothing half made.
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=root) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            make(made)
            try:
                made.rename(target)
            except OSError:
                if not target.exists():  # else another run was faster
                    raise
    return target


def run(command: list[str], directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **variables}
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=600)


def download(command: list[str], directory: Path, **variables: str) -> None:
    """
    Run a command that downloads.

    Raises:
        Missing: It failed.
    """
    done = run(command, directory, **variables)
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise Missing(
            f"{Path(command[0]).name} could not download what it needs: {lines[-1] if lines else 'no reason'}"
        )
