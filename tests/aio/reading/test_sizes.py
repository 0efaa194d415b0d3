"""The number of messages that a number of bytes has, with a real server."""

import pytest

from ce_nats._ranges import StreamRange
from ce_nats.aio._jetstream_api import StreamApi
from ce_nats.aio.reading._sizes import fitting
from ce_nats.wire.nats import encode_header_block

HEADERS = {"Nats-Msg-Size": "1000000", "a": "b"}  # of a copy that was republished


@pytest.fixture
async def api(nc, js, stream, subject):
    """Ten messages of 100 bytes with their subject, and one with headers; the fourth is deleted."""
    for _ in range(10):
        await js.publish(subject, bytes(100 - len(subject)))
    await js.publish(subject, b"x", headers=HEADERS)
    await js.delete_msg(stream, 4)
    return StreamApi(nc)


def size_with_headers(subject):
    return len(subject) + len(encode_header_block([*HEADERS.items()])) + 1


@pytest.mark.parametrize(
    ("size", "expected"), [(1, (1, 100)), (100, (1, 100)), (399, (4, 300)), (899, (9, 800)), (900, (10, 900))]
)
async def test_messages_fit_into_a_number_of_bytes(api, stream, size, expected):
    assert await fitting(api, StreamRange(stream, 1, 11), size, 5) == expected


async def test_a_range_may_fit_as_a_whole(api, stream, subject):
    size = size_with_headers(subject)
    assert await fitting(api, StreamRange(stream, 10, 11), size + 100, 5) == (11, size + 100)
    assert await fitting(api, StreamRange(stream, 10, 11), size + 99, 5) == (10, 100)
    assert await fitting(api, StreamRange(stream, 4, 4), 1, 5) == (4, 0)
    assert await fitting(api, StreamRange(stream, 1, 11, subjects=("other",)), 1, 5) == (11, 0)


async def test_messages_that_are_lost_have_no_size(api, js, stream):
    await js.purge_stream(stream, seq=8)
    assert await fitting(api, StreamRange(stream, 1, 10), 200, 5) == (9, 200)
