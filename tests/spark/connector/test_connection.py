"""Connection options, with real servers; secrets in them are not disclosed."""

import asyncio
import pickle
import ssl
import subprocess
import sys
import traceback

import pytest
from nats.aio.client import Client

from ce_nats.aio._connect import disconnect
from ce_nats.errors import DeliveryError
from ce_nats.spark.connector._connection import CONNECTION_OPTIONS, KAFKA_NAMES, Connection, check_names
from ce_nats.spark.connector._read_options import READ_OPTIONS
from ce_nats.spark.connector._sink import SINK_OPTIONS
from ce_nats.testing import NatsServer
from tests.support.listening import serving
from tests.support.tables import each

SECRET = "S3cr3t"


def connect(connection):
    """Connect to a real server, wait for one round trip, and disconnect."""

    async def run():
        client = Client()
        try:
            await connection.connect(client)
            await client.flush()
        finally:
            await disconnect(client)

    asyncio.run(asyncio.wait_for(run(), 60))


def all_texts(error):
    """Every text that can be printed of an error and its causes."""
    texts = []
    while error is not None:
        texts += [repr(error), str(error), *traceback.format_exception(error), repr(vars(error))]
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


# --- Reading options -------------------------------------------------------------------------------------------------


def test_options_are_read_in_any_case():
    connection = Connection.from_options(
        {
            "URL": "nats://one:4222, two:4223",
            "NkeySeedFile": "/seed",
            "TLSHANDSHAKEFIRST": "True",
            "connecttimeout": "1.5",
            "jetstreamDomain": "hub",
            "stream": "ignored",
        }
    )
    assert connection.servers == ("nats://one:4222", "nats://two:4223")
    assert (connection.nkey_seed_file, connection.tls_handshake_first) == ("/seed", True)
    assert (connection.connect_timeout, connection.api_prefix) == (1.5, "$JS.hub.API")


@each(
    ("url", "user", "password", "token"),
    [
        ("nats://alice:pass@host:4222", "alice", "pass", None),
        ("alice:pass@host", "alice", "pass", None),
        ("nats://al%40ice:p%3Aa%2Fs%25s@host", "al@ice", "p:a/s%s", None),
        ("tls://abcdef@host:4222", None, None, "abcdef"),
        ("nats://alice:pass@one,nats://alice:pass@two", "alice", "pass", None),
        ("nats://alice:pass@one,nats://two", "alice", "pass", None),
        ("nats://alice:pass@[::1]:4222", "alice", "pass", None),
        ("ws://alice:pass@host/path", "alice", "pass", None),
        ("nats://host", None, None, None),
    ],
)
def test_credentials_are_removed_from_urls(url, user, password, token):
    connection = Connection.from_options({"url": url})
    assert (connection.user, connection.password, connection.token) == (user, password, token)
    assert "@" not in "".join(connection.servers)
    assert "pass" not in "".join(connection.servers)


@each(
    ("options", "text"),
    [
        ({}, "option url is missing"),
        ({"url": " "}, "option url is missing"),
        ({"url": "nats://a", "user": "u"}, "user and password must be given together"),
        ({"url": "nats://a", "password": SECRET}, "user and password must be given together"),
        (
            {"url": "nats://a", "user": "u", "password": SECRET, "token": SECRET},
            "user and token must not be given together",
        ),
        ({"url": "nats://a", "nkeySeedFile": "x", "credentialsFile": "y"}, "nkeySeedFile and credentialsFile must not"),
        ({"url": f"nats://u:{SECRET}@a", "token": SECRET}, "in the URL or in the options, got both"),
        ({"url": f"nats://u:{SECRET}@a,nats://u:other@b"}, "different users or tokens"),
        ({"url": "nats://a", "tlsKeyFile": "k"}, "tlsKeyFile must be given with tlsCertFile"),
        ({"url": "nats://a", "tlsHandshakeFirst": "yes"}, "tlsHandshakeFirst must be true or false, got 'yes'"),
        (
            {"url": "nats://a", "connectTimeout": "soon"},
            "connectTimeout must be a number of seconds above 0, got 'soon'",
        ),
        ({"url": "nats://a", "retryTimeout": "0"}, "retryTimeout must be a number of seconds"),
        ({"url": "nats://a", "requestTimeout": "nan"}, "requestTimeout must be a number of seconds"),
        ({"url": "nats://a", "jetstreamDomain": "d", "jetstreamPrefix": "p"}, "must not be given together"),
        ({"url": "http://a"}, r"server URL must begin with nats://, tls://, ws:// or wss://, got http://\.\.\.$"),
        ({"url": "nats://a,nats://"}, "server URL 2 must be of the form"),
        ({"url": "nats://a:0"}, "must be of the form"),
        ({"url": f"nats://u:{SECRET}/x@a"}, "must be of the form"),
        ({"url": f"nats://u:1/{SECRET}@a"}, "must be of the form"),
        ({"url": f"nats://u:x#{SECRET}@a"}, "must be of the form"),
        ({"url": f"nats://u:1?{SECRET}@a"}, "must be of the form"),
        ({"url": f"nats://u:{SECRET}@a:port"}, "must be of the form"),
        ({"url": f"nats://u:{SECRET}@[a"}, "must be of the form"),
    ],
)
def test_errors_of_invalid_options_have_no_secrets(options, text):
    with pytest.raises(ValueError, match=text) as info:
        Connection.from_options(options)
    assert SECRET not in all_texts(info.value)


