"""The command ``check``."""

import asyncio
import json

import nats
import pytest

from ce_nats.aio.jetstream import configure_stream
from ce_nats.testing import NatsServer
from tests.support.streaming import free_port


@pytest.fixture
def kept(with_js, subject):
    """A stream in a file without problems."""
    name = subject.replace(".", "_")
    with_js(lambda js: js.add_stream(name=name, subjects=[subject]))
    yield name
    with_js(lambda js: js.delete_stream(name))


def test_findings_are_printed_with_their_remedies(at_server, kept, with_js):
    result = at_server("check", kept)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "nothing found\n")
    with_js(lambda js: configure_stream(js, kept, no_ack=True, duplicate_window=10**9))
    result = at_server("check", kept, "--feature", "ttl", "--dead-letters", f"dead.{kept}")
    assert (result.exit_code, result.stderr) == (1, "3 errors, 1 warning, 0 unknown\n")
    lines = result.stdout.splitlines()
    assert lines[:2] == [
        f"error: stream {kept}: it has no_ack: publishers get no acknowledgement (no-ack)",
        f"  -> ce-nats configure {kept} no_ack=false",
    ]
    assert len(lines) == 8


def test_findings_as_json_and_ignored(at_server, kept, with_js):
    with_js(lambda js: configure_stream(js, kept, no_ack=True))
    options = ["--replicas", 3, "--consumer", "billing", "--in-flight", 10, "--read-every", "1h"]
    result = at_server("check", kept, *options, "--ignore", "no-ack", "--json")
    assert (result.exit_code, result.stderr) == (1, "")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [finding["code"] for finding in found] == ["replicas", "no-consumer"]
    assert found[0] == {
        "level": "error",
        "code": "replicas",
        "target": f"stream {kept}",
        "text": "it must have 3 replicas, got 1",
        "remedy": f"ce-nats configure {kept} num_replicas=3",
    }
    assert at_server("check", kept, "--ignore", "no-ack").exit_code == 0


def test_servers_are_asked_whether_they_sync(cli, monkeypatch, tmp_path):
    """At the monitoring port, or as a user of the system account in a context."""
    port = free_port()
    config = f"""
        http: "127.0.0.1:{port}"
        system_account: SYS
        accounts {{
          SYS: {{ users: [{{user: system, password: x}}] }}
          APP: {{ jetstream: enabled, users: [{{user: app, password: x}}] }}
        }}
    """
    contexts = tmp_path / "nats" / "context"
    contexts.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with NatsServer(jetstream=True, config=config) as server:
        system = {"url": server.url, "user": "system", "password": "x"}
        (contexts / "system.json").write_text(json.dumps(system))
        at = ["--server", server.url.replace("//", "//app:x@")]
        asyncio.run(add_stream(server.url))
        assert cli("check", "KEPT", *at).exit_code == 0
        result = cli("check", "KEPT", *at, "--sync")
        assert (result.exit_code, result.stderr) == (1, "0 errors, 0 warnings, 1 unknown\n")
        for way in (["--monitor", f"http://127.0.0.1:{port}"], ["--system", "system"]):
            result = cli("check", "KEPT", *at, *way)
            assert (result.exit_code, "(not-synced)" in result.stdout) == (1, True)
            assert result.stdout.startswith("warning: stream KEPT: ")
            assert cli("check", "KEPT", *at, *way, "--sync").stdout.startswith("error: stream KEPT: ")
        result = cli("check", "KEPT", *at, "--monitor", "nats://127.0.0.1")
        assert (result.exit_code, result.stderr.split(": ")[1]) == (2, "invalid-option")


async def add_stream(url):
    async with await nats.connect(url, user="app", password="x") as nc:
        await nc.jetstream().add_stream(name="KEPT", subjects=["kept"])


def test_unknown_stream(at_server):
    result = at_server("check", "NOWHERE")
    assert (result.exit_code, result.stderr) == (3, "ce-nats: stream-not-found: there is no stream NOWHERE\n")
