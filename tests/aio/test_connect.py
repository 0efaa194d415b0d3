"""Connections: credentials, TLS, reconnects and logs, on real servers and on a listener that records bytes."""

import asyncio
import json
import logging
import os
import ssl
import time
from contextlib import asynccontextmanager

import nats
import nkeys
import pytest

from ce_nats.aio import connect, publish, subscribe
from ce_nats.errors import DeliveryError, EncodeError, ErrorCode
from ce_nats.testing import NatsServer

from ..support.listening import serving
from ..support.waiting import until

SECRET = "S3cr3t"
INFO = {"server_id": "x", "version": "2.10.0", "max_payload": 1000, "headers": True, "nonce": "n0nce"}


@pytest.fixture(scope="module")
def tls_config(certificates):
    return f'tls {{ cert_file: "{certificates}/server.pem", key_file: "{certificates}/server.key" }}'


@pytest.fixture
def seed(tmp_path):
    """Write a file with the seed of an nkey."""
    path = tmp_path / "user.nk"
    path.write_bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER))
    return path


@pytest.fixture
def credentials(tmp_path, seed):
    """Write a file with a JWT and a seed."""
    path = tmp_path / "user.creds"
    parts = [("NATS USER JWT", f"jwt.{SECRET}.x"), ("USER NKEY SEED", seed.read_text())]
    path.write_text("".join(f"-----BEGIN {name}-----\n{text}\n------END {name}------\n\n" for name, text in parts))
    return path


class Listener:
    """Greets like a server without TLS, answers PING, and records all received bytes."""

    def __init__(self):
        self.called = []
        self.connections = 0
        self.port = 0
        self.backend = None  # port to relay connections to, or None
        self._pairs = []

    async def serve(self, reader, writer):
        if self.backend is not None:
            await self._relay(reader, writer)
            return
        self.connections += 1
        writer.write(b"INFO " + json.dumps(INFO).encode() + b"\r\n")
        while line := await reader.readline():
            self.called.append(line)
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n")

    async def _relay(self, reader, writer):
        there, back = await asyncio.open_connection("127.0.0.1", self.backend)
        self._pairs += [writer, back]

        async def copy(source, target):
            try:
                while data := await source.read(65536):
                    target.write(data)
            finally:
                target.close()

        await asyncio.gather(copy(reader, back), copy(there, writer), return_exceptions=True)

    def cut(self):
        """Close relayed connections."""
        for writer in self._pairs:
            writer.transport.abort()
        self._pairs.clear()


@asynccontextmanager
async def listening():
    listener = Listener()
    async with serving(listener.serve) as listener.port:
        yield listener


# --- The first connection --------------------------------------------------------------------------------------------


async def test_connection_publishes_and_subscribes(server, make_event, subject):
    async with await connect(server.url, name="shop") as nc, await subscribe(nc, subject) as events:
        await publish(nc, make_event(), subject)
        async for item in events:
            assert item.event.get_id() == "event 1"
            break
    assert nc.is_closed


async def test_credentials_in_a_url_apply_to_all_servers_and_are_hidden():
    with NatsServer(config=f"authorization {{ user: ada, password: {SECRET} }}") as server:
        url = f"nats://ada:{SECRET}@127.0.0.1:{server.port}"
        async with await connect([url, "nats://127.0.0.1:1"], dont_randomize=True) as nc:
            assert SECRET not in f"{nc!r} {nc.connected_url} {nc.servers}"
        with pytest.raises(DeliveryError, match="authentication rejected by the server") as info:
            await connect(f"nats://ada:{SECRET}x@127.0.0.1:{server.port}")
        assert info.value.code is ErrorCode.AUTHENTICATION_FAILED
        assert SECRET not in str(info.value)
        assert info.value.__cause__ is None


async def test_other_urls_are_rejected_before_connecting():
    async with listening() as listener:
        with pytest.raises(EncodeError, match=r"must begin with nats://.* got http://\.\.\."):
            await connect(f"http://ada:{SECRET}@127.0.0.1:{listener.port}")
        assert listener.connections == 0


