"""Messages of subscriptions are received raw and in bulk, on any connection of nats-py."""

import asyncio
import logging
import ssl
from random import Random

import nats
import nats.errors
import pytest
from nats.aio.client import Client

from ce_nats.aio import flush
from ce_nats.aio.link._client import subscription_id
from ce_nats.aio.link._link import Link
from ce_nats.testing import NatsServer
from ce_nats.testing._server import _free_ports
from tests.support.broker import ignore
from tests.support.listening import serving
from tests.support.waiting import until

SECONDS = 30
INFO = b'INFO {"headers":true,"max_payload":1048576,"proto":1}\r\n'


def frame(sid, payload, reply=b"r", block=None):
    words = [b"MSG" if block is None else b"HMSG", b"a", b"%d" % sid, *([reply] if reply else [])]
    words += [] if block is None else [b"%d" % len(block)]
    return b" ".join([*words, b"%d" % len((block or b"") + payload)]) + b"\r\n" + (block or b"") + payload + b"\r\n"


class RecordingClient(Client):
    """A client that is not connected, and records the messages that nats-py processes."""

    def __init__(self):
        super().__init__()
        self.processed = []

    async def _process_msg(self, sid, subject, reply, data, headers):
        self.processed.append((sid, (subject, reply, data, headers)))

    async def feed(self, *chunks):
        for chunk in chunks:
            await self._ps.parse(chunk)


@pytest.fixture
def client():
    return RecordingClient()


def stream_of(rng):
    """Return frames of subscriptions 1, 2 and 3, and the message in each."""
    for _ in range(rng.randrange(1, 40)):
        sid = rng.choice([1, 1, 1, 2, 3])
        reply = b"" if rng.random() < 0.2 else b"$JS.ACK.S.c.1.1.1.1.0"
        block = b"NATS/1.0 404\r\n\r\n" if rng.random() < 0.5 else None
        payload = rng.choice([b"", frame(1, b"x"), rng.randbytes(300), rng.randbytes(100_000)])
        sent = frame(sid, payload, reply, block)
        yield sent + (b"+OK\r\n" if rng.random() < 0.1 else b""), (sid, (b"a", reply, payload, block))


@pytest.mark.parametrize("seed", range(40))
async def test_messages_arrive_in_the_order_of_the_server(client, seed):
    rng = Random(seed)
    sent = list(stream_of(rng))
    received = {1: [], 2: []}
    for sid, messages in received.items():
        Link.of(client).reading.receive(sid, messages.extend)
    stream = b"".join(part for part, _ in sent)
    longest = rng.choice([3, 100, 5_000, 40_000])
    while stream:
        size = rng.randint(1, longest) if len(stream) < 20_000 else rng.randint(1, 40_000)
        await client.feed(stream[:size])
        stream = stream[size:]
    for sid in (1, 2):
        assert received[sid] == [message for _, (number, message) in sent if number == sid]
    assert client.processed == [message for _, message in sent if message[0] == 3]
    assert client.stats["in_msgs"] == len(received[1]) + len(received[2])
    assert client.stats["in_bytes"] == sum(len(message[2]) for some in received.values() for message in some)


async def test_messages_of_a_chunk_arrive_together(client):
    received = []
    Link.of(client).reading.receive(1, received.append)
    await client.feed(frame(1, b"1") + frame(2, b"2") + frame(1, b"3", b"", b"h") + frame(1, b"4")[:-1])
    assert received == [[(b"a", b"r", b"1", None), (b"a", b"", b"3", b"h")]]
    assert client.processed == [(2, (b"a", b"r", b"2", None))]


async def test_malformed_message_is_a_protocol_error_after_the_messages_before_it(client):
    received = []
    Link.of(client).reading.receive(1, received.extend)
    with pytest.raises(nats.errors.ProtocolError):
        await client.feed(frame(1, b"1") + frame(2, b"2") + b"HMSG a 1 r 9 2\r\n12\r\n" + frame(1, b"3"))
    assert received == [(b"a", b"r", b"1", None)]
    assert client.processed == [(2, (b"a", b"r", b"2", None))]


