"""Pause servers: connections stay open, requests are not answered."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from ce_nats.testing import NatsServer


def pause(process: subprocess.Popen[bytes]) -> None:
    """Stop a process with SIGSTOP, and wait until it has stopped, because the signal takes effect later."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


@contextmanager
def paused(server: NatsServer) -> Iterator[None]:
    """Pause a server during the block."""
    server.pause()
    try:
        yield
    finally:
        server.resume()
