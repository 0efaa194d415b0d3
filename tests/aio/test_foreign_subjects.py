"""Subjects that the sender of a message has chosen: in dead letters, captured messages and requests."""

import json
from contextlib import asynccontextmanager

import nats
import pytest
from nats.js.api import ExternalStream, StreamSource, SubjectTransform

from ce_nats import CeNatsError, EncodeError, Timestamp
from ce_nats.aio import connect, replay, respond, subscribe
from ce_nats.aio._foreign_subjects import check_foreign_subject
from ce_nats.aio._jetstream_api import StreamApi
from ce_nats.aio.consumer._dead_letters import requeue, requeue_all
from ce_nats.aio.jetstream import read_stream
from ce_nats.message import StoredMessage
from ce_nats.redelivery import DeadLetter, Reason
from ce_nats.testing import NatsServer

# The account APP has imported JetStream's API of the account HUB under a prefix.
ACCOUNTS = """
accounts {
  HUB: { jetstream: enabled, users: [{user: hub, password: s3cret}]
         exports: [{service: "$JS.API.>"}, {service: "orders.>"}] }
  APP: { users: [{user: app, password: s3cret}]
         imports: [{service: {account: HUB, subject: "$JS.API.>"}, to: "hub.api.>"}
                   {service: {account: HUB, subject: "orders.>"}}] }
}
"""


def letter(subject, stream, sequence=1):
    """A dead letter that any client may have written, as ``read_stream`` returns it."""
    headers = DeadLetter(Reason.REJECTED, "", "", subject, stream, "c", 1, 1).headers()
    return StoredMessage("dead", "", headers, b"", "DEAD", sequence, Timestamp("2026-01-02T03:04:05Z"))


def captured(subject):
    return StoredMessage(subject, "", [], b"", "", 1, Timestamp("2026-01-02T03:04:05Z"))


async def count(js, stream):
    return (await js.stream_info(stream)).state.messages


async def code_of(awaitable):
    with pytest.raises(CeNatsError) as info:
        await awaitable
    return str(info.value.code)


@pytest.fixture
async def filled(js, stream, subject):
    """A stream with three messages, which a purge would remove."""
    for number in range(3):
        await js.publish(subject, b"%d" % number)
    return stream


def harmful(stream, prefix="$JS.API"):
    """Requests without a body that change a stream, or anything else on the server."""
    return [
        f"{prefix}.STREAM.PURGE.{stream}",
        f"{prefix}.STREAM.DELETE.{stream}",
        f"{prefix}.CONSUMER.DELETE.{stream}.c",
        f"{prefix}.STREAM.LEADER.STEPDOWN.{stream}",
        f"{prefix}.META.LEADER.STEPDOWN",
    ]


OTHERS = [
    "$JS.hub.API.STREAM.PURGE.S",
    "$JS.ACK.S.c.1.1.1.1.0",
    "$JS",
    "$SYS.REQ.SERVER.PING",
    "$SRV.PING",
    "$MQTT.sub.a",
]


async def test_requests_to_the_server_are_not_requeued(js, filled):
    for subject in harmful(filled) + OTHERS:
        for allowed in (None, [">"], [subject]):
            assert await code_of(requeue(js, letter(subject, filled), allowed=allowed)) == "forbidden-subject"
    assert await count(js, filled) == 3


async def test_requests_to_the_server_are_not_replayed(nc, js, filled):
    for subject in harmful(filled) + OTHERS:
        for acknowledged in (True, False):
            for allowed in ((), [">"]):
                result = replay(nc, [captured(subject)], acknowledged=acknowledged, allowed=allowed)
                assert await code_of(result) == "forbidden-subject"
    assert await count(js, filled) == 3


async def test_requests_to_the_server_are_not_replied_to(nc, js, filled, make_event):
    subject = f"service.{filled}"
    replies = [*harmful(filled), "$SYS.REQ.SERVER.PING", "$KV.config.admin", "$O.files.M.a", "hub.api.STREAM.PURGE.S"]
    async with await subscribe(nc, subject) as requests:
        for reply in replies:
            await nc.publish(subject, b"", reply)
            assert await code_of(respond(await anext(requests), make_event())) == "forbidden-subject"
        await nc.flush()
    assert await count(js, filled) == 3


