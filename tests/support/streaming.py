"""Run a real nats-streaming-server for tests, with its embedded NATS or as a client of another nats-server."""

import asyncio
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from ce_nats.stan._monitor import Monitor
from tests.support.caching import available
from tests.support.pausing import pause
from tests.support.programs import streaming_server
from tests.support.waiting import until

CLUSTER = "test-cluster"
READY = "Streaming Server is ready"
# Heartbeats that tests can wait for. On a busy machine clients answer late, so the server allows 20 failures.
HEARTBEATS = ("-hbi", "1s", "-hbt", "500ms", "-hbf", "20")


@pytest.fixture(scope="session")
def executable():
    """Path of the streaming server; skips the test if it is not available."""
    return available(streaming_server, "nats-streaming-server")


class StreamingServer:
    """
    A nats-streaming-server process, as a context manager. All methods block.

        Args:
            executable: From ``tests.support.programs.streaming_server()``.
            flags: Further command-line flags.
            over: URL of the nats-server to connect to; None uses the embedded one.
            file_store: Store channels in files, so that they survive a restart.
    cluster: Name of the cluster.

        Attributes:
            url: URL of the NATS server that clients connect to.
            monitor: URL of the monitoring endpoint.
    """

    def __init__(self, executable, *flags, over=None, file_store=False, cluster=CLUSTER):
        self.url = over
        self.cluster = cluster
        self._executable = executable
        self._flags = flags
        self._over = over
        self._file_store = file_store
        self.monitor = f"http://127.0.0.1:{free_port()}"
        self._directory = None
        self._process = None

    def __enter__(self):
        self._directory = tempfile.TemporaryDirectory(prefix="ce-nats-streaming-")
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        if self._process is not None:
            self.kill()
        self._directory.cleanup()

    def start(self):
        """Start the server, on the same port as before, and wait until clients can connect."""
        home = Path(self._directory.name)
        log = home / "server.log"
        seen = log.read_text("utf-8").count(READY) if log.exists() else 0
        port = self.url.rpartition(":")[2] if self.url else "-1"
        command = [str(self._executable), "-cid", self.cluster, *HEARTBEATS, *self._flags]
        command += ["-a", "127.0.0.1", "-m", self.monitor.rpartition(":")[2]]
        command += ["-ns", self._over] if self._over else ["-p", port]
        command += ["-st", "file", "-dir", str(home / "store")] if self._file_store else []
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        deadline = time.monotonic() + 60
        while log.read_text("utf-8").count(READY) == seen:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"nats-streaming-server did not start:\n{log.read_text('utf-8')}")
            time.sleep(0.01)
        if self.url is None:
            [line] = [
                line for line in log.read_text("utf-8").splitlines() if "Listening for client connections" in line
            ]
            self.url = f"nats://{line.rpartition(' ')[2]}"

    def kill(self):
        """Kill the server (SIGKILL)."""
        self._process.kill()
        self._process.wait()

    def pause(self):
        """Pause the server: connections stay open, requests are not answered."""
        pause(self._process)

    def resume(self):
        self._process.send_signal(signal.SIGCONT)

    def restart(self):
        self.kill()
        self.start()


async def one(subscription):
    """Return the next message of a subscription."""
    return await asyncio.wait_for(subscription.__anext__(), 60)


async def until_pending(server, channel, count):
    """Wait until ``count`` deliveries on a channel are unacknowledged, after the server has read acknowledgements."""
    monitor = Monitor(server.monitor)

    async def are_pending():
        state = await monitor.channel(channel)
        return sum(each.pending_count for each in state._subscriptions) == count

    await until(are_pending)


def free_port():
    """Return a port of 127.0.0.1 that no program uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
