"""What a reply to a message means, and which messages may be sent twice."""

import pytest
from nats.js.api import PubAck

from ce_nats.aio.publishing._pending_message import has_copy_detection, is_not_stored, read_reply

START = b"NATS/1.0\r\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (b"Nats-Msg-Id: 1\r\n", True),
        (b"Nats-Msg-Id:1\r\n", True),
        (b"ce-id: 1\r\nNats-Msg-Id: a b\r\n", True),
        (b"ce-id: 1\r\n", False),
        (b"Nats-Msg-Id: \r\n", False),
        (b"Nats-Msg-Id:\r\nce-id: 1\r\n", False),
        (b"nats-msg-id: 1\r\n", False),
        (b"a: Nats-Msg-Id: 1\r\n", False),
        (b"Nats-Msg-Id: 1\r\nNats-Expected-Last-Sequence: 1\r\n", False),
        (b"Nats-Expected-Last-Subject-Sequence: 0\r\nNats-Msg-Id: 1\r\n", False),
        (b"Nats-Msg-Id: 1\r\nNats-Expected-Stream: S\r\n", True),
    ],
)
def test_server_detects_the_copy_of_a_message_with_an_id_and_no_expectation(lines, expected):
    assert has_copy_detection(START + lines + b"\r\n") is expected


def test_message_without_headers_has_no_id():
    assert not has_copy_detection(b"")


def test_acknowledgement_is_read():
    ack = read_reply("s", b'{"stream":"S","seq":7,"duplicate":true,"domain":"d"}', b"")
    assert ack == PubAck("S", 7, "d", True)


@pytest.mark.parametrize(
    ("data", "block", "code", "may_be_retried"),
    [
        (b"", b"NATS/1.0 503\r\n\r\n", "no-responders", True),
        (b'{"error":{"code":409,"err_code":10158,"description":"in process"}}', b"", "timeout", True),
        (b'{"error":{"code":429,"err_code":10167,"description":"many"}}', b"", "temporarily-unavailable", True),
        (b'{"error":{"code":400,"err_code":10071,"description":"wrong"}}', b"", "publish-refused", False),
        (b'{"error":{"code":"a","err_code":"b"}}', b"", "publish-refused", False),
        (b"[]", b"", "unexpected-answer", False),
        (b"\xff", b"", "unexpected-answer", False),
        (b"", b"NATS/1.0 100\r\n\r\n", "unexpected-answer", False),
    ],
)
def test_other_replies_are_errors(data, block, code, may_be_retried):
    error = read_reply("s", data, block)
    assert error.code == code
    assert is_not_stored(error) is may_be_retried
