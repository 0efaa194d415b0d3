"""A server that neither answers nor goes away."""

from collections.abc import Iterator
from contextlib import contextmanager

from ce_nats.testing import NatsServer


@contextmanager
def paused(server: NatsServer) -> Iterator[None]:
    """A server that has stopped for the length of the block, and goes on after it."""
    server.pause()
    try:
        yield
    finally:
        server.resume()
