"""The event loop for synchronous code."""

import asyncio
import threading

import pytest

from ce_nats.spark.connector._blocking import Blocking


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
