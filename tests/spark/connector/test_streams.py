"""Requests about streams over lost connections."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import nats
import pytest

from ce_nats.errors import DeliveryError
from ce_nats.spark.connector._connection import Connection
from ce_nats.spark.connector._streams import Streams
from ce_nats.testing import NatsServer

REQUEST = b"$JS.API.STREAM.INFO"


class Relay:
    """A proxy for a server. It closes the connection at each of the first ``breaks`` requests."""

    def __init__(self, target: int, breaks: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.breaks = breaks
        self.url = f"nats://127.0.0.1:{self._listener.getsockname()[1]}"

    @contextmanager
    def running(self) -> Iterator[None]:
        threading.Thread(target=self._accept, daemon=True).start()
        with self._listener:
            yield

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
            threading.Thread(target=self._forward, args=(server, client), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while chunk := source.recv(65536):
                if REQUEST in chunk and self.breaks:
                    self.breaks -= 1
                    break
                sink.sendall(chunk)
        except OSError:
            pass  # the other direction has ended
        for end in (source, sink):
            with end:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    async def make(url: str) -> None:
        nc = await nats.connect(url)
        await nc.jetstream().add_stream(name="S", subjects=["S"], storage="memory")
        await nc.jetstream().publish("S", b"")
        await nc.close()

    with NatsServer(jetstream=True) as server:
        asyncio.run(make(server.url))
        yield server


def test_a_connection_lost_before_the_first_response_is_established_again(server: NatsServer) -> None:
    relay = Relay(server.port, breaks=2)
    with relay.running():
        streams = Streams(Connection((relay.url,)))
        try:
            assert streams.states(["S"])["S"].last == 1
        finally:
            streams.close()
    assert not relay.breaks


def test_a_server_without_responses_is_an_error_after_the_timeout(server: NatsServer) -> None:
    relay = Relay(server.port, breaks=10**9)
    started = time.monotonic()
    with relay.running():
        streams = Streams(Connection((relay.url,), retry_timeout=1.0))
        with pytest.raises(DeliveryError, match="closed"):
            streams.states(["S"])
    assert time.monotonic() - started >= 1


def test_a_stream_that_does_not_exist_is_an_error_at_once(server: NatsServer) -> None:
    streams = Streams(Connection((server.url,), retry_timeout=3600.0))
    with pytest.raises(DeliveryError, match="there is no stream NO"):
        streams.states(["NO"])
    streams.close()


def test_a_denied_pattern_is_an_error_at_once() -> None:
    """A user who may read a stream may not list the others."""
    config = "authorization { users: [{user: u, password: p, permissions: {publish: '$JS.API.STREAM.INFO.>'}}] }"
    with NatsServer(jetstream=True, config=config) as server:
        streams = Streams(Connection((server.url,), user="u", password="p", retry_timeout=3600.0))
        text = r"permission to publish to '\$JS\.API\.STREAM\.NAMES', which the option streamPattern needs"
        with pytest.raises(DeliveryError, match=text):
            streams.names()
        streams.close()
