"""Handlers that PullConsumer.run() calls: concurrent, failing, cancelled, and hanging."""

import asyncio
import contextlib
import functools
import logging
import socket
import sys
from collections import Counter
from types import LambdaType

import anyio
import httpx
import pytest

from ce_nats import DeliveryError
from ce_nats.aio import PullConsumer, Reject
from ce_nats.redelivery import DeadLetter
from tests.support.consuming import SECONDS, acks, after, consume, is_settled, number_of, publish
from tests.support.waiting import until

__all__ = ["acks", "consume", "is_settled", "publish"]


async def test_handlers_run_concurrently(publish, consume, is_settled):
    await publish(*range(40))
    running, most, numbers = set(), [], []

    async with consume() as consumer:
        four = asyncio.Event()

        async def handle(delivery):
            event = delivery.event
            running.add(number_of(event))
            most.append(len(running))
            if len(running) == 4:
                four.set()
            await after(four.wait())
            running.remove(number_of(event))
            numbers.append(number_of(event))
            if len(numbers) == 40:
                consumer.stop()

        await after(consumer.run(handle, concurrency=4))
    assert max(most) == 4
    assert sorted(numbers) == list(range(40))
    await is_settled()


async def test_failures_of_handlers_are_reported_and_others_continue(publish, consume, is_settled, dead_letters):
    await publish(*range(5))
    reported, handled = [], []

    def report(error, delivery):
        reported.append((type(error).__name__, delivery.sequence, delivery.deliveries))

    async with consume(on_error=report) as consumer:

        async def handle(delivery):
            event = delivery.event
            number = number_of(event)
            if number == 1 and ("KeyError", 2, 1) not in reported:
                raise KeyError(number)
            if number == 2:
                raise Reject("no")
            handled.append(number)
            if len(handled) == 4:
                consumer.stop()

        await after(consumer.run(handle))
    assert sorted(handled) == [0, 1, 3, 4]
    assert reported == [("KeyError", 2, 1), ("Reject", 3, 1)]
    await dead_letters(1)
    await is_settled()


async def test_failures_are_logged_with_fields_for_structured_logs(publish, consume, subject, stream, caplog):
    await publish(1)
    async with consume() as consumer:

        async def handle(delivery):
            consumer.stop()
            raise KeyError("customer")

        with caplog.at_level(logging.ERROR, "ce_nats"):
            await after(consumer.run(handle))
    (record,) = caplog.records
    assert f"sequence 1, delivery 1, subject '{subject}', id 'event 1', source '" in record.getMessage()
    assert record.getMessage().endswith(": KeyError: 'customer'; redelivered at once")
    assert record.exc_info[0] is KeyError
    fields = {name: value for name, value in vars(record).items() if "." in name}
    assert fields == {
        "messaging.destination.name": subject,
        "messaging.consumer.group.name": "c",
        "ce_nats.stream": stream,
        "ce_nats.sequence": 1,
        "ce_nats.deliveries": 1,
        "cloudevents.event_id": "event 1",
        "cloudevents.event_source": "/tests",
        "cloudevents.event_spec_version": "1.0",
        "cloudevents.event_type": "com.example.test",
        "error.type": "KeyError",
    }


async def test_rejections_are_logged_in_one_line(publish, consume, caplog):
    await publish(1)
    async with consume() as consumer:

        async def handle(delivery):
            consumer.stop()
            raise Reject("no such customer")

        await after(consumer.run(handle))
    (record,) = caplog.records
    assert ": Reject: no such customer; dead-lettered to " in record.getMessage()
    assert record.exc_info is None


async def test_cancelled_run_cancels_its_handlers(publish, consume, acks):
    await publish(1)
    async with consume(backoff=[100]) as consumer:
        entered = asyncio.Event()

        async def handle(delivery):
            entered.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(consumer.run(handle, concurrency=2))
        await after(entered.wait())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await after(acks.get()) == b"-NAK"


