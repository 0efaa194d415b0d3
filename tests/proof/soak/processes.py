"""Processes of a run: start, kill and restart them, and measure them with /proc."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from benchmarks.processes import memory, sessions
from tests.proof import record

from .journal import Run

# Exit status of a program that got no answer at its start within the documented time (EX_TEMPFAIL).
NOT_STARTED = 75

_POLL_SECONDS = 0.02
_RESTART_SECONDS = 1.0


@dataclass
class Usage:
    """
    Use of memory and descriptors.

    Attributes:
        memory: Resident memory in bytes; of pages that processes share, each one has its part (PSS).
        descriptors: Number of open descriptors.
    """

    memory: int = 0
    descriptors: int = 0


def usage(pids: list[int]) -> Usage:
    """Return the sum over processes; those that exit meanwhile count as nothing."""
    total = Usage()
    for pid in pids:
        with suppress(OSError):
            total.descriptors += len(os.listdir(f"/proc/{pid}/fd"))
            total.memory += memory(pid)
    return total


class Program:
    """
    A program of a run, in a process that is started again when it has exited with an error.

    Args:
        run: The run.
        name: Name of the role, of its journal and of its log.
        module: Module of this package to run.
        is_spared: Whether it is never killed.

    Attributes:
        kills: Number of kills.
        exits: Number of times that it exited by itself with an error.
        late_starts: Number of times that it exited because no server answered at its start.
    """

    def __init__(self, run: Run, name: str, module: str, *, is_spared: bool = False) -> None:
        self.name, self.is_spared = name, is_spared
        self.kills = self.exits = self.late_starts = 0
        self._command = [sys.executable, "-m", f"{__package__}.{module}", run.directory, name]
        self._log = run.path("logs") / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._restart_at = 0.0

    @property
    def pid(self) -> int | None:
        """Process, which is also its session, if it is running."""
        process = self._process  # another thread may end it meanwhile
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        # Workers of Spark leave the process group of their parent, but not the session.
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=record.ROOT,
                env={**os.environ, "PYTHONPATH": str(record.ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def check(self) -> bool:
        """Start the process again if it has failed; return whether it has succeeded."""
        if self._process is None:
            return False
        status = self._process.poll()
        if status is None or status == 0:
            return status == 0
        if not self._restart_at:
            if status == NOT_STARTED:
                self.late_starts += 1
            else:
                self.exits += 1
            self._restart_at = time.monotonic() + _RESTART_SECONDS
        elif time.monotonic() >= self._restart_at:
            self.stop()  # what it has started, if anything is left
            self.start()
        return False

    def kill(self) -> None:
        """Kill the process with SIGKILL; it is not started again before :meth:`start`."""
        self.kills += 1
        self.stop()

    def stop(self) -> None:
        """End the process and all that it has started."""
        process, self._process, self._restart_at = self._process, None, 0.0
        if process is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        while alive := sessions()[process.pid]:
            for pid in alive:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)
        process.wait()
