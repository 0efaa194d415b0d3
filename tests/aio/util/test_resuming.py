import asyncio
from contextlib import aclosing

import pytest

from ce_nats.aio._util.resuming import Resumable


def counting(last):
    """Numbers up to ``last``, and the generators that yield them."""
    following, generators = 1, []

    async def rest():
        nonlocal following
        while following <= last:
            await asyncio.sleep(0)
            number, following = following, following + 1
            yield number

    def generate():
        generators.append(rest())
        return generators[-1]

    return Resumable(generate, lambda: None), generators


async def test_iteration_without_a_cancellation_uses_one_generator():
    numbers, generators = counting(5)
    assert [number async for number in numbers] == [1, 2, 3, 4, 5]
    assert [number async for number in numbers] == []
    assert len(generators) == 1


async def test_cancelled_iteration_continues_with_another_generator():
    numbers, generators = counting(5)
    assert await anext(numbers) == 1
    waiting = asyncio.create_task(anext(numbers))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [number async for number in numbers] == [2, 3, 4, 5]
    assert len(generators) == 2


async def test_exception_ends_the_iteration():
    async def fail():
        yield 1
        raise ValueError("broken")

    numbers = Resumable(fail, lambda: None)
    assert await anext(numbers) == 1
    with pytest.raises(ValueError, match="broken"):
        await anext(numbers)
    assert [number async for number in numbers] == []


@pytest.mark.parametrize("taken", [0, 1])
async def test_closed_generator_yields_nothing(taken):
    numbers, generators = counting(5)
    async with aclosing(numbers):
        for _ in range(taken):
            await anext(numbers)
    assert [number async for number in numbers] == []
    assert len(generators) == taken


@pytest.mark.parametrize("taken", [0, 1])
async def test_thrown_exception_reaches_the_generator(taken):
    numbers, _ = counting(5)
    for _ in range(taken):
        await anext(numbers)
    with pytest.raises(KeyError):
        await numbers.athrow(KeyError())
    assert [number async for number in numbers] == []


@pytest.mark.parametrize("is_closed", [True, False])
async def test_deletion_of_an_open_generator_is_reported(is_closed):
    dropped = []

    async def count():
        yield 1
        yield 2

    numbers = Resumable(count, lambda: dropped.append(True))
    async for _ in numbers:
        break
    if is_closed:
        await numbers.aclose()
    del numbers
    assert dropped == ([] if is_closed else [True])