# --- Handlers that are not async -------------------------------------------------------------------------------------


async def later(delivery):
    """An async function."""


class Service:
    async def __call__(self, delivery):
        """A callable object with an async __call__."""

    async def method(self, delivery):
        """An async bound method."""


@functools.wraps(later)
def decorated(delivery):
    return later(delivery)


async def generate(delivery):
    yield delivery


@pytest.mark.parametrize(
    "handler",
    [lambda delivery: None, print, generate, 5, None, functools.partial(print, 1), Service, Service.__call__.__get__],
    ids=["lambda", "builtin", "generator", "number", "None", "partial", "class", "wrapper"],
)
async def test_handlers_that_are_not_async_are_rejected(publish, consume, handler):
    """Before the first call; a lambda after it, because only its result shows what it returns."""
    await publish(1)
    async with consume() as consumer:
        with pytest.raises(TypeError, match=r"^handler must be an async function \(async def\), got "):
            await consumer.run(handler)
        is_called = isinstance(handler, LambdaType) and handler.__name__ == "<lambda>"
        assert (await after(anext(consumer))).deliveries == (2 if is_called else 1)


@pytest.mark.parametrize(
    "handler",
    [
        *(later, Service(), Service().method, functools.partial(later), functools.partial(Service()), decorated),
        lambda delivery: later(delivery),
    ],
    ids=["function", "object", "method", "partial", "partial-object", "decorated", "lambda"],
)
async def test_any_async_callable_is_a_handler(publish, consume, is_settled, handler):
    await publish(1)
    async with consume() as consumer:
        running = asyncio.create_task(consumer.run(handler))
        await is_settled()
        consumer.stop()
        await after(running)


@pytest.mark.parametrize("hook", ["on_error", "on_outcome"])
async def test_async_hooks_are_rejected(js, hook):
    """Nothing would await them, so errors and outcomes would be lost."""
    with pytest.raises(TypeError, match=f"^{hook} must be a function that is not async"):
        PullConsumer(js, "S", "c", dead_letter=None, **{hook: later})


# --- Cancellation inside a handler -----------------------------------------------------------------------------------


async def test_cancelled_inner_task_is_a_failure_of_the_handler(publish, consume, is_settled, dead_letters):
    await publish(1, 2)
    reported, handled = [], []

    async def handle(delivery):
        if delivery.sequence == 1:
            inner = asyncio.create_task(asyncio.Event().wait())
            asyncio.get_running_loop().call_soon(inner.cancel)
            await inner
        handled.append(delivery.sequence)

    options = {
        "max_deliveries": 2,
        "on_error": lambda error, delivery: reported.append((error.code, delivery.deliveries)),
    }
    async with consume(**options) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=2))
        (letter,) = await dead_letters(1)
        await is_settled()
        assert not running.done()
        consumer.stop()
        await after(running)
    assert handled == [2]
    assert reported == [("handler-cancelled", 1), ("handler-cancelled", 2)]
    assert DeadLetter.split(letter.headers)[0].error == "handler-cancelled"


async def _after_move_on(delivery):
    with anyio.move_on_after(0.001):
        await anyio.sleep(60)


async def _in_fail_after(delivery):
    with anyio.fail_after(0.001):
        await anyio.sleep(60)


async def _in_wait_for(delivery):
    await asyncio.wait_for(asyncio.sleep(60), 0.001)


async def _in_timeout(delivery):
    async with asyncio.timeout(0.001):
        await asyncio.sleep(60)


async def _after_timeout(delivery):
    with contextlib.suppress(TimeoutError):
        await _in_timeout(delivery)


async def _in_task_group(delivery):
    async def fail():
        raise KeyError("child")

    async with asyncio.TaskGroup() as group:
        group.create_task(fail())
        await asyncio.sleep(60)


async def _in_anyio_task_group(delivery):
    async def fail():
        raise KeyError("child")

    async with anyio.create_task_group() as group:
        group.start_soon(fail)
        await anyio.sleep(60)