def test_a_misspelt_option_is_an_error_with_its_name():
    with pytest.raises(ValueError, match=r"unknown option 'tokn'; did you mean token\?"):
        check_names({"tokn": SECRET}, CONNECTION_OPTIONS)
    with pytest.raises(ValueError, match="unknown option 'xyz'; options are url, name"):
        check_names({"xyz": SECRET}, CONNECTION_OPTIONS)
    check_names({"TOKEN": SECRET}, CONNECTION_OPTIONS)


@each("name", ["subscribe", "assign", "topic", "kafka.bootstrap.servers", "maxOffsetsPerTrigger"])
def test_an_option_for_kafka_is_an_error_with_its_equivalent(name):
    equivalent = KAFKA_NAMES[name.lower()]
    with pytest.raises(ValueError, match=rf"unknown option '{name}'; did you mean {equivalent}\?"):
        check_names({name: "x"}, (*CONNECTION_OPTIONS, *(SINK_OPTIONS if name == "topic" else READ_OPTIONS)))


def test_secrets_are_not_in_repr_and_are_pickled():
    options = {"url": f"nats://u:{SECRET}1@a", "tlsKeyPassword": f"{SECRET}2", "tlsCertFile": "c"}
    for more in ({}, {"url": "nats://a", "token": f"{SECRET}3"}):
        connection = Connection.from_options({**options, **more})
        assert SECRET not in repr(connection)
        assert SECRET not in str(connection)
        assert SECRET not in f"{connection!s} {[connection]}"
        assert pickle.loads(pickle.dumps(connection)) == connection


# --- Connecting ------------------------------------------------------------------------------------------------------


@each(
    ("config", "url", "options"),
    [
        (f"authorization {{ user: alice, password: {SECRET} }}", "nats://{}", {"user": "alice", "password": SECRET}),
        (f"authorization {{ user: alice, password: {SECRET} }}", f"nats://alice:{SECRET}@{{}}", {}),
        ('authorization { user: alice, password: "p:/@%" }', "nats://alice:p%3A%2F%40%25@{}", {}),
        (f"authorization {{ token: {SECRET} }}", "{}", {"token": SECRET}),
        (f"authorization {{ token: {SECRET} }}", f"{SECRET}@{{}}", {}),
    ],
)
def test_every_kind_of_credentials(config, url, options):
    with NatsServer(config=config) as server:
        address = f"127.0.0.1:{server.port}"
        connect(Connection.from_options({"url": url.format(address), **options}))
        with pytest.raises(DeliveryError, match=r"(?i)authorization"):
            connect(Connection.from_options({"url": f"nats://{address}"}))
        wrong = Connection.from_options({"url": f"nats://alice:{SECRET}x@{address}"})
        with pytest.raises(
            DeliveryError, match=r"cannot connect to nats://127\.0\.0\.1:[0-9]+: .*(?i:authorization)"
        ) as info:
            connect(wrong)
        assert SECRET not in all_texts(info.value)


def test_the_error_without_a_server_has_no_secrets(caplog):
    connection = Connection.from_options({"url": f"nats://alice:{SECRET}@127.0.0.1:1,alice:{SECRET}@127.0.0.1:2"})
    with pytest.raises(
        DeliveryError, match=r"cannot connect to nats://127\.0\.0\.1:1, nats://127\.0\.0\.1:2: "
    ) as info:
        connect(connection)
    assert "Connect call failed" in str(info.value)
    assert SECRET not in all_texts(info.value)
    assert caplog.records == []


