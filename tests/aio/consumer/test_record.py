"""Messages that were delivered often, because processes were stopped in order, or because they ended otherwise."""

import asyncio
import logging
from collections import Counter

import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.js.api import AckPolicy, ConsumerConfig

from ce_nats.aio import PullConsumer
from ce_nats.aio import jetstream as ce_js
from ce_nats.aio._jetstream_api import StreamApi
from ce_nats.aio.consumer._binding import Binding
from ce_nats.aio.consumer._record import METADATA_KEY, Record, Recorder
from ce_nats.redelivery import DeadLetter, Reason
from ce_nats.testing import NatsServer
from tests.support.consuming import SECONDS, after, consume, is_settled, publish, take, until_consumer
from tests.support.tables import each

__all__ = ["consume", "is_settled", "publish"]

_sequences = st.integers(1, 300)
_records = st.builds(
    Record,
    st.dictionaries(_sequences, st.integers(1, 3), max_size=100),
    st.dictionaries(_sequences, st.integers(1, 9), max_size=20),
)


# --- The record ------------------------------------------------------------------------------------------------------


@given(_records)
def test_record_is_read_as_written(record):
    assert Record.parse(record.text()) == record


@each("text", ["", "{}", "[]", "no JSON", '{"released":7}', '{"begun":[[1]]}', '{"begun":[["1",2]]}'])
def test_text_without_a_record_is_an_empty_record(text):
    assert Record.parse(text) == Record()


def test_consecutive_sequences_are_one_entry():
    record = Record(dict.fromkeys(range(5, 4000), 7))
    assert record.text() == '{"released":[[5,3999,7]]}'
    assert Record().text() == ""


def test_record_is_bounded():
    """Metadata of the server is limited, and anyone who may change the consumer can write it."""
    scattered = Record({2 * number: 6 for number in range(5000)}, dict.fromkeys(range(5000), 1))
    assert len(scattered.text()) < 64 * 1024
    assert len(Record.parse('{"released":[[1,18446744073709551615,6]]}').released) == 65_536


@given(_records, st.integers(0, 300), st.sets(_sequences))
def test_settled_messages_are_removed(record, ack_floor, settled):
    entries = record.released.keys() | record.begun.keys()
    record.remove(ack_floor, settled)
    expected = {sequence for sequence in entries if sequence > ack_floor and sequence not in settled}
    assert record.released.keys() | record.begun.keys() == expected


# --- Processes that end in order -------------------------------------------------------------------------------------


async def _stop(consumer, handle, options):
    """Stop after one event, as a deployment does."""

    async def last(delivery):
        await handle(delivery)
        consumer.stop()

    await consumer.run(last, **options)


async def _cancel(consumer, handle, options):
    """Cancel run() after one event, as a task group does."""
    handled = asyncio.Event()

    async def last(delivery):
        await handle(delivery)
        handled.set()

    running = asyncio.create_task(consumer.run(last, **options))
    await handled.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def _cancel_handlers(consumer, handle, options):
    """Stop, and cancel the handlers that still run: all but the first hang."""
    first = asyncio.Event()

    async def hang(delivery):
        if first.is_set():
            await asyncio.sleep(600)
        first.set()
        await handle(delivery)
        consumer.stop()

    await consumer.run(hang, **{**options, "stop_timeout": 0})


async def _fail_before(consumer, handle, options):
    """Fail before the first event is handled, as a service whose database is down."""
    await asyncio.sleep(0.02)
    raise OSError("no database")


async def _break_off(consumer, handle, options):
    """Iterate, and break off."""
    async for delivery in consumer:
        async with delivery:
            await handle(delivery)
        break


_ENDS = [_stop, _cancel, _cancel_handlers, _fail_before, _break_off]


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("key", [None, lambda delivery: delivery.sequence % 7], ids=["no key", "key"])
@pytest.mark.parametrize("ends", [[_stop], _ENDS], ids=["stop", "each way"])
async def test_orderly_ends_dead_letter_nothing(publish, consume, is_settled, dead_letters, ends, key, concurrency):
    """Each process fetches what was released before, so that the server's counts grow."""
    await publish(*range(30))
    handled = Counter()

    async def handle(delivery):
        handled[delivery.sequence] += 1

    starts = 0
    while len(handled) < 30:
        assert starts < 30 * len(ends), handled
        try:
            async with consume(max_deliveries=2) as consumer:
                await after(ends[starts % len(ends)](consumer, handle, {"key": key, "concurrency": concurrency}))
        except OSError:
            assert ends[starts % len(ends)] is _fail_before
        starts += 1
    await is_settled()
    assert set(handled) == set(range(1, 31))
    assert sum(handled.values()) <= 30 + starts  # an acknowledgement can follow a cancellation
    await dead_letters(0)


async def test_events_released_in_order_are_handled_concurrently(publish, consume, dead_letters):
    """They are not suspects, although they were delivered often."""
    await publish(*range(8))
    deliveries = []

    async def run(count):
        """Stop when a number of handlers have begun; they are cancelled if they still run."""
        running = 0

        async def handle(delivery):
            nonlocal running
            running += 1
            deliveries.append(delivery.deliveries)
            if running == count:
                consumer.stop()
            await asyncio.sleep(600)

        async with consume(max_deliveries=2) as consumer:
            key = {"key": lambda delivery: delivery.sequence, "concurrency": 4}
            await after(consumer.run(handle, **key, stop_timeout=0))

    for _ in range(9):
        await run(4)
    assert max(deliveries) > 7
    await dead_letters(0)