async def test_unreachable_servers_are_one_error(caplog):
    begun = time.monotonic()
    with pytest.raises(
        DeliveryError, match=r"^connection-failed: cannot connect to nats://127\.0\.0\.1:1, nats://127\.0\.0\.1:2: "
    ) as info:
        await connect("nats://127.0.0.1:1,nats://127.0.0.1:2")
    assert time.monotonic() - begun < 30  # nats-py retries for minutes
    assert "\n" not in str(info.value)
    assert caplog.records == []


async def test_server_without_info_is_an_error():
    async def never(reader, writer):
        await reader.read()

    async with serving(never) as port:
        with pytest.raises(DeliveryError, match="no answer in"):
            await asyncio.wait_for(connect(f"127.0.0.1:{port}", connect_timeout=0.3), 10)


async def test_next_server_is_tried_after_a_rejection(server):
    """A server that rejects the credentials does not end the attempts."""
    with NatsServer(config="authorization { token: other }") as refusing:
        async with await connect([refusing.url, server.url], dont_randomize=True) as nc:
            assert nc.connected_url.port == server.port


async def test_options_and_callbacks_are_checked(server):
    async with await connect(server.url, no_echo=True, ping_interval=7) as nc:
        assert (nc.options["no_echo"], nc.options["ping_interval"]) == (True, 7)
    with pytest.raises(TypeError, match=r"connect\(\) has no option 'passwrod'"):
        await connect(server.url, passwrod=SECRET)
    with pytest.raises(TypeError, match=r"error_cb must be an asynchronous function \(async def\), got "):
        await connect(server.url, error_cb=print)


@pytest.mark.parametrize(
    ("attempts", "options"), [(None, (True, -1)), (-1, (True, -1)), (0, (False, 0)), (7, (True, 7))]
)
async def test_option_max_reconnect_attempts(server, attempts, options):
    async with await connect(server.url, max_reconnect_attempts=attempts) as nc:
        assert (nc.options["allow_reconnect"], nc.options["max_reconnect_attempts"]) == options


async def test_context_and_environment_are_used(server, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "nats" / "context").mkdir(parents=True)
    with NatsServer(config=f"authorization {{ user: ada, password: {SECRET} }}") as guarded:
        text = json.dumps({"url": guarded.url, "user": "ada", "password": SECRET})
        (tmp_path / "nats" / "context" / "shop.json").write_text(text)
        async with await connect(context="shop") as nc:
            assert nc.connected_url.port == guarded.port
        monkeypatch.setenv("NATS_URL", server.url)
        async with await connect(environment=True) as nc:
            assert nc.connected_url.port == server.port
        monkeypatch.setenv("NATS_CONTEXT", "shop")
        async with await connect(guarded.url, environment=True) as nc:
            assert nc.connected_url.port == guarded.port


async def test_invalid_credential_files_are_errors(server, tmp_path):
    """nats-py searches a file without a JWT forever."""
    (tmp_path / "empty").write_text("")
    for options in ({"user_credentials": tmp_path / "empty"}, {"tls_ca_file": tmp_path / "empty"}):
        with pytest.raises(EncodeError) as info:
            await connect(server.url, **options)
        assert info.value.code is ErrorCode.INVALID_OPTION
    for option in ("user_credentials", "nkeys_seed", "tls_ca_file", "tls_cert_file"):
        with pytest.raises(EncodeError, match=f"No such file or directory: '{tmp_path}/none'"):
            await connect(server.url, **{option: tmp_path / "none"})


