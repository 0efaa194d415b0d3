"""Whether a stream listens, as each kind of server says it: at once where it knows, else at the end of the time."""

import asyncio

import nats
import pytest

from ce_nats.aio import DeliveryError, Publisher, PublishError
from ce_nats.aio import jetstream as ce_js
from ce_nats.testing import NatsServer

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


async def ignore(error):
    """A denied permission, say."""


async def failure_of(nc, make_event, *, retry_timeout):
    """The error of an event that no stream listens for."""
    async with Publisher(nc.jetstream(), ack_timeout=0.3, retry_timeout=retry_timeout) as publisher:
        await publisher.publish(make_event(), "nobody.listens")
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
async def test_servers_that_know_are_believed_at_once(make_event, options, user, reason):
    with NatsServer(**options) as server:
        async with await nats.connect(server.url, **({"user": user, "password": "p"} if user else {})) as nc:
            assert f"nobody.listens: no stream listens: {reason}" in await failure_of(
                nc, make_event, retry_timeout=LONG
            )
            with pytest.raises(DeliveryError, match=reason) as info:
                await asyncio.wait_for(ce_js.publish(nc.jetstream(), make_event(), "nobody.listens", timeout=LONG), 20)
            assert info.value.code == "no-responders"


async def test_who_may_not_ask_waits_for_a_stream(make_event):
    """It may be that there is one whose leader is being elected. At the end of the time there was none."""
    with NatsServer(jetstream=True, config=NO_API) as server:
        async with await nats.connect(server.url, user="u", password="p", error_cb=ignore) as nc:
            loop = asyncio.get_running_loop()
            began = loop.time()
            assert await failure_of(nc, make_event, retry_timeout=1) == "nobody.listens: no stream listens"
            assert loop.time() - began >= 1


async def test_a_subject_is_asked_for_no_more_often_than_needed(nc, js, subject, stream, make_event):
    """Once a second for a hundred events that find nobody, not for each."""
    asked = []

    async def note(message):
        asked.append(message.data)

    async with await nats.connect(nc.connected_url.geturl()) as other:
        await other.subscribe("$JS.API.STREAM.NAMES", cb=note)
        await other.flush()
        async with Publisher(js) as publisher:
            for number in range(100):
                await publisher.publish(make_event(number), f"nobody.{subject}")
            with pytest.raises(PublishError) as info:
                await asyncio.wait_for(publisher.flush(), 20)
        await other.flush()
    assert len(info.value.failures) == 100
    assert 2 <= sum(subject.encode() in data for data in asked) <= 5


async def test_messages_without_an_id_wait_for_their_stream_too(js, subject, make_event):
    """Nobody has got what comes back, so it is no copy that is sent."""
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


async def test_an_api_that_says_nothing_holds_nothing_up(make_event):
    """As it is while JetStream's own leader is being elected: the stream may be back earlier."""
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
