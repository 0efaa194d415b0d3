"""Acknowledgements in received bytes, whatever pieces they arrive in. The server is a script."""

import asyncio
from contextlib import asynccontextmanager

import nats
import pytest

from ce_nats import DeliveryError
from ce_nats.aio._permissions import ConnectionWatch, Denial
from ce_nats.aio.publishing._token_acks import TokenAcks
from tests.support.scripted_server import scripted
from tests.support.waiting import until

PREFIX = "_INBOX.x."
OTHER = b"PONG\r\nMSG other.1 9 2\r\nhi\r\n+OK\r\n"


def msg(number, payload, sid=1, size=None):
    return b"MSG %s%s %d %d\r\n%s\r\n" % (
        PREFIX.encode(),
        str(number).encode(),
        sid,
        len(payload) if size is None else size,
        payload,
    )


def ack(number, *, duplicate=False):
    return msg(number, b'{"stream":"S", "seq":%d%s}' % (number + 1, b',"duplicate": true' if duplicate else b""))


def recording(nc, prefix):
    """Return TokenAcks, and lists of acknowledged numbers, duplicates, and other replies."""
    numbers, duplicates, replies = [], [], []

    def acknowledged(some, some_duplicates):
        numbers.extend(some)
        duplicates.extend(some_duplicates)

    functions = {"acknowledged": acknowledged, "replied": lambda *reply: replies.append(reply)}
    return TokenAcks(nc, prefix, **functions, denied=lambda denial: False), numbers, duplicates, replies


@asynccontextmanager
async def token_acks():
    """Yield the script's server, with the lists of ``recording``."""
    async with scripted() as (server, nc):
        acks, server.numbers, server.duplicates, server.replies = recording(nc, PREFIX)
        await acks.open()
        await nc.flush()
        yield server
        assert nc.is_connected
        await acks.close()


async def test_acknowledgements_are_found_in_pieces_of_any_size():
    stream = b"".join([ack(0), ack(1, duplicate=True), OTHER, ack(2), b"PING\r\n", ack(3), ack(4)])
    for size in range(1, len(stream), 7):
        async with token_acks() as server:
            for start in range(0, len(stream), size):
                server.writer.write(stream[start : start + size])
                await server.writer.drain()
                await asyncio.sleep(0)
            await until(lambda: len(server.numbers) + len(server.replies) == 5)
            assert sorted(server.numbers + [number for number, _, _ in server.replies]) == [0, 1, 2, 3, 4]
            assert all(number == 1 for number in server.duplicates)


async def test_many_acknowledgements_at_once_need_no_message():
    async with token_acks() as server:
        server.writer.write(b"".join(ack(number, duplicate=number % 7 == 0) for number in range(2_000)))
        await until(lambda: len(server.numbers) == 2_000)
        assert server.numbers == list(range(2_000))
        assert server.duplicates == list(range(0, 2_000, 7))
        assert server.replies == []


@pytest.mark.parametrize(
    "payload",
    [
        b'{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"S","seq":0}',
        b'{"stream":"S","seq":1,"val":"5"}',
        b'{"stream":"S"}',
        b'{"stream":"","seq":1}',
        b"thanks",
        b"",
        b"x" * 5_000,
    ],
)
async def test_other_replies_are_parsed_by_nats_py(payload):
    async with token_acks() as server:
        server.writer.write(ack(0) + msg(1, payload) + ack(2))
        await until(lambda: len(server.numbers) + len(server.replies) == 3)
        assert server.numbers[0] == 0
        assert (1, payload, b"") in server.replies


async def test_a_reply_cannot_contain_other_operations():
    """Replies may come from any client that knows the subject: their size decides where they end."""
    inner = b'{"stream":"S", "seq":1}\r\n' + ack(5) + b"-ERR 'permissions violation for publish to \"a\"'\r\n"
    async with token_acks() as server:
        server.writer.write(msg(1, inner) + ack(2))
        await until(lambda: len(server.replies) + len(server.numbers) == 2)
        assert (1, inner, b"") in server.replies
        assert 5 not in server.numbers


@pytest.mark.parametrize("token", ["a", "1.2", "-1", "²", "9" * 30])
async def test_replies_with_other_tokens_are_ignored(token):
    async with token_acks() as server:
        server.writer.write(msg(token, b'{"stream":"S", "seq":1}') + ack(2))
        await until(lambda: 2 in [*server.numbers, *(number for number, _, _ in server.replies)])
        assert server.duplicates == []
        assert all(number in (2, 10**30 - 1) for number in server.numbers)