async def test_unknown_operation_is_an_error_of_nats_py(client):
    Link.of(client).reading.receive(1, print)
    with pytest.raises(nats.errors.ProtocolError):
        await client.feed(b"FOO\r\n")


async def test_part_of_a_message_ends_with_its_connection(client):
    received = []
    Link.of(client).reading.receive(1, received.extend)
    sent = frame(1, b"12345", block=b"NATS/1.0\r\n\r\n")
    for size in range(len(sent)):
        await client.feed(sent[:size])
        client._ps.reset()
        await client.feed(frame(1, b"%d" % size))
    assert [message[2] for message in received] == [b"%d" % size for size in range(len(sent))]


async def test_bytes_of_a_lost_connection_are_ignored(client):
    """The read loop may have received them before nats-py was reset, and they begin in the middle of a message."""
    received = []
    Link.of(client).reading.receive(1, received.extend)
    await client.feed(b"MSG a 1 r 100\r\n")
    client._ps.reset()
    client._status = Client.RECONNECTING
    await client.feed(frame(1, b"inside of a payload"))
    client._status = Client.CONNECTED
    await client.feed(frame(1, b"1"))
    assert [message[2] for message in received] == [b"1"]
    assert client.processed == []


@pytest.mark.parametrize("size", [1, 7, 50, 1000])
async def test_errors_arrive_between_the_messages_around_them(client, size):
    """A permissions violation refers to a message that was sent before the next acknowledgement."""
    seen = []

    async def report(error):
        seen.append(str(error))

    client._error_cb = report
    Link.of(client).reading.receive(1, lambda messages: seen.extend(message[2] for message in messages))
    violation = b"-ERR 'Permissions Violation for Publish to \"%d\"'\r\n"
    stream = b"".join(frame(1, b"%d" % number) + frame(1, b"-ERR") + violation % number for number in range(20))
    for start in range(0, len(stream), size):
        await client.feed(stream[start : start + size])
    text = 'nats: permissions violation for publish to "{}"'
    assert seen == [step for number in range(20) for step in (b"%d" % number, b"-ERR", text.format(number))]


async def test_exception_of_a_receiver_does_not_end_reading(client, caplog):
    received = []

    def fail(messages):
        received.append(len(messages))
        raise asyncio.CancelledError if len(received) > 1 else ValueError("secret")

    Link.of(client).reading.receive(1, fail)
    Link.of(client).reading.receive(2, received.extend)
    with caplog.at_level(logging.ERROR):
        await client.feed(frame(1, b"1") + frame(2, b"2") + frame(1, b"3") + frame(3, b"4"))
        await client.feed(frame(1, b"5"))
    assert received == [2, (b"a", b"r", b"2", None), 1]
    assert client.processed == [(3, (b"a", b"r", b"4", None))]
    assert [record.message for record in caplog.records] == [
        "receiver of subscription 1 failed; 2 messages are lost",
        "receiver of subscription 1 failed; 1 messages are lost",
    ]


async def test_receivers_may_be_set_and_removed_in_a_receiver(client):
    received = []

    def receive(messages):
        received.extend(message[2] for message in messages)
        Link.of(client).reading.receive(1, None)
        Link.of(client).reading.receive(2, None)
        Link.of(client).reading.receive(3, lambda messages: received.extend(message[2] for message in messages))

    Link.of(client).reading.receive(1, receive)
    Link.of(client).reading.receive(2, receive)
    for payload in (b"1", b"2"):
        await client.feed(b"".join(frame(sid, payload + b"%d" % sid) for sid in (1, 2, 3)))
    assert received == [b"11", b"23"]
    assert [message[2] for _, message in client.processed] == [b"13", b"21", b"22"]


# --- Installation while nats-py reads ---------------------------------------------------------------------------------


