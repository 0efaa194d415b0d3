"""The bridge from an asynchronous iterator to threads."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from ce_nats import DeliveryError
from ce_nats.aio._util.thread_queue import ThreadQueue
from ce_nats.sync._bridge import ThreadBridge
from ce_nats.sync._loop import current
from tests.support.synchronous import SECONDS


def started(items, limit=10, on_wake=None):
    bridge = ThreadBridge(current(), ThreadQueue(), limit, "orders", on_wake)

    async def start():
        bridge.start(items())

    current().run(start)
    return bridge


@pytest.mark.parametrize("cause", [asyncio.CancelledError(), RuntimeError("broken")], ids=["cancelled", "error"])
def test_exception_of_the_iterator_reaches_every_thread(cause, caplog):
    """Also a CancelledError, which does not come from a cancellation."""

    async def items():
        yield 1
        await asyncio.sleep(0)
        raise cause

    bridge = started(items)
    assert bridge.take(SECONDS) == [1]
    bridge.take(SECONDS).clear()
    with ThreadPoolExecutor(3) as pool:
        errors = [one.exception(SECONDS) for one in [pool.submit(bridge.take, SECONDS) for _ in range(3)]]
    if isinstance(cause, RuntimeError):
        assert errors == [cause] * 3
    else:
        assert [str(error) for error in errors] == [
            "delivery-failed: orders: a background task failed: CancelledError()"
        ] * 3
        assert [record.getMessage() for record in caplog.records] == ["orders: a background task failed"]


def test_iterator_is_read_ahead_up_to_the_limit():
    read = []

    async def items():
        for number in range(1000):
            read.append(number)
            yield number

    bridge, taken = started(items, limit=10), []
    for number in range(1000):
        hand = bridge.take(SECONDS)
        taken += hand
        hand.clear()
        assert len(read) <= number + 1 + 11
    assert taken == list(range(1000))


def test_cancelled_reading_is_not_a_failure(caplog):
    async def items():
        await asyncio.Event().wait()
        yield 1

    bridge = started(items)
    current().run(bridge.stop)
    with pytest.raises(StopIteration):
        bridge.take(SECONDS)
    assert not caplog.records


def test_error_is_a_delivery_error():
    async def items():
        raise asyncio.CancelledError
        yield

    with pytest.raises(DeliveryError) as caught:
        started(items).take(SECONDS)
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)


def test_with_a_hook_the_first_item_is_read_on_demand():
    """The hook may change the number of items that are read ahead."""
    read, wakes = [], []

    async def items():
        for number in range(100):
            read.append(number)
            yield number

    def on_wake():
        wakes.append(len(wakes))
        bridge.limit = 8

    async def wait():
        await asyncio.sleep(0.05)

    bridge = started(items, 1, on_wake)
    current().run(wait)
    assert (read, wakes) == ([], [])
    bridge.take(SECONDS).clear()
    current().run(wait)
    assert len(read) == 8
    assert wakes == [0]
    for _ in range(99):
        bridge.take(SECONDS).clear()
    assert len(wakes) < 40
