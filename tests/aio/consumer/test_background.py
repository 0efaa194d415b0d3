"""Messages are settled beside handlers, so that dead letters delay no events."""

import asyncio

import pytest

from ce_nats.aio.consumer._background import Background
from ce_nats.aio.consumer._running import Running
from ce_nats.errors import Reject
from tests.support.consuming import after, consume, is_settled, number_of, publish
from tests.support.waiting import until

__all__ = ["consume", "is_settled", "publish"]


@pytest.fixture
async def slow(nc, subject):
    """Subject of a stream that stores nothing until :meth:`answer` is called; then it has stored all messages."""

    class Slow:
        name, waiting = f"slow.{subject}", []

        async def answer(self):
            self.is_open = True
            for message in self.waiting:
                await message.respond(b'{"stream":"SLOW","seq":1}')

    slow = Slow()
    slow.is_open = False

    async def receive(message):
        slow.waiting.append(message)
        if slow.is_open:
            await message.respond(b'{"stream":"SLOW","seq":1}')

    await nc.subscribe(slow.name, cb=receive)
    await nc.flush()
    return slow


def handling(consumer, handled, answer):
    """Return handlers of deliveries and of batches, which reject negative numbers, and stop after five events."""

    async def note(number):
        handled.append(number)
        if len(handled) == 5:
            await answer()
            consumer.stop()

    async def handle(delivery):
        if number_of(delivery.event) < 0:
            raise Reject
        await note(number_of(delivery.event))

    async def handle_batch(batch):
        for index, event in enumerate(batch):
            if number_of(event) < 0:
                batch.reject(index)
            else:
                await note(number_of(event))

    return handle, handle_batch


@pytest.mark.parametrize("way", ["run", "key", "batches"])
async def test_events_do_not_wait_for_dead_letters(js, subject, slow, publish, consume, is_settled, way):
    """Of messages that are not events, and of rejected ones."""
    await js.publish(subject, b"no event")
    await publish(-1)
    await js.publish(subject, b"no event")
    await publish(*range(5))
    handled, errors = [], []
    options = {"dead_letter": slow.name, "check_dead_letter": False, "on_error": lambda error, _: errors.append(error)}
    async with consume(**options) as consumer:
        handle, handle_batch = handling(consumer, handled, slow.answer)
        if way == "batches":
            await after(consumer.run_batches(handle_batch, max_events=2))
        else:
            key = None if way == "run" else lambda delivery: number_of(delivery.event)
            await after(consumer.run(handle, key=key))
    assert sorted(handled) == [*range(5)]
    assert len(slow.waiting) == 3
    assert all(isinstance(error, Reject) for error in errors)
    await is_settled()


@pytest.mark.parametrize("is_event", [True, False])
async def test_message_is_released_if_run_is_cancelled_while_its_dead_letter_is_stored(
    js, subject, slow, publish, consume, dead_letters, is_event
):
    await (publish(1) if is_event else js.publish(subject, b"no event"))

    async def handle(_):
        raise Reject

    async with consume(dead_letter=slow.name, check_dead_letter=False) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: slow.waiting)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await after(running)
    async with consume() as consumer:
        running = asyncio.create_task(consumer.run(handle))
        assert len(await dead_letters(1)) == 1
        consumer.stop()
        await after(running)


async def test_run_returns_when_dead_letters_are_stored(publish, consume, dead_letters):
    await publish(1)

    async def handle(delivery):
        consumer.stop()
        raise Reject

    async with consume() as consumer:
        await after(consumer.run(handle))
        assert len(await dead_letters(1)) == 1


async def test_number_of_tasks_is_limited():
    background, may_end, ended = Background(Running("consumer")), asyncio.Event(), []

    async def work(number):
        await may_end.wait()
        ended.append(number)

    for number in range(64):
        await background.run(work(number))
    last = asyncio.ensure_future(background.run(work(64)))
    await asyncio.sleep(0)
    assert not last.done()
    may_end.set()
    await after(last)
    await after(background.finish())
    assert sorted(ended) == [*range(65)]


async def test_task_that_has_not_begun_is_cancelled_at_its_first_await():
    background, cancelled = Background(Running("consumer")), []

    async def work():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    await background.run(work())
    await after(background.cancel())
    assert cancelled == [True]
