"""Subjects that move to another stream while a publisher sends batches to both."""

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager

import nats
import pytest
from nats.js.errors import NotFoundError

from ce_nats import from_nats_message
from ce_nats.aio import Publisher
from ce_nats.aio.jetstream import configure_stream, read_stream
from ce_nats.testing import NatsServer
from tests.support.broker import ignore
from tests.support.waiting import until

COUNT = 1_500


@asynccontextmanager
async def streams(**permissions):
    """Yield contexts of a user with these permissions and of one with all, and the streams A and B."""
    users = [{"user": "all", "password": "p"}, {"user": "some", "password": "p", "permissions": permissions}]
    with NatsServer(jetstream=True, config=f"authorization: {json.dumps({'users': users})}") as server:
        nc = await nats.connect(server.url, user="some", password="p", error_cb=ignore)
        all_nc = await nats.connect(server.url, user="all", password="p")
        admin = all_nc.jetstream()
        await admin.add_stream(name="A", subjects=["a.*"], allow_batched=True)
        await admin.add_stream(name="B", subjects=["b"], allow_batched=True)
        yield nc.jetstream(), admin
        await nc.close()
        await all_nc.close()


async def move(admin, *, subjects=("a.2",), back=False, **options):
    """Move subjects from stream A to B."""
    names = [f"a.{number}" for number in range(4)]
    kept = names if back else [name for name in names if name not in subjects]
    await configure_stream(admin, "B" if back else "A", subjects=["b"] if back else kept or ["unused"])
    await configure_stream(admin, "A" if back else "B", subjects=names if back else ["b", *subjects], **options)


async def publish(publisher, make_event, numbers, *subjects):
    for number in numbers:
        await publisher.publish(make_event(number), subjects[number % len(subjects)])


async def stored(admin, stream):
    """Return the numbers of the events in a stream, by subject."""
    numbers = {}
    async for batch in read_stream(admin, stream):
        for message in batch:
            number = int(from_nats_message(message).get_id().split()[1])
            numbers.setdefault(message.subject, []).append(number)
    return numbers


def check_each_once_in_order(count, *found):
    """Check that each event is stored once, and that each subject keeps its order in each stream."""
    lists = [numbers for by_subject in found for numbers in by_subject.values()]
    assert all(numbers == sorted(numbers) for numbers in lists)
    counts = Counter(number for numbers in lists for number in numbers)
    assert counts == Counter(range(count))


async def size_of(publisher, js, make_event, *subjects):
    """Return the number of bytes that a number of events takes, without any that is resent."""
    nc = js._nc
    before = nc.stats["out_bytes"]
    await publish(publisher, make_event, range(COUNT, 2 * COUNT), *subjects)
    await publisher.flush()
    return nc.stats["out_bytes"] - before


