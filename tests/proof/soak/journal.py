"""Settings of a run, and the journals in which its processes write what they did; both are files in its directory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STREAM = "IN"
DEAD = "DEAD"


@dataclass(frozen=True)
class Run:
    """
    Settings that all processes of a run share.

    Attributes:
        directory: Directory of journals, captures, checkpoints, Parquet and logs.
        urls: URLs of the servers.
        seed: Seed of the messages.
        rate: Messages of each sender per second.
    """

    directory: str
    urls: list[str]
    seed: int
    rate: float

    def path(self, name: str) -> Path:
        return Path(self.directory) / name

    def save(self) -> None:
        self.path("run.json").write_text(json.dumps(asdict(self)), "utf-8")

    @classmethod
    def load(cls, directory: str) -> Run:
        return cls(**json.loads((Path(directory) / "run.json").read_text("utf-8")))

    @property
    def sending_ends(self) -> Path:
        """File whose existence ends the senders."""
        return self.path("sending-ends")

    @property
    def ends(self) -> Path:
        """File whose existence ends all other processes, when they have processed the whole stream."""
        return self.path("ends")

    def journal(self, name: str) -> Path:
        return self.path(f"{name}.journal")

    def options(self, name: str) -> dict[str, Any]:
        """Return arguments of ``aio.connect()`` for a process that never gives up."""
        return {
            "servers": self.urls,
            "name": name,
            "max_reconnect_attempts": None,
            "reconnect_time_wait": 0.5,
            "connect_timeout": 10,
            "ping_interval": 5,
            "max_outstanding_pings": 2,
        }


def rows_directory(run: Run, name: str) -> Path:
    return run.path(name) / "rows"


def copy_stream(name: str) -> str:
    """Return the stream of the copies; its subjects begin with :func:`copy_prefix`."""
    return f"OUT_{name}"


def copy_prefix(name: str) -> str:
    return f"out.{name}"


class Journal:
    """Append whole lines to a file, also if the process is killed while it writes."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


def read(path: Path) -> Iterator[list[str]]:
    """Yield the words of each line; nothing if the file does not exist."""
    if path.exists():
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                yield line.split()


def sent_and_acknowledged(path: Path) -> tuple[int, list[int]]:
    """Return the highest number that a sender has sent, and all acknowledged numbers."""
    highest, acknowledged = 0, []
    for word, number in read(path):
        if word == "sent":
            highest = int(number)
        else:
            acknowledged.append(int(number))
    return highest, acknowledged
