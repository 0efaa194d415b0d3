"""Integers of variable length."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ce_nats import DecodeError, ErrorCode
from ce_nats.codec._varint import read_varint
from tests.support.tables import each


def malformed(reason):
    return DecodeError(ErrorCode.INVALID_PROTOBUF, reason)


def write(value):
    octets = []
    while value > 0x7F:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*octets, value])


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_written_integer_is_read(value, before, after):
    octets = write(value)
    position = len(before) + len(octets)
    assert read_varint(before + octets + after, len(before), position + len(after), malformed) == (value, position)


@each("value", [0, 1, 0x7F])
def test_integer_may_have_more_bytes_than_needed(value):
    octets = bytes([value | 0x80]) + b"\x80" * 8 + b"\0"
    assert read_varint(octets, 0, len(octets), malformed) == (value, 10)


@each("value", [0x7F, 0x80, 0x3FFF, 0x4000, 2**63 - 1, 2**63, 2**64 - 1])
def test_smallest_and_largest_integers_of_a_length_are_read(value):
    octets = write(value)
    assert read_varint(octets, 0, len(octets), malformed) == (value, len(octets))


@each("before", [0, 10])
@each("octets", [b"", b"\x80", b"\xff" * 9])
def test_truncated_integer_is_rejected(octets, before):
    """Bytes after the end of the message are not read."""
    with pytest.raises(DecodeError, match="it is truncated"):
        read_varint(b"\1" * before + octets + b"\1", before, before + len(octets), malformed)


@each("octets", [b"\xff" * 9 + b"\2", b"\x80" * 9 + b"\2", b"\x80" * 10, b"\x80" * 2**20 + b"\1"])
def test_integer_of_more_than_64_bits_is_rejected(octets):
    with pytest.raises(DecodeError, match="a number has more than 64 bits"):
        read_varint(octets, 0, len(octets), malformed)
