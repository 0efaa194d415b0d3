"""Fill a stream, and read it through a consumer, and one by one through the API."""

import pytest

from ce_nats.aio import flush
from ce_nats.aio.jetstream import read_stream
from ce_nats.aio.reading import _range_reader as ranges


async def publish_all(js, messages):
    """
    Publish pairs of subject and payload, and wait for every 1,000th acknowledgement.

    The server refuses messages if it has too many that it has not stored yet.
    """
    for number, (subject, payload) in enumerate(messages, 1):
        await (js if number % 1000 == 0 else js._nc).publish(subject, payload)
    await flush(js._nc)


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
