"""
Header blocks and frames: the examples of the documents, in pieces of any size, and invalid bytes.

tests/test_fixtures.py runs the vectors of spec-fixtures/header-block.json and frames.json.
"""

import json
import socket
import time
from contextlib import suppress
from email.parser import BytesParser
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ce_nats import (
    CeNatsError,
    DecodeError,
    EncodeError,
    ErrorCode,
    Headers,
    NatsMessage,
    from_nats_message,
    to_nats_message,
)
from ce_nats.conformance import load_cases
from ce_nats.conformance._cases import octets
from ce_nats.testing import NatsServer
from ce_nats.wire import nats
from ce_nats.wire.nats import (
    MAX_CONTROL_LINE,
    Frame,
    FrameReader,
    HeaderBlock,
    Status,
    decode_frames,
    decode_header_block,
    encode_header_block,
    encode_hmsg,
    encode_hpub,
    write_header_block,
    write_publish,
)
from tests.support.strategies import attempt
from tests.support.tables import each

# The frames that are encoded in the vectors, which have the documents' examples with headers.
OUTCOMES = [case.outcomes[0].get("expected", {}) for case in load_cases(["frames"])]
VECTORS = [octets(outcome["frame"]) for outcome in OUTCOMES if "frame" in outcome]

X_BLOCK = b"NATS/1.0\r\nHeader: X\r\n\r\n"
X_FRAME = b"HPUB SUBJECT REPLY 23 30\r\n" + X_BLOCK + b"PAYLOAD\r\n"

FRAMES = [
    *((wire, *decode_frames(wire)) for wire in VECTORS),
    (
        X_FRAME,
        Frame(
            "HPUB", "SUBJECT REPLY 23 30", "SUBJECT", None, "REPLY", Headers({"Header": "X"}), None, b"PAYLOAD", 23, 30
        ),
    ),
    # A payload of 16 bytes that looks like the protocol.
    (
        b"HPUB a 12 28\r\nNATS/1.0\r\n\r\n\r\nPING\r\nHPUB x\r\n\r\n",
        Frame("HPUB", "a 12 28", "a", None, None, Headers(), None, b"\r\nPING\r\nHPUB x\r\n", 12, 28),
    ),
    (
        b"hMsG\ta \t b\t12 \t 13 \r\nNATS/1.0\r\n\r\n!\r\n",
        Frame("HMSG", "a \t b\t12 \t 13", "a", "b", None, Headers(), None, b"!", 12, 13),
    ),
    # Client Protocol, the examples of each operation
    (b"PUB FOO 11\r\nHello NATS!\r\n", Frame("PUB", "FOO 11", "FOO", payload=b"Hello NATS!", total_bytes=11)),
    (
        b"PUB FRONT.DOOR JOKE.22 11\r\nKnock Knock\r\n",
        Frame("PUB", "FRONT.DOOR JOKE.22 11", "FRONT.DOOR", None, "JOKE.22", payload=b"Knock Knock", total_bytes=11),
    ),
    (b"PUB NOTIFY 0\r\n\r\n", Frame("PUB", "NOTIFY 0", "NOTIFY")),
    (
        b"MSG FOO.BAR 9 11\r\nHello World\r\n",
        Frame("MSG", "FOO.BAR 9 11", "FOO.BAR", "9", payload=b"Hello World", total_bytes=11),
    ),
    (
        b"MSG FOO.BAR 9 GREETING.34 11\r\nHello World\r\n",
        Frame("MSG", "FOO.BAR 9 GREETING.34 11", "FOO.BAR", "9", "GREETING.34", None, None, b"Hello World", None, 11),
    ),
    (b"SUB FOO 1\r\n", Frame("SUB", "FOO 1", "FOO", "1")),
    (b"sub BAR.> G1 44\r\n", Frame("SUB", "BAR.> G1 44", "BAR.>", "44")),
    (b"UNSUB 1\r\n", Frame("UNSUB", "1", None, "1")),
    (b"UNSUB 1 5\r\n", Frame("UNSUB", "1 5", None, "1")),
    (b"PING\r\n", Frame("PING")),
    (b"pong \r\n", Frame("PONG")),
    (b"+ok\r\n", Frame("+OK")),
    (b"-ERR 'Stale Connection'\r\n", Frame("-ERR", "'Stale Connection'")),
    (b'INFO {"server_id":"a b"} \r\n', Frame("INFO", '{"server_id":"a b"}')),
    (b'CONNECT\t{"verbose":false}\r\n', Frame("CONNECT", '{"verbose":false}')),
]


def drain(data, pieces=1, **options):
    """Return the frames, and the code of the error after them, of a reader that is fed pieces of a size."""
    reader, frames = FrameReader(**options), []
    try:
        for start in range(0, len(data), pieces):
            frames += reader.feed(data[start : start + pieces])
        reader.close()
    except DecodeError as error:
        return frames, error.code
    return frames, None


def refused(fault, code, call, *args, **options):
    with pytest.raises(fault) as caught:
        call(*args, **options)
    assert caught.value.code is code
    return caught.value


# --- Decoding frames ------------------------------------------------------------------------------------------------


@each(("wire", "frame"), FRAMES)
def test_whole_frames(wire, frame):
    assert decode_frames(wire) == [frame]


