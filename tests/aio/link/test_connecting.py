"""Attempts to connect: of another version of nats-py, and one that loses a cancellation."""

import asyncio

import pytest
from nats.aio.client import Client

from ce_nats import CeNatsError
from ce_nats.aio import connect
from ce_nats.aio._connect import disconnect


async def test_error_for_a_missing_private_name_of_connecting(server, monkeypatch):
    monkeypatch.delattr(Client, "_connect_to_server")
    with pytest.raises(CeNatsError, match=r"nats-py must have Client\._connect_to_server, got version 2\."):
        await connect(server.url)


async def test_reconnecting_ends_if_a_cancellation_is_lost():
    """Before Python 3.12, ``wait_for()`` loses the cancellation of an attempt that ends at that moment."""
    cancellations = []

    async def reconnect():
        while len(cancellations) < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancellations.append(True)

    client = Client()
    client._reconnection_task = asyncio.create_task(reconnect())
    await asyncio.sleep(0)
    await disconnect(client)
    assert client._reconnection_task.done()
    assert len(cancellations) == 3
