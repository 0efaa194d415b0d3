"""Connections of ``sub``, ``top`` and ``capture --subject``: lost, restored, closed, and without permission."""

import json
import signal
import socket
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ce_nats.testing import NatsServer


def authorization(**permissions):
    users = [{"user": name, "password": "p", "permissions": given} for name, given in permissions.items()]
    return f"authorization: {json.dumps({'users': users})}"


@contextmanager
def server_for(**permissions):
    with NatsServer(jetstream=True, config=authorization(**permissions)) as server:
        yield server


def reload(server, **permissions):
    """Change the permissions of users on a running server."""
    Path(server._directory, "server.conf").write_text(authorization(**permissions))
    server._processes[-1].send_signal(signal.SIGHUP)


def url(server, user):
    return server.url.replace("//", f"//{user}:p@")


def commands(tmp_path):
    return {
        "sub": ["sub", "orders"],
        "capture": ["capture", tmp_path / "live.jsonl", "--subject", "orders"],
        "top": ["top", "orders", "--interval", 1000],
    }


@pytest.mark.parametrize("command", ["sub", pytest.param("capture", marks=pytest.mark.faults)])
def test_lost_and_restored_connections_are_reported(start, event, tmp_path, command):
    with NatsServer() as server:
        process = start(*commands(tmp_path)[command], "--count", 1, url=server.url)
        assert process.stderr.readline() == b"listening on orders\n"
        server.kill()
        assert process.stderr.readline() == (
            b"ce-nats: connection lost; messages published before it is restored are not received\n"
        )
        server.start()
        assert process.stderr.readline() == b"ce-nats: reconnected\n"
        assert start("pub", "orders", event(), url=server.url).wait(30) == 0
        stdout, stderr = process.communicate(timeout=30)
        assert process.returncode == 0
        if command == "sub":
            assert (json.loads(stdout)["subject"], stderr) == ("orders", b"")
        else:
            assert (stdout, stderr[:9]) == (b"", b"1 message")


@contextmanager
def proxied(server):
    """Run a proxy; yield its URL, and a function that sends the client the error for an expired JWT."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        clients = []

        def serve():
            with listener.accept()[0] as client, socket.create_connection(("127.0.0.1", server.port)) as upstream:
                clients.append(client)
                responses = threading.Thread(target=pump, args=(upstream, client))
                responses.start()
                pump(client, upstream)
                responses.join()

        def expire():
            clients[0].sendall(b"-ERR 'User Authentication Expired'\r\n")

        serving = threading.Thread(target=serve)
        serving.start()
        yield f"nats://127.0.0.1:{listener.getsockname()[1]}", expire
        serving.join()


def pump(source, target):
    with suppress(OSError):
        while chunk := source.recv(4096):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("command", ["sub", "capture", "top"])
def test_permanently_closed_connection_is_status_3(start, tmp_path, command):
    """nats-py does not reconnect after such an error."""
    with NatsServer() as server, proxied(server) as (address, expire):
        process = start(*commands(tmp_path)[command], url=address)
        assert process.stderr.readline() == b"listening on orders\n"
        expire()
        stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (3, b"")
    assert stderr.startswith(b"ce-nats: connection-closed: orders: the connection was lost: ")
    assert b"authentication expired" in stderr
    assert stderr.count(b"\n") == 1


@pytest.mark.parametrize("command", ["sub", "capture", "top"])
def test_revoked_permission_is_status_3(start, tmp_path, command):
    with server_for(one={}) as server:
        process = start(*commands(tmp_path)[command], url=url(server, "one"))
        assert process.stderr.readline() == b"listening on orders\n"
        reload(server, one={"subscribe": {"deny": ["orders"]}})
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 3
    assert stderr == b"ce-nats: permission-denied: the server denies permission to subscribe to 'orders'\n"


def test_missing_permission_is_status_3(cli, event, tmp_path):
    deny = {"publish": {"deny": ["orders"]}, "subscribe": {"deny": ["orders"]}}
    message = {"subject": "orders", "headers": [], "data_base64": ""}
    capture = tmp_path / "one.jsonl"
    with server_for(one=deny) as server:
        at = ["--server", url(server, "one")]
        assert cli("decode", json.dumps(message)).exit_code == 1  # a valid message, but not an event
        capture.write_text(
            json.dumps({**message, "stream": "", "sequence": 0, "timestamp": "2026-01-01T00:00:00Z"}) + "\n"
        )
        for verb, arguments in {
            "publish": ["pub", "orders", event()],
            "publish ": ["pub", "-J", "orders", event()],
            " publish": ["replay", capture],
            " publish ": ["replay", "-J", capture],
            "subscribe": ["sub", "orders"],
            "subscribe  ": ["top", "orders"],
            "subscribe ": ["capture", tmp_path / "other.jsonl", "--subject", "orders"],
        }.items():
            result = cli(*arguments, *at)
            assert (result.exit_code, result.stdout) == (3, ""), arguments
            assert result.stderr.splitlines()[-1].startswith("ce-nats: permission-denied: "), result.stderr
            assert f"permission to {verb.strip()} to 'orders'" in result.stderr


@pytest.mark.parametrize("command", ["sub", "capture", "top"])
def test_ctrl_c_is_status_0(start, tmp_path, command):
    with NatsServer() as server:
        process = start(*commands(tmp_path)[command], url=server.url)
        assert process.stderr.readline() == b"listening on orders\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
        assert (process.returncode, stderr) == (0, b"0 messages captured\n" if command == "capture" else b"")
