from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from ce_nats import sync
from ce_nats.testing import NatsServer
from tests.support.broker import make_event, server
from tests.support.forks import forking
from tests.support.reading import read

__all__ = ["make_event", "server"]


@pytest.fixture(scope="session")
def python() -> Iterator[str]:
    """Yield a program that starts programs fast, in forks of one process."""
    with forking() as program:
        yield program


@pytest.fixture
def nc(server: NatsServer) -> Iterator[sync.Connection]:
    with sync.connect(server.url) as connection:
        yield connection


@pytest.fixture
def subject() -> str:
    """A subject that no other test uses."""
    return f"test.{uuid4().hex}"


@pytest.fixture
def js(nc: sync.Connection) -> SimpleNamespace:
    """Functions of JetStream that block."""
    context = nc.client.jetstream()

    def blocking(name: str) -> Any:
        return lambda *args, **options: nc.run(getattr(context, name), *args, **options)

    names = ("add_stream", "delete_stream", "stream_info", "get_msg", "consumer_info")
    functions = {name: blocking(name) for name in names}
    return SimpleNamespace(**functions, read=lambda stream: nc.run(read, context, stream))


@pytest.fixture
def stream(js: SimpleNamespace, subject: str) -> Iterator[str]:
    """A stream that listens on ``subject`` and ``dead.{subject}``."""
    name = subject.replace(".", "_")
    js.add_stream(name=name, subjects=[subject, f"dead.{subject}"], storage="memory")
    yield name
    js.delete_stream(name)