async def _in_httpx(delivery):
    """A request to a server that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        async with httpx.AsyncClient(timeout=0.05) as client:
            await client.get(f"http://127.0.0.1:{server.getsockname()[1]}/")


async def _in_uncounted_timeout(delivery):
    """As libraries of the time before Python 3.11: they cancel the task, and do not take this back."""
    asyncio.get_running_loop().call_later(0.001, asyncio.current_task().cancel)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError as error:
        raise TimeoutError from error


async def _in_cancelled_task(delivery):
    inner = asyncio.create_task(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(inner.cancel)
    await inner


_SINCE_311 = [_in_timeout, _after_timeout, _in_task_group]
_INTERRUPTIONS = [
    *(_after_move_on, _in_fail_after, _in_wait_for, _in_anyio_task_group, _in_httpx, _in_uncounted_timeout),
    *(_in_cancelled_task, *(_SINCE_311 if sys.version_info >= (3, 11) else ())),
]


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("interrupt", _INTERRUPTIONS, ids=lambda function: function.__name__)
async def test_handlers_with_timeouts_are_called_with_all_events(publish, consume, is_settled, interrupt, concurrency):
    """Each fails, or catches its timeout, at its first attempt; run() continues until it is stopped."""
    await publish(*range(12))
    calls = Counter()

    async def handle(delivery):
        calls[delivery.sequence] += 1
        if calls[delivery.sequence] == 1:
            await interrupt(delivery)

    async with consume(on_error=lambda error, delivery: None) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=concurrency))
        await is_settled()
        assert not running.done()
        consumer.stop()
        await after(running)
    assert sorted(calls) == list(range(1, 13))


@pytest.mark.parametrize("key", [None, lambda delivery: delivery.sequence % 2], ids=["no key", "key"])
async def test_each_kind_of_timeout_in_turn(publish, consume, is_settled, dead_letters, key):
    """With a key, too; and what has timed out for the last time is dead-lettered."""
    await publish(*range(40))

    async def handle(delivery):
        await _INTERRUPTIONS[delivery.sequence % len(_INTERRUPTIONS)](delivery)

    async with consume(on_error=lambda error, delivery: None, max_deliveries=2, pause_after=None) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=4, key=key))
        await is_settled()
        consumer.stop()
        await after(running)
    caught = (_after_move_on, _after_timeout)
    failing = [n for n in range(1, 41) if _INTERRUPTIONS[n % len(_INTERRUPTIONS)] not in caught]
    letters = [DeadLetter.split(letter.headers)[0] for letter in await dead_letters(len(failing))]
    assert sorted(letter.sequence for letter in letters) == failing
    assert {str(letter.reason) for letter in letters} == {"exhausted"}


def _raise_cancelled(*arguments):
    raise asyncio.CancelledError


@pytest.mark.parametrize("option", ["on_error", "on_outcome"])
async def test_hooks_that_raise_cancelled_error_are_logged(publish, consume, is_settled, caplog, option):
    await publish(*range(4))

    async def handle(delivery):
        if delivery.deliveries == 1:
            raise KeyError(delivery.sequence)

    async with consume(**{"on_error": lambda error, delivery: None, option: _raise_cancelled}) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await is_settled()
        consumer.stop()
        await after(running)
    assert {record.message for record in caplog.records} == {"a hook or an instrumentation must not raise"}
    assert {record.exc_info[0] for record in caplog.records} == {asyncio.CancelledError}


async def test_validation_that_raises_cancelled_error_is_a_failure(publish, consume, is_settled):
    await publish(1, 2)
    errors, handled = [], []

    def validate(event):
        if number_of(event) == 1 and not errors:
            raise asyncio.CancelledError

    async def handle(delivery):
        handled.append(number_of(delivery.event))

    async with consume(validate=validate, on_error=lambda error, delivery: errors.append(error)) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await is_settled()
        consumer.stop()
        await after(running)
    assert sorted(handled) == [1, 2]
    assert [(error.code, error.message) for error in errors] == [
        ("handler-cancelled", "validate raised CancelledError, and is not async")
    ]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs Task.uncancel()")
async def test_worker_that_another_task_cancels_ends_run_with_an_error(publish, consume, is_settled):
    """It must not end silently, as after stop()."""
    await publish(1, 2)

    async def handle(delivery):
        if delivery.deliveries == 1:
            asyncio.current_task().cancel()
        await asyncio.sleep(0)

    async with consume(backoff=[100]) as consumer:
        with pytest.raises(DeliveryError, match="neither run\\(\\) nor the consumer was stopped") as caught:
            await after(consumer.run(handle, concurrency=2))
    assert caught.value.code == "handler-cancelled"


async def test_end_of_the_event_loop_releases_messages(publish, consume, acks):
    """asyncio.run() cancels all tasks at once when its main task returns: that of run(), and those of handlers."""
    await publish(1, 2)
    entered = []
    before = asyncio.all_tasks()

    async def handle(delivery):
        entered.append(delivery)
        await asyncio.Event().wait()

    async with consume(backoff=[100]) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=2))
        await until(lambda: len(entered) == 2)
        for task in asyncio.all_tasks() - before:
            if task.get_coro().__qualname__.startswith(("Workers.", "PullConsumer.run")):
                task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await after(running)
        assert [await after(acks.get()) for _ in range(2)] == [b"-NAK"] * 2


async def test_handler_that_suppresses_cancellation_gets_no_further_message(publish, consume):
    await publish(1, 2)
    handled = []
    async with consume() as consumer:
        entered = asyncio.Event()

        async def handle(delivery):
            handled.append(delivery.sequence)
            entered.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return

        running = asyncio.create_task(consumer.run(handle))
        await after(entered.wait())
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await after(running)
    assert handled == [1]


# --- Handlers that do not return -------------------------------------------------------------------------------------


@pytest.fixture
def hang(publish, consume, monkeypatch):
    """Run a handler that never returns, and stop the consumer; returns the task of the run."""
    monkeypatch.setattr("ce_nats.aio.consumer._handlers._FIRST_LOG_SECONDS", 0.05)

    async def start(consumer, **options):
        await publish(1)
        entered = asyncio.Event()

        async def handle(delivery):
            entered.set()
            await asyncio.Event().wait()

        running = asyncio.create_task(consumer.run(handle, **options))
        await after(entered.wait())
        consumer.stop()
        return running

    return start


async def test_hanging_handlers_are_logged(consume, hang, subject, caplog):
    async with consume() as consumer:
        running = await hang(consumer)
        await until(lambda: len(caplog.records) >= 2, SECONDS)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    expected = f"waiting for handlers: sequence 1, delivery 1, subject '{subject}', id 'event 1', source"
    assert expected in caplog.records[0].getMessage()


async def test_hanging_handlers_are_cancelled_after_stop_timeout(consume, hang, acks, caplog):
    async with consume(backoff=[100]) as consumer:
        running = await hang(consumer, stop_timeout=0.2)
        await after(running)
        assert await after(acks.get()) == b"-NAK"
    assert "cancelling the handlers that still run: sequence 1, " in caplog.records[-1].getMessage()


async def test_stop_timeout_does_not_cancel_handlers_that_return_in_time(publish, consume, is_settled, caplog):
    await publish(1)
    async with consume() as consumer:

        async def handle(delivery):
            consumer.stop()
            await asyncio.sleep(0)

        await after(consumer.run(handle, stop_timeout=SECONDS))
    await is_settled()
    assert caplog.records == []


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"stop_timeout": -1}, {"stop_timeout": float("nan")}])
async def test_numbers_out_of_range_are_rejected(consume, options):
    async with consume() as consumer:
        with pytest.raises(ValueError, match=r" must be .* got "):
            await consumer.run(later, **options)
