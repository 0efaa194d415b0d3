import json
import os

import nkeys
import pytest

from ce_nats.testing import NatsServer


@pytest.fixture(scope="module")
def guarded():
    with NatsServer(config="authorization: {user: ada, password: s3cret}") as server:
        yield server


@pytest.fixture
def context(tmp_path, monkeypatch):
    """Write a context of the nats command line."""
    directory = tmp_path / "nats" / "context"
    directory.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def write(name="shop", *, selected=False, **fields):
        (directory / f"{name}.json").write_text(json.dumps(fields))
        if selected:
            (tmp_path / "nats" / "context.txt").write_text(f"{name}\n")

    return write


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


def test_a_context(cli, event, guarded, context):
    context(url=guarded.url, user="ada", password="s3cret", description="shop")
    assert status(cli, event, "--context", "shop") == 0
    assert status(cli, event, "--context", "shop", "--password", "wr0ng") == 3
    assert status(cli, event) == 3  # nothing is selected, and nothing listens on the default port


def test_the_selected_context(cli, event, guarded, server, context):
    """Its credentials do not go to a server that was named."""
    context(url=guarded.url, user="ada", password="s3cret", selected=True)
    assert status(cli, event) == 0
    assert status(cli, event, "--server", guarded.url) == 3
    assert status(cli, event, "--server", server.url) == 0


def test_contexts_that_are_none(cli, event, context, tmp_path):
    assert status(cli, event, "--context", "other") == 2
    (tmp_path / "nats" / "context" / "bad.json").write_text("[]")
    assert status(cli, event, "--context", "bad") == 2


def test_a_token(cli, event, context):
    with NatsServer(config="authorization: {token: t0ken}") as server:
        assert status(cli, event, "--server", server.url, "--user", "t0ken") == 0
        context(url=server.url, token="t0ken")
        assert status(cli, event, "--context", "shop") == 0


def test_files_that_are_missing(cli, event, tmp_path):
    for option in ("--creds", "--nkey", "--tlsca"):
        result = cli("pub", "a", option, tmp_path / "none", event())
        assert result.exit_code == 2
        assert str(tmp_path / "none") in result.stderr
    assert status(cli, event, "--tlskey", tmp_path / "none") == 2
    (tmp_path / "bad.pem").write_text("no certificate")
    assert status(cli, event, "--tlsca", tmp_path / "bad.pem") == 2


def test_an_nkey(cli, event, tmp_path):
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    public = nkeys.from_seed(seed).public_key.decode()
    (tmp_path / "user.nk").write_bytes(seed)
    with NatsServer(config=f"authorization: {{users: [{{nkey: {public}}}]}}") as server:
        assert status(cli, event, "--server", server.url, "--nkey", tmp_path / "user.nk") == 0
        assert status(cli, event, "--server", server.url) == 3
