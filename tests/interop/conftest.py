from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import pytest

from ce_nats.testing import NatsServer
from tests.support.caching import BuildFailedError, NotAvailable, available
from tests.support.programs import streaming_server
from tests.support.streaming import StreamingServer

from .peers import PROGRAMS


@pytest.fixture(scope="session")
def server() -> Iterator[NatsServer]:
    with NatsServer(jetstream=True) as server:
        yield server


@pytest.fixture(scope="session")
def streaming(server: NatsServer) -> Iterator[StreamingServer]:
    """A streaming server connected to ``server``; skips the test if it is not available."""
    executable = available(streaming_server, "nats-streaming-server")
    with StreamingServer(executable, over=server.url) as streaming:
        yield streaming


@pytest.fixture(scope="session")
def program() -> Callable[[str], Sequence[str]]:
    """The command of a peer's program; skips the test if it is not available."""

    @lru_cache
    def found(name: str) -> Sequence[str] | NotAvailable | BuildFailedError:
        try:
            return PROGRAMS[name]()
        except (NotAvailable, BuildFailedError) as error:  # kept, so that later tests do not retry
            return error

    def command(name: str) -> Sequence[str]:
        result = found(name)
        if isinstance(result, NotAvailable):
            pytest.skip(f"no peer {name}: {result}")
        if isinstance(result, BuildFailedError):
            pytest.fail(f"peer {name}: {result}", pytrace=False)
        return result

    return command