@each(("wire", "frame"), FRAMES)
def test_frames_split_at_each_byte(wire, frame):
    for cut in range(1, len(wire)):
        refused(DecodeError, ErrorCode.TRUNCATED_FRAME, decode_frames, wire[:cut])
        reader = FrameReader()
        assert reader.feed(wire[:cut]) == []
        refused(DecodeError, ErrorCode.TRUNCATED_FRAME, reader.close)
        assert reader.feed(wire[cut:]) == [frame]
        reader.close()


@each(("wire", "frame"), FRAMES)
def test_trailing_bytes_are_kept_for_the_next_frame(wire, frame):
    refused(DecodeError, ErrorCode.TRUNCATED_FRAME, decode_frames, wire + b"PI")
    reader = FrameReader()
    assert reader.feed(wire + b"PI") == [frame]
    assert reader.feed(b"NG\r\n") == [Frame("PING")]


def test_all_frames_in_one_stream():
    stream = b"".join(wire for wire, _ in FRAMES)
    expected = [frame for _, frame in FRAMES]
    assert decode_frames(stream) == expected
    for pieces in (1, 2, 3, 7, 64):
        assert drain(stream, pieces) == (expected, None)


def test_empty_input_has_no_frames():
    assert decode_frames(b"") == []
    assert FrameReader().feed(b"") == []


@each("kind", [bytes, bytearray, memoryview])
def test_bytes_like_input_is_accepted(kind):
    assert decode_frames(kind(b"PING\r\n")) == [Frame("PING")]
    assert decode_header_block(kind(X_BLOCK)) == HeaderBlock(Headers({"Header": "X"}))


def test_frame_does_not_share_the_buffer():
    """Bytes that the caller changes later do not change a frame."""
    buffer = bytearray(X_FRAME)
    (frame,) = FrameReader().feed(buffer)
    buffer[:] = bytes(len(buffer))
    assert [frame] == decode_frames(X_FRAME)


@each(
    "wire",
    [
        # Sizes are one to nine digits of ASCII.
        b"PUB a +1\r\nx\r\n",
        b"PUB a \xc2\xb2\r\nxx\r\n",  # SUPERSCRIPT TWO, a digit for str.isdigit()
        b"HPUB a x 12\r\nNATS/1.0\r\n\r\n\r\n",
        b"HPUB a 12 x\r\nNATS/1.0\r\n\r\n\r\n",
        b"HMSG a 1 -12 12\r\nNATS/1.0\r\n\r\n\r\n",
        b"UNSUB 1 many\r\n",
        # Every operation has a number of arguments.
        b"HMSG a 1 b c 12 12\r\nNATS/1.0\r\n\r\n\r\n",
        b"HPUB 12 12\r\nNATS/1.0\r\n\r\n\r\n",
        b"PUB a\r\n\r\n",
        b"PUB a b c 1\r\nx\r\n",
        b"MSG a 1\r\nx\r\n",
        b"MSG a 1 b c 1\r\nx\r\n",
        b"SUB a\r\n",
        b"SUB a b c 1\r\n",
        b"UNSUB\r\n",
        b"UNSUB 1 2 3\r\n",
        b"PING 1\r\n",
        b"PONG 1\r\n",
        b"+OK then\r\n",
        b"INFO\r\n",
        b"CONNECT \t\r\n",
        b"-ERR\r\n",
        # Operations are recognized by their whole name at the beginning of the line.
        b"   \r\n",
        b" PING\r\n",
        b"PIN\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n",
        b"P\xc4\xb1NG\r\n",  # LATIN SMALL LETTER DOTLESS I, which str.upper() makes an I
        b'INFO{"a":1}\r\n',
        # Lines end with CRLF and contain no other CR.
        b"\n",
        b"PUB a 1\nx\r\n",
        b"PING\r\r\n",
        b"PUB a\r1\r\nx\r\n",
        b"PING\rPONG\r\n",
        b"SUB a\rb 1\r\n",
        b"SUB a 1\r\r\n",
        # CRLF follows the payload.
        b"PUB a 0\r\nPING\r\n",
        b"PUB a 1\r\nx\n\n",
        b"PUB a 1\r\nx\n\r\n",
        b"PUB a 1\r\nx\r\r\n",
    ],
)
def test_invalid_frames_are_rejected(wire):
    refused(DecodeError, ErrorCode.INVALID_FRAME, decode_frames, wire)
    assert drain(wire, pieces=1) == ([], ErrorCode.INVALID_FRAME)


@each(
    ("wire", "message"),
    [
        (b"PUB a\r\n", "PUB must have 2 or 3 arguments, got 1: 'a'"),
        (b"PING 1\r\n", "PING must have 0 arguments, got 1: '1'"),
        (b"INFO\r\n", "INFO must have JSON or text arguments, got 0: ''"),
    ],
)
def test_error_has_the_number_of_arguments(wire, message):
    assert refused(DecodeError, ErrorCode.INVALID_FRAME, decode_frames, wire).message == message


