"""What a fast consumer must not lose: wake-ups, several consumers of a connection, strangers in its inbox, restarts."""

import asyncio
from contextlib import AsyncExitStack

import httpx
import nats
import pytest
from nats.js.api import ConsumerConfig

from ce_nats.aio import PullConsumer
from ce_nats.aio import jetstream as ce_js
from ce_nats.testing import NatsServer
from tests.support.broker import ignore
from tests.support.consuming import after, consume, is_settled, number_of, publish, take
from tests.support.listening import serving
from tests.support.waiting import until

__all__ = ["consume", "is_settled", "publish"]


@pytest.mark.parametrize("key", [None, lambda delivery: delivery.sequence], ids=["no key", "key"])
async def test_all_handlers_work_while_messages_wait(publish, consume, is_settled, key):
    """Messages arrive many at once, and each one has to wake a handler: here eight handlers wait for each other."""
    await publish(*range(1 + 80))
    handled, together = [], []
    async with consume(prefetch=256) as consumer:

        async def handle(delivery):
            handled.append(delivery.sequence)
            if len(handled) > 1:  # the first one is fetched alone
                await meet()
            if len(handled) == 81 and not together:
                consumer.stop()

        async def meet():
            met = asyncio.get_running_loop().create_future()
            together.append(met)
            if len(together) == 8:
                for one in together:
                    one.set_result(None)
                together.clear()
            await met

        await after(consumer.run(handle, concurrency=8, key=key))
    assert sorted(handled) == list(range(1, 82))
    await is_settled()


async def test_consumers_of_one_connection_do_not_mix_their_messages(js, stream, subject, make_event, dead, is_settled):
    count = 200
    for number in range(count):
        await ce_js.publish(js, make_event(number), subject)
    handled = {name: [] for name in ("a", "b", "c")}
    async with AsyncExitStack() as stack:
        tasks = []
        for name, numbers in handled.items():
            consumer = await stack.enter_async_context(
                PullConsumer(js, stream, name, dead_letter=dead, create=ConsumerConfig(), prefetch=len(name) * 20)
            )

            async def handle(delivery, numbers=numbers, consumer=consumer):
                numbers.append(number_of(delivery.event))
                if len(numbers) == count:
                    consumer.stop()

            tasks.append(asyncio.create_task(consumer.run(handle)))
        await after(asyncio.gather(*tasks))
    assert all(numbers == list(range(count)) for numbers in handled.values())
    for name in handled:
        await is_settled(name)


STRANGERS = [
    b"",
    b"$JS.ACK",
    b"$JS.ACK.S.c.1.2.3.4.5",
    b"$JS.ACK.S.c.one.2.3.4.5",
    b"$JS.ACK.S.c.1.99999999999999999999999.3.4.5",
    b"$JS.ACK.S.c.-1.2.3.4.5",
    b"$JS.ACK.d.h.S.c.1.2.3.4.5.t",
    b"reply.\xff",
]


async def test_messages_of_strangers_in_the_inbox_do_not_end_a_consumer(
    nc, js, stream, publish, consume, is_settled, dead_letters
):
    """Any client with the permission may publish there. They are handled as deliveries only if they look like some."""
    inboxes = asyncio.Queue()

    async def note(message):
        inboxes.put_nowait(message.reply)

    await nc.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.c", cb=note)
    async with consume(on_error=lambda *_: None) as consumer:
        first = asyncio.create_task(anext(consumer))
        inbox = await after(inboxes.get())
        for reply in STRANGERS:
            for headers in (b"NATS/1.0 409 Nothing\r\n\r\n", b"NATS/1.0 \xff\xff\xff\r\n\r\n", b"NATS/1.0\r\n\r\n"):
                frame = b"HPUB %s %s %d %d\r\n%s{}\r\n" % (
                    inbox.encode(),
                    reply,
                    len(headers),
                    len(headers) + 2,
                    headers,
                )
                await nc._send_command(frame)
        await nc.flush()
        await publish(1)
        async with await after(first) as event:
            assert number_of(event) == 1
    await is_settled()


@pytest.mark.faults
@pytest.mark.parametrize(
    ("key", "double_ack"), [(None, False), (lambda delivery: delivery.sequence % 5, True)], ids=["no key", "key"]
)
async def test_consumer_survives_a_server_that_is_away_with_many_messages_queued(key, double_ack):
    """Extensions of ack deadlines do not fill the buffer, and acknowledgements wait for the reconnect."""
    count, handled = 400, []

    with NatsServer(jetstream=True) as server:
        options = {"reconnect_time_wait": 0.05, "max_reconnect_attempts": -1, "error_cb": ignore}
        nc = await nats.connect(server.url, **options)
        js = nc.jetstream(timeout=5)
        await js.add_stream(name="S", subjects=["s"])
        for number in range(count):
            await js.publish("s", b'{"specversion":"1.0","id":"%d","source":"/s","type":"t"}' % number)
        create = ConsumerConfig(ack_wait=1, max_ack_pending=1000)
        consumer = PullConsumer(
            js,
            "S",
            "c",
            dead_letter=None,
            create=create,
            prefetch=300,
            double_ack=double_ack,
            backoff=[0],
            on_error=lambda *_: None,
        )
        async with consumer:

            async def handle(delivery):
                handled.append(delivery.sequence)
                await asyncio.sleep(0.001)
                if len(handled) == 100:
                    server.kill()
                    asyncio.get_running_loop().call_later(3, lambda: asyncio.ensure_future(restart()))

            async def restart():
                assert nc.pending_data_size < 64 * 1024
                await asyncio.to_thread(server.restart)

            running = asyncio.create_task(consumer.run(handle, concurrency=4, key=key))

            async def is_done():
                if not nc.is_connected or len(set(handled)) < count:
                    return False
                info = await js.consumer_info("S", "c")
                return info.num_ack_pending == info.num_pending == 0

            await until(is_done)
            consumer.stop()
            await after(running)
        await nc.close()
    assert set(handled) == set(range(1, count + 1))


