"""Tasks that wait for messages: each message wakes one of them, and the end wakes all."""

import asyncio
import logging
import math

import pytest

from ce_nats import DeliveryError, ErrorCode, Reject
from ce_nats.aio.consumer._attempt import Attempt
from ce_nats.aio.consumer._running import Reporter, Running, Tally
from tests.aio.consumer.test_ledger import entry_of


async def waiting(running, number):
    tasks = [asyncio.create_task(running.wait()) for _ in range(number)]
    await asyncio.sleep(0)
    return tasks


async def woken(tasks):
    for _ in range(3):
        await asyncio.sleep(0)
    return [task.done() for task in tasks]


async def test_as_many_tasks_are_woken_as_there_are_messages():
    running = Running("c")
    tasks = await waiting(running, 3)
    running.wake(2)
    assert await woken(tasks) == [True, True, False]
    running.wake()
    assert await woken(tasks) == [True] * 3


async def test_task_that_was_woken_and_cancelled_wakes_another_one():
    running = Running("c")
    tasks = await waiting(running, 2)
    running.wake(1)
    tasks[0].cancel()
    assert await woken(tasks) == [True, True]
    assert tasks[0].cancelled()


async def test_cancelled_task_takes_no_turn():
    running = Running("c")
    tasks = await waiting(running, 2)
    tasks[0].cancel()
    await woken(tasks)
    running.wake(1)
    assert await woken(tasks) == [True, True]


@pytest.mark.parametrize("is_error", [True, False])
async def test_end_wakes_all_and_the_first_error_counts(is_error):
    running = Running("c")
    tasks = await waiting(running, 2)
    error = DeliveryError(ErrorCode.TIMEOUT, "1")
    if is_error:
        running.fail(error)
        running.fail(DeliveryError(ErrorCode.TIMEOUT, "2"))
    else:
        running.stop()
    assert await woken(tasks) == [True, True]
    assert running.has_ended
    assert running.error is (error if is_error else None)
    assert running.stopped.is_set() is not is_error


async def test_wait_is_limited():
    await asyncio.wait_for(Running("c").wait(0.01), 30)


def test_first_message_is_logged_and_then_their_number_each_minute():
    tally = Tally()
    assert tally.next_end == math.inf
    assert [tally.add("a", 0.0), tally.add("a", 1.0), tally.add("b", 2.0), tally.add("a", 59.0)] == [1, 0, 1, 0]
    assert tally.next_end == 60.0
    assert tally.collect(59.9) == []
    assert tally.collect(60.0) == [("a", 2)]
    assert tally.next_end == 62.0
    assert tally.collect(62.0) == []
    assert [tally.add("b", 63.0), tally.add("a", 64.0)] == [1, 0]
    assert tally.next_end == 120.0
    assert tally.collect(math.inf) == [("a", 1)]


def test_error_is_reported_to_the_hook_or_logged(caplog):
    seen = []
    Reporter("c", lambda error, delivery: seen.append(error)).report(KeyError(1), None)
    assert [type(error) for error in seen] == [KeyError]
    assert not caplog.records
    Reporter("consumer c", None).report(Reject("no"), None)
    Reporter("consumer c", None).report(KeyError(1), None)
    assert [record.getMessage() for record in caplog.records] == ["consumer c: Reject: no", "consumer c: KeyError: 1"]
    assert [record.exc_info is None for record in caplog.records] == [True, False]


def test_message_that_ends_is_always_logged(caplog):
    seen = []
    reporter = Reporter("consumer c", lambda error, delivery: seen.append(error))
    reporter.report(DeliveryError(ErrorCode.TIMEOUT, "late"), None, is_final=True)
    assert seen
    assert [record.getMessage() for record in caplog.records] == ["consumer c: timeout: late"]


def test_dropped_deliveries_are_logged_once(caplog):
    reporter = Reporter("consumer c", None)
    for sequence in (5, 6):
        reporter.report_dropped(Attempt(None, entry_of(sequence), None))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    text = "consumer c, sequence 5, delivery 1, subject 's': the program has dropped an unsettled delivery"
    assert record.getMessage().startswith(text)
