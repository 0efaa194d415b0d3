"""
Fixtures for pytest that run nats-servers. The extra ``testing`` installs a nats-server for them.

pytest loads this plugin wherever ce_nats is installed; ``-p no:ce_nats`` disables it. Both fixtures return a
:class:`~ce_nats.testing.NatsServer`. Connect to its ``url``, in synchronous tests and in asynchronous tests of any
plugin:

- ``nats_server``: one server for the whole session, without JetStream. Tests that stop or restart a server should use
  the other fixture.
- ``jetstream_server``: a server with JetStream and an empty store for each test.

    def test_a_handler(jetstream_server):
        asyncio.run(my_program(jetstream_server.url))
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from . import NatsServer

__all__ = ["jetstream_server", "nats_server"]


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """Run a nats-server for all tests of the session (ce_nats.testing.NatsServer). Connect to its ``url``."""
    with _running("nats_server", jetstream=False) as server:
        yield server


@pytest.fixture
def jetstream_server() -> Iterator[NatsServer]:
    """Run a nats-server with JetStream and an empty store, for one test (ce_nats.testing.NatsServer)."""
    with _running("jetstream_server", jetstream=True) as server:
        yield server


@contextmanager
def _running(fixture: str, *, jetstream: bool) -> Iterator[NatsServer]:
    from . import NatsServer  # imported here, because every run of pytest loads this module

    try:
        server = NatsServer(jetstream=jetstream)
    except FileNotFoundError:
        text = f"the fixture {fixture} needs a nats-server: pip install 'ce-nats[testing]'"
        pytest.fail(text, pytrace=False)
    with server:
        yield server
