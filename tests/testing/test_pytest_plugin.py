"""Fixtures of the pytest plugin, in a separate run of pytest in another directory."""

import os
import re
import socket
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "testing.md"


def run_pytest(directory, source, *options, python=sys.executable, **environment):
    """Run tests with only the plugins in ``options``; returns the exit status and the output."""
    (directory / "test_it.py").write_text(source, "utf-8")
    (directory / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    command = [python, "-m", "pytest", "-p", "ce_nats.testing.pytest_plugin", "-p", "no:cacheprovider", *options]
    known = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        command, cwd=directory, env={**known, **environment}, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


SERVERS = """
import asyncio, json, pathlib
from ce_nats import aio

async def add_stream(url):
    async with await aio.connect(url) as nc:
        js = nc.jetstream()
        assert [each.config.name for each in await js.streams_info()] == []
        await js.add_stream(name="S", subjects=["a"])

def note(server):
    assert server.is_running
    with open("ports", "a") as file:
        print(server.port, file=file)

def test_first(nats_server, jetstream_server):
    note(nats_server)
    note(jetstream_server)
    asyncio.run(add_stream(jetstream_server.url))

def test_second(jetstream_server, nats_server):
    note(nats_server)
    note(jetstream_server)
    asyncio.run(add_stream(jetstream_server.url))
"""


def test_nats_server_is_shared_and_the_other_is_not(tmp_path):
    """No server is left at the end."""
    status, output = run_pytest(tmp_path, SERVERS)
    assert (status, "2 passed" in output) == (0, True), output
    shared, first, also_shared, second = map(int, (tmp_path / "ports").read_text().split())
    assert shared == also_shared
    assert shared not in {first, second}
    for port in (shared, first, second):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=10)


ASYNC = """
import nats, pytest

async def connect(*servers):
    for server in servers:
        nc = await nats.connect(server.url)
        await nc.flush()
        await nc.close()

@pytest.mark.asyncio
async def test_asyncio(nats_server, jetstream_server):
    await connect(nats_server, jetstream_server)

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_anyio(nats_server, jetstream_server):
    await connect(nats_server, jetstream_server)
"""


def test_fixtures_in_async_tests(tmp_path):
    """With pytest-asyncio, and with anyio."""
    options = ["-p", "pytest_asyncio.plugin", "-o", "asyncio_default_fixture_loop_scope=function"]
    status, output = run_pytest(tmp_path, ASYNC, *options, "-p", "anyio.pytest_plugin")
    assert (status, "2 passed" in output) == (0, True), output


def test_server_is_imported_when_a_fixture_is_used(tmp_path):
    """A fixture of the user with the same name takes precedence."""
    source = """
import sys, pytest

class Test:
    @pytest.fixture
    def jetstream_server(self):
        return "mine"

    def test_own_fixture(self, jetstream_server):
        assert jetstream_server == "mine"
        assert "ce_nats.testing.pytest_plugin" in sys.modules
        assert not {"nats", "asyncio", "ce_nats.aio", "ce_nats.testing._server"} & set(sys.modules)

def test_after(nats_server):
    assert "ce_nats.testing._server" in sys.modules
"""
    status, output = run_pytest(tmp_path, source)
    assert (status, "2 passed" in output) == (0, True), output


@pytest.mark.skipif(os.name != "posix", reason="the path of the other Python is that of a POSIX system")
def test_error_without_a_nats_server_names_the_extra(tmp_path):
    """In an environment with the libraries of this one, without its programs."""
    venv.create(tmp_path / "env", symlinks=True)
    libraries = os.pathsep.join([str(ROOT), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    status, output = run_pytest(
        tmp_path,
        "def test_one(nats_server): pass\ndef test_other(jetstream_server): pass",
        "test_it.py",
        python=str(tmp_path / "env" / "bin" / "python"),
        PATH=str(tmp_path),
        PYTHONPATH=libraries,
    )
    assert (status, "2 errors" in output) == (1, True), output
    for fixture in ("nats_server", "jetstream_server"):
        assert f"the fixture {fixture} needs a nats-server: pip install 'ce-nats[testing]'" in output
    assert "Traceback" not in output
    assert "FileNotFoundError" not in output


def test_fixtures_are_listed(tmp_path):
    _, output = run_pytest(tmp_path, "", "--fixtures")
    assert re.search(r"nats_server \[session scope\].*\n +Run a nats-server for all tests", output), output
    assert re.search(r"jetstream_server .*\n +Run a nats-server with JetStream and an empty store", output), output


def test_examples_of_the_guide(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    source = "\n".join(blocks)
    status, output = run_pytest(tmp_path, source)
    number = source.count("def test_")
    assert number >= 5
    assert (status, f"{number} passed" in output) == (0, True), output