async def test_handlers_of_real_programs(publish, consume, is_settled):
    """Timeouts, task groups, requests over HTTP, failures and settlements by the handler, all at once."""
    await publish(*range(60))
    handled, attempts = set(), {}

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")

    async with (
        serving(answer) as port,
        httpx.AsyncClient(trust_env=False) as client,
        consume(on_error=lambda *_: None) as consumer,
    ):
        url = f"http://127.0.0.1:{port}/"

        async def handle(delivery):
            number = delivery.sequence
            attempts[number] = attempts.get(number, 0) + 1
            kind = number % 6
            if kind == 0:
                assert (await client.get(url)).text == "ok"
            elif kind == 1:
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(asyncio.Event().wait(), 0.001)
            elif kind == 2 and attempts[number] == 1:
                raise KeyError(number)
            elif kind == 3 and attempts[number] == 1:
                await asyncio.wait_for(asyncio.Event().wait(), 0.001)
            elif kind == 4:
                await delivery.ack()
                await asyncio.gather(*(asyncio.sleep(0) for _ in range(3)))
            elif kind == 5 and attempts[number] == 1:
                await delivery.nak(0.01)
                return
            handled.add(number)

        running = asyncio.create_task(consumer.run(handle, concurrency=8))
        await until(lambda: len(handled) == 60)
        await is_settled()
        consumer.stop()
        await after(running)
    assert {attempts[number] for number in attempts if number % 6 in (2, 3, 5)} == {2}
    assert {attempts[number] for number in attempts if number % 6 in (0, 1, 4)} == {1}


async def test_ten_orderly_restarts_handle_each_message_once(publish, consume, is_settled):
    await publish(*range(500))
    handled = []
    for limit in [*range(45, 451, 45), 500]:
        async with consume(prefetch=100) as consumer:

            async def handle(delivery, limit=limit, consumer=consumer):
                handled.append(delivery.sequence)
                await asyncio.sleep(0)
                if len(handled) >= limit:
                    consumer.stop()

            await after(consumer.run(handle, concurrency=3))
    assert sorted(handled) == list(range(1, 501))
    await is_settled()


async def test_two_instances_share_the_messages(js, stream, subject, make_event, dead, is_settled):
    for number in range(300):
        await ce_js.publish(js, make_event(number), subject)
    handled = {0: [], 1: []}

    async def work(instance):
        consumer = PullConsumer(js, stream, "c", dead_letter=dead, create=ConsumerConfig(), prefetch=10)

        async def handle(delivery):
            handled[instance].append(delivery.sequence)
            await asyncio.sleep(0.001)
            if sum(map(len, handled.values())) >= 300:
                for each in consumers:
                    each.stop()

        consumers.append(consumer)
        async with consumer:
            await after(consumer.run(handle, concurrency=2))

    consumers = []
    await asyncio.gather(work(0), work(1))
    assert sorted(handled[0] + handled[1]) == list(range(1, 301))
    assert handled[0]
    assert handled[1]
    await is_settled()


async def test_structured_and_binary_messages_in_turn(js, stream, subject, make_event, consume, is_settled):
    """No event is that of the message before, and none is missing."""
    for number in range(60):
        mode = "structured" if number % 2 else "binary"
        await ce_js.publish(js, make_event(number, {"n": number}), subject, mode=mode)
    async with consume() as consumer:
        for number in range(60):
            async with await take(consumer) as event:
                assert (number_of(event), event.get_data()) == (number, {"n": number})
    await is_settled()


async def test_duplicated_attribute_is_an_error(nc, js, subject, consume, dead_letters):
    """nats-py's headers hide it: the last value counts there."""
    block = b"NATS/1.0\r\nce-specversion: 1.0\r\nce-id: 1\r\nce-id: 2\r\nce-source: s\r\nce-type: t\r\n\r\n"
    await nc._send_command(b"HPUB %s %d %d\r\n%s\r\n" % (subject.encode(), len(block), len(block), block))
    async with consume() as consumer:
        reader = asyncio.create_task(anext(consumer))
        (letter,) = await dead_letters(1)
        reader.cancel()
    assert dict(letter.headers)["Dead-Letter-Error"] == "duplicate-attribute"
