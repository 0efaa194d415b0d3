"""Private names of nats-py are used in one module, and a clear error reports missing ones."""

import ast
import asyncio
import re
from importlib.metadata import version
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext

import ce_nats
from ce_nats import CeNatsError
from ce_nats.aio import DeliveryError, PullConsumer, connect, publish, subscribe
from ce_nats.aio import _natspy as _nats
from ce_nats.aio._connect import disconnect
from ce_nats.aio.jetstream import read_stream

PACKAGE = Path(ce_nats.__file__).parent


def names_used():
    """Return all names in calls of _get() and _set()."""
    for node in ast.walk(ast.parse(Path(_nats.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("_get", "_set"):
            yield from (
                part.value
                for argument in node.args[1:2]
                for part in ast.walk(argument)
                if isinstance(part, ast.Constant) and part.value is not None
            )


def test_private_names_are_used_in_one_module():
    """In other modules, attributes with these names are those of ``self``, ``cls`` and ``consumer``."""
    names = set(names_used())
    assert {"_nc", "_flush_queue", "_server_info", "_client"} <= names
    others = re.compile(rf"(?<!self)(?<!cls)(?<!consumer)\.({'|'.join(names)})\b")  # parsing takes time
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "_natspy.py" and others.search(source := path.read_text("utf-8"))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr in names
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "consumer"))
    ]
    assert found == []


async def take(js, stream, subject):
    async with PullConsumer(js, stream, "c", dead_letter=None, create=nats.js.api.ConsumerConfig()) as consumer:
        await js.publish(subject, b"{}")
        return await anext(consumer)


async def receive(nc, subject):
    async with await subscribe(nc, subject):
        pass


async def read(js, stream):
    return [batch async for batch in read_stream(js, stream)]


@pytest.mark.parametrize(
    ("owner", "name", "use"),
    [
        (JetStreamContext, "_prefix", lambda nc, js, stream, subject, event: read(js, stream)),
        (JetStreamContext, "_nc", lambda nc, js, stream, subject, event: take(js, stream, subject)),
        (Client, "_server_info", lambda nc, js, stream, subject, event: publish(nc, event, subject)),
        (Client, "_error_cb", lambda nc, js, stream, subject, event: publish(nc, event, subject)),
        (Subscription, "_conn", lambda nc, js, stream, subject, event: receive(nc, subject)),
    ],
)
async def test_error_for_a_missing_private_name(server, stream, subject, make_event, monkeypatch, owner, name, use):
    nc = await nats.connect(server.url)
    js = nc.jetstream()

    class Missing:
        def __get__(self, instance, kind):
            raise AttributeError(name)

        def __set__(self, instance, value):
            pass

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, Missing(), raising=False)
        with pytest.raises(CeNatsError) as info:
            await use(nc, js, stream, subject, make_event())
    assert info.value.code == "unsupported-nats-py"
    assert not isinstance(info.value, DeliveryError)
    assert str(info.value) == (
        f"unsupported-nats-py: nats-py must have {owner.__name__}.{name}, got version {version('nats-py')} without it"
    )
    await nc.close()


async def test_error_for_a_missing_private_name_of_connecting(server, monkeypatch):
    monkeypatch.delattr(Client, "_connect_to_server")
    with pytest.raises(CeNatsError, match=r"nats-py must have Client\._connect_to_server, got version 2\."):
        await connect(server.url)


@pytest.mark.parametrize(
    ("number", "expected"),
    [("2.14.0", True), ("2.14.0-beta.1", True), ("2.13.9", False), ("2.9.25", False), ("3.0", True), ("", False)],
)
def test_version_of_the_connected_server(number, expected):
    client = Client()
    client._server_info = {"version": number}
    assert _nats.is_server_from(client, (2, 14)) is expected


def test_version_is_unknown_before_a_connection():
    assert not _nats.is_server_from(Client(), (2, 14))


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
