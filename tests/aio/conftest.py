import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from uuid import uuid4

import nats
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext

from ce_nats.aio.jetstream import read_stream
from ce_nats.message import StoredMessage
from ce_nats.testing import NatsCluster, NatsServer
from tests.support.broker import make_event, server

__all__ = ["make_event", "server"]


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
    whole_cluster.wait_until_whole()


@pytest.fixture
async def nc(server: NatsServer) -> AsyncIterator[Client]:
    connection = await nats.connect(server.url)
    yield connection
    await connection.close()


@pytest.fixture
def js(nc: Client) -> JetStreamContext:
    return nc.jetstream()


@pytest.fixture
def subject() -> str:
    """A subject that no other test uses."""
    return f"test.{uuid4().hex}"


@pytest.fixture
async def stream(js: JetStreamContext, subject: str) -> AsyncIterator[str]:
    """A stream that listens on ``subject`` and everything below it."""
    name = subject.replace(".", "_")
    # In memory: a file store sometimes fails to delete a stream just after a write ("stream store EOF").
    await js.add_stream(name=name, subjects=[subject, f"{subject}.>"], storage="memory")
    yield name
    await js.delete_stream(name)


@pytest.fixture
def until_stored(js: JetStreamContext) -> Callable[[str, int], Awaitable[None]]:
    """Wait until a stream has stored a number of messages: after a PONG they are received, but maybe not stored."""

    async def wait(stream: str, count: int) -> None:
        for _ in range(5_000):
            if (await js.stream_info(stream)).state.last_seq >= count:
                return
            await asyncio.sleep(0.01)
        pytest.fail(f"stream {stream} must get {count} messages")

    return wait


@pytest.fixture
def send_raw(server: NatsServer) -> Callable[..., None]:
    """Publish bytes through a socket, without a client library that would change the headers."""

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
    """A subject for dead letters, and a stream of that name (with underscores for dots) that listens on it."""
    name = f"dead.{subject}"
    await js.add_stream(name=name.replace(".", "_"), subjects=[name], storage="memory")
    yield name
    await js.delete_stream(name.replace(".", "_"))


@pytest.fixture
def dead_letters(js: JetStreamContext, dead: str) -> Callable[[int], Awaitable[list[StoredMessage]]]:
    """Wait for a number of dead letters, and check that there are no more."""

    async def wait(count: int) -> list[StoredMessage]:
        for _ in range(5_000):
            letters = [letter async for batch in read_stream(js, dead.replace(".", "_")) for letter in batch]
            if len(letters) >= count:
                assert len(letters) == count, letters
                return letters
            await asyncio.sleep(0.01)
        pytest.fail(f"the stream must get {count} dead letters")

    return wait
