"""
Fixtures for pytest: nats-servers for tests. The extra ``testing`` has a nats-server for them.

pytest finds them wherever ce_nats is installed; ``-p no:ce_nats`` turns them off. Both give a
:class:`~ce_nats.testing.NatsServer`, whose ``url`` is what ``connect()`` takes, so they serve synchronous and
asynchronous tests alike, whatever plugin runs the latter:

- ``nats_server``: one server for the whole session, without JetStream. A test that stops or restarts its server takes
  the other one.
- ``jetstream``: a server with JetStream for each test, with an empty store.

    def test_a_handler(jetstream):
        asyncio.run(my_program(jetstream.url))
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from . import NatsServer

__all__ = ["jetstream", "nats_server"]


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """A nats-server for all tests of the session (ce_nats.testing.NatsServer); its ``url`` is what to connect to."""
    with _running("nats_server", jetstream=False) as server:
        yield server


@pytest.fixture
def jetstream() -> Iterator[NatsServer]:
    """A nats-server with JetStream and an empty store, for one test (ce_nats.testing.NatsServer)."""
    with _running("jetstream", jetstream=True) as server:
        yield server


@contextmanager
def _running(fixture: str, *, jetstream: bool) -> Iterator[NatsServer]:
    from . import NatsServer  # here, because every run of pytest imports this module

    try:
        server = NatsServer(jetstream=jetstream)
    except FileNotFoundError:
        text = f"the fixture {fixture} needs a nats-server, which the extra has: pip install 'ce-nats[testing]'"
        pytest.fail(text, pytrace=False)
    with server:
        yield server