@each(
    ("wire", "code"),
    [
        (b"PUB \xff 1\r\nx\r\n", ErrorCode.INVALID_UTF8),
        (b"-ERR '\xe2\x82'\r\n", ErrorCode.INVALID_UTF8),
        # HDR_LEN that ends inside of the block, or inside of the payload.
        (b"HPUB a 22 30\r\n" + X_BLOCK + b"PAYLOAD\r\n", ErrorCode.INVALID_HEADER_BLOCK),
        (b"HPUB a 24 30\r\n" + X_BLOCK + b"PAYLOAD\r\n", ErrorCode.INVALID_HEADER_BLOCK),
        (b"HMSG a 1 19 19\r\nNATS/1.0\r\nX : y\r\n\r\n\r\n", ErrorCode.INVALID_HEADER_NAME),
    ],
)
def test_frames_with_invalid_content_are_rejected(wire, code):
    refused(DecodeError, code, decode_frames, wire)
    assert drain(wire, pieces=1) == ([], code)


def test_received_subjects_are_not_checked():
    """nats-server accepts more subjects than encoding does."""
    assert [frame.subject for frame in decode_frames(b"PUB a..b 0\r\n\r\nMSG * 1 0\r\n\r\n")] == ["a..b", "*"]


def test_control_line_limit_is_exact():
    line = b"INFO " + b"x" * 59
    assert [frame.op for frame in decode_frames(line + b"\r\n", max_control_line=64)] == ["INFO"]
    for pieces in (1, 1000):
        assert drain(line + b"\r\n", pieces, max_control_line=64) == ([Frame("INFO", "x" * 59)], None)
        assert drain(line + b"x\r\n", pieces, max_control_line=64) == ([], ErrorCode.INVALID_FRAME)
    reader = FrameReader(max_control_line=3)
    assert reader.feed(b"+OK\r\n") == [Frame("+OK")]
    assert r"got b'PING\r\n'" in refused(DecodeError, ErrorCode.INVALID_FRAME, reader.feed, b"PING\r\n").message
    # The error is raised as soon as no valid line is possible.
    reader = FrameReader(max_control_line=64)
    assert reader.feed(line + b"\r") == []
    refused(DecodeError, ErrorCode.INVALID_FRAME, reader.feed, b"x")


def test_control_line_limit_by_default():
    assert len(decode_frames(b"INFO " + b"x" * (MAX_CONTROL_LINE - 5) + b"\r\n")) == 1
    refused(DecodeError, ErrorCode.INVALID_FRAME, decode_frames, b"INFO " + b"x" * (MAX_CONTROL_LINE - 4) + b"\r\n")
    refused(DecodeError, ErrorCode.INVALID_FRAME, FrameReader().feed, b"x" * 3_000_000)


def test_frames_before_an_invalid_one_are_returned():
    reader = FrameReader()
    assert reader.feed(b"PING\r\nPONG\r\nFOO\r\nPING\r\n") == [Frame("PING"), Frame("PONG")]
    for _ in range(2):
        refused(DecodeError, ErrorCode.INVALID_FRAME, reader.feed, b"PING\r\n")
        refused(DecodeError, ErrorCode.INVALID_FRAME, reader.close)


def test_reader_raises_the_same_error_again():
    reader = FrameReader()
    first = refused(DecodeError, ErrorCode.INVALID_FRAME, reader.feed, b"FOO\r\nPING\r\n")
    assert refused(DecodeError, ErrorCode.INVALID_FRAME, reader.feed, b"PING\r\n") is first


def test_close_raises_a_pending_error():
    refused(DecodeError, ErrorCode.INVALID_FRAME, decode_frames, b"PING\r\nFOO\r\n")


def test_input_that_is_not_bytes_does_not_change_the_reader():
    reader = FrameReader()
    reader.feed(b"PI")
    for junk in ("NG\r\n", None, 5, [80], object()):
        refused(DecodeError, ErrorCode.INVALID_MESSAGE, reader.feed, junk)
    assert reader.feed(b"NG\r\n") == [Frame("PING")]


def test_truncated_frame_error_has_the_number_of_missing_bytes():
    error = refused(DecodeError, ErrorCode.TRUNCATED_FRAME, decode_frames, b"PUB a 10\r\n0123")
    assert "8 bytes" in str(error)


# --- Encoding frames ------------------------------------------------------------------------------------------------


def test_lengths_count_bytes():
    """Four characters, nine bytes: 10 + len("k: ") + 9 + 2 + 2 = 26."""
    assert encode_hpub("a", "é".encode(), {"k": "é€😀"}).startswith(b"HPUB a 26 28\r\n")


@each("payload", [b"\x00\xff", bytearray(b"\x00\xff"), memoryview(b"\x00\xff"), memoryview(b"\xff\x00")[::-1]])
def test_payload_can_be_bytes_like(payload):
    assert decode_frames(encode_hpub("a", payload, None))[0].payload == b"\x00\xff"


@each("payload", ["text", None, 5, [1, 2], {"a": 1}, object()])
def test_other_payloads_are_rejected(payload):
    for call, args in ((encode_hpub, ("a",)), (encode_hmsg, ("a", "1"))):
        error = refused(EncodeError, ErrorCode.INVALID_MESSAGE, call, *args, payload, None)
        assert error.message.startswith("a payload must be bytes, got ")


def test_released_memoryview_is_rejected():
    view = memoryview(b"x")
    view.release()
    error = refused(EncodeError, ErrorCode.INVALID_MESSAGE, encode_hpub, "a", view, None)
    assert error.message.startswith("a payload must be readable bytes: ")
    refused(DecodeError, ErrorCode.INVALID_MESSAGE, decode_frames, view)


