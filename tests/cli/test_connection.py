import asyncio
import json
import os
import socket
import subprocess

import nats
import nkeys
import pytest

from ce_nats.redelivery import DeadLetter, Reason
from ce_nats.testing import NatsServer
from tests.support import reading
from tests.support.contexts import context

__all__ = ["context"]

# Account SHOP has JetStream; account OTHER imports its API with another subject prefix.
ACCOUNTS = """
accounts {
  SHOP {
    jetstream: enabled
    users: [{user: shop, password: s3cret}]
    exports: [{service: "$JS.API.>", response: stream}, {service: "orders.>"}]
  }
  OTHER {
    users: [{user: other, password: s3cret}]
    imports: [
      {service: {account: SHOP, subject: "$JS.API.>"}, to: "shop.api.>"}
      {service: {account: SHOP, subject: "orders.>"}}
    ]
  }
}
"""


@pytest.fixture(scope="module")
def guarded():
    with NatsServer(config="authorization: {user: ada, password: s3cret}") as server:
        yield server


def status(cli, event, *options):
    return cli("pub", "a", *options, event()).exit_code


def test_user_and_password(cli, event, guarded, monkeypatch):
    at = ["--server", guarded.url, "--user", "ada"]
    assert status(cli, event, *at, "--password", "s3cret") == 0
    result = cli("pub", "a", *at, "--password", "wr0ng", event())
    assert (result.exit_code, result.stderr.count("\n")) == (3, 1)
    assert "wr0ng" not in result.stderr
    monkeypatch.setenv("NATS_PASSWORD", "s3cret")
    assert status(cli, event, *at) == 0


def test_context(cli, event, guarded, context):
    context(url=guarded.url, user="ada", password="s3cret", description="shop")
    assert status(cli, event, "--context", "shop") == 0
    assert status(cli, event, "--context", "shop", "--password", "wr0ng") == 3
    with socket.socket() as other:
        if other.connect_ex(("127.0.0.1", 4222)):  # no server listens on the default port
            assert status(cli, event) == 3  # no context is selected


def test_selected_context(cli, event, guarded, server, context):
    """Credentials of the context are not sent to another server given with --server."""
    context(url=guarded.url, user="ada", password="s3cret", selected=True)
    assert status(cli, event) == 0
    assert status(cli, event, "--server", guarded.url) == 3
    assert status(cli, event, "--server", server.url) == 0


def test_invalid_contexts_are_usage_errors(cli, event, context, tmp_path):
    assert status(cli, event, "--context", "other") == 2
    (tmp_path / "nats" / "context" / "bad.json").write_text("[]")
    assert status(cli, event, "--context", "bad") == 2


def test_token(cli, event, context):
    with NatsServer(config="authorization: {token: t0ken}") as server:
        assert status(cli, event, "--server", server.url, "--user", "t0ken") == 0
        context(url=server.url, token="t0ken")
        assert status(cli, event, "--context", "shop") == 0


def test_missing_files_are_usage_errors(cli, event, tmp_path):
    for option in ("--creds", "--nkey", "--tlsca"):
        result = cli("pub", "a", option, tmp_path / "none", event())
        assert result.exit_code == 2
        assert str(tmp_path / "none") in result.stderr
    assert status(cli, event, "--tlskey", tmp_path / "none") == 2
    (tmp_path / "bad.pem").write_text("not a certificate")
    assert status(cli, event, "--tlsca", tmp_path / "bad.pem") == 2


def test_nkey(cli, event, tmp_path):
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    public = nkeys.from_seed(seed).public_key.decode()
    (tmp_path / "user.nk").write_bytes(seed)
    with NatsServer(config=f"authorization: {{users: [{{nkey: {public}}}]}}") as server:
        assert status(cli, event, "--server", server.url, "--nkey", tmp_path / "user.nk") == 0
        assert status(cli, event, "--server", server.url) == 3


def test_invalid_urls_are_usage_errors(cli, event):
    for url in ("http://127.0.0.1:4222", "nats://ada:s3cret/x@127.0.0.1"):
        result = cli("pub", "a", "--server", url, event())
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert "s3cret" not in result.stderr
    assert "must begin with nats://, tls://, ws:// or wss://, got http://" in cli("sub", "a", "-s", "http://a").stderr


def test_tls_url_of_a_server_without_tls_is_an_error(cli, event, server, monkeypatch):
    monkeypatch.setenv("NATS_URL", server.url.replace("nats:", "tls:"))
    result = cli("pub", "a", event())
    assert (result.exit_code, result.stderr.count("\n")) == (3, 1)
    assert "TLS is requested, and the server does not offer it" in result.stderr


