"""What a reply to a message means, and which messages may be sent twice."""

import pytest
from nats.js.api import PubAck

from ce_nats.aio.publishing._pending_message import (
    PendingMessage,
    has_copy_detection,
    is_duplicate,
    is_not_stored,
    read_reply,
    refusal,
)

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
    assert error.message.startswith("s: ")


@pytest.mark.parametrize(("member", "number"), [({"err_code": 10071}, 10071), ({"err_code": "b"}, 0), ({}, 0)])
def test_refusal_has_the_number_and_the_text_of_the_server(member, number):
    error = refusal("s", {"code": 400, "description": "wrong", **member})
    assert (error.code, error.err_code) == ("publish-refused", number)
    assert error.message == f"s: wrong ({member.get('err_code', 0)})"


def test_message_was_sent_after_its_first_attempt():
    for attempts in range(3):
        message = PendingMessage("s", None, b"", b"", None, 0.0, 0.0, attempts)
        assert message.was_sent is (attempts > 0)
        assert is_duplicate(message, PubAck("S", 1, duplicate=True)) is (attempts == 1)
        assert is_duplicate(message, PubAck("S", 1)) is False