@each(
    "subject",
    ["", "a b", "a\tb", "a\r\nPING", "a\0", ".", "a.", ".a", "a..b", "*", "a.*", "a.>", "\ud800", None, 5, b"a"],
)
def test_invalid_subjects_are_rejected(subject):
    refused(EncodeError, ErrorCode.INVALID_SUBJECT, encode_hpub, subject, b"", None)
    refused(EncodeError, ErrorCode.INVALID_SUBJECT, encode_hmsg, subject, "1", b"", None)
    if subject not in ("", None):
        refused(EncodeError, ErrorCode.INVALID_SUBJECT, encode_hpub, "a", b"", None, reply=subject)


@each(("sid", "field"), [("1", b"1"), (1, b"1"), (2**64 - 1, b"18446744073709551615"), ("aZ09", b"aZ09")])
def test_subscription_ids(sid, field):
    assert encode_hmsg("a", sid, b"", None).startswith(b"HMSG a " + field + b" 12 12\r\n")


@pytest.mark.parametrize(
    "sid", ["", "1 2", "1\r\n", "-", -1, 2**64, True, None, 1.0, b"1", "²", "é", pytest.param(10**5000, id="huge")]
)
def test_invalid_subscription_ids_are_rejected(sid):
    refused(EncodeError, ErrorCode.INVALID_FRAME, encode_hmsg, "a", sid, b"", None)


def test_frames_too_large_to_decode_are_not_encoded():
    longest = "a" * (MAX_CONTROL_LINE - len("HPUB  12 12"))
    assert decode_frames(encode_hpub(longest, b"", None))[0].subject == longest
    refused(EncodeError, ErrorCode.INVALID_FRAME, encode_hpub, longest + "a", b"", None)
    refused(EncodeError, ErrorCode.INVALID_FRAME, encode_hpub, "a", bytes(999_999_988), None)


def test_frame_without_headers_is_a_pub():
    assert write_publish("a", b"x", b"") == b"PUB a 1\r\nx\r\n"
    assert write_publish("a", b"", b"", "b") == b"PUB a b 0\r\n\r\n"
    assert write_publish("a", b"x", X_BLOCK).startswith(
        b"HPUB a %d %d\r\nNATS/1.0\r\n" % (len(X_BLOCK), len(X_BLOCK) + 1)
    )


def test_size_of_frames_has_nine_digits(monkeypatch):
    error = refused(EncodeError, ErrorCode.INVALID_FRAME, encode_hpub, "a" * MAX_CONTROL_LINE, b"", None)
    assert "must have at most 999999999 bytes and a control line of at most 65536 bytes" in error.message
    monkeypatch.setattr("ce_nats.wire.nats._MAX_SIZE", 20)
    assert decode_frames(encode_hpub("a", bytes(8), None))[0].total_bytes == 20
    refused(EncodeError, ErrorCode.INVALID_FRAME, encode_hpub, "a", bytes(9), None)


# --- Header blocks --------------------------------------------------------------------------------------------------


def test_one_line_per_value_in_order():
    """Values are not joined, sorted or title-cased."""
    headers = Headers([("b", "1,2"), ("A", ""), ("b", "3"), ("B", "x: y")])
    assert encode_header_block(headers) == b"NATS/1.0\r\nb: 1,2\r\nA: \r\nb: 3\r\nB: x: y\r\n\r\n"
    assert decode_header_block(encode_header_block(headers)).headers == headers


@each("headers", [None, {}, [], (), Headers()])
def test_no_headers(headers):
    assert encode_header_block(headers) == b"NATS/1.0\r\n\r\n"
    assert decode_header_block(b"NATS/1.0\r\n\r\n") == HeaderBlock(Headers(), None)


def test_mail_headers_are_encoded_with_their_bytes():
    """nats-py's get_msg() returns email.header.Header for non-ASCII values."""
    mail = BytesParser().parsebytes("k: grün\r\n\r\n".encode())
    assert encode_header_block(dict(mail.items())) == "NATS/1.0\r\nk: grün\r\n\r\n".encode()
    broken = BytesParser().parsebytes(b"k: \xff\r\n\r\n")
    refused(EncodeError, ErrorCode.INVALID_UTF8, encode_header_block, dict(broken.items()))


@each(
    ("headers", "code"),
    [
        ({"a b": "x"}, ErrorCode.INVALID_HEADER_NAME),
        ({" a": "x"}, ErrorCode.INVALID_HEADER_NAME),
        ({"a\0": "x"}, ErrorCode.INVALID_HEADER_NAME),
        ({5: "x"}, ErrorCode.INVALID_HEADER_NAME),
        ({"a": "\rx"}, ErrorCode.INVALID_HEADER_VALUE),
        ({"a": " "}, ErrorCode.INVALID_HEADER_VALUE),
        ({"a": ["x", "y "]}, ErrorCode.INVALID_HEADER_VALUE),
        ({"a": b"x"}, ErrorCode.INVALID_HEADER_VALUE),
        ({"a": None}, ErrorCode.INVALID_HEADER_VALUE),
        ({"a": 5}, ErrorCode.INVALID_HEADER_VALUE),
        (5, ErrorCode.INVALID_HEADER_BLOCK),
        (["a"], ErrorCode.INVALID_HEADER_BLOCK),
        (b"NATS/1.0\r\n\r\n", ErrorCode.INVALID_HEADER_BLOCK),
    ],
)
def test_invalid_headers_are_rejected(headers, code):
    refused(EncodeError, code, encode_header_block, headers)
    refused(EncodeError, code, encode_hpub, "a", b"", headers)


