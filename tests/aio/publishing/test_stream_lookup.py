"""Look up whether a stream has a subject: an error at once if the server answers, else at the timeout."""

import asyncio

import nats
import pytest

from ce_nats.aio import DeliveryError, Publisher, PublishError
from ce_nats.aio import jetstream as ce_js
from ce_nats.aio.publishing._stream_lookup import PAUSE_SECONDS, Listeners
from ce_nats.errors import NoStreamError
from ce_nats.testing import NatsServer
from tests.support.broker import ignore

LONG = 600
ACCOUNTS = """
accounts {
  WITH: { jetstream: enabled, users: [{ user: with, password: p }] }
  WITHOUT: { users: [{ user: without, password: p }] }
  SYS: { users: [{ user: sys, password: p }] }
}
system_account: SYS
"""
NO_API = 'authorization { users: [{ user: u, password: p, permissions: { publish: { deny: "$JS.>" } } }] }'


async def failure_of(nc, make_event, *, retry_timeout):
    """Return the error of an event on a subject without a stream."""
    async with Publisher(nc.jetstream(), ack_timeout=0.3, retry_timeout=retry_timeout) as publisher:
        await publisher.publish(make_event(), "no.stream")
        with pytest.raises(PublishError) as info:
            await asyncio.wait_for(publisher.flush(), 20)
    assert info.value.code == "no-responders"
    return info.value.message


@pytest.mark.parametrize(
    ("options", "user", "reason"),
    [
        ({}, None, "the server has no JetStream"),
        ({"jetstream": True}, None, "create one with js.add_stream"),
        ({"jetstream": True, "config": ACCOUNTS}, "with", "create one with js.add_stream"),
        ({"jetstream": True, "config": ACCOUNTS}, "without", "JetStream is not enabled for this account"),
    ],
    ids=["no JetStream", "JetStream", "account with it", "account without it"],
)
async def test_missing_stream_is_an_error_at_once(make_event, options, user, reason):
    with NatsServer(**options) as server:
        async with await nats.connect(server.url, **({"user": user, "password": "p"} if user else {})) as nc:
            assert f"no.stream: no stream listens: {reason}" in await failure_of(nc, make_event, retry_timeout=LONG)
            with pytest.raises(DeliveryError, match=reason) as info:
                await asyncio.wait_for(ce_js.publish(nc.jetstream(), make_event(), "no.stream", timeout=LONG), 20)
            assert info.value.code == "no-responders"


async def test_missing_stream_is_an_error_at_the_timeout_without_permission_to_ask(make_event):
    """A leader of the stream could be being elected."""
    with NatsServer(jetstream=True, config=NO_API) as server:
        async with await nats.connect(server.url, user="u", password="p", error_cb=ignore) as nc:
            loop = asyncio.get_running_loop()
            began = loop.time()
            failure = await failure_of(nc, make_event, retry_timeout=1)
            assert failure.startswith("no.stream: no stream listens; event with id ")
            assert loop.time() - began >= 1


@pytest.mark.parametrize("has_stream", [True, False])
async def test_reason_of_a_missing_acknowledgement(nc, js, subject, make_event, has_stream):
    """A stream without acknowledgements, or none and another subscriber, for each way to publish."""
    name, subject = subject.replace(".", "_"), f"silent.{subject}"
    if has_stream:
        await js.add_stream(name=name, subjects=[subject], no_ack=True)
        reason = f"stream {name} has no_ack, so it acknowledges nothing"
    else:
        await nc.subscribe(subject)
        reason = "only subscribers without JetStream listen, and no stream: create one with js.add_stream"
    with pytest.raises(DeliveryError, match=reason) as info:
        await ce_js.publish(js, make_event(), subject, timeout=0.3)
    assert info.value.code == "timeout"
    for options in ({}, {"dedup": None}):
        async with Publisher(js, ack_timeout=0.5, retry_timeout=1, **options) as publisher:
            await publisher.publish(make_event(), subject)
            with pytest.raises(PublishError, match=reason) as info:
                await asyncio.wait_for(publisher.flush(), 20)
            assert info.value.code == "timeout"
    if has_stream:
        await js.delete_stream(name)


