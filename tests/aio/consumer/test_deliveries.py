"""Messages that the program does not handle: released at the end."""

import pytest

from ce_nats.aio import jetstream as ce_js
from tests.support.consuming import consume, is_settled, number_of, publish, take

__all__ = ["consume", "is_settled", "publish"]


@pytest.mark.parametrize("prefetch", [1, 10])
async def test_unhandled_messages_are_released_at_once(publish, consume, is_settled, prefetch):
    await publish(*range(20))
    async with consume(prefetch=prefetch) as first:
        async with await take(first) as event:
            assert number_of(event) == 0
        given_out = await take(first)
    assert given_out.is_settled
    rest = set()
    async with consume() as second:
        while len(rest) < 19:
            async with await take(second) as event:
                rest.add(number_of(event))
    assert rest == set(range(1, 20))
    await is_settled()


async def test_messages_in_transit_are_released_at_once(js, subject, stream, make_event, consume, is_settled):
    """Events are so large that most are in transit when the first one arrives."""
    for number in range(30):
        await ce_js.publish(js, make_event(number, b"x" * 400_000), subject)
    async with consume() as first:
        await take(first)
    numbers = set()
    async with consume() as second:
        while len(numbers) < 30:
            async with await take(second) as event:
                numbers.add(number_of(event))
    await is_settled()
