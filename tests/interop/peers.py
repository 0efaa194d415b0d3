"""Build or install programs that use other SDKs and other clients."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.caching import NotAvailable, build, cached, download, last_line, run
from tests.support.programs import find_program, python_packages

HERE = Path(__file__).parent


def go_peer(program: str = "peer") -> list[str]:
    """
    Return the command of a program with sdk-go: ``peer`` sends and receives, ``answer`` answers conformance cases,
    ``cesql`` evaluates expressions.

    Raises:
        NotAvailable: Go is not installed, or its modules cannot be downloaded.
        BuildFailedError: It does not build.
    """
    go = find_program("go")
    sources = [HERE / "go" / name for name in ("main.go", "answer/main.go", "cesql/main.go", "go.mod", "go.sum")]
    version = _version(go, "version")

    def make(target: Path) -> None:
        download([go, "mod", "download"], HERE / "go")
        build([go, "build", "-buildvcs=false", "-o", f"{target}/", ".", "./answer", "./cesql"], HERE / "go")

    return [str(cached("go", [version, *map(_text, sources)], make) / program)]


def node_peer(program: str = "peer") -> list[str]:
    """
    Return the command of a program with nats.js and the cloudevents package: ``peer`` or ``answer``, as in Go.

    Raises:
        NotAvailable: Node.js is not installed, or the packages cannot be downloaded.
    """
    node, npm = find_program("node"), find_program("npm")
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
        NotAvailable: Cargo is not installed, or the crates cannot be downloaded.
        BuildFailedError: It does not build.
    """
    cargo = find_program("cargo")
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


def java_peer() -> list[str]:
    """
    Return the command of a program that evaluates expressions of CESQL with the SDK for Java.

    Raises:
        NotAvailable: A JDK or Maven is not installed, or the packages cannot be downloaded.
        BuildFailedError: It does not build.
    """
    java, javac, maven = find_program("java"), find_program("javac"), find_program("mvn")
    sources = [HERE / "java" / name for name in ("Cesql.java", "pom.xml")]

    def make(target: Path) -> None:
        for source in sources:
            shutil.copy(source, target)
        download([maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"], target)
        build([javac, "-cp", f"{target}/lib/*", "-d", str(target), str(target / "Cesql.java")], target)

    target = cached("java", [_version(javac, "-version"), *map(_text, sources)], make)
    return [java, "-cp", f"{target}:{target}/lib/*", "Cesql"]


def python_answers() -> list[str]:
    """
    Return the command of the program that answers conformance cases with the cloudevents package.

    Raises:
        NotAvailable: It cannot be downloaded.
    """
    return [sys.executable, str(HERE / "python" / "answer.py"), str(python_packages("cloudevents==2.2.0"))]


def iggy_py_peer() -> list[str]:
    """
    Return the command of the peer with iggy-py 0.4, whose messages have the first layout of headers.

    Raises:
        NotAvailable: It cannot be downloaded, or does not support this Python.
    """
    return [sys.executable, str(HERE / "iggy" / "old.py"), str(python_packages("iggy-py==0.4.0"))]


def apache_iggy_peer() -> list[str]:
    """
    Return the command of the peer with apache-iggy 0.9, whose headers have typed keys.

    Raises:
        NotAvailable: It cannot be downloaded, or does not support this Python.
    """
    return [sys.executable, str(HERE / "iggy" / "current.py"), str(python_packages("apache-iggy==0.9.0"))]


def _version(program: str, option: str) -> str:
    done = run([program, option], HERE)
    if done.returncode:  # of rustup without a toolchain, for instance
        raise NotAvailable(f"{Path(program).name} must be installed: {last_line(done)}")
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
