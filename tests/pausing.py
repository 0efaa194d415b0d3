"""Servers that keep their connections and answer nothing."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from ce_nats.testing import NatsServer


def pause(process: subprocess.Popen[bytes]) -> None:
    """Stop a process, and wait until it has stopped: the signal alone lets it answer for a while."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


@contextmanager
def paused(server: NatsServer) -> Iterator[None]:
    """A server that has stopped for the length of the block, and goes on after it."""
    server.pause()
    try:
        yield
    finally:
        server.resume()
