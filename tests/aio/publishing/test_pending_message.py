"""What a reply to a message means, and which messages may be sent twice."""

from nats.js.api import PubAck
from nats.js.errors import APIError, BadRequestError, NotFoundError

from ce_nats.aio.publishing._pending_message import (
    PendingMessage,
    has_copy_detection,
    is_not_stored,
    message_id,
    read_reply,
    refusal,
)
from tests.support.tables import each

START = b"NATS/1.0\r\n"


@each(
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
        (b"Nats-Msg-Id: 1\r\nNats-Expected-Lasting: 1\r\n", True),
    ],
)
def test_server_detects_the_copy_of_a_message_with_an_id_and_no_expectation(lines, expected):
    assert has_copy_detection(START + lines + b"\r\n") is expected


def test_message_without_headers_has_no_id():
    assert not has_copy_detection(b"")
    assert message_id(b"") == b""


@each(
    ("lines", "expected"),
    [
        (b"Nats-Msg-Id: a b\r\nce-id: 1\r\n", b"a b"),
        (b"ce-id: 1\r\nNats-Msg-Id:\t\xff\r\n", b"\xff"),
        (b"Nats-Msg-Id: 1\r\nNats-Msg-Id: 2\r\n", b"1"),
        (b"Nats-Msg-Id: \r\nce-id: 1\r\n", b""),
        (b"ce-id: 1\r\n", b""),
    ],
)
def test_id_of_a_message(lines, expected):
    assert message_id(START + lines + b"\r\n") == expected


def test_acknowledgement_is_read():
    ack = read_reply("s", b'{"stream":"S","seq":7,"duplicate":true,"domain":"d"}', b"")
    assert ack == PubAck("S", 7, "d", True)


@each(
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


@each(("member", "number"), [({"err_code": 10071}, 10071), ({"err_code": "b"}, 0), ({}, 0)])
def test_refusal_has_the_number_and_the_text_of_the_server(member, number):
    error = refusal("s", {"code": 400, "description": "wrong", **member})
    assert (error.code, error.err_code) == ("publish-refused", number)
    assert error.message == f"s: wrong ({member.get('err_code', 0)})"


@each(
    ("error", "kind", "fields"),
    [
        ({"code": 400, "err_code": 10071, "description": "wrong"}, BadRequestError, (400, 10071, "wrong")),
        ({"code": 404, "err_code": 10059, "description": "gone", "other": 1}, NotFoundError, (404, 10059, "gone")),
        ({"err_code": 10077, "description": "full"}, APIError, (0, 10077, "full")),
        ({}, APIError, (0, None, None)),
    ],
)
def test_cause_of_a_refusal_is_the_error_of_nats_py(error, kind, fields):
    cause = refusal("s", error).__cause__
    assert type(cause) is kind
    assert (cause.code, cause.err_code, cause.description) == fields


def test_defaults_of_a_pending_message():
    message = PendingMessage("1", "s", 0.0, None, b"", b"", None, 0.0)
    assert (message.attempts, message.last_error, message.is_batched) == (0, None, False)


@each(
    ("data", "expected"),
    [
        (b'{"stream":"S"}', PubAck("S", 0, None, None)),
        (b'{"stream":"S","seq":7,"val":"5"}', PubAck("S", 7, None, None, val="5")),
        (b'{"stream":"S","seq":7,"error":{}}', PubAck("S", 7, None, None)),
    ],
)
def test_members_of_an_acknowledgement_can_be_missing(data, expected):
    assert read_reply("s", data, b"") == expected


@each(
    ("data", "text"),
    [
        (b"{}", "s: the reply is not a PubAck: it must have the name of a stream"),
        (b'{"error":{"err_code":1}}', "s: {'err_code': 1} (1)"),
        (b'{"error":{"description":"a"}}', "s: a (0)"),
    ],
)
def test_texts_of_errors_in_replies(data, text):
    assert read_reply("s", data, b"").message == text


def test_text_without_a_stream():
    error = read_reply("s", b"", b"NATS/1.0 503\r\n\r\n")
    assert error.message == "s: no stream listens"


def test_message_was_sent_after_its_first_attempt():
    for attempts in range(3):
        message = PendingMessage("1", "s", 0.0, None, b"", b"", None, 0.0, attempts)
        assert message.was_sent is (attempts > 0)