async def test_messages_released_at_the_same_time_are_all_recorded(nc, js, stream):
    """Each release reads the record, and writes it."""
    await js.add_consumer(stream, ConsumerConfig(durable_name="c", ack_policy=AckPolicy.EXPLICIT))
    recorder = Recorder(nc, Binding(StreamApi(nc), stream, "c", None))
    await asyncio.gather(*(recorder.release({sequence: 6}) for sequence in range(1, 9)))
    metadata = (await js.consumer_info(stream, "c")).config.metadata
    assert Record.parse(metadata[METADATA_KEY]).released == dict.fromkeys(range(1, 9), 6)


# --- Processes that end otherwise ------------------------------------------------------------------------------------


@pytest.fixture
async def lose(server, stream, dead):
    """Begin to handle the next message in a process that is lost."""

    async def lose(**options):
        nc = await nats.connect(server.url)
        consumer = PullConsumer(
            nc.jetstream(), stream, "c", dead_letter=dead, create=ConsumerConfig(ack_wait=0.5), backoff=[0], **options
        )
        await consumer.__aenter__()
        delivery = await take(consumer)
        await nc.close()
        return delivery

    return lose


@pytest.mark.parametrize("has_dead_letter", [True, False])
async def test_message_whose_handler_ends_processes_is_dead_lettered(
    publish, consume, lose, dead, dead_letters, is_settled, caplog, has_dead_letter
):
    """After it was handled alone three times. Before that it was delivered often, and released in order."""
    await publish(1)
    for _ in range(8):
        async with consume(max_deliveries=2, ack_wait=0.5) as consumer:
            await take(consumer)
    options = {"max_deliveries": 2, "max_unfinished": 5}
    for _ in range(5):
        assert (await lose(**options)).sequence == 1
    await publish(2)
    handled, reported = [], []

    async def handle(delivery):
        handled.append(delivery.sequence)

    options["on_error"] = lambda error, delivery: reported.append((error.code, delivery.sequence))
    async with consume(**options, dead_letter=dead if has_dead_letter else None) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await is_settled()
        consumer.stop()
        await after(running)
    assert handled == [2]
    assert reported == [("process-ended", 1)]
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    ending = f"dead-lettered to {dead}" if has_dead_letter else "terminated without a dead letter"
    assert record.getMessage().endswith(f"6 deliveries, and none had an outcome; {ending}")
    letters = [DeadLetter.split(letter.headers)[0] for letter in await dead_letters(int(has_dead_letter))]
    assert all((known.sequence, known.reason) == (1, Reason.PROCESS_ENDED) for known in letters)
    assert all(known.deliveries == 14 for known in letters)


async def test_messages_that_only_wait_for_such_a_message_are_handled(publish, consume, lose, dead_letters, is_settled):
    """With a key each process gets all of them, so their numbers of deliveries are the same."""
    await publish(*range(6))
    options = {"max_deliveries": 2, "max_unfinished": 4}
    handled = []

    async def handle(delivery):
        handled.append(delivery.sequence)

    for _ in range(8):
        async with consume(**options, ack_wait=0.5) as consumer:
            await after(_stop(consumer, _refuse, {"key": lambda delivery: 1}))
    async with consume(**options) as consumer:
        running = asyncio.create_task(consumer.run(handle, key=lambda delivery: 1))
        await is_settled()
        consumer.stop()
        await after(running)
    assert handled == [1, 2, 3, 4, 5, 6]
    await dead_letters(0)


async def _refuse(delivery):
    await delivery.nak(0)


# --- A record that cannot be written ---------------------------------------------------------------------------------

CONFIG = """
authorization { users: [
  { user: admin, password: p },
  { user: app, password: p, permissions: {
    publish: ["$JS.API.CONSUMER.INFO.S.c", "$JS.API.CONSUMER.MSG.NEXT.S.c", "$JS.ACK.S.c.>", "dead",
              "$JS.API.STREAM.NAMES", "$JS.API.STREAM.MSG.GET.S"],
    subscribe: ["_INBOX.>"] } } ] }
"""


async def test_without_permission_a_message_is_handled_again(make_event):
    """A number of deliveries proves nothing, so the message is not dead-lettered; the caller is notified."""
    with NatsServer(jetstream=True, config=CONFIG) as server:
        admin = await nats.connect(server.url, user="admin", password="p")
        js = admin.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        await js.add_stream(name="D", subjects=["dead"])
        await js.add_consumer("S", ConsumerConfig(durable_name="c"))
        await ce_js.publish(js, make_event(1), "s")
        earlier = await js.pull_subscribe_bind("c", "S")
        for _ in range(7):
            for message in await earlier.fetch(1, timeout=SECONDS):
                await message.nak()
        nc = await nats.connect(server.url, user="app", password="p", error_cb=_ignore)
        reported = []

        def report(error, delivery):
            reported.append((error.code, error.message, delivery.sequence))

        options = {"dead_letter": "dead", "max_deliveries": 2, "on_error": report}
        async with PullConsumer(nc.jetstream(), "S", "c", **options) as consumer, await take(consumer):
            pass
        ((code, text, sequence),) = reported
        assert (code, sequence) == ("permission-denied", 1)
        assert text.startswith("it was delivered 8 times, and is handled again, because the consumer cannot record")
        assert "'$JS.API.CONSUMER.CREATE.S.c'" in text
        assert (await js.stream_info("D")).state.messages == 0
        await until_consumer(js, "S", lambda info: info.ack_floor.stream_seq == 1)
        await nc.close()
        await admin.close()


async def _ignore(error):
    """Permissions are denied."""