async def test_lookups_of_a_subject_are_limited(nc, js, subject, stream, make_event):
    """Once per second for a hundred events without responders, not for each event."""
    asked = []

    async def note(message):
        asked.append(message.data)

    async with await nats.connect(nc.connected_url.geturl()) as other:
        await other.subscribe("$JS.API.STREAM.NAMES", cb=note)
        await other.flush()
        async with Publisher(js) as publisher:
            for number in range(100):
                await publisher.publish(make_event(number), f"unbound.{subject}")
            with pytest.raises(PublishError) as info:
                await asyncio.wait_for(publisher.flush(), 20)
        await other.flush()
    assert len(info.value.failures) == 100
    assert 2 <= sum(subject.encode() in data for data in asked) < 50


async def test_message_without_an_id_is_retried_until_its_stream_exists(js, subject, make_event):
    """A message without responders has reached no stream, so resending cannot duplicate it."""
    name = subject.replace(".", "_")
    async with Publisher(js, dedup=None, retry_timeout=20) as publisher:
        await publisher.publish(make_event(1), subject)
        await js.add_stream(name=name, subjects=[subject], storage="memory")
        await publisher.flush()
        await js.delete_stream(name)
        ack = await publisher.publish(make_event(2), subject)
        await asyncio.sleep(0)
        await js.add_stream(name=name, subjects=[subject], storage="memory")
        assert (await ack).seq == 1
    assert (await js.stream_info(name)).state.messages == 1
    await js.delete_stream(name)


async def test_unanswered_lookup_does_not_delay_publishing(make_event):
    """JetStream's API does not answer during the election of its leader; the stream may be available earlier."""
    asked = asyncio.Event()

    async def say_nothing(_):
        asked.set()

    async def store(message):
        await message.respond(b'{"stream":"S","seq":1}')

    with NatsServer() as server:
        async with await nats.connect(server.url) as streams, await nats.connect(server.url) as nc:
            await streams.subscribe("$JS.API.STREAM.NAMES", cb=say_nothing)
            await streams.flush()
            js = nc.jetstream()
            publishing = asyncio.create_task(ce_js.publish(js, make_event(), "a", timeout=60))
            async with Publisher(js, retry_timeout=60) as publisher:
                await publisher.publish(make_event(2), "a")
                await asyncio.wait_for(asked.wait(), 20)
                await streams.subscribe("a", cb=store)
                await asyncio.wait_for(asyncio.gather(publishing, publisher.flush()), 30)
    assert publisher.acknowledged == 1


async def test_jetstream_is_missing_if_the_server_says_so_twice():
    with NatsServer() as server:
        async with await nats.connect(server.url) as nc:
            with pytest.raises(NoStreamError, match="no stream listens: the server has no JetStream") as info:
                await Listeners(nc, "$JS.API").look_for_jetstream("a", LONG)
            assert info.value.code == "no-responders"


async def test_missing_stream_does_not_mean_that_jetstream_is_missing(nc, subject):
    """Nor does an API that does not respond, under another prefix for instance."""
    await Listeners(nc, "$JS.API").look_for_jetstream(subject, LONG)
    await Listeners(nc, "other.API").look_for_jetstream(subject, LONG)


async def test_report_from_before_a_stored_message_does_not_count(nc, js, subject):
    """Two reports are required, because a server that shuts down also reports that there is no stream."""
    listeners = Listeners(nc, "$JS.API")
    assert not listeners.has_absent
    await listeners.look(subject, LONG)
    assert listeners.has_absent
    await asyncio.sleep(PAUSE_SECONDS)
    listeners.note_stream(subject)
    assert not listeners.was_absent(subject)
    assert not listeners.has_absent
    await listeners.look(subject, LONG)
    await asyncio.sleep(PAUSE_SECONDS)
    with pytest.raises(NoStreamError):
        await listeners.look(subject, LONG)