@pytest.mark.parametrize("has_block", [False, True])
async def test_receiver_may_be_set_in_the_middle_of_a_message(has_block):
    """Neither is the payload read as messages, nor is a kept part lost."""
    inner = frame(1, b"inside")
    block = b"NATS/1.0\r\n\r\n" if has_block else None
    sent = frame(1, inner + inner, block=block)
    for size in range(len(sent) + 1):
        client, received = RecordingClient(), []
        await client.feed(sent[:size])
        Link.of(client).reading.receive(1, received.extend)
        await client.feed(sent[size:] + frame(1, b"2"), frame(3, b"3"))
        all_received = [*(message for sid, message in client.processed if sid == 1), *received]
        assert all_received == [(b"a", b"r", inner + inner, block), (b"a", b"r", b"2", None)]
        assert (3, (b"a", b"r", b"3", None)) in client.processed


@pytest.mark.parametrize("operation", [b"PING\r\n", b"-ERR 'x'\r\n", b'INFO {"a":1}\r\n', frame(2, b"2")])
async def test_receiver_may_be_set_while_nats_py_processes_an_operation(client, operation):
    """nats-py then has more bytes in its buffer, which it processes before the next ones arrive."""
    going, received = asyncio.Event(), []
    processed = client._process_msg

    async def wait(*arguments):
        Link.of(client).reading.receive(1, received.extend)
        await going.wait()
        if len(arguments) > 2:
            await processed(*arguments)

    client._process_ping = client._process_err = client._process_info = client._process_msg = wait
    inner = frame(1, b"inside")
    tail = frame(3, inner)
    reading = asyncio.create_task(client.feed(operation + tail[:20], tail[20:] + frame(1, b"1")))
    await asyncio.sleep(0)
    client._process_msg = processed
    going.set()
    await reading
    assert received == [(b"a", b"r", b"1", None)]
    assert client.processed[-1] == (3, (b"a", b"r", inner, None))


# --- Servers ----------------------------------------------------------------------------------------------------------


async def test_counts_and_limits_of_nats_py(nc, subject):
    received = []
    subscription = await Link.of(nc).reading.subscribe(subject, received.extend)
    before = nc.stats["in_msgs"], nc.stats["in_bytes"]
    for number in range(3):
        await nc.publish(subject, b"%d" % number)
    await flush(nc)
    assert (nc.stats["in_msgs"], nc.stats["in_bytes"]) == (before[0] + 3, before[1] + 3)
    assert (subscription.delivered, subscription.pending_msgs) == (3, 0)
    await subscription.unsubscribe(limit=5)
    for number in range(3, 9):
        await nc.publish(subject, b"%d" % number)
    await flush(nc)
    assert [message[2] for message in received] == [b"0", b"1", b"2"]
    assert [(await subscription.next_msg()).data for _ in range(2)] == [b"3", b"4"]
    assert subscription_id(subscription) not in nc._subs


async def test_messages_arrive_until_the_end_of_drain(nc, subject):
    received = []
    subscription = await Link.of(nc).reading.subscribe(subject, received.extend)
    for number in range(100):
        await nc.publish(subject, b"%d" % number)
    await flush(nc)
    await subscription.drain()
    assert [message[2] for message in received] == [b"%d" % number for number in range(100)]


async def test_first_message_arrives_although_subscribing_waits_for_the_socket(server, subject):
    """With a full buffer, nats-py sends SUB before its function returns."""
    received = []
    async with await nats.connect(server.url, pending_size=1) as nc:
        subscription = await Link.of(nc).reading.subscribe(f"{subject}.>", received.extend)
        await nc.publish(f"{subject}.1", b"1")
        await flush(nc)
        assert received == [(f"{subject}.1".encode(), b"", b"1", None)]
        await subscription.unsubscribe()


async def test_failed_subscription_leaves_no_receiver(nc):
    with pytest.raises(nats.errors.Error):
        await Link.of(nc).reading.subscribe("a b", print)
    assert Link.of(nc).reading.receivers == {}


