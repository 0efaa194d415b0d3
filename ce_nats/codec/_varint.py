"""Integers of variable length, of which the records of protocol buffers consist: for the codec and ``ce_nats.stan``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..errors import DecodeError

_LAST_SINGLE: Final = 0x7F  # the largest integer of one byte
_MAX_BYTES: Final = 10
_LIMIT: Final = 2**64


def read_varint(octets: bytes, position: int, end: int, malformed: Callable[[str], DecodeError]) -> tuple[int, int]:
    """
    Return the integer at a position, and the position after it.

    Raises:
        DecodeError: From ``malformed``: the integer is truncated, or has more than 64 bits.
    """
    if position < end and octets[position] <= _LAST_SINGLE:
        return octets[position], position + 1
    value = 0
    for index, byte in enumerate(octets[position : min(end, position + _MAX_BYTES)]):
        value |= (byte & _LAST_SINGLE) << 7 * index
        if byte <= _LAST_SINGLE and value < _LIMIT:  # only the tenth byte can exceed it
            return value, position + index + 1
    if end - position < _MAX_BYTES:
        raise malformed("it is truncated")
    raise malformed("a number has more than 64 bits")