def test_error_names_the_invalid_header():
    assert refused(EncodeError, ErrorCode.INVALID_HEADER_VALUE, encode_header_block, {"a": "1", "b": " "}).header == "b"
    block = b"NATS/1.0\r\na: 1\r\nb: \xff\r\n\r\n"
    assert refused(DecodeError, ErrorCode.INVALID_UTF8, decode_header_block, block).header == "b"


@each(
    ("line", "pair"),
    [
        (b"a: \x0bb\xc2\xa0", ("a", "\x0bb\xa0")),  # white space, but not in RFC 7230
        (b"a: \x01\x7f", ("a", "\x01\x7f")),
        (b"!\"#$%&'()*+,-./09;<=>?@AZ[\\]^_`az{|}~: x", ("!\"#$%&'()*+,-./09;<=>?@AZ[\\]^_`az{|}~", "x")),
    ],
)
def test_header_lines(line, pair):
    assert decode_header_block(b"NATS/1.0\r\n" + line + b"\r\n\r\n").headers.items() == [pair]


@each(
    ("first", "status"),
    [
        (b"NATS/1.0 503 ", Status(503, "")),
        (b"NATS/1.0 100\tIdle  Heartbeat \t", Status(100, "Idle  Heartbeat")),
        (b"NATS/1.0 007", Status(7, "")),
        ("NATS/1.0 400 schön".encode(), Status(400, "schön")),
    ],
)
def test_status_lines(first, status):
    assert decode_header_block(first + b"\r\n\r\n") == HeaderBlock(Headers(), status)
    assert decode_header_block(first + b"\r\nA: b\r\n\r\n") == HeaderBlock(Headers({"A": "b"}), status)


@each(
    "first",
    [
        b"",
        b" ",
        b"NATS",
        b"NATS/1",
        b"NATS/1.00",
        b"NATS/01.0",
        b"NATS/1x0",
        b" NATS/1.0",
        b"NATS/1.0\t503",
        b"NATS/1.0  503",
        b"NATS/1.0 -03",
        b"NATS/1.0 5_3",
        b"NATS/1.0 No Messages",
        b"NATS/1.0 50\xd9\xa3",  # ARABIC-INDIC DIGIT THREE
        b"NATS/1.0 503 \0",
        b"\xef\xbb\xbfNATS/1.0",
    ],
)
def test_invalid_version_lines_are_rejected(first):
    refused(DecodeError, ErrorCode.INVALID_HEADER_VERSION, decode_header_block, first + b"\r\n\r\n")
    refused(DecodeError, ErrorCode.INVALID_HEADER_VERSION, decode_header_block, first + b"\r\nA: b\r\n\r\n")


@each(
    ("block", "code"),
    [
        # Structure
        (b"NATS/1.0", ErrorCode.INVALID_HEADER_BLOCK),
        (b"NATS/1.0\r\n\r\n\r\n", ErrorCode.INVALID_HEADER_BLOCK),
        (b"NATS/1.0\nA: b\r\n\r\n", ErrorCode.INVALID_HEADER_BLOCK),
        (b"NATS/1.0\r\nA: b\n\r\n\r\n", ErrorCode.INVALID_HEADER_BLOCK),
        (b"NATS/1.0\r\nA: b\r\n c\r\n\r\n", ErrorCode.INVALID_HEADER_BLOCK),
        (b"NATS/1.0\r\nA: b\r\n\tc: d\r\n\r\n", ErrorCode.INVALID_HEADER_BLOCK),
        (b"NATS/1.0\r\n A: b\r\n\r\n", ErrorCode.INVALID_HEADER_BLOCK),
        (b"NATS/1.0\r\nA\r\n\r\n", ErrorCode.INVALID_HEADER_BLOCK),
        # Names
        (b"NATS/1.0\r\nA : b\r\n\r\n", ErrorCode.INVALID_HEADER_NAME),
        (b"NATS/1.0\r\nA\t: b\r\n\r\n", ErrorCode.INVALID_HEADER_NAME),
        (b"NATS/1.0\r\nA\x7f: b\r\n\r\n", ErrorCode.INVALID_HEADER_NAME),
        (b"NATS/1.0\r\n\xff: \xff\r\n\r\n", ErrorCode.INVALID_HEADER_NAME),
        # Values
        (b"NATS/1.0\r\nA: \xed\xa0\x80\r\n\r\n", ErrorCode.INVALID_UTF8),
        (b"NATS/1.0\r\nA: \xe2\x82\r\n\r\n", ErrorCode.INVALID_UTF8),
        (b"NATS/1.0 503 \xff\r\n\r\n", ErrorCode.INVALID_UTF8),
        # The first error in wire order is raised.
        (b"NATS/1.0\r\nA: \xff\r\nB\r\n\r\n", ErrorCode.INVALID_UTF8),
        (b"NATS/1.0\r\nB\r\nA: \xff\r\n\r\n", ErrorCode.INVALID_HEADER_BLOCK),
        (b"NATS/1.1\r\nB\r\n\r\n", ErrorCode.INVALID_HEADER_VERSION),
    ],
)
def test_invalid_blocks_are_rejected(block, code):
    refused(DecodeError, code, decode_header_block, block)