def test_unreachable_server_is_an_error_of_one_line(event, python):
    """In a separate process, so that output of libraries to standard error is detected."""
    command = [python, "-m", "ce_nats", "pub", "a", "-s", "nats://ada:s3cret@127.0.0.1:1", event()]
    process = subprocess.run(command, capture_output=True, timeout=60)
    assert process.returncode == 3
    assert process.stderr.startswith(b"ce-nats: connection-failed: cannot connect to nats://127.0.0.1:1: ")
    assert process.stderr.count(b"\n") == 1
    assert b"s3cret" not in process.stderr


def test_precedence_of_settings(cli, event, guarded, context, monkeypatch):
    """Options override environment variables, and a user from either overrides the token of a context."""
    context(url=guarded.url, token="wr0ng")
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    monkeypatch.setenv("NATS_USER", "ada")
    monkeypatch.setenv("NATS_PASSWORD", "wr0ng")
    assert status(cli, event, "--server", guarded.url, "--context", "shop", "--password", "s3cret") == 0
    assert status(cli, event, "--server", guarded.url, "--context", "shop") == 3
    assert status(cli, event, "--server", f"nats://ada:s3cret@127.0.0.1:{guarded.port}") == 0


@pytest.fixture(scope="module")
def shop():
    """Yield a server with a stream ORDERS with two dead letters in account SHOP."""
    with NatsServer(config=ACCOUNTS, jetstream=True) as server:

        async def fill():
            async with await nats.connect(server.url, user="shop", password="s3cret") as nc:
                js = nc.jetstream()
                await js.add_stream(name="ORDERS", subjects=["orders.>"], storage="memory")
                dead_letter = DeadLetter(Reason.REJECTED, "", "no customer", "orders.a", "ORDERS", "billing", 7, 1)
                for _ in range(2):
                    await js.publish("orders.dead", b"{}", headers=dict(dead_letter.headers()))

        asyncio.run(fill())
        yield server


@pytest.mark.parametrize("given", ["option", "context"])
def test_commands_use_the_jetstream_api_prefix(cli, event, shop, context, tmp_path, given):
    """In an account that imports the JetStream API with another prefix."""
    context(url=shop.url, user="other", password="s3cret", jetstream_api_prefix="shop.api")
    at = ["--context", "shop"]
    if given == "option":
        at = ["--server", shop.url, "--user", "other", "--password", "s3cret", "--js-api-prefix", "shop.api."]
    assert cli("pub", "-J", "orders.a", event(given), *at).exit_code == 0
    captured = cli("capture", tmp_path / "orders.jsonl", "--stream", "ORDERS", "--json", *at)
    assert (captured.exit_code, captured.stderr) == (0, "")
    assert json.loads(captured.stdout)["messages"] >= 2
    sequence = {"option": 1, "context": 2}[given]
    for command in (["list", "ORDERS"], ["show", "ORDERS", sequence]):
        result = cli("dead-letters", *command, *at)
        assert (result.exit_code, "rejected" in result.stdout) == (0, True)
    assert cli("dead-letters", "requeue", "ORDERS", sequence, *at).exit_code == 0
    without = cli("capture", "-", "--stream", "ORDERS", *at, "--js-api-prefix", "$JS.API")
    assert without.exit_code == 3


def test_prefix_and_domain_exclude_each_other(cli, event, context):
    both = ["--js-domain", "hub", "--js-api-prefix", "shop.api"]
    result = cli("pub", "a", event(), *both)
    assert result.exit_code == 2
    assert "--js-api-prefix and --js-domain must not be given together" in result.stderr
    assert "--js-api-prefix must be a subject without wildcards" in cli("pub", "a", *both[2:3], "a.>").stderr


def test_lost_connection_is_reported(event, start):
    """The log line has the form of other messages, and the command continues after reconnecting."""
    with NatsServer(jetstream=True) as server:

        async def add():
            async with await nats.connect(server.url) as nc:
                await nc.jetstream().add_stream(name="S", subjects=["a"])

        asyncio.run(add())
        process = start("pub", "-J", "a", url=server.url)
        process.stdin.write(event(1).encode())
        process.stdin.flush()
        asyncio.run(until_stored(server))
        server.restart()
        lines = [process.stderr.readline().decode() for _ in range(2)]
        _, rest = process.communicate(event(2).encode(), timeout=60)
    at = f"ce-nats: 127.0.0.1:{server.port}:"
    assert lines == [f"{at} connection lost; reconnecting\n", f"{at} reconnected\n"]
    assert (process.returncode, rest) == (0, b"2 published\n")


async def until_stored(server):
    async with await nats.connect(server.url) as nc:
        await reading.until_stored(nc.jetstream(), "S", 1)