# --- TLS -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("login", ["nothing", "password", "token", "url", "nkey", "credentials", "function"])
@pytest.mark.parametrize("wish", ["url", "tls_ca_file", "tls_hostname", "tls"])
async def test_nothing_is_sent_to_a_server_without_tls(wish, login, certificates, seed, credentials, caplog):
    async with listening() as listener:
        user = f"ada:{SECRET}@" if login == "url" else ""
        options = {
            "nothing": {},
            "url": {},
            "password": {"user": "ada", "password": SECRET},
            "token": {"token": SECRET},
            "function": {"token": lambda: SECRET},
            "nkey": {"nkeys_seed": seed},
            "credentials": {"user_credentials": credentials},
        }[login]
        asked = {
            "url": {},
            "tls_ca_file": {"tls_ca_file": certificates / "ca.pem"},
            "tls_hostname": {"tls_hostname": "nats.test"},
            "tls": {"tls": ssl.create_default_context()},
        }[wish]
        url = f"{user}127.0.0.1:{listener.port}"
        with pytest.raises(DeliveryError, match="TLS is requested, and the server does not offer it") as info:
            await connect(f"tls://{url}" if wish == "url" else url, **options, **asked)
        assert SECRET not in str(info.value)
        assert listener.connections > 0
        assert listener.called == []
        assert caplog.records == []
        # Without a request for TLS the credentials are sent, which the listener records.
        async with await connect(url, **options) as nc:
            await nc.flush()
        said = listener.called[0].decode()
        assert said.startswith("CONNECT ")
        assert {"nothing": '"verbose"', "nkey": '"sig"'}.get(login, SECRET) in said


async def test_tls_verifies_the_server_and_authenticates_the_client(certificates, tls_config):
    with NatsServer(config=tls_config) as server:
        async with await connect(f"tls://127.0.0.1:{server.port}", tls_ca_file=certificates / "ca.pem") as nc:
            await nc.flush()
        begun = time.monotonic()
        with pytest.raises(DeliveryError, match="certificate verify failed"):
            await connect(f"tls://127.0.0.1:{server.port}")
        assert time.monotonic() - begun < 30


async def test_server_with_optional_tls(certificates, tls_config):
    with NatsServer(config=f"{tls_config}\nallow_non_tls: true") as server:
        url = f"127.0.0.1:{server.port}"
        for options, has_tls in (({}, False), ({"tls_ca_file": certificates / "ca.pem"}, True)):
            async with await connect(url, **options) as nc:
                await nc.flush()
                cipher = nc._transport._io_writer.get_extra_info("cipher")
                assert (cipher is not None) == has_tls


async def test_nothing_is_sent_to_a_server_that_returns_without_tls(certificates, tls_config, caplog):
    """Neither credentials nor subscriptions nor buffered messages; the connection is retried."""
    config = f"{tls_config}\nauthorization {{ user: ada, password: {SECRET} }}"
    with NatsServer(config=config) as server:
        async with listening() as listener:
            listener.backend = server.port
            nc = await connect(
                f"tls://127.0.0.1:{listener.port}",
                user="ada",
                password=SECRET,
                tls_ca_file=certificates / "ca.pem",
                reconnect_time_wait=0.05,
            )
            received = await nc.subscribe(f"{SECRET}.>")
            await nc.flush()
            listener.backend = None
            listener.cut()
            await until(lambda: nc.is_reconnecting)
            await nc.publish(f"{SECRET}.a", SECRET.encode())
            await until(lambda: listener.connections >= 3)
            assert listener.called == []
            listener.backend = server.port
            await until(lambda: nc.is_connected)
            assert (await received.next_msg(10)).data == SECRET.encode()
            # Messages that are buffered when the connection is closed are not sent, either.
            listener.backend = None
            listener.cut()
            before = listener.connections
            await until(lambda: nc.is_reconnecting)
            await nc.publish(f"{SECRET}.b", SECRET.encode())
            await until(lambda: listener.connections > before)
            await nc.close()
            assert listener.called == []
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    refusals = [record for record in warnings if "TLS is requested" in record.getMessage()]
    assert len(refusals) == 2  # one record for each loss, not for each attempt
    assert all("\n" not in record.getMessage() for record in caplog.records if record.name.startswith("ce_nats"))


