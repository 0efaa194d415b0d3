import json
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from nats.js import JetStreamContext

from ce_nats.aio.jetstream import read_stream
from ce_nats.message import StoredMessage
from ce_nats.testing import NatsCluster, NatsServer
from tests.support.broker import js, make_event, nc, own_server, server, stream, subject
from tests.support.waiting import until

__all__ = ["js", "make_event", "nc", "own_server", "server", "stream", "subject"]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a certificate authority, and a certificate for 127.0.0.1."""
    directory = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True, timeout=30)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    usage = ["-addext", "keyUsage=critical,keyCertSign"]  # Python 3.13 and later check this, and the key identifier
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca", *usage)
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=server")
    (directory / "extensions").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid")
    signed = ["-in", "server.csr", "-out", "server.pem", "-days", "2", "-extfile", "extensions"]
    openssl("x509", "-req", *signed, "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
    return directory


@pytest.fixture(scope="session")
def whole_cluster() -> Iterator[NatsCluster]:
    with NatsCluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster: NatsCluster) -> Iterator[NatsCluster]:
    """Three running servers. A test may kill or pause them; they are restored after it."""
    yield whole_cluster
    for member in whole_cluster.servers:
        member.resume()
        member.start()
    whole_cluster.wait_until_ready()


@pytest.fixture
def send_raw(server: NatsServer) -> Callable[..., None]:
    """Publish bytes through a socket, because client libraries change headers."""

    def send(subject: str, header_lines: bytes | None, payload: bytes = b"", reply: str = "") -> None:
        block = b"" if header_lines is None else b"NATS/1.0\r\n" + header_lines + b"\r\n"
        sizes = f"{len(block)} {len(block) + len(payload)}" if block else f"{len(payload)}"
        command = f"{'HPUB' if block else 'PUB'} {subject} {reply} {sizes}\r\n".encode() + block + payload + b"\r\n"
        options = json.dumps({"verbose": False, "headers": True, "no_responders": True}).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            lines = connection.makefile("rb")
            assert lines.readline().startswith(b"INFO ")
            connection.sendall(b"CONNECT " + options + b"\r\n" + command + b"PING\r\n")
            assert lines.readline() == b"PONG\r\n"

    return send


@pytest.fixture
async def dead(js: JetStreamContext, subject: str) -> AsyncIterator[str]:
    """A subject for dead letters, and a stream on it, named like it with underscores for dots."""
    name = f"dead.{subject}"
    await js.add_stream(name=name.replace(".", "_"), subjects=[name], storage="memory")
    yield name
    await js.delete_stream(name.replace(".", "_"))


@pytest.fixture
def dead_letters(js: JetStreamContext, dead: str) -> Callable[[int], Awaitable[list[StoredMessage]]]:
    """Wait for a number of dead letters, and check that there are no more."""

    async def wait(count: int) -> list[StoredMessage]:
        letters: list[StoredMessage] = []

        async def are_stored() -> bool:
            letters[:] = [letter async for batch in read_stream(js, dead.replace(".", "_")) for letter in batch]
            return len(letters) >= count

        await until(are_stored)
        assert len(letters) == count, letters
        return letters

    return wait
