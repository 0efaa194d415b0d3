"""Answers of a real server to every message of the protocol: the assumptions of the client."""

import asyncio
from uuid import uuid4

import pytest

from ce_nats.stan.wire import (
    Ack,
    CloseRequest,
    CloseResponse,
    ConnectRequest,
    ConnectResponse,
    MsgProto,
    Ping,
    PingResponse,
    PubAck,
    PubMsg,
    StartPosition,
    SubscriptionRequest,
    SubscriptionResponse,
    UnsubscribeRequest,
)

DISCOVER = "_STAN.discover.test-cluster"
CONN_ID = b"connection"


async def request_answer(nc, subject, request, answer):
    payload = request if isinstance(request, bytes) else request.encode()
    return answer.decode((await nc.request(subject, payload, timeout=30)).data)


@pytest.fixture
async def subjects(nc, client_id):
    """Register a client that answers heartbeats, and yield the subjects for its requests."""

    async def answer_heartbeat(message):
        await nc.publish(message.reply)

    inbox = nc.new_inbox()
    await nc.subscribe(inbox, cb=answer_heartbeat)
    request = ConnectRequest(client_id, inbox, 1, CONN_ID, 5, 88)
    response = await request_answer(nc, DISCOVER, request, ConnectResponse)
    assert response.error == ""
    yield response
    await request_answer(nc, response.close_requests, CloseRequest(client_id), CloseResponse)


async def test_every_message_is_answered(nc, subjects, client_id, channel):
    """ST-CON-01, ST-CON-03, ST-PUB-01, ST-SUB-01, ST-ACK-01, ST-END-01, ST-PNG-01, ST-CLS-01"""
    assert (subjects.ping_interval, subjects.ping_max_out, subjects.protocol) == (5, 88, 1)
    published = PubMsg(client_id, "guid 1", channel, "some.reply", b"\0data", CONN_ID, b"unused")
    assert await request_answer(nc, f"{subjects.pub_prefix}.{channel}", published, PubAck) == PubAck(guid="guid 1")

    inbox = nc.new_inbox()
    deliveries = await nc.subscribe(inbox)
    request = SubscriptionRequest(client_id, channel, "", inbox, 10, 30, "durable", StartPosition.FIRST)
    answer = await request_answer(nc, subjects.sub_requests, request, SubscriptionResponse)
    assert answer.ack_inbox
    assert answer.error == ""
    message = MsgProto.decode((await deliveries.next_msg(timeout=30)).data)
    assert message.timestamp > 1_700_000_000 * 10**9
    assert message == MsgProto(1, channel, "some.reply", b"\0data", message.timestamp)
    await nc.publish(answer.ack_inbox, Ack(channel, 1).encode())

    assert await request_answer(nc, subjects.ping_requests, Ping(CONN_ID), PingResponse) == PingResponse()
    refusal = await request_answer(nc, subjects.ping_requests, Ping(b"other"), PingResponse)
    assert refusal == PingResponse("client has been replaced or is no longer registered")

    close = UnsubscribeRequest(client_id, channel, answer.ack_inbox, "durable")
    assert await request_answer(nc, subjects.sub_close_requests, close, SubscriptionResponse) == SubscriptionResponse()
    await request_answer(nc, subjects.sub_requests, request, SubscriptionResponse)
    # The inbox of its deliveries also identifies a subscription: ST-SUB-11 relies on that.
    close = UnsubscribeRequest(client_id, channel, inbox, "durable")
    assert await request_answer(nc, subjects.sub_close_requests, close, SubscriptionResponse) == SubscriptionResponse()
    again = await request_answer(nc, subjects.sub_requests, request, SubscriptionResponse)
    remove = UnsubscribeRequest(client_id, channel, again.ack_inbox, "durable")
    assert await request_answer(nc, subjects.unsub_requests, remove, SubscriptionResponse) == SubscriptionResponse()
    assert (
        await request_answer(nc, subjects.unsub_requests, remove, SubscriptionResponse)
    ).error == "stan: invalid subscription"

    assert await request_answer(nc, subjects.close_requests, CloseRequest(client_id), CloseResponse) == CloseResponse()
    assert (await request_answer(nc, subjects.close_requests, CloseRequest(client_id), CloseResponse)).error == (
        "stan: unknown clientID"
    )


@pytest.mark.parametrize("client", ["both", "client id", "connection id"])
async def test_one_of_two_ids_identifies_the_publisher(nc, subjects, client_id, channel, client):
    message = PubMsg(
        "" if client == "connection id" else client_id,
        "guid",
        channel,
        conn_id=b"" if client == "client id" else CONN_ID,
    )
    assert await request_answer(nc, f"{subjects.pub_prefix}.{channel}", message, PubAck) == PubAck("guid")