@each(
    ("lines", "message", "header", "requirement"),
    [
        (b" 503 \xff", r"the status description b'\xff' is not valid UTF-8", None, "H4-ENC-01"),
        (b"\r\nA: \xff", r"the value b'\xff' is not valid UTF-8", "A", "H4-ENC-01"),
        (b"\r\nA: b\r\n c", "a header line must not be folded, got b' c'", None, "H4-FMT-07"),
        (b"\r\nA", "a header line must have a colon, got b'A'", None, "H4-FMT-01"),
        (b"\r\nA: b\0c", "the value of header 'A' must not contain NUL", "A", "H4-FMT-06"),
        (b"\r\nA\xe4: b", r"a header name must be printable ASCII, .*, got b'A\xe4'", "A\u00e4", "H4-FMT-05"),
        (b"\r\nA: b\nC: d", "end with CRLF, got a single CR or LF at byte 14", None, "H4-FMT-01"),
    ],
)
def test_error_of_a_block_names_line_header_and_rule(lines, message, header, requirement):
    with pytest.raises(DecodeError, match=message.replace("\\", "\\\\")) as caught:
        decode_header_block(b"NATS/1.0" + lines + b"\r\n\r\n")
    assert (caught.value.header, caught.value.requirement) == (header, requirement)


@each(
    ("wire", "message", "requirement"),
    [
        (b"PUB \xff 1\r\n", r"the control line of PUB b'\\xff 1' is not valid UTF-8", "H4-ENC-01"),
        (b"PUB a 1\n", "a control line must end with CRLF, got b'PUB a 1'", "NP-03"),
        (b"x" * 70_000, "a control line must have at most 65536 bytes, got b'x{58}\\.\\.\\.$", "NP-07"),
        (b"PIN 1\r\n", "the operation must be one of NATS, got b'PIN'", "NP-02"),
        (b"UNSUB 1 x\r\n", "numbers of UNSUB must have one to nine digits, got 'x'", "NP-07"),
        (b"HPUB a 13 12\r\n", "HPUB must fit in its total of 12 bytes, got 13 bytes", "NP-07"),
        (b"PUB a 1\r\nxyz", "the 1 bytes of PUB must be followed by CRLF, got b'yz'", "NP-03"),
        (b"PUB a 5\r\nab", "5 bytes of the last PUB are missing", "NP-03"),
    ],
)
def test_error_of_a_frame_names_operation_and_rule(wire, message, requirement):
    with pytest.raises(DecodeError, match=message) as caught:
        decode_frames(wire)
    assert (caught.value.header, caught.value.requirement) == (None, requirement)


@each("junk", ["NATS/1.0\r\n\r\n", None, 5, [1], object()])
def test_block_must_be_bytes(junk):
    for call, what in ((decode_header_block, "a header block"), (decode_frames, "a piece of a stream")):
        error = refused(DecodeError, ErrorCode.INVALID_MESSAGE, call, junk)
        assert error.message.startswith(f"{what} must be bytes, got ")


_PIECES = (
    b"NATS/1.0",
    b"\r\n",
    b"\r",
    b"\n",
    b"a",
    b":",
    b" ",
    b"\t",
    b"\0",
    b"\xc3\xa9",
    b"\xc3",
    b"a: b\r\n",
    b"503",
)


@given(
    st.lists(st.sampled_from(_PIECES), max_size=12).map(b"".join),
    st.booleans(),
    st.sampled_from(["strict", "surrogateescape"]),
)
@example(b"", True, "strict")
@example(b"a: b", True, "strict")
@example(b"a: b\r\nb:\t\xc3\xa9 \r\na:", True, "strict")
@example(b"a: \xff", True, "surrogateescape")
@example(b"a: \xff", True, "strict")
def test_plain_blocks_are_read_as_others(text, is_framed, errors):
    """Blocks without errors and status are read in one step, with the same result as line by line."""
    block = b"NATS/1.0\r\n" + text + b"\r\n\r\n" if is_framed else text
    found, error = attempt(DecodeError, nats.read_header_block, block, errors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nats, "_plain_pairs", lambda *_: None)
        expected, expected_error = attempt(DecodeError, nats.read_header_block, block, errors)
    assert found == expected
    assert (error and vars(error)) == (expected_error and vars(expected_error))


# --- Frames and events ----------------------------------------------------------------------------------------------


class Event:
    def get_attributes(self):
        return {"specversion": "1.0", "id": "Euro € 😀", "source": "/s", "type": "t", "n": 5}

    def get_data(self):
        return {"a": [1, None]}


def test_frame_can_be_decoded_as_a_message():
    message = to_nats_message(Event(), "events.a")
    (frame,) = decode_frames(encode_hpub(message.subject, message.data, message.headers))
    assert (frame.headers, frame.data) == (message.headers, message.data)
    event = from_nats_message(frame)
    assert event.get_attributes()["id"] == "Euro € 😀"
    assert event.get_data() == {"a": [1, None]}


def test_frame_without_a_header_block_can_be_decoded():
    """sdk-go publishes the JSON of an event with PUB."""
    body = b'{"specversion":"1.0","id":"1","source":"/s","type":"t"}'
    (frame,) = decode_frames(b"MSG a 1 %d\r\n%s\r\n" % (len(body), body))
    assert frame.headers is None
    assert from_nats_message(frame).get_attributes()["id"] == "1"


