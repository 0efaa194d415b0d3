"""Pull requests and their messages as bytes on the wire."""

import asyncio

import nats
import pytest

from ce_nats import DeliveryError
from ce_nats.aio._connect import disconnect
from ce_nats.aio.reading._range_reader import RangeClient
from ce_nats.aio.reading._raw_pull import RawPull
from tests.support.consuming import until_consumer
from tests.support.waiting import until

SECONDS = 60
SUBJECT = "$JS.API.CONSUMER.MSG.NEXT.S.worker"


@pytest.fixture
async def worker(own_server):
    """JetStream with stream ``S`` on subject ``s`` and its pull consumer ``worker``, without messages."""
    async with await nats.connect(own_server.url) as nc:
        js = nc.jetstream()
        await js.add_stream(name="S", subjects=["s"], storage="memory")
        await js.pull_subscribe("s", durable="worker", stream="S")
        yield js


@pytest.fixture
async def pull(own_server):
    client = RangeClient()
    await client.connect(own_server.url, max_reconnect_attempts=1, reconnect_time_wait=0.05, connect_timeout=2)
    yield RawPull(client)
    await disconnect(client)


@pytest.fixture
async def pulling(worker, pull, request):
    """A pull request in flight, without messages for it; it fails after 2 seconds, or after the parameter."""
    wanted = {"batch": 10, "expires": 600 * 10**9}
    task = asyncio.create_task(pull.pull(SUBJECT, wanted, getattr(request, "param", 2)))

    async def is_waiting():
        return task.done() or (await worker.consumer_info("S", "worker")).num_waiting

    await until(is_waiting)
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def publish(worker, data):
    """Publish a message to ``s``, and wait until the consumer has it: servers tell consumers after they confirm."""
    await worker.publish("s", data)
    await until_consumer(worker, "S", lambda info: info.num_pending, "worker")


async def test_messages_are_returned_as_on_the_wire(worker, pull):
    await worker.publish("s", b"\0\xff")
    await worker.publish("s", b"2", headers={"a": "1"})
    messages, status = await pull.pull(SUBJECT, {"batch": 2, "expires": 600 * 10**9}, SECONDS)
    assert status == ""
    assert [(subject, data, headers) for subject, _, data, headers in messages] == [
        (b"s", b"\0\xff", None),
        (b"s", b"2", b"NATS/1.0\r\na: 1\r\n\r\n"),
    ]
    assert all(reply.startswith(b"$JS.ACK.S.worker.") for _, reply, _, _ in messages)


async def test_status_ends_a_request_with_fewer_messages(worker, pull):
    await publish(worker, b"1")
    messages, status = await pull.pull(SUBJECT, {"batch": 2, "no_wait": True}, SECONDS)
    assert [data for _, _, data, _ in messages] == [b"1"]
    assert status in ("404 No Messages", "408 Request Timeout")  # the latter from nats-server 2.10


async def test_connection_is_usable_after_close(worker, pull):
    await pull.pull(SUBJECT, {"batch": 1, "no_wait": True}, SECONDS)
    await pull.close()
    await publish(worker, b"1")
    messages, _ = await pull.pull(SUBJECT, {"batch": 1, "no_wait": True}, SECONDS)
    assert [data for _, _, data, _ in messages] == [b"1"]


async def test_status_of_another_request_is_ignored(worker, pull, pulling):
    """The server also ends a request that was answered in full; its status may arrive during the next request."""
    await worker._nc.publish(f"{pull._inbox}.0", b"", headers={"Status": "409"})
    with pytest.raises(DeliveryError, match="no messages and no status in 2 seconds"):
        await pulling


@pytest.mark.parametrize("pulling", [600], indirect=True)
async def test_lost_connection_is_an_error_at_once(pulling, own_server):
    own_server.kill()
    with pytest.raises(DeliveryError, match="the connection was closed"):
        await asyncio.wait_for(pulling, SECONDS)