@pytest.mark.parametrize(
    "subjects", [["a.1", "a.2"], ["a.2"], ["a.0", "a.1", "a.2", "a.3", "b"]], ids=["one of two", "all", "many"]
)
async def test_events_are_stored_once_in_order_in_the_stream_of_their_subject(make_event, subjects):
    """The lane resent its whole window for each event of the other stream, as long as the publisher was open."""
    async with streams() as (js, admin):
        async with Publisher(js) as publisher:
            await publish(publisher, make_event, range(COUNT // 3), *subjects)
            await move(admin)
            before = js._nc.stats["out_bytes"]
            await publish(publisher, make_event, range(COUNT // 3, COUNT), *subjects)
            await publisher.flush()
            written = js._nc.stats["out_bytes"] - before
            in_a, in_b = await stored(admin, "A"), await stored(admin, "B")
            usual = await size_of(publisher, js, make_event, *subjects)
        assert written < 2 * usual
        assert publisher.acknowledged == 2 * COUNT
        assert publisher.batched > COUNT
        check_each_once_in_order(COUNT, in_a, in_b)
        assert set(in_b) == {"a.2", *(subject for subject in subjects if subject == "b")}
        after_the_move = set(range(COUNT // 3 + 1, COUNT))
        assert not after_the_move.intersection(in_a.get("a.2", ()))


async def test_acknowledgements_name_the_stream(make_event):
    async with streams() as (js, admin), Publisher(js) as publisher:
        await publish(publisher, make_event, range(100), "a.1", "a.2")
        await publisher.flush()
        await move(admin)
        numbers = range(100, 200)
        acks = [await publisher.publish(make_event(number), f"a.{1 + number % 2}") for number in numbers]
        assert {(number % 2, (await ack).stream) for number, ack in zip(numbers, acks, strict=True)} == {
            (0, "A"),
            (1, "B"),
        }


async def test_subjects_may_move_back_and_forth(make_event):
    """Those in flight have no stream in between. More are published only later, since a move may take too long then."""
    async with streams() as (js, admin):
        done, turn = False, asyncio.Lock()

        async def move_often():
            for number in range(10):
                async with turn:
                    await move(admin, back=number % 2 == 1)
                await asyncio.sleep(0.02)

        async with Publisher(js) as publisher:
            moving = asyncio.create_task(move_often())
            count = 0
            while not done or count < COUNT:
                async with turn:
                    await publish(publisher, make_event, [count], "a.1", "a.2", "a.3")
                done, count = moving.done(), count + 1
            await moving
            written = js._nc.stats["out_msgs"]
        in_a, in_b = await stored(admin, "A"), await stored(admin, "B")
        # An event may be in both streams: its acknowledgement was on the way when its subject moved.
        assert set(range(count)) == {number for found in (in_a, in_b) for few in found.values() for number in few}
        for numbers in (*in_a.values(), *in_b.values()):
            assert numbers == sorted(numbers)
        assert publisher.acknowledged == count
        assert written < 3 * count + 20_000


async def test_other_subjects_do_not_wait_for_one_without_a_stream(make_event):
    """Between the two changes no stream listens on the subject."""
    async with streams() as (js, admin):
        async with Publisher(js) as publisher:
            await publish(publisher, make_event, range(100), "a.1", "a.2")
            await publisher.flush()
            await configure_stream(admin, "A", subjects=["a.1"])
            await publish(publisher, make_event, range(100, 700), "a.1", "a.2")
            await until(lambda: publisher.acknowledged >= 400)
            assert publisher.acknowledged == 400
            await configure_stream(admin, "B", subjects=["b", "a.2"])
            await publish(publisher, make_event, range(700, 1000), "a.1", "a.2")
        in_a, in_b = await stored(admin, "A"), await stored(admin, "B")
        check_each_once_in_order(1000, in_a, in_b)
        assert len(in_b["a.2"]) == 450
        assert publisher.acknowledged == 1000


async def test_subject_that_gets_no_stream_fails_alone(make_event):
    async with streams() as (js, admin):
        publisher = Publisher(js, retry_timeout=2)
        await publisher.__aenter__()
        await publish(publisher, make_event, range(100), "a.1", "a.2")
        await publisher.flush()
        await configure_stream(admin, "A", subjects=["a.1"])
        await publish(publisher, make_event, range(100, 200), "a.1", "a.2")
        await until(lambda: publisher.acknowledged + len(publisher.failures) == 200)
        assert {(failure.subject, failure.error.code) for failure in publisher.failures} == {("a.2", "no-responders")}
        assert len(publisher.failures) == 50
        publisher.failures.clear()
        await publish(publisher, make_event, range(200, 300), "a.1")
        await publisher.__aexit__(None, None, None)
        in_a = await stored(admin, "A")
        assert len(in_a["a.1"]) == 200


async def test_subject_that_moves_to_a_stream_without_batches(make_event):
    """It is published message by message, and the other subject still in batches."""
    async with streams() as (js, admin):
        async with Publisher(js) as publisher:
            await publish(publisher, make_event, range(COUNT // 3), "a.1", "a.2")
            await configure_stream(admin, "B", allow_batched=False)
            await move(admin)
            await publish(publisher, make_event, range(COUNT // 3, COUNT), "a.1", "a.2")
            await publisher.flush()
            batched = publisher.batched
            await publish(publisher, make_event, range(COUNT, 2 * COUNT), "a.1")
        assert publisher.batched - batched > COUNT / 2
        check_each_once_in_order(2 * COUNT, await stored(admin, "A"), await stored(admin, "B"))


async def test_stream_that_is_deleted_and_its_subjects_are_those_of_another(make_event):
    async with streams() as (js, admin):
        async with Publisher(js) as publisher:
            await publish(publisher, make_event, range(100), "a.1")
            await publisher.flush()
            await admin.delete_stream("A")
            await configure_stream(admin, "B", subjects=["b", "a.*"])
            await publish(publisher, make_event, range(100, 1000), "a.1")
        assert publisher.acknowledged == 1000
        assert (await stored(admin, "B"))["a.1"] == list(range(100, 1000))
        with pytest.raises(NotFoundError):
            await admin.stream_info("A")


@pytest.mark.parametrize(
    ("mapped", "target"), [("a.2", "b"), ("other.1", "a.3"), ("other.1", "b")], ids=["to B", "to A", "from no stream"]
)
async def test_mapped_subjects_are_published_one_by_one(make_event, mapped, target):
    """The server maps a subject to that of a stream, which JetStream's API does not know."""
    with NatsServer(jetstream=True, config=f"mappings: {{ {mapped}: {target} }}") as server:
        nc = await nats.connect(server.url)
        js = nc.jetstream()
        await js.add_stream(name="A", subjects=["a.*"], allow_batched=True)
        await js.add_stream(name="B", subjects=["b"], allow_batched=True)
        async with Publisher(js) as publisher:
            await publish(publisher, make_event, range(100), "a.1")
            await publish(publisher, make_event, range(100, COUNT), mapped, "a.1", mapped, mapped)
        found = {**await stored(js, "A"), **await stored(js, "B")}
        assert publisher.acknowledged == COUNT
        assert found == {
            "a.1": [number for number in range(COUNT) if number < 100 or number % 4 == 1],
            target: [number for number in range(100, COUNT) if number % 4 != 1],
        }
        assert nc.stats["out_bytes"] < 4 * COUNT * 200
        await nc.close()


async def test_nothing_is_lost_without_permission_to_read_the_stream(make_event):
    """Then it is not known what the first stream has stored, and the other one may have copies."""
    async with streams(publish={"deny": ["$JS.API.STREAM.MSG.GET.>"]}) as (js, admin):
        async with Publisher(js) as publisher:
            await publish(publisher, make_event, range(COUNT // 3), "a.2")
            await move(admin)
            await publish(publisher, make_event, range(COUNT // 3, COUNT), "a.2")
        in_a, in_b = (await stored(admin, "A"))["a.2"], (await stored(admin, "B"))["a.2"]
        assert (in_a, in_b) == (list(range(len(in_a))), list(range(in_b[0], COUNT)))
        assert in_b[0] <= len(in_a)
        assert publisher.acknowledged == COUNT
