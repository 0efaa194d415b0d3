import asyncio
from collections import namedtuple
from uuid import uuid4

import nats
import pytest

from ce_nats import stan
from ce_nats.testing import NatsServer
from tests.support.broker import make_event, server
from tests.support.streaming import CLUSTER, StreamingServer, executable

__all__ = ["executable", "make_event", "server"]


@pytest.fixture(scope="session", params=[pytest.param("own-nats", marks=pytest.mark.long), "over-nats-server"])
def streaming(request, executable):
    """A streaming server with its embedded NATS, and one on a current nats-server."""
    if request.param == "own-nats":
        with StreamingServer(executable) as server:
            yield server
    else:
        with NatsServer() as around, StreamingServer(executable, over=around.url) as server:
            yield server


@pytest.fixture
def own(executable):
    """A streaming server that a test may stop, on a nats-server."""
    with NatsServer() as around, StreamingServer(executable, over=around.url) as server:
        yield server


@pytest.fixture
async def nc(streaming):
    connection = await nats.connect(streaming.url)
    yield connection
    await connection.close()


@pytest.fixture
def client_id():
    return f"client-{uuid4().hex}"


@pytest.fixture
async def connection(nc, client_id):
    async with stan.connect(nc, CLUSTER, client_id) as connection:
        yield connection


@pytest.fixture
def channel():
    """A channel that no other test uses."""
    return f"test.{uuid4().hex}"


Seen = namedtuple("Seen", "sequence data redeliveries")


@pytest.fixture
def take():
    """Read the next messages of a subscription, and acknowledge them or not."""

    async def take(subscription, count, *, ack=True):
        seen = []

        async def read():
            async for item in subscription:
                seen.append(Seen(item.message.sequence, item.message.data, item.message.redelivery_count))
                if ack:
                    await item.ack()
                if len(seen) == count:
                    break

        if count:
            await asyncio.wait_for(read(), 60)
        return seen

    return take