def test_secrets_in_errors_of_other_libraries_are_replaced():
    connection = Connection.from_options({"url": "127.0.0.1:1", "token": SECRET, "tlsCaFile": f"/nowhere/{SECRET}.pem"})
    with pytest.raises(DeliveryError, match=r"No such file or directory: '/nowhere/\*\*\*\.pem'") as info:
        connect(connection)
    assert SECRET not in all_texts(info.value)


@pytest.mark.parametrize("option", ["nkeySeedFile", "credentialsFile"])
def test_the_error_names_a_missing_package_for_keys(option, monkeypatch):
    monkeypatch.setitem(sys.modules, "nkeys", None)
    connection = Connection.from_options({"url": "nats://127.0.0.1:1", option: "/nowhere"})
    with pytest.raises(DeliveryError, match=r"need the package nkeys: pip install 'nats-py\[nkeys\]'"):
        connect(connection)


def test_the_error_names_a_missing_file(tmp_path):
    with pytest.raises(DeliveryError, match=r"No such file or directory: '.*ca\.pem'"):
        connect(Connection.from_options({"url": "nats://127.0.0.1:1", "tlsCaFile": str(tmp_path / "ca.pem")}))


# --- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A CA, a server certificate for nats.test only, and a client certificate with an encrypted key."""
    directory = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True, timeout=30)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    openssl("req", "-x509", *key, "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca")
    for name, extension in (("server", "subjectAltName=DNS:nats.test"), ("client", "extendedKeyUsage=clientAuth")):
        secret = ["-nodes"] if name == "server" else ["-passout", f"pass:{SECRET}"]
        request = ["-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"]
        openssl("req", *key, *secret, *request)
        (directory / "extensions").write_text(extension)
        signed = ["-in", f"{name}.csr", "-out", f"{name}.pem", "-days", "2", "-extfile", "extensions"]
        openssl("x509", "-req", *signed, "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
    return directory


@pytest.mark.parametrize("first", ["true", "false"])
def test_tls_with_a_client_certificate(certificates, first):
    config = (
        f'tls {{ cert_file: "{certificates}/server.pem", key_file: "{certificates}/server.key", '
        f'ca_file: "{certificates}/ca.pem", verify: true, handshake_first: {first} }}'
    )
    with NatsServer(config=config) as server:
        good = {
            "url": f"tls://127.0.0.1:{server.port}",
            "tlsCaFile": f"{certificates}/ca.pem",
            "tlsCertFile": f"{certificates}/client.pem",
            "tlsKeyFile": f"{certificates}/client.key",
            "tlsKeyPassword": SECRET,
            "tlsHostname": "nats.test",
            "tlsHandshakeFirst": first,
        }
        connect(Connection.from_options(good))
        for wrong in (
            {"tlsHostname": "other.test"},
            {"tlsCaFile": ssl.get_default_verify_paths().cafile or f"{certificates}/client.pem"},
            {"tlsKeyPassword": ""},
            {"tlsKeyPassword": SECRET + "x"},
        ):
            with pytest.raises(DeliveryError, match="cannot connect to tls://") as info:
                connect(Connection.from_options({**good, **wrong}))
            assert SECRET not in all_texts(info.value)


@each("login", [{"user": "alice", "password": SECRET}, {"token": SECRET}])
@each("tls", [{}, {"tlsHostname": "nats.test"}])
def test_a_server_without_tls_gets_no_credentials(login, tls):
    """A real server does not show received lines, so this one only sends INFO and records what it receives."""
    received = []

    async def serve(reader, writer):
        writer.write(b'INFO {"max_payload":1000,"headers":true,"auth_required":true}\r\n')
        while line := await reader.readline():
            received.append(line)
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n")

    async def run():
        async with serving(serve) as port:
            url = f"127.0.0.1:{port}" if tls else f"tls://127.0.0.1:{port}"
            client = Client()
            with pytest.raises(DeliveryError, match="secure connection not available"):
                await Connection.from_options({"url": url, **login, **tls}).connect(client)
            await disconnect(client)
            client = Client()
            await Connection.from_options({"url": f"127.0.0.1:{port}", **login}).connect(client)
            await disconnect(client)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert [SECRET in line.decode() for line in received if line.startswith(b"CONNECT")] == [True]
