"""Stored inputs of each target: a file of lines of base64, in which both engines find their first inputs."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

FOLDER = Path(__file__).with_name("corpus")


def read(name: str) -> list[bytes]:
    """Return the stored inputs of a target, in a fixed order; none if nothing is stored."""
    path = _path(name)
    return [b64decode(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def write(name: str, inputs: Iterable[bytes]) -> None:
    """Replace the stored inputs of a target; short ones are first."""
    lines = sorted({b64encode(data) for data in inputs}, key=lambda line: (len(line), line))
    FOLDER.mkdir(exist_ok=True)
    if lines:
        _path(name).write_bytes(b"".join(line + b"\n" for line in lines))
    else:
        _path(name).unlink(missing_ok=True)


def _path(name: str) -> Path:
    return FOLDER / f"{name}.txt"


def unpack(inputs: Iterable[bytes], folder: Path) -> Path:
    """Write inputs as files, as libFuzzer has them, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for data in inputs:
        (folder / sha256(data).hexdigest()[:20]).write_bytes(data)
    return folder