async def test_number_of_a_reply_has_at_most_18_digits():
    async with token_acks() as server:
        server.writer.write(msg(10**18, b"thanks") + msg(10**18 - 1, b"thanks") + ack(2))
        await until(lambda: 2 in [*server.numbers, *(number for number, _, _ in server.replies)])
        assert (10**18 - 1, b"thanks", b"") in server.replies
        assert all(number != 10**18 for number, _, _ in server.replies)


async def test_no_reply_is_received_after_closing():
    async with scripted() as (server, nc):
        replies, denials = [], []

        def denied(denial):
            denials.append(denial)
            return True

        acks = TokenAcks(nc, PREFIX, acknowledged=None, replied=lambda *reply: replies.append(reply), denied=denied)
        await acks.open()
        assert ConnectionWatch.of(nc)._notify(Denial("publish", "a"))
        assert denials == [Denial("publish", "a")]
        await nc.flush()
        server.writer.write(msg(1, b"thanks"))
        await until(lambda: replies == [(1, b"thanks", b"")])
        await acks.close()
        server.writer.write(msg(2, b"thanks"))
        await nc.flush()
        assert len(replies) == 1
        assert not ConnectionWatch.of(nc)._notify(Denial("publish", "a"))


async def taken(data):
    """Return what is left of received bytes, whether more bytes belong to it, and the acknowledged numbers."""
    async with scripted() as (_, nc):
        found = []
        options = {"replied": None, "denied": lambda denial: False}
        acks = TokenAcks(nc, PREFIX, acknowledged=lambda *numbers: found.append(numbers), **options)
        await acks.open()
        result = acks._take(data)
        await acks.close()
        return *result, found


PART = msg(1, b"x" * 900)[:-902]


@pytest.mark.parametrize(
    ("rest", "is_beginning"),
    [
        (b"", False),
        (b"M", True),
        (b"MSG _INBOX", True),
        (b"MSG _INBOX.x.", True),
        (b"MSG _INBOX.y", False),
        (b"PING\r\n", False),
        (PART + b"x" * (1023 - len(PART)), True),
        (PART + b"x" * (1024 - len(PART)), False),
        (PART + b"\r\r\r", True),
        (PART + b"x\r\nPING", False),
    ],
    ids=["nothing", "M", "inbox", "prefix", "other inbox", "other", "1023", "1024", "returns", "two lines"],
)
async def test_beginning_of_a_reply_is_kept_until_the_next_bytes(rest, is_beginning):
    assert await taken(rest) == (rest, is_beginning, [])
    assert await taken(ack(7) + rest) == (rest, is_beginning, [([7], [])])


@pytest.mark.parametrize(
    ("payload", "duplicates"),
    [
        (b'{"stream":"S","seq":12}', []),
        (b'{"stream": "S", "seq": 12, "duplicate": true}', [3]),
        (b'{"stream":"S","seq":12,"domain":"hub"}', []),
        (b'{"stream":"S","domain":"hub","seq":12,"duplicate":true}', [3]),
        (b'{"stream":"S","domain":"","seq":12}', []),
    ],
)
async def test_forms_of_acknowledgements(payload, duplicates):
    assert await taken(msg(3, payload)) == (b"", False, [([3], duplicates)])


async def test_acknowledgements_with_another_size_are_left_to_nats_py():
    data = ack(1) + msg(2, b'{"stream":"S","seq":1}', size=99)
    assert await taken(data) == (data, False, [])


async def test_closed_connection_is_an_error():
    async with scripted() as (_, nc):
        await nc.close()
        acks = TokenAcks(nc, PREFIX, acknowledged=None, replied=None, denied=lambda denial: False)
        with pytest.raises(DeliveryError, match="acknowledgements: the connection was closed") as info:
            await acks.open()
        assert info.value.code == "connection-closed"


async def test_a_real_server_writes_acknowledgements_that_are_found(server, js, subject, stream):
    nc = await nats.connect(server.url)
    prefix = f"{nc.new_inbox()}."
    acks, numbers, duplicates, replies = recording(nc, prefix)
    await acks.open()
    # No flush: acknowledgements that arrive together with its PONG, after it, are parsed by nats-py.
    for number in range(100):
        await nc.publish(subject, b"", reply=f"{prefix}{number}", headers={"Nats-Msg-Id": str(number % 90)})
    await until(lambda: len(numbers) + len(replies) == 100)
    assert replies == []
    assert numbers == list(range(100))
    assert duplicates == list(range(90, 100))
    await acks.close()
    await nc.close()
