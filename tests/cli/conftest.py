import asyncio
import codecs
import json
import os
import re
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import nats
import pytest
import typer.testing
from nats.js import JetStreamContext
from typer.testing import CliRunner

from ce_nats.aio.jetstream import read_stream
from ce_nats.cli import app
from ce_nats.message import StoredMessage
from ce_nats.testing import NatsServer
from tests.support.broker import server
from tests.support.forks import forking

__all__ = ["server"]

# Otherwise each call of CliRunner makes all commands again, which takes longer than most commands.
typer.testing._get_command = cache(typer.main.get_command)


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


@pytest.fixture(scope="session")
def python() -> Iterator[str]:
    """Yield a program that starts commands fast, in forks of one process."""
    with forking() as program:
        yield program


@pytest.fixture
def start(python: str, server: NatsServer) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Yield a function that starts a command as a process, which is killed after the test."""
    processes = []

    def run(*arguments: object, url: str = server.url) -> subprocess.Popen[bytes]:
        command = [python, "-m", "ce_nats", *map(str, arguments), "--server", url]
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


class Screen:
    """
    A command on a terminal, and the text that it has drawn.

    The terminal is standard error; also standard output with ``is_output``, and standard input with the input
    ``typed``. Otherwise these are the files ``stdin``, which has the content ``stdin``, and ``stdout``.
    """

    def __init__(
        self,
        command: list[str],
        directory: Path,
        variables: dict[str, str],
        *,
        stdin: bytes = b"",
        typed: bytes | None = None,
        is_output: bool = False,
        encoding: str = "utf-8",
    ) -> None:
        import pty  # not available on Windows
        import termios

        self._master, terminal = pty.openpty()
        settings = termios.tcgetattr(terminal)
        settings[1] &= ~termios.OPOST
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(terminal, termios.TCSANOW, settings)
        os.write(self._master, typed or b"")
        (directory / "stdin").write_bytes(stdin)
        known = {"TERM": "xterm", "COLUMNS": "100", "LINES": "40", "NO_COLOR": "1"}
        with (directory / "stdin").open("rb") as given, (directory / "stdout").open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=given if typed is None else terminal,
                stdout=terminal if is_output else output,
                stderr=terminal,
                cwd=directory,
                env={**os.environ, **known, **variables},
            )
        os.close(terminal)
        self._decoder = codecs.getincrementaldecoder(encoding)("backslashreplace")
        self.text = ""

    def wait_for(self, pattern: str, seconds: float = 60) -> str:
        """Wait until a pattern is drawn; return and remove all text up to its end."""
        deadline = time.monotonic() + seconds
        while (found := re.search(pattern, self.text)) is None:
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.text!r}"
            if select.select([self._master], [], [], 1)[0]:
                assert self._read(), f"no {pattern!r} in {self.text!r}"
        before, self.text = self.text[: found.end()], self.text[found.end() :]
        return before

    def rest(self) -> str:
        """Return what is drawn until the command ends."""
        while self._read():
            pass
        return self.text

    def close(self) -> None:
        """Kill the command if it has not ended."""
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _read(self) -> bytes:
        try:
            chunk = os.read(self._master, 65536)
        except OSError:  # the other end is closed
            chunk = b""
        self.text += self._decoder.decode(chunk)
        return chunk


@pytest.fixture
def screen(python: str, server: NatsServer, tmp_path: Path) -> Iterator[Callable[..., Screen]]:
    """Yield a function that starts a command in ``tmp_path`` on a terminal, with variables for it as keywords."""
    screens = []

    def run(
        *arguments: object,
        program: Sequence[str] = ("-m", "ce_nats"),
        url: str = server.url,
        stdin: bytes = b"",
        typed: bytes | None = None,
        is_output: bool = True,
        encoding: str = "utf-8",
        **variables: str,
    ) -> Screen:
        command = [python, *program, *map(str, arguments)]
        given = {"NATS_URL": url, **variables}
        screens.append(
            Screen(command, tmp_path, given, stdin=stdin, typed=typed, is_output=is_output, encoding=encoding)
        )
        return screens[-1]

    yield run
    for one in screens:
        one.close()


@pytest.fixture
def at_terminal(screen: Callable[..., Screen], tmp_path: Path) -> Callable[..., tuple[int, bytes, str]]:
    """Return a function that runs a command; it returns its exit status, standard output, and what it has drawn."""

    def run(*arguments: object, **options: Any) -> tuple[int, bytes, str]:
        running = screen(*arguments, **{"is_output": False, **options})
        drawn = running.rest()
        return running.process.wait(60), (tmp_path / "stdout").read_bytes(), drawn

    return run


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
