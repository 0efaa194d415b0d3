"""Requests to JetStream's API, on a real server."""

import asyncio
import json
import time
from random import Random

import nats
import pytest

from ce_nats.aio._connect import disconnect
from ce_nats.aio._jetstream_api import StreamApi, nanoseconds
from ce_nats.codec.timestamp import Timestamp
from ce_nats.errors import ApiError, DeliveryError
from ce_nats.testing import NatsServer
from tests.support.tables import each


@pytest.fixture
def api(nc):
    return StreamApi(nc)


async def test_state_of_a_stream(api, js, subject, stream):
    state = await api.state(stream)
    assert (state.first, state.last, state.messages, state.retention) == (1, 0, 0, "limits")
    for _ in range(5):
        await js.publish(subject, b"")
    await js.delete_msg(stream, 3)
    following = await api.state(stream)
    assert (following.first, following.last, following.messages) == (1, 5, 4)
    assert (state.size, following.size % 4) == (0, 0)
    assert following.size > 4 * len(subject)
    assert following.created == state.created
    assert abs(nanoseconds(Timestamp.parse(state.created)) / 1e9 - time.time()) < 60
    await js.purge_stream(stream)
    purged = await api.state(stream)
    assert (purged.first, purged.last, purged.messages) == (6, 5, 0)


class Changing(StreamApi):
    """An API that calls a function before each page of names but the first."""

    async def _request(self, kind, stream, subject, request=None, **options):
        if request and request.get("offset"):
            await self.change()
        return await super()._request(kind, stream, subject, request, **options)


async def test_names_of_more_streams_than_a_page_has():
    """No name is missing if streams are created and deleted between two pages, which have 1024 names."""

    async def add(*numbers):
        requests = (
            js.add_stream(name=f"S{number:04}", subjects=[f"s.{number}"], storage="memory") for number in numbers
        )
        await asyncio.gather(*requests)

    async def delete():
        if remaining:
            await js.delete_stream(f"S{remaining.pop():04}")

    async def churn():
        extra.append(10_000 + len(extra))
        await js.delete_stream(f"S{extra[-2]:04}")
        await add(extra[-1])
        await js.delete_stream(f"S{len(extra):04}")

    with NatsServer(jetstream=True) as server:
        nc = await nats.connect(server.url)
        js = nc.jetstream()
        api = Changing(nc)
        assert await api.stream_names() == []
        for start in range(0, 1_100, 100):
            await add(*range(start, start + 100))
        remaining = []
        api.change = delete
        expected = [f"S{number:04}" for number in range(1_100)]
        assert await api.stream_names() == expected
        remaining = [0, 500]
        found = await api.stream_names()
        assert found == [name for name in expected if name not in ("S0000", "S0500")]
        extra = [1]
        api.change = churn
        with pytest.raises(DeliveryError, match="stream names: they changed while they were listed"):
            await api.stream_names()
        await nc.close()


async def test_consumers_and_their_positions(api, js, stream, subject):
    assert await api.consumer_names(stream) == []
    for name in ("b", "a"):
        await js.add_consumer(stream, durable_name=name, ack_policy="explicit", filter_subject=f"{subject}.{name}")
        await js.publish(f"{subject}.{name}", b"")
    [message] = await (await js.pull_subscribe_bind("b", stream)).fetch(1)
    await message.ack_sync()
    assert await api.consumer_names(stream) == ["a", "b"]
    one, other = [await api.progress(stream, name) for name in ("a", "b")]
    assert (one.config["name"], one.delivered, one.ack_floor, one.filters) == ("a", 0, 0, [f"{subject}.a"])
    assert (other.config["name"], other.delivered, other.ack_floor) == ("b", 1, 1)
    assert other.created.endswith("Z")


async def test_last_message_on_each_subject(api, js, stream, subject):
    for number in range(300):
        await js.publish(f"{subject}.{number % 100}", b"%d" % number)
    found = await api.last_on_subjects(stream, f"{subject}.*")
    expected = [(number + 1, b"%d" % number) for number in range(200, 300)]
    assert [(message.seq, message.data) for message in found] == expected
    assert [message.seq for message in await api.last_on_subjects(stream, f"{subject}.7")] == [208]
    assert await api.last_on_subjects(stream, "none") == []


async def test_next_sequence(api, js, subject, stream):
    for number in range(1, 101):
        await js.publish(f"{subject}.{number % 10}", b"")
    for number in (5, 15, 16):
        await js.delete_msg(stream, number)
    assert await api.next_sequence(stream, 0) == 1
    assert await api.next_sequence(stream, 5) == 6
    assert await api.next_sequence(stream, 101) is None
    assert await api.next_sequence(stream, 1, [f"{subject}.5"]) == 25
    assert await api.next_sequence(stream, 1, [f"{subject}.5", f"{subject}.6"]) == 6
    assert await api.next_sequence(stream, 1, ["nothing.here"]) is None
    assert await api.next_sequence(stream, 1, [f"nothing.{number}" for number in range(200)] + [f"{subject}.9"]) == 9


