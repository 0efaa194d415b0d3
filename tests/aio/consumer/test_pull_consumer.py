import asyncio
from typing import Any

import pytest

from ce_nats import EncodeError
from tests.support.consuming import acks, after, consume, is_settled, number_of, publish, take

__all__ = ["acks", "consume", "is_settled", "publish"]


# --- Events, errors and limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"prefetch": 1}, {"double_ack": True}])
async def test_each_event_is_handled_and_acknowledged(publish, consume, is_settled, options):
    await publish(*range(200))
    numbers = []
    async with consume(**options) as consumer:
        async for delivery in consumer:
            async with delivery as event:
                numbers.append(number_of(event))
            assert (delivery.sequence, delivery.deliveries) == (len(numbers), 1)
            if len(numbers) == 200:
                break
    assert numbers == list(range(200))
    await is_settled()


async def test_exception_in_on_error_does_not_stop_the_consumer(publish, consume, is_settled, caplog):
    await publish(1, 2)

    def fail(error, delivery):
        raise KeyError("hook")

    async with consume(on_error=fail) as consumer:
        seen = []

        async def handle(delivery):
            seen.append(delivery.sequence)
            if len(seen) == 1:
                raise OSError("disk")
            if len(seen) == 3:
                consumer.stop()

        await after(consumer.run(handle))
    assert sorted(seen) == [1, 1, 2]
    assert "must not raise" in caplog.text
    await is_settled()


# --- Cancelling and stopping -----------------------------------------------------------------------------------------


async def test_cancelled_anext_loses_no_message(js, subject, publish, consume, dead_letters, is_settled):
    """Cancelled at each await while a dead letter is stored and an event arrives."""
    async with consume() as consumer:
        delivery = None
        for turns in range(60):
            if turns == 10:
                await js.publish(subject, b"no event")
                await publish(2)
            reader = asyncio.create_task(anext(consumer))
            for _ in range(turns):
                await asyncio.sleep(0)
            reader.cancel()
            got: Any = (await asyncio.gather(reader, return_exceptions=True))[0]
            if not isinstance(got, asyncio.CancelledError):
                delivery = got
                break
        async with delivery or await take(consumer) as event:
            assert number_of(event) == 2
        await is_settled()
    await dead_letters(1)


async def test_stop_lets_handlers_finish(publish, consume, is_settled):
    """The others are returned, and handled by the next consumer: once, or twice with nats-server before 2.11."""
    await publish(*range(10))
    handled = []

    async with consume() as consumer:

        async def handle(delivery):
            consumer.stop()
            await asyncio.sleep(0)
            handled.append(number_of(delivery.event))

        await after(consumer.run(handle))
        with pytest.raises(StopAsyncIteration):
            await anext(consumer)
    assert handled == [0]
    async with consume() as consumer:
        async for delivery in consumer:
            async with delivery as event:
                handled.append(number_of(event))
            if set(handled) == set(range(10)):
                consumer.stop()
    await is_settled()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"dead_letter": "dead.>"}, EncodeError),
        ({"name": "a.b"}, EncodeError),
        ({"name": "a b"}, EncodeError),
        ({"prefetch": 0}, ValueError),
        ({"max_deliveries": 0}, ValueError),
        ({"backoff": []}, ValueError),
        ({"dialect": "esperanto"}, ValueError),
        ({"mode": "batch"}, ValueError),
        ({"extension_types": 5}, TypeError),
    ],
)
async def test_invalid_options_are_rejected(consume, options, error):
    with pytest.raises(error):
        consume(**options)


async def test_options_are_passed_to_the_decoder(js, subject, stream, consume):
    await js.publish(
        subject,
        b"[1]",
        headers={
            "ce-specversion": "1.0",
            "ce-id": "event%201 100%",
            "ce-source": "s",
            "ce-type": "t",
            "ce-n": "5",
            "content-type": "application/json",
        },
    )
    options = {"dialect": "sdk-go", "parse_data": False, "extension_types": {"n": int}}
    async with consume(**options) as consumer, await take(consumer) as event:
        assert (event.get_id(), event.get_extension("n"), event.get_data()) == ("event%201 100%", 5, b"[1]")
