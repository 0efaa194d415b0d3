import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import nats
import pytest
from nats.js import JetStreamContext

from ce_nats.testing import NatsServer
from tests.support.broker import make_event
from tests.support.forks import forking

__all__ = ["make_event"]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """One server for each test, because examples use the same stream names."""
    with NatsServer(jetstream=True) as server:
        yield server


@pytest.fixture
async def js(server: NatsServer) -> AsyncIterator[JetStreamContext]:
    async with await nats.connect(server.url) as nc:
        yield nc.jetstream()


@pytest.fixture(scope="session")
def python() -> Iterator[str]:
    """Yield a program that starts examples fast, in forks of one process."""
    with forking("faststream.nats", "faststream.cli", "fastapi", "uvicorn", "opentelemetry.sdk.metrics") as program:
        yield program


@pytest.fixture
def start(python: str, server: NatsServer, tmp_path: Path) -> Iterator[Callable[..., "Program"]]:
    """Start a module, or a script of the examples, as users do; it is killed at the end of the test."""
    programs = []

    def run(*arguments: object, python: str | Path = python, variables: Mapping[str, str] | None = None) -> Program:
        variables = {**(variables or {}), "NATS_URL": server.url}
        program = Program((python, *arguments), variables, tmp_path / f"{len(programs)}.log")
        programs.append(program)
        return program

    yield run
    for program in programs:
        program.kill()


class Program:
    """A running example; output and log are in one file."""

    def __init__(self, command: tuple[object, ...], variables: Mapping[str, str], log: Path) -> None:
        self._log = log
        environment = {**os.environ, **variables, "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "default"}
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                list(map(str, command)),
                cwd=EXAMPLES.parent,
                stdout=file,
                stderr=file,
                env=environment,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill it and its child processes with SIGKILL, if it is running."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    async def until_printed(self, text: str) -> str:
        """Wait until it has printed a text, and return the rest of that line."""
        end = time.monotonic() + 60
        while text not in self.log:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            await asyncio.sleep(0.05)
        return self.log.partition(text)[2].partition("\n")[0]

    async def until_exit(self, status: int = 0) -> str:
        """Wait until it has exited with a status, and return its output."""
        assert await asyncio.to_thread(self.process.wait, 600) == status, self.log
        return self.log
