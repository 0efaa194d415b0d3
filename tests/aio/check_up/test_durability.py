"""Publishers that require a durability of their stream."""

import asyncio

import nats
import pytest

from ce_nats import DeliveryError, EncodeError, SubjectTemplate, sync
from ce_nats.aio import Durability, Publisher
from ce_nats.testing import NatsServer
from tests.support.streaming import free_port


@pytest.fixture(params=["always", "2m"])
async def monitored(request):
    """The setting of a server, the URL of its monitoring port, and JetStream with a stream in a file."""
    port = free_port()
    config = f'http: "127.0.0.1:{port}"\njetstream {{ sync_interval: {request.param} }}'
    with NatsServer(jetstream=True, config=config) as started:
        nc = await nats.connect(started.url)
        js = nc.jetstream()
        await js.add_stream(name="ORDERS", subjects=["orders.*"])
        yield request.param, f"http://127.0.0.1:{port}", js
        await nc.close()


async def refused(js, require):
    with pytest.raises(DeliveryError) as caught:
        async with Publisher(js, require=require):
            pass
    assert caught.value.code == "incompatible-config"
    return caught.value.message


async def test_servers_must_sync_if_that_is_required(monitored, make_event):
    """What is not known is refused."""
    sync_interval, monitor, js = monitored
    require = Durability("ORDERS", sync=True, monitor=[monitor])
    if sync_interval == "always":
        async with Publisher(js, require=require) as publisher:
            await publisher.publish(make_event(1), "orders.paid")
        assert publisher.acknowledged == 1
    else:
        assert "servers do not sync each message" in await refused(js, require)
    assert "is not known" in await refused(js, Durability("ORDERS", sync=True))


async def test_stream_must_have_the_required_durability(js, subject, make_event):
    name = subject.replace(".", "_")
    text = f"stream {name}: required durability: "
    await js.add_stream(name=name, subjects=[subject], storage="memory")
    assert await refused(js, Durability(name)) == (
        f"{text}its messages are in memory, and are lost when its servers stop"
    )
    await js.delete_stream(name)
    await js.add_stream(name=name, subjects=[subject])
    assert await refused(js, Durability(name, replicas=3)) == f"{text}it must have 3 replicas, got 1"
    async with Publisher(js, require=Durability(name)) as publisher:
        await publisher.publish(make_event(1), subject)
    await js.delete_stream(name)
    with pytest.raises(DeliveryError) as caught:
        async with Publisher(js, require=Durability(name)):
            pass
    assert caught.value.code == "stream-not-found"


@pytest.mark.parametrize("options", [{}, {"mode": "structured"}])
async def test_events_are_published_to_this_stream_only(js, subject, stream, make_event, options):
    """Also with a template, and in the fast path."""
    name = f"{stream}_other"
    await js.add_stream(name=name, subjects=[f"other.{subject}.>"])
    async with Publisher(js, require=Durability(name), **options) as publisher:
        await publisher.publish(make_event(1), f"other.{subject}.a")
        for to in (subject, SubjectTemplate(f"{subject}.{{id}}")):
            with pytest.raises(DeliveryError, match=f"is not a subject of stream {name}") as caught:
                await publisher.publish(make_event(2), to)
            assert caught.value.code == "incompatible-config"
    assert (publisher.acknowledged, (await js.stream_info(stream)).state.messages) == (1, 0)
    await js.delete_stream(name)


async def test_publishers_of_threads_have_it_as_well(monitored, make_event):
    sync_interval, monitor, js = monitored
    require = Durability("ORDERS", sync=True, monitor=[monitor])
    url = js._nc.connected_url.geturl()

    def publish():
        with sync.connect(url) as nc, nc.publisher(require=require) as publisher:
            publisher.publish(make_event(1), "orders.paid")
            with pytest.raises(DeliveryError, match="is not a subject of stream ORDERS"):
                publisher.publish(make_event(2), "paid")
        return publisher.acknowledged

    if sync_interval == "always":
        assert await asyncio.to_thread(publish) == 1
    else:
        with pytest.raises(DeliveryError, match="servers do not sync each message"):
            await asyncio.to_thread(publish)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"stream": "a.b"}, EncodeError),
        ({"stream": "S", "replicas": 0}, ValueError),
        ({"stream": "S", "monitor": ["127.0.0.1:8222"]}, ValueError),
        ({"stream": "S", "system": "nats://127.0.0.1"}, TypeError),
    ],
)
def test_invalid_requirements(options, error):
    with pytest.raises(error):
        Durability(**options)
