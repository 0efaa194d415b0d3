import asyncio

import pytest

from ce_nats.aio._util.finishing import finish


@pytest.mark.parametrize("cancellations", [0, 1, 3])
async def test_work_is_finished_also_if_the_caller_is_cancelled(cancellations):
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work():
        begun.set()
        await may_end.wait()
        ended.set()

    caller = asyncio.create_task(finish(work(), "orders", 60))
    await begun.wait()
    for _ in range(cancellations):
        caller.cancel()
        await asyncio.sleep(0)
    assert caller.done() == (cancellations > 0)
    may_end.set()
    await asyncio.wait_for(ended.wait(), 30)
    await asyncio.gather(caller, return_exceptions=True)
    assert caller.cancelled() == (cancellations > 0)


async def test_caller_continues_after_its_seconds():
    may_end, ended = asyncio.Event(), asyncio.Event()

    async def work():
        await may_end.wait()
        ended.set()

    await asyncio.wait_for(finish(work(), "orders", 0.01), 30)
    may_end.set()
    await asyncio.wait_for(ended.wait(), 30)


async def test_exception_of_the_work_is_logged(caplog):
    async def work():
        raise RuntimeError("broken")

    await finish(work(), "orders", 30)
    assert [record.getMessage() for record in caplog.records] == ["orders: a background task failed"]
