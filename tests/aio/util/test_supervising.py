import asyncio
import contextlib
import logging

import pytest

from ce_nats import DeliveryError
from ce_nats.aio._util.supervising import CancellableTask, call_plain, supervise


async def _raise(error):
    await asyncio.sleep(0)
    raise error


async def _wait(tasks):
    await asyncio.wait(tasks)
    await asyncio.sleep(0)


@pytest.mark.parametrize("cause", [RuntimeError("broken"), asyncio.CancelledError()], ids=["error", "cancelled"])
async def test_failure_is_logged_and_reported(caplog, cause):
    failures = []
    await _wait([supervise(_raise(cause), "the publisher", failures.append)])
    (error,) = failures
    assert isinstance(error, DeliveryError)
    assert error.code == "delivery-failed"
    assert error.message == f"the publisher: a background task failed: {cause!r}"
    assert type(error.__cause__) is type(cause)
    (record,) = caplog.records
    assert (record.levelno, record.message) == (logging.ERROR, "the publisher: a background task failed")
    assert record.exc_info[0] is type(cause)


async def test_cancelled_and_finished_tasks_are_not_failures(caplog):
    failures = []
    cancelled = supervise(asyncio.sleep(60), "a", failures.append)
    finished = supervise(asyncio.sleep(0), "b", failures.append)
    await asyncio.sleep(0)
    cancelled.cancel()
    await _wait([cancelled, finished])
    assert cancelled.cancelled()
    assert not failures
    assert not caplog.records


async def test_requests_for_cancellation_are_counted():
    """Also on Python 3.10, where tasks do not count them."""
    task = CancellableTask(asyncio.sleep(60), loop=asyncio.get_running_loop())
    assert task.cancelling() == 0
    task.cancel()
    assert task.cancelling() == 1
    await asyncio.wait([task])
    assert task.cancelled()


async def test_survived_requests_are_taken_back():
    async def survive():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        asyncio.current_task().take_back(0)
        return asyncio.current_task().cancelling()

    task = CancellableTask(survive(), loop=asyncio.get_running_loop())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == 0


def test_cancelled_error_of_a_plain_function_is_its_failure():
    def check(value):
        raise asyncio.CancelledError

    with pytest.raises(DeliveryError, match=r"^handler-cancelled: check raised CancelledError, and is not async$"):
        call_plain("check", check, 1)
    assert call_plain("str", str, 1) == "1"
