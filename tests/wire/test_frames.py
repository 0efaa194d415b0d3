"""Publish frames of several messages in one buffer."""

from ce_nats import NatsMessage
from ce_nats.wire._frames import frames_of
from ce_nats.wire.nats import write_publish

BLOCK = b"NATS/1.0\r\na: b\r\n\r\n"
MESSAGES = [(NatsMessage("a", b"12345"), b""), (NatsMessage("ab", b"1"), BLOCK), (NatsMessage("é", b""), BLOCK)]


def test_frames_are_those_of_single_messages():
    frames = frames_of(MESSAGES, 9, "_INBOX.x.")
    for index, (message, block) in enumerate(MESSAGES):
        written = write_publish(message.subject, message.data, block, f"_INBOX.x.{9 + index}")
        assert frames.piece(index, index + 1) == written
        assert frames.subject(index) == message.subject
    assert frames.piece(0, 3) == frames.octets
    assert (len(frames), frames.first, frames.end) == (3, 9, 12)


def test_sizes_are_of_headers_and_of_headers_with_payloads():
    frames = frames_of(MESSAGES, 9, "p.")
    size = len(BLOCK)
    assert list(frames.header_sizes) == [0, size, size]
    assert list(frames.sizes) == [5, size + 1, size]
    assert frames.largest == (size, size + 1, 2 + len("p.11"))
    assert frames_of([], 1, "p.").largest == (0, 0, 0)


def test_frames_that_fit_are_at_least_one():
    frames = frames_of(MESSAGES, 1, "p.")
    first, second, third = frames.bounds[1:]
    for size, stop in ((0, 1), (first, 1), (second - 1, 1), (second, 2), (third - 1, 2), (third, 3), (third * 2, 3)):
        assert frames.fitting(0, 3, size) == stop
    assert frames.fitting(1, 3, second - first) == 2
    assert frames.fitting(1, 2, third) == 2
