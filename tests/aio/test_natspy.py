"""Private names of nats-py are used in one module, and a clear error reports missing ones."""

import ast
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from random import Random

import nats
import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext

import ce_nats
from ce_nats import CeNatsError
from ce_nats.aio import DeliveryError, PullConsumer, connect, publish, subscribe
from ce_nats.aio import _natspy as _nats
from ce_nats.aio.jetstream import read_stream
from ce_nats.aio.reading._range_reader import RangeClient

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
    names = {"_process_msg", *names_used()}
    assert {"_nc", "_flush_queue", "_server_info", "_client"} <= names
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "__nats.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
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


# --- Messages in bulk -------------------------------------------------------------------------------------------------


def frames(rng):
    """Return frames of subscriptions 1 and 2, and the messages in them as they arrive at hooks."""
    for number in range(rng.randrange(30)):
        sid = rng.choice([b"1", b"1", b"1", b"2"])
        subject = b"a.%d" % number
        reply = b"" if rng.random() < 0.1 else b"$JS.ACK.S.c.1.%d.%d.1.0" % (number, number)
        block = b"NATS/1.0\r\na:%d\r\n\r\n" % number if rng.random() < 0.7 else None
        payload = rng.choice([b"", b"MSG a 1 b 5\r\n\r\n", rng.randbytes(300), rng.randbytes(100_000)])
        sizes = b"%d" % len(payload) if block is None else b"%d %d" % (len(block), len(block) + len(payload))
        # nats-server 2.9.10 has two spaces in place of a missing reply subject.
        words = [
            b"MSG" if block is None else b"HMSG",
            subject,
            sid,
            *([reply] if reply else [b""][: number % 2]),
            sizes,
        ]
        frame = b" ".join(words) + b"\r\n" + (block or b"") + payload + b"\r\n"
        yield frame + (b"+OK\r\n" if rng.random() < 0.1 else b""), (sid, (subject, reply, payload, block))


@pytest.mark.parametrize("seed", range(60))
async def test_bulk_parser_delivers_the_same_messages_in_the_same_order(seed):
    rng = Random(seed)
    sent = list(frames(rng))
    client = RangeClient()
    received = []
    for sid in (1, 2):
        _nats.set_raw_message_hook(client, sid, lambda *message, sid=sid: received.append((b"%d" % sid, message)))

    def receive(messages):
        assert all(reply for _, reply, _, _ in messages), "statuses are not messages"
        received.extend((b"1", message) for message in messages)

    _nats.set_bulk_hook(client, 1, receive)
    stream = b"".join(frame for frame, _ in sent)
    longest = rng.choice([3, 100, 5_000, 40_000])
    while stream:
        size = rng.randint(1, longest) if len(stream) < 20_000 else rng.randint(1, 40_000)
        await client._ps.parse(stream[:size])
        stream = stream[size:]
    assert received == [message for _, message in sent]


async def test_bulk_parser_delivers_messages_together():
    client, received = RangeClient(), []
    _nats.set_bulk_hook(client, 1, received.append)
    await client._ps.parse(b"MSG a 1 r 1\r\n1\r\nHMSG a 1 r 1 2\r\nh2\r\nMSG a 1 r 0\r\n\r\nMSG a 1 r 1")
    assert received == [[(b"a", b"r", b"1", None), (b"a", b"r", b"2", b"h"), (b"a", b"r", b"", None)]]


@pytest.mark.parametrize("sizes", [b"x", b"-9", b"", b"1 x", b"-1 2", b"3 2"])
async def test_bulk_parser_leaves_invalid_sizes_to_nats_py(sizes):
    client, received = RangeClient(), []
    _nats.set_bulk_hook(client, 1, received.extend)
    rest = b"HMSG a 1 r %s\r\n12\r\n" % sizes if b" " in sizes else b"MSG a 1 r %s\r\n12\r\n" % sizes
    with suppress(nats.errors.ProtocolError):
        await client._ps.parse(b"MSG a 1 r 1\r\n1\r\n" + rest)
    assert received == [(b"a", b"r", b"1", None)]


async def test_bulk_parser_forgets_a_part_of_a_message_with_its_connection():
    client, received = RangeClient(), []
    _nats.set_bulk_hook(client, 1, received.extend)
    await client._ps.parse(b"MSG a 1 r 5\r\n12")
    client._ps.reset()
    await client._ps.parse(b"MSG a 1 r 5\r\n12345\r\nMSG a 1 r 1\r\n")
    assert received == [(b"a", b"r", b"12345", None)]
    _nats.set_bulk_hook(client, 1, None)
    _nats.set_raw_message_hook(client, 1, lambda *message: received.append(message))
    await client._ps.parse(b"6\r\n")
    assert received == [(b"a", b"r", b"12345", None), (b"a", b"r", b"6", None)]


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