@pytest.mark.parametrize("reply", ["a.*", "a.>", "a..b", ".a"])
async def test_replies_that_are_not_subjects_are_refused(nc, subject, make_event, send_raw, reply):
    async with await subscribe(nc, subject) as requests:
        send_raw(subject, None, b"", reply)
        assert await code_of(respond(await anext(requests), make_event())) == "invalid-subject"
    assert nc.is_connected


@asynccontextmanager
async def imported():
    """A stream ORDERS with a message, and a connection that reaches its API under another prefix."""
    with NatsServer(jetstream=True, config=ACCOUNTS) as server:
        async with (
            await nats.connect(server.url, user="hub", password="s3cret") as hub,
            await nats.connect(server.url, user="app", password="s3cret") as app,
        ):
            await hub.jetstream().add_stream(name="ORDERS", subjects=["orders.>"], storage="memory")
            await hub.jetstream().publish("orders.new", b"1")
            yield server, hub.jetstream(), app


async def test_an_imported_api_is_refused_whether_its_prefix_is_known_or_not(make_event):
    async with imported() as (_, hub, app):
        for _ in range(2):
            async with await subscribe(app, "service") as requests:
                for subject in harmful("ORDERS", "hub.api"):
                    assert await code_of(replay(app, [captured(subject)], acknowledged=False)) == "forbidden-subject"
                    await app.publish("service", b"", subject)
                    assert await code_of(respond(await anext(requests), make_event())) == "forbidden-subject"
            js = app.jetstream(prefix="hub.api")
            for subject in harmful("ORDERS", "hub.api"):
                for allowed in (None, [">"]):
                    assert await code_of(requeue(js, letter(subject, "ORDERS"), allowed=allowed)) == "forbidden-subject"
        assert await count(hub, "ORDERS") == 1
        # With a known prefix nothing below it is data, however it looks and whatever is allowed.
        assert await code_of(replay(app, [captured("hub.api.X")], allowed=[">"])) == "forbidden-subject"
        assert (await requeue(js, letter("orders.new", "ORDERS"))).stream == "ORDERS"


async def test_the_prefix_of_a_connection_is_known_from_its_context(monkeypatch, tmp_path):
    async with imported() as (server, _, _):
        directory = tmp_path / "nats" / "context"
        directory.mkdir(parents=True)
        context = {"url": server.url, "user": "app", "password": "s3cret", "jetstream_api_prefix": "hub.api"}
        (directory / "hub.json").write_text(json.dumps(context))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        async with await connect(context="hub") as nc:
            with pytest.raises(EncodeError, match="forbidden-subject"):
                check_foreign_subject(nc, "hub.api.X", allowed=[">"])


async def test_data_that_looks_like_an_api_can_be_allowed(nc, js):
    """Subjects in capitals; requeueing needs no option, because the stream listens on them."""
    subject = "SHOP.CONSUMER.CREATE.42"
    await js.add_stream(name="SHOP", subjects=["SHOP.>"], storage="memory")
    assert await code_of(replay(nc, [captured(subject)])) == "forbidden-subject"
    assert (await replay(nc, [captured(subject)], allowed=["SHOP.>"])).messages == 1
    assert (await requeue(js, letter(subject, "SHOP"))).seq == 2
    await js.delete_stream("SHOP")


async def test_keys_of_a_bucket_are_data(nc, js, subject):
    """They are replayed, and requeued if the dead letter is one of the bucket's stream."""
    bucket = subject.replace(".", "_")
    store = await js.create_key_value(bucket=bucket)
    key = f"$KV.{bucket}.color"
    await replay(nc, [captured(key)._replace(data=b"red")])
    assert (await store.get("color")).value == b"red"
    await requeue(js, letter(key, f"KV_{bucket}")._replace(data=b"blue"))
    assert (await store.get("color")).value == b"blue"
    await js.delete_key_value(bucket)


# --- Subjects of a stream --------------------------------------------------------------------------------------------


async def test_an_original_goes_to_its_own_stream_only(js, stream, subject, dead):
    """Not to that of the dead letters, and not to one that the author of the letter names and that does not exist."""
    other = dead.replace(".", "_")
    assert await code_of(requeue(js, letter(dead, stream))) == "forbidden-subject"
    assert await code_of(requeue(js, letter(subject, "NONE"))) == "stream-not-found"
    assert await code_of(requeue(js, letter(dead, stream), allowed=["test.>"])) == "forbidden-subject"
    assert (await requeue(js, letter(dead, stream), allowed=["dead.>", "test.>"])).stream == other
    assert (await requeue(js, letter(f"{subject}.a", stream))).stream == stream
    assert (await requeue(js, letter(subject, "NONE"), allowed=[subject])).stream == stream


