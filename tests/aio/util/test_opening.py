"""Functions whose result is awaited, or entered with ``async with``: shown with connections and subscriptions."""

import asyncio
import inspect
import types
from collections.abc import Generator

import pytest
from nats.aio.client import Client

from ce_nats.aio import DeliveryError, Events, connect, subscribe
from ce_nats.aio._util.opening import opening
from ce_nats.testing import NatsServer


async def test_async_with_opens_and_closes_without_await(server: NatsServer) -> None:
    """``async with`` connects, subscribes and closes; ``await`` returns an open connection."""
    async with connect(server.url) as nc, subscribe(nc, "orders") as received:
        connected: Client = nc
        entered: Events = received
        assert connected.is_connected
        assert entered.subscription.subject == "orders"
    assert nc.is_closed
    awaited: Client = await connect(server.url)
    async with await subscribe(awaited, "orders") as received:
        assert isinstance(received, Events)
    async with awaited as nc:
        assert nc is awaited
    assert nc.is_closed


async def test_connection_is_closed_after_an_error_in_its_block(server: NatsServer) -> None:
    with pytest.raises(KeyError):
        async with connect(server.url) as nc:
            raise KeyError
    assert nc.is_closed
    with pytest.raises(DeliveryError, match="connection-failed"):
        async with connect("nats://127.0.0.1:1"):
            pass
    with pytest.raises(TypeError, match="has no option 'nosuch'"):
        async with connect(server.url, nosuch=1):
            pass


async def test_result_is_a_coroutine(server: NatsServer) -> None:
    """Tasks can be created with it, and it can be closed before it starts."""
    nc = await asyncio.create_task(connect(server.url))
    await nc.close()
    (nc,) = await asyncio.gather(connect(server.url))
    await nc.close()
    connecting = asyncio.create_task(connect(server.url))
    await asyncio.sleep(0)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    connect(server.url).close()
    with pytest.warns(RuntimeWarning, match="was never awaited"):
        connect(server.url)
    assert list(inspect.signature(connect).parameters)[:2] == ["servers", "context"]


def test_result_is_accepted_by_asyncio_run() -> None:
    with pytest.raises(DeliveryError, match="connection-failed"):
        asyncio.run(connect("nats://127.0.0.1:1"))


class Resource:
    """An open resource; keeps the arguments with which its block was left."""

    left: tuple[object, ...] = ()

    async def __aexit__(self, *error: object) -> None:
        self.left = error


async def test_opened_object_receives_the_error_of_the_block() -> None:
    @opening
    async def acquire() -> Resource:
        return Resource()

    error = KeyError("a")
    with pytest.raises(KeyError):
        async with acquire() as resource:
            raise error
    assert resource.left == (KeyError, error, error.__traceback__)
    async with acquire() as resource:
        pass
    assert resource.left == (None, None, None)


def test_result_resumes_like_its_coroutine() -> None:
    """With a value, or with an exception that the function handles."""

    @types.coroutine
    def suspend(name: str) -> Generator[str, str, str]:
        return (yield name)

    @opening
    async def acquire(name: str) -> Resource:
        try:
            await suspend(await suspend(name))
        except KeyError:
            await suspend("last")
        return Resource()

    acquiring = acquire("first")
    assert acquiring.send(None) == "first"
    assert acquiring.send("second") == "second"
    assert acquiring.throw(KeyError("a")) == "last"
    acquiring.close()