def test_status_is_not_an_event():
    (frame,) = decode_frames(b"HMSG inbox 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n")
    error = refused(DecodeError, ErrorCode.NOT_A_CLOUDEVENT, from_nats_message, frame)
    assert "status" in str(error)


# --- Properties -----------------------------------------------------------------------------------------------------

# The time of an example depends on the load of the machine.
unhurried = settings(deadline=None)

NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=8)
VALUES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"), max_size=12).map(
    lambda value: value.strip(" \t")
)
PAIRS = st.lists(st.tuples(NAMES, VALUES), max_size=5)
SUBJECTS = st.lists(
    st.text(st.characters(min_codepoint=33, exclude_categories=["Cs", "Cc"], exclude_characters=".*>"), min_size=1),
    min_size=1,
    max_size=3,
).map(".".join)
WIRES = st.one_of(
    st.builds(
        lambda subject, payload, pairs, reply: encode_hpub(subject, payload, pairs, reply=reply),
        *(SUBJECTS, st.binary(max_size=30), PAIRS, SUBJECTS | st.just("")),
    ),
    st.builds(
        lambda subject, sid, payload, pairs, reply: encode_hmsg(subject, sid, payload, pairs, reply=reply),
        *(SUBJECTS, st.integers(0, 10**9), st.binary(max_size=30), PAIRS, SUBJECTS | st.just("")),
    ),
    st.sampled_from([wire for wire, _ in FRAMES]),
)


@st.composite
def damaged(draw):
    """Return valid bytes with a few of them replaced, deleted or inserted."""
    data = bytearray(b"".join(draw(st.lists(WIRES, min_size=1, max_size=3))))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = start + draw(st.integers(0, 2))
        data[start:end] = draw(st.binary(max_size=2) | st.sampled_from([b"\r\n", b" ", b"9"]))
    return bytes(data)


@unhurried
@given(PAIRS)
def test_block_round_trip(pairs):
    block = encode_header_block(pairs)
    assert decode_header_block(block) == HeaderBlock(Headers(pairs))
    assert encode_header_block(decode_header_block(block).headers) == block


@unhurried
@given(st.text(), st.text())
@example("a", "b ")
@example("a", "\x0bb\x85")
@example("ce-id", "\r\nce-type: x")
def test_any_text_round_trips_or_is_rejected(name, value):
    try:
        block = encode_header_block([(name, value)])
    except EncodeError:
        return
    assert decode_header_block(block).headers.items() == [(name, value)]


@unhurried
@given(SUBJECTS, st.binary(), PAIRS, SUBJECTS | st.just(""), st.binary(max_size=3))
def test_frame_round_trip(subject, payload, pairs, reply, rest):
    wire = encode_hpub(subject, payload, pairs, reply=reply)
    (frame,) = decode_frames(wire)
    assert (frame.subject, frame.payload, frame.headers, frame.reply or "") == (subject, payload, Headers(pairs), reply)
    assert frame.header_bytes is not None
    assert frame.total_bytes == frame.header_bytes + len(payload)
    assert len(wire) == len(b"HPUB  \r\n\r\n") + len(frame.args.encode()) - 1 + frame.total_bytes


@unhurried
@given(st.lists(WIRES, max_size=4).map(b"".join), st.lists(st.integers(0, 400), max_size=6))
def test_size_of_pieces_has_no_effect(stream, cuts):
    places = sorted(min(cut, len(stream)) for cut in cuts)
    reader, frames = FrameReader(), []
    for start, end in zip([0, *places], [*places, len(stream)], strict=True):
        frames += reader.feed(stream[start:end])
    reader.close()
    assert frames == decode_frames(stream)


@unhurried
@given(damaged() | st.binary(), st.integers(1, 20))
def test_size_of_pieces_has_no_effect_on_errors(data, pieces):
    frames, code = drain(data, pieces)
    assert drain(data, max(len(data), 1)) == (frames, code)
    if code is None:
        assert decode_frames(data) == frames
    else:
        refused(DecodeError, code, decode_frames, data)


@unhurried
@given(st.binary() | st.binary().map(lambda tail: b"NATS/1.0" + tail + b"\r\n\r\n") | damaged())
def test_any_block_is_decoded_or_rejected(data):
    """A decoded block has the meaning of its bytes."""
    try:
        block = decode_header_block(data)
    except DecodeError:
        return
    if block.status is None:
        assert decode_header_block(encode_header_block(block.headers)) == block


@unhurried
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text() | st.binary(), st.lists, max_leaves=4))
def test_any_arguments_are_encoded_or_rejected(value):
    for call, arguments in (
        (encode_header_block, (value,)),
        (encode_header_block, ({"a": value},)),
        (encode_hpub, (value, b"", None)),
        (encode_hpub, ("a", value, None)),
        (partial(encode_hpub, reply=value), ("a", b"", None)),
        (encode_hmsg, ("a", value, b"", None)),
    ):
        with suppress(EncodeError):
            assert isinstance(call(*arguments), bytes)


# --- Size -----------------------------------------------------------------------------------------------------------


def seconds(call, *args):
    start = time.process_time()
    with suppress(CeNatsError):
        call(*args)
    return time.process_time() - start


