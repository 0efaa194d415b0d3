"""Raw messages become messages of nats-py, also malformed ones; on real servers: scenarios/test_malformed.py."""

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from ce_nats.aio.link._messages import accept_malformed_messages, message_of
from ce_nats.message import UnreadableHeaders


@pytest.fixture
def client():
    return Client()


@pytest.mark.parametrize("accepts_malformed", [False, True])
@pytest.mark.parametrize(
    "block",
    [
        None,
        b"NATS/1.0\r\n\r\n",
        b"NATS/1.0\r\nA: 1\r\na:2\r\nA: \xff\r\n\r\n",
        b"NATS/1.0 404 No Messages\r\n\r\n",
        b"NATS/1.0 100\r\nNats-Last-Consumer: 1\r\n\r\n",
        b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\n\r\n",
    ],
)
async def test_message_is_that_of_nats_py(client, block, accepts_malformed):
    if accepts_malformed:
        accept_malformed_messages(client)
    message = message_of(client, 7, (b"s", b"r", b"data", block))
    expected = Client._build_message(client, 7, b"s", b"r", b"data", await Client._process_headers(client, block))
    assert message == expected
    assert message.sid == 7


@pytest.mark.parametrize("block", [b"NATS/1.0", b"NATS/1.0 404 \xff\r\n\r\n"])
def test_message_with_a_malformed_header_block(client, block):
    message = message_of(client, 7, (b"s", b"", b"data", block))
    assert isinstance(message.headers, UnreadableHeaders)
    assert message.data == b"data"


def test_message_with_a_malformed_subject(client):
    message = message_of(client, 7, (b"\xff", b"\xfe", b"data", b"NATS/1.0\r\na: 1\r\n\r\n"))
    assert (message.subject, message.reply) == ("\ufffd", "")
    assert isinstance(message.headers, UnreadableHeaders)


def test_message_has_the_class_of_the_client(client):
    class OtherMsg(Msg):
        pass

    client.msg_class = OtherMsg
    assert isinstance(message_of(client, 7, (b"s", b"", b"", None)), OtherMsg)