async def test_wrong_connection_id_is_refused(nc, subjects, client_id, channel):
    message = PubMsg(client_id, "guid", channel, conn_id=b"wrong")
    answer = await request_answer(nc, f"{subjects.pub_prefix}.{channel}", message, PubAck)
    assert answer == PubAck("guid", "stan: invalid publish request")


async def test_malformed_requests_are_refused(nc, subjects, channel):
    """All but pings, which are not answered."""
    garbage = b"\x0a\xff"
    assert (await request_answer(nc, DISCOVER, garbage, ConnectResponse)).error == "stan: invalid connection request"
    answer = await request_answer(nc, f"{subjects.pub_prefix}.{channel}", garbage, PubAck)
    assert answer == PubAck("", "stan: invalid publish request")
    for subject, kind, error in (
        (subjects.sub_requests, SubscriptionResponse, "stan: invalid subscription request"),
        (subjects.unsub_requests, SubscriptionResponse, "stan: invalid unsubscribe request"),
        (subjects.sub_close_requests, SubscriptionResponse, "stan: invalid unsubscribe request"),
        (subjects.close_requests, CloseResponse, "stan: invalid close request"),
    ):
        assert (await request_answer(nc, subject, garbage, kind)).error == error


async def test_invalid_requests_are_refused(nc, subjects, client_id, channel):
    """ST-CON-02, ST-SUB-08: with the server's texts."""
    long = 2**31 - 1
    for request, error in (
        (SubscriptionRequest("", channel, inbox="i"), "stan: clientID missing"),
        (SubscriptionRequest(client_id, channel, "", "i", 10, 0), "stan: invalid ack wait time, should be >= 1s"),
        (SubscriptionRequest(client_id, channel, "", "i", 0, 30), "stan: invalid MaxInflight, should be >= 1"),
        (SubscriptionRequest(client_id, "a.*", "", "i", 1, 30), "stan: invalid subject"),
        (SubscriptionRequest(client_id, channel, "", "i", 1, 30, "", long), "stan: invalid start position"),
        (SubscriptionRequest(f"x{client_id}", channel, "", "i", 1, 30), "stan: unknown clientID"),
        (
            SubscriptionRequest(client_id, channel, "q", "i", 1, 30, "a:b"),
            "stan: durable name of a durable queue subscriber can't contain the character ':'",
        ),
    ):
        assert (await request_answer(nc, subjects.sub_requests, request, SubscriptionResponse)).error == error
    for name in ("", "a.b", "é"):
        answer = await request_answer(nc, DISCOVER, ConnectRequest(name, "inbox"), ConnectResponse)
        assert answer.error.startswith("stan: invalid clientID: only alphanumeric and `-` or `_`")
    assert (
        await request_answer(nc, DISCOVER, ConnectRequest("a"), ConnectResponse)
    ).error == "stan: invalid connection request"


async def test_client_of_protocol_0_gets_no_settings_of_pings(nc, subjects):
    """ST-PNG-02"""
    client_id = f"old-{uuid4().hex}"
    answer = await request_answer(nc, DISCOVER, ConnectRequest(client_id, nc.new_inbox()), ConnectResponse)
    assert (answer.ping_requests, answer.ping_interval) == ("", 0)
    await request_answer(nc, answer.close_requests, CloseRequest(client_id), CloseResponse)


async def test_client_that_does_not_answer_heartbeats_is_removed(nc, client_id):
    """ST-HB-01"""
    inbox = nc.new_inbox()
    heartbeats = await nc.subscribe(inbox)
    answer = await request_answer(nc, DISCOVER, ConnectRequest(client_id, inbox, 1, CONN_ID, 5, 88), ConnectResponse)
    heartbeat = await heartbeats.next_msg(timeout=30)
    assert heartbeat.data == b""
    await nc.publish(heartbeat.reply)
    await heartbeats.next_msg(timeout=30)
    await heartbeats.unsubscribe()
    for _ in range(600):
        if (await request_answer(nc, answer.ping_requests, Ping(CONN_ID), PingResponse)).error:
            return
        await asyncio.sleep(0.1)
    pytest.fail("the client must be removed")


async def test_headers_are_dropped(nc, subjects, client_id, channel):
    """ST-01: the reason for structured mode."""
    inbox = nc.new_inbox()
    deliveries = await nc.subscribe(inbox)
    request = SubscriptionRequest(client_id, channel, "", inbox, 10, 30)
    await request_answer(nc, subjects.sub_requests, request, SubscriptionResponse)
    message = PubMsg(client_id, "guid", channel, data=b"data", conn_id=CONN_ID).encode()
    await nc.request(f"{subjects.pub_prefix}.{channel}", message, timeout=30, headers={"ce-id": "1"})
    delivered = await deliveries.next_msg(timeout=30)
    assert delivered.headers is None
    assert MsgProto.decode(delivered.data).data == b"data"