async def test_buffer_is_not_sent_to_a_server_without_info(certificates, tls_config):
    """When nats-py is closed while connecting, it writes its buffer to that server."""
    with NatsServer(config=tls_config) as server:
        async with listening() as listener:
            listener.backend = server.port
            nc = await connect(
                f"127.0.0.1:{listener.port}", tls_ca_file=certificates / "ca.pem", reconnect_time_wait=0.05
            )
            called = bytearray()
            is_there, ended = asyncio.Event(), asyncio.Event()

            async def keep_silent(reader, writer):
                is_there.set()
                while data := await reader.read(1000):
                    called.extend(data)
                ended.set()

            async with serving(keep_silent) as port:
                listener.cut()
                nc.set_server_pool([f"nats://127.0.0.1:{port}"])
                await asyncio.wait_for(is_there.wait(), 20)
                await nc.publish("a", SECRET.encode())
                await nc.close()
                await until(ended.is_set)
            assert called == b""


# --- Reconnects and logs ---------------------------------------------------------------------------------------------


def messages(caplog):
    """Return the log messages of the connection."""
    return [record.getMessage() for record in caplog.records if record.name == "ce_nats.aio._connect"]


async def test_loss_and_reconnect_are_logged_in_a_line_each(caplog):
    with NatsServer() as server:
        async with await connect(server.url, reconnect_time_wait=0.05) as nc:
            server.restart()
            await until(lambda: len(messages(caplog)) == 2)
            await nc.flush()
        at = f"127.0.0.1:{server.port}"
        assert messages(caplog) == [
            f"{at}: connection lost; reconnecting",
            f"{at}: reconnected",
        ]
        assert all(record.exc_info is None for record in caplog.records)


async def test_reconnect_intervals_of_connections_differ():
    """So that clients of a restarted server do not all reconnect at the same moment."""
    with NatsServer() as server:
        async with await connect(server.url) as one, await connect(server.url) as other:
            waits = [nc.options["reconnect_time_wait"] for nc in (one, other)]
        async with await connect(server.url, reconnect_time_wait=0.05) as nc:
            assert nc.options["reconnect_time_wait"] == 0.05
    assert len(set(waits)) == 2
    assert all(2 <= seconds <= 2.5 for seconds in waits)


async def test_end_of_reconnecting_is_logged(caplog):
    with NatsServer() as server:
        nc = await connect(server.url, reconnect_time_wait=0.05, max_reconnect_attempts=2)
        server.stop()
        await until(lambda: nc.is_closed and len(messages(caplog)) == 2)
    assert "reconnecting failed; connection closed: " in messages(caplog)[1]
    assert "Connect call failed" in messages(caplog)[1]
    assert caplog.records[-1].levelno == logging.ERROR


async def test_callbacks_replace_the_log(caplog):
    called = []

    def note(name):
        async def callback(*error):
            called.append((name, *map(type, error)))

        return callback

    names = ("error", "disconnected", "reconnected", "closed")
    with NatsServer() as server:
        callbacks = {f"{name}_cb": note(name) for name in names}
        nc = await connect(server.url, reconnect_time_wait=0.05, **callbacks)
        server.restart()
        await until(lambda: ("reconnected",) in called)
        await nc.close()
    assert called[0] == ("error", nats.errors.UnexpectedEOF)
    assert [name for name, *error in called if not error] == ["disconnected", "reconnected", "disconnected", "closed"]
    assert caplog.records == []


async def test_callbacks_are_not_called_if_the_first_connection_fails():
    called = []

    async def note(*error):
        called.append(error)

    callbacks = {f"{name}_cb": note for name in ("error", "disconnected", "reconnected", "closed")}
    with pytest.raises(DeliveryError):
        await connect("nats://127.0.0.1:1", **callbacks)
    assert called == []


async def test_error_of_the_server_is_logged(caplog):
    with NatsServer() as server:
        nc = await connect(server.url)
        await nc.publish("a" * 5000, b"")
        await until(lambda: messages(caplog))  # nats-py calls the callback after it has closed
    assert messages(caplog) == [f"127.0.0.1:{server.port}: connection closed: nats: maximum control line exceeded"]
