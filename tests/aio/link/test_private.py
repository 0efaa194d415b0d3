"""Private names of nats-py are used in one folder, and a clear error reports missing ones."""

import ast
import re
from importlib.metadata import version
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.js import JetStreamContext

import ce_nats
from ce_nats import CeNatsError
from ce_nats.aio import DeliveryError, PullConsumer, publish, subscribe
from ce_nats.aio.jetstream import read_stream
from ce_nats.aio.link._private import NAMES

PACKAGE = Path(ce_nats.__file__).parent


FOLDER = PACKAGE / "aio/link"
KNOWN = {name for names in NAMES.values() for name in names}


def calls(path):
    """Yield names in calls of get() and put()."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("get", "put"):
            parts = ast.walk(node.args[1])
            yield from (part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))


def test_table_has_the_private_names_that_are_used():
    """In this folder; asyncio's queues have two of them, and some are in loops over names."""
    sources = "".join(path.read_text("utf-8") for path in FOLDER.glob("*.py") if path.name != "_private.py")
    used = {name for path in FOLDER.glob("*.py") for name in calls(path) if name.startswith("_")}
    assert used - KNOWN == {"_put", "_get"}
    assert [name for name in KNOWN if not re.search(rf'"{name}"', sources)] == []
    assert len(KNOWN) <= 46


async def test_installed_version_has_the_private_names(nc, js, subject):
    """``make test-latest`` tells which name a new version lacks, and what it is used for."""
    subscription = await nc.subscribe(subject)
    objects = [nc, js, subscription, subscription.messages, Msg(nc), TcpTransport()]
    owners = {type(one).__name__: one for one in objects}
    assert set(owners) == set(NAMES)
    missing = [
        f"{owner}.{name}: {use}"
        for owner, names in NAMES.items()
        for name, use in names.items()
        if not hasattr(owners[owner], name)
    ]
    assert missing == []


def test_private_names_are_used_in_one_folder():
    """In other modules, attributes with these names are those of ``self``, ``cls`` and ``consumer``."""
    others = re.compile(rf"(?<!self)(?<!cls)(?<!consumer)\.({'|'.join(KNOWN)})\b")  # parsing takes time
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent != FOLDER and others.search(source := path.read_text("utf-8"))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr in KNOWN
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