@pytest.mark.faults
def test_byte_by_byte_is_linear():
    """A reader that copied its buffer for each byte would take much longer than the half second of this one."""
    payload = bytes(400_000) + b"\n" * 400_000
    wire = encode_hpub("a", payload, {"k": "v"})
    reader = FrameReader()
    start = time.process_time()
    frames = [frame for index in range(len(wire)) for frame in reader.feed(wire[index : index + 1])]
    assert time.process_time() - start < 8
    assert [frame.payload for frame in frames] == [payload]


@pytest.mark.long
def test_many_frames_at_once_are_linear():
    stream = b"PUB a 1\r\nx\r\n" * 100_000
    start = time.process_time()
    frames = decode_frames(stream)
    assert time.process_time() - start < 20
    assert len(frames) == 100_000


@pytest.mark.faults
@each(
    "block",
    [
        b"NATS/1.0\r\n" + b"a:\r\n" * 500_000 + b"\r\n",
        b"NATS/1.0\r\n" + b"\r\n" * 2_000_000,
        b"NATS/1.0\r\na: " + b" \t" * 2_000_000 + b"b\r\n\r\n",
        b"NATS/1.0\r\na: b" + b" \t" * 2_000_000 + b"\0\r\n\r\n",
        b"NATS/1.0\r\n" + b"a" * 4_000_000 + b"\r\n\r\n",
        b"NATS/1.0\r\n" + b"a" * 4_000_000 + b" : b\r\n\r\n",
        b"NATS/1.0\r\na" + b":" * 4_000_000 + b"\r\n\r\n",
        b"NATS/1.0\r\na:" + b"\r" * 4_000_000 + b"\r\n\r\n",
        b"NATS/1.0 503" + b" " * 4_000_000 + b"\0\r\n\r\n",
        b"NATS/1.0 " + b"5" * 4_000_000 + b"\r\n\r\n",
        b"\xff" * 4_000_000 + b"\r\n\r\n",
    ],
)
def test_large_blocks_are_linear(block):
    assert seconds(decode_header_block, block) < 10


@each("field", [b"9" * 10_000_000, b" " * 10_000_000, b"a" * 10_000_000 + b" 1"])
def test_large_control_lines_are_rejected_early(field):
    for rest in (b"", b"\r\n"):
        refused(DecodeError, ErrorCode.INVALID_FRAME, decode_frames, b"PUB a " + field + rest)


def test_large_header_values_are_accepted():
    value = "€" * 1_000_000
    (frame,) = decode_frames(encode_hpub("a", b"", {"k": value}))
    assert frame.headers.get("k") == value
    assert frame.header_bytes == 10 + len("k: ") + 3_000_000 + 2 + 2


# --- A real server --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server():
    with NatsServer() as server:
        yield server


def test_frames_of_a_real_connection(server):
    headers = Headers([("ce-id", "1"), ("ce-id", "2"), ("CE-ID", "€"), ("Odd", "")])
    options = {"verbose": True, "headers": True, "no_responders": True, "protocol": 1}
    sent = (
        b"CONNECT %s\r\n" % json.dumps(options).encode()
        + b"SUB a.> 7\r\nSUB inbox 8\r\nSUB b q 9\r\n"
        + encode_hpub("a.b", b"\r\npay\0load", headers, reply="r.1")
        + b"PUB a.c 3\r\nabc\r\n"
        + encode_hpub("nobody", b"", None, reply="inbox")
        + b"UNSUB 7\r\nPING\r\n"
    )
    received, reader, operations = b"", FrameReader(), set()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(sent)
        while piece := connection.recv(65_536):
            received += piece
            seen = {frame.op for frame in reader.feed(piece)}
            operations |= seen
            if "PONG" in seen:
                connection.sendall(b"NONSENSE\r\n")
    assert operations == {"INFO", "+OK", "HMSG", "MSG", "PONG", "-ERR"}

    expected = ["CONNECT", "SUB", "SUB", "SUB", "HPUB", "PUB", "HPUB", "UNSUB", "PING"]
    assert [frame.op for frame in decode_frames(sent)] == expected
    frames = decode_frames(received)
    assert json.loads(frames[0].args)["headers"] is True
    assert frames[-1] == Frame("-ERR", "'Unknown Protocol Operation'")
    first, status = [frame for frame in frames if frame.op == "HMSG"]
    assert (first.subject, first.sid, first.reply, first.payload) == ("a.b", "7", "r.1", b"\r\npay\0load")
    assert first.headers == headers
    assert first.status is None
    assert encode_hmsg("a.b", "7", first.payload, first.headers, reply="r.1") in received
    assert (status.subject, status.sid, status.status) == ("inbox", "8", Status(503, ""))
    (plain,) = [frame for frame in frames if frame.op == "MSG"]
    assert plain == Frame("MSG", "a.c 7 3", "a.c", "7", payload=b"abc", total_bytes=3)


def test_message_from_a_frame():
    (frame,) = decode_frames(X_FRAME)
    message = NatsMessage(frame.subject, frame.data, frame.headers, frame.reply)
    assert encode_hpub(message.subject, message.data, message.headers, reply=message.reply) == X_FRAME


def test_surrogate_escapes_are_encoded_as_their_bytes() -> None:
    assert write_header_block([("a", "ä"), ("a", "a\udcffb")]) == b"NATS/1.0\r\na: \xc3\xa4\r\na: a\xffb\r\n\r\n"
    assert write_header_block([]) == encode_header_block([])
