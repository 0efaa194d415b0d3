"""The event loop for synchronous code."""

import asyncio
import threading
from contextlib import aclosing

import pytest

from ce_nats.spark.connector._blocking import Blocking, in_thread


async def count(to, closed):
    try:
        for number in range(to):
            await asyncio.sleep(0)
            yield number
    finally:
        closed.append(True)


def test_coroutines_share_a_loop():
    async def loop():
        return asyncio.get_running_loop()

    with Blocking() as blocking:
        assert blocking.run(loop()) is blocking.run(loop())


def test_errors_are_raised_to_the_caller():
    async def fail():
        raise KeyError("x")

    with Blocking() as blocking, pytest.raises(KeyError):
        blocking.run(fail())


def test_an_iteration_closes_its_generator():
    closed = []
    with Blocking() as blocking:
        assert list(blocking.iterate(count(3, closed))) == [0, 1, 2]
        assert closed == [True]
        items = blocking.iterate(count(3, closed))
        assert next(items) == 0
        items.close()
        assert closed == [True, True]


def test_tasks_end_with_the_loop():
    ended = []

    async def forever():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def leave_a_task():
        tasks.append(asyncio.create_task(forever()))
        await asyncio.sleep(0)

    tasks = []
    with Blocking() as blocking:
        blocking.run(leave_a_task())
    assert ended == [True]
    blocking.close()


def test_threads_have_separate_loops():
    found = []

    def work():
        with Blocking() as blocking:
            found.extend(blocking.iterate(count(2, [])))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(found) == [0] * 4 + [1] * 4


async def collected(items):
    return [item async for item in in_thread(items)]


def test_items_of_a_thread_are_in_order():
    threads = set()

    def items():
        for number in range(1000):
            threads.add(threading.get_ident())
            yield number

    with Blocking() as blocking:
        assert blocking.run(collected(items())) == list(range(1000))
        assert blocking.run(collected(iter(()))) == []
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_the_loop_runs_while_a_thread_waits():
    ready = threading.Event()

    def items():
        assert ready.wait(60)
        yield 1

    async def run():
        asyncio.get_running_loop().call_later(0.01, ready.set)
        return await collected(items())

    with Blocking() as blocking:
        assert blocking.run(run()) == [1]


def test_an_exception_of_a_thread_is_raised_after_its_items():
    def items():
        yield 1
        raise ValueError("no more rows")

    async def run():
        numbers = in_thread(items())
        assert await anext(numbers) == 1
        await anext(numbers)

    with Blocking() as blocking, pytest.raises(ValueError, match="no more rows"):
        blocking.run(run())


def test_an_abandoned_thread_ends():
    produced = []

    def items():
        for number in range(1_000_000):
            produced.append(threading.current_thread())
            yield number

    async def run():
        async with aclosing(in_thread(items())) as numbers:
            async for _ in numbers:
                return

    with Blocking() as blocking:
        blocking.run(run())
    produced[0].join(60)
    assert not produced[0].is_alive()
    assert len(produced) < 10