@pytest.mark.parametrize("end", [b"", b"MSG a 1 x\r\n"], ids=["part", "malformed"])
async def test_message_in_parts_is_forgotten_at_a_reconnect(end):
    """After a part the server closes the connection, after a malformed message nats-py does."""
    sent = frame(1, b"payload", block=b"NATS/1.0\r\na: b\r\n\r\n")
    script = [*(sent + (end or sent[:size]) for size in (1, 8, 20, len(sent) - 1)), sent]
    received = []

    async def serve(reader, writer):
        writer.write(INFO)
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
            elif line.startswith(b"SUB"):
                writer.write(script.pop(0).replace(b" 1 ", b" %s " % line.split()[-1]))
                if script and not end:
                    await writer.drain()
                    await asyncio.sleep(0.02)
                    break

    async with (
        serving(serve) as port,
        await nats.connect(f"nats://127.0.0.1:{port}", reconnect_time_wait=0.01, error_cb=ignore) as nc,
    ):
        await Link.of(nc).reading.subscribe("a", received.extend)
        await until(lambda: len(received) == 5)
        assert nc.stats["reconnects"] == 4
    assert received == [(b"a", b"r", b"payload", b"NATS/1.0\r\na: b\r\n\r\n")] * 5


async def check(nc):
    """Check that two receivers get all messages, also large ones, in order, and other subscriptions theirs."""
    received = [], []
    for number, messages in enumerate(received):
        await Link.of(nc).reading.subscribe(f"raw.{number}", messages.extend)
    other = await nc.subscribe("other")
    payloads = [b"%d" % number + b"x" * (number % 50 * 1000) for number in range(500)]
    for payload in payloads:
        for subject in ("raw.0", "other", "raw.1"):
            await nc.publish(subject, payload, headers={"a": "1"} if len(payload) % 2 else None)
    await flush(nc)
    for messages in received:
        assert [message[2] for message in messages] == payloads
        assert {message[3] for message in messages} == {None, b"NATS/1.0\r\na: 1\r\n\r\n"}
    assert [(await other.next_msg()).data for _ in payloads] == payloads


@pytest.mark.parametrize("is_first", [False, True], ids=["info first", "handshake first"])
async def test_tls(certificates, is_first):
    files = f'cert_file: "{certificates}/server.pem", key_file: "{certificates}/server.key"'
    with NatsServer(config=f"tls {{ {files}, handshake_first: {str(is_first).lower()} }}") as server:
        context = ssl.create_default_context(cafile=certificates / "ca.pem")
        url = f"tls://127.0.0.1:{server.port}"
        async with await nats.connect(url, tls=context, tls_handshake_first=is_first, reconnect_time_wait=0.05) as nc:
            await check(nc)


@pytest.mark.filterwarnings("ignore:parameter 'timeout'", "ignore::ResourceWarning")
async def test_websocket():
    pytest.importorskip("aiohttp", reason="nats-py needs it for WebSocket")
    (port,) = _free_ports(1)
    with NatsServer(config=f'websocket {{ host: "127.0.0.1", port: {port}, no_tls: true }}'):
        async with await nats.connect(f"ws://127.0.0.1:{port}") as nc:
            await check(nc)


async def test_reconnect_to_a_restarted_server():
    received = []
    with NatsServer() as server:
        async with await nats.connect(server.url, reconnect_time_wait=0.05, max_reconnect_attempts=-1) as nc:
            await Link.of(nc).reading.subscribe("a", received.extend)
            for number in range(3):
                await nc.publish("a", b"%d" % number)
                await flush(nc)
                server.restart()
                await until(lambda number=number: nc.stats["reconnects"] > number and nc.is_connected)
    assert [message[2] for message in received] == [b"0", b"1", b"2"]


async def test_cancelled_flush_does_not_end_the_reading(connected):
    async with connected("unrestricted") as (nc, reported):
        Link.of(nc)
        flushing = asyncio.create_task(nc.flush())
        await asyncio.sleep(0)
        assert nc._pongs
        flushing.cancel()
        await asyncio.gather(flushing, return_exceptions=True)
        await nc.flush()
        assert not nc._reading_task.done()
        assert reported == []
