import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import nats
import pytest
from nats.js import JetStreamContext
from typer.testing import CliRunner

from ce_nats.aio.jetstream import read_stream
from ce_nats.cli import app
from ce_nats.message import StoredMessage
from ce_nats.testing import NatsServer
from tests.support.broker import server

__all__ = ["server"]


@pytest.fixture(autouse=True)
def _without_settings_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in ("URL", "CONTEXT", "CREDS", "NKEY", "USER", "PASSWORD", "CERT", "KEY", "CA"):
        monkeypatch.delenv(f"NATS_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))


@pytest.fixture
def cli() -> Callable[..., Any]:
    """Return a function that runs a command in this process, and raises unexpected exceptions."""

    def run(*arguments: object, stdin: str | bytes | None = None) -> Any:
        result = CliRunner().invoke(app, list(map(str, arguments)), input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def at_server(cli: Callable[..., Any], server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return the same function as ``cli``, with the URL of the server in the environment."""
    monkeypatch.setenv("NATS_URL", server.url)
    return cli


@pytest.fixture
def start(server: NatsServer) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Yield a function that starts a command as a process, which is killed after the test."""
    processes = []

    def run(*arguments: object, url: str = server.url) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ce_nats", *map(str, arguments), "--server", url]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


@pytest.fixture
def at_terminal(server: NatsServer) -> Callable[..., tuple[int, list[bytes], str]]:
    """
    Return a function that runs a command with a terminal as standard error.

    The function returns the exit status, the lines of standard output, and the text on the terminal.
    """

    def run(*arguments: object, url: str | None = server.url) -> tuple[int, list[bytes], str]:
        import pty  # not available on Windows

        master, terminal = pty.openpty()
        command = [sys.executable, "-m", "ce_nats", *map(str, arguments), *(["--server", url] if url else [])]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, env=environment)
        os.close(terminal)
        with process.stdout as output:
            lines = output.readlines()
        drawn = b"".join(iter(lambda: _read_terminal(master), b"")).decode()
        os.close(master)
        return process.wait(30), lines, drawn

    return run


def _read_terminal(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other end is closed
        return b""


@pytest.fixture
def with_js(server: NatsServer) -> Callable[..., Any]:
    """Return a function that runs an asynchronous function with JetStream on a new connection."""

    def run(function: Callable[..., Any], *arguments: object) -> Any:
        async def connected() -> Any:
            async with await nats.connect(server.url) as nc:
                return await function(nc.jetstream(), *arguments)

        return asyncio.run(connected())

    return run


@pytest.fixture
def subject() -> str:
    """Return a unique subject."""
    return f"test.{uuid4().hex}"


@pytest.fixture
def stream(with_js: Callable[..., Any], subject: str) -> Iterator[str]:
    """Yield the name of a stream with the subjects ``subject`` and ``subject.>``."""
    name = subject.replace(".", "_")

    async def add(js: JetStreamContext) -> None:
        await js.add_stream(name=name, subjects=[subject, f"{subject}.>"], storage="memory")

    async def delete(js: JetStreamContext) -> None:
        await js.delete_stream(name)

    with_js(add)
    yield name
    with_js(delete)


@pytest.fixture
def stored(with_js: Callable[..., Any]) -> Callable[[str], list[StoredMessage]]:
    """Return a function that reads all messages of a stream."""

    async def read(js: JetStreamContext, stream: str) -> list[StoredMessage]:
        return [message async for batch in read_stream(js, stream) for message in batch]

    return lambda stream: with_js(read, stream)


@pytest.fixture
def event() -> Callable[..., str]:
    """Return a function that makes an event as a line of JSON."""

    def make(number: object = 1, **members: object) -> str:
        return json.dumps({"specversion": "1.0", "id": str(number), "source": "/tests", "type": "t", **members}) + "\n"

    return make
