"""Fill a stream, and read it through a consumer, and one by one through the API."""

import pytest
from nats.js.errors import NoStreamResponseError

from ce_nats.aio.jetstream import read_stream
from ce_nats.aio.reading import _range_reader as ranges
from tests.support.waiting import until


async def publish_all(js, messages):
    """
    Store messages in one stream, as (subject, payload) or (subject, payload, headers), and check that all are stored.

    The first one is published again while the server does not know yet who stores it: other servers hear of a new
    stream later. The server refuses messages if it has too many that it has not stored yet: every 1,000th is awaited.
    """
    messages = [(*message, None)[:3] for message in messages]
    first = last = await until(lambda: _stored(js, *messages[0]))
    for number, (subject, payload, headers) in enumerate(messages[1:], 2):
        if number % 1000 == 0 or number == len(messages):
            last = await _stored(js, subject, payload, headers)
        else:
            await js._nc.publish(subject, payload, headers=headers)
    assert last.seq - first.seq == len(messages) - 1


async def _stored(js, subject, payload, headers):
    try:
        return await js.publish(subject, payload, headers=headers)
    except NoStreamResponseError:
        return None


async def until_stream(js, stream, condition):
    """Wait until the state of a stream meets a condition."""

    async def is_met():
        return condition((await js.stream_info(stream)).state)

    await until(is_met)


async def until_stored(js, stream, count):
    """Wait until a stream has stored a number of messages: a PONG means received, not yet stored."""
    await until_stream(js, stream, lambda state: state.last_seq >= count)


async def read(js, stream, **options):
    """Return all messages of :func:`read_stream` in one list."""
    return [message async for batch in read_stream(js, stream, **options) for message in batch]


async def fetch(subscription, count, timeout=60):
    """
    Return exactly `count` messages of a pull subscription.

    `subscription.fetch(count)` returns fewer messages if the others come later, or if the server, which confirms a
    publish before it tells consumers, does not know yet that there are more.
    """
    return [message for _ in range(count) for message in await subscription.fetch(1, timeout=timeout)]


@pytest.fixture(params=["consumer", "one by one"])
def way(request, monkeypatch):
    """Read through a consumer, and one by one, which is the default for a few messages."""
    monkeypatch.setattr(ranges, "_FEW", 0 if request.param == "consumer" else 2**63)
    return request.param