@pytest.mark.parametrize("seed", range(3))
async def test_search_by_time_equals_a_scan(api, js, subject, stream, seed):
    random = Random(seed)
    for _ in range(40):
        await js.publish(subject, b"")
    for number in random.sample(range(1, 41), random.choice([0, 10, 38])):
        await js.delete_msg(stream, number)
    state = await api.state(stream)
    times = {}
    for number in range(1, 41):
        found = await api.stored(stream, {"seq": number, "next_by_subj": ">"})
        if found is not None:
            times[found.seq] = nanoseconds(Timestamp.parse(found.time))
    for instant in {0, 2**62, *times.values(), *(at + 1 for at in times.values()), *(at - 1 for at in times.values())}:
        start = await api.sequence_at(state, instant)
        assert [number for number in times if number >= start] == [n for n, at in times.items() if at >= instant]


async def test_refusals_have_the_err_code_of_the_server(api):
    with pytest.raises(ApiError, match="there is no stream NOTHING") as info:
        await api.state("NOTHING")
    assert (info.value.err_code, info.value.is_temporary, info.value.code) == (10059, False, "stream-not-found")
    with pytest.raises(ApiError):
        await api.next_sequence("NOTHING", 1)


async def test_invalid_request_is_an_error(api, stream):
    with pytest.raises(ApiError, match=r"^request-refused: ") as info:
        await api.create_consumer(stream, "c", {"deliver_policy": "by_start_sequence"})
    assert (info.value.err_code > 0, info.value.is_temporary) == (True, False)
    await api.create_consumer(stream, "c", {"ack_policy": "explicit"})
    await api.delete_consumer(stream, "c")
    with pytest.raises(ApiError, match=r"^consumer-not-found: "):
        await api.delete_consumer(stream, "c")


@pytest.mark.parametrize("filters", [{}, {"filter_subject": "{}.a"}, {"filter_subjects": ["{}.a", "{}.b"]}])
async def test_only_one_text_in_the_metadata_of_a_consumer_is_changed(js, nc, api, stream, subject, filters):
    filled = {
        name: value.format(subject) if isinstance(value, str) else [item.format(subject) for item in value]
        for name, value in filters.items()
    }
    config = {
        "ack_policy": "explicit",
        "ack_wait": 60 * 10**9,
        "durable_name": "c",
        "metadata": {"team": "billing"},
        **filled,
    }
    await api.create_consumer(stream, "c", config)
    for number in range(3):
        await js.publish(f"{subject}.a", b"%d" % number)
    subscription = await js.pull_subscribe_bind("c", stream)
    first, *_ = await subscription.fetch(3)
    await first.ack_sync()
    before = await _info(nc, stream)
    pending = asyncio.create_task(subscription.fetch(1, timeout=60))
    seen = []

    def change(new):
        def changed(text, ack_floor):
            seen.append((text, ack_floor))
            return new

        return changed

    await api.annotate_consumer(stream, "c", "note", change("one"))
    after = await _info(nc, stream)
    assert after["config"]["metadata"] == {**before["config"]["metadata"], "note": "one"}
    await api.annotate_consumer(stream, "c", "note", change("one"))
    await api.annotate_consumer(stream, "c", "note", change(""))
    assert seen == [("", 1), ("one", 1), ("one", 1)]
    assert (await _info(nc, stream))["config"] == before["config"]
    await js.publish(f"{subject}.a", b"3")
    assert [message.data for message in await pending] == [b"3"]
    with pytest.raises(ApiError, match=r"^consumer-not-found: "):
        await api.annotate_consumer(stream, "other", "note", change("two"))


async def test_metadata_may_be_written_by_others_at_the_same_time(nc, api, stream):
    """The answer to one of them may have the text of another."""
    await api.create_consumer(stream, "c", {"durable_name": "c", "ack_policy": "explicit"})
    texts = [str(number) for number in range(64)]
    writes = [api.annotate_consumer(stream, "c", "note", lambda *_, text=text: text) for text in texts]
    await asyncio.gather(*writes)
    assert (await _info(nc, stream))["config"]["metadata"]["note"] in texts


async def _info(nc, stream):
    return json.loads((await nc.request(f"$JS.API.CONSUMER.INFO.{stream}.c", b"")).data)


async def test_server_without_jetstream_is_a_delivery_error():
    with NatsServer() as server:
        nc = await nats.connect(server.url)
        with pytest.raises(DeliveryError, match="stream S: JetStream is not enabled on the server"):
            await StreamApi(nc).state("S")
        await nc.close()


async def test_answer_of_another_client_is_a_delivery_error():
    async def answer(message):
        await message.respond(b"?")

    with NatsServer() as server:
        nc = await nats.connect(server.url)
        await nc.subscribe("$JS.API.>", cb=answer)
        with pytest.raises(DeliveryError, match=r"^unexpected-answer: .*not a response of JetStream's API"):
            await StreamApi(nc).state("S")
        await nc.close()


async def test_disconnect_never_raises(server):
    nc = nats.aio.client.Client()
    await disconnect(nc)
    await nc.connect(server.url)
    await disconnect(nc)
    await disconnect(nc)
    assert nc.is_closed


@each(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("2026-01-02T03:04:05.123456789Z", 1767323045123456789),
        ("2026-01-02T05:04:05.123456789+02:00", 1767323045123456789),
    ],
)
def test_nanoseconds_are_kept(text, expected):
    assert nanoseconds(Timestamp.parse(text)) == expected