@pytest.mark.parametrize("name", ["ORDERS.billing", "ORDERS billing", "*", ">", "a\r\nb", "é é"])
async def test_names_of_streams_are_checked_before_the_server_is_asked(nc, js, subject, name):
    before = nc.stats["out_msgs"]
    assert await code_of(requeue(js, letter(subject, name))) == "invalid-subject"
    assert nc.stats["out_msgs"] == before


async def test_an_invalid_pattern_is_an_error(nc, js, subject):
    assert await code_of(requeue(js, letter(subject, "S"), allowed=["a..b"])) == "invalid-subject"
    assert await code_of(replay(nc, [captured(subject)], allowed=["a..b"])) == "invalid-subject"


async def test_each_stream_is_looked_up_once(nc, js, stream, subject):
    letters = [letter(subject, name, number) for number, name in enumerate([stream, "NONE"] * 50, 1)]
    asked = await nc.subscribe("$JS.API.STREAM.INFO.>")
    outcomes = [outcome async for outcome in requeue_all(js, each(letters), delete=False)]
    assert sum(outcome.ack is not None for outcome in outcomes) == 50
    assert {str(outcome.error.code) for outcome in outcomes if outcome.error} == {"stream-not-found"}
    await nc.flush()
    assert asked.pending_msgs == 2


async def each(items):
    for item in items:
        yield item


@pytest.fixture
async def derived(js, stream):
    """A function that adds a stream made from others; they are deleted after the test."""
    added = []

    async def derived(name, **config):
        added.append(f"{stream}_{name}")
        await js.add_stream(name=added[-1], storage="memory", **config)
        return added[-1]

    yield derived
    for name in added:
        await js.delete_stream(name)


async def test_originals_of_mirrors_and_sourced_streams_go_to_where_they_came_from(js, stream, subject, derived):
    """A mirror of a mirror, too; the copies arrive there again."""
    mirror = await derived("mirror", mirror=StreamSource(name=stream))
    second = await derived("second", mirror=StreamSource(name=mirror))
    gathered = await derived("gathered", subjects=[f"own.{subject}"], sources=[StreamSource(name=second)])
    for number, name in enumerate((mirror, second, gathered), 1):
        assert (await requeue(js, letter(subject, name, number))).stream == stream
    assert (await requeue(js, letter(f"own.{subject}", gathered, 9))).stream == gathered
    assert await code_of(requeue(js, letter(f"own.{subject}", mirror))) == "forbidden-subject"


async def test_a_source_that_is_gone_does_not_keep_others(js, stream, subject, derived):
    await js.add_stream(name=f"{stream}_gone", subjects=[f"gone.{subject}"], storage="memory")
    sources = [StreamSource(name=f"{stream}_gone"), StreamSource(name=stream)]
    sources.append(StreamSource(name="X", external=ExternalStream(api="nobody.api", deliver="nobody.deliver")))
    gathered = await derived("gathered", sources=sources)
    await js.delete_stream(f"{stream}_gone")
    assert (await requeue(js, letter(subject, gathered), timeout=2)).stream == stream


async def test_streams_that_source_each_other_are_looked_up_once(js, stream, subject, derived):
    one = await derived("one", subjects=[f"one.{subject}"])
    two = await derived("two", subjects=[f"two.{subject}"], sources=[StreamSource(name=one)])
    assert set(await StreamApi.of(js).origin_subjects(two)) == {f"one.{subject}", f"two.{subject}"}


async def test_a_transformed_subject_needs_to_be_allowed(js, stream, subject, derived):
    """The stream does not listen on what it has stored, so only the operator knows where it belongs."""
    transform = SubjectTransform(src=f"in.{subject}", dest=f"out.{subject}")
    config = {"subjects": [f"in.{subject}"], "subject_transform": transform}
    name = await derived("changed", **config)
    other = await derived("other", subjects=[f"out.{subject}"])
    await js.publish(f"in.{subject}", b"1")
    ((stored,),) = [batch async for batch in read_stream(js, name)]
    assert await code_of(requeue(js, letter(stored.subject, name))) == "forbidden-subject"
    assert (await requeue(js, letter(stored.subject, name), allowed=["out.>"])).stream == other
