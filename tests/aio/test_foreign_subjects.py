"""Subjects chosen by the sender of a message: in dead letters, captured messages and requests."""

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

# The account APP imports JetStream's API of the account HUB under a prefix.
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
    """Return a dead letter that any client may have written, as ``read_stream`` returns it."""
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
    """A stream with three messages, which a purge would delete."""
    for number in range(3):
        await js.publish(subject, b"%d" % number)
    return stream


def harmful(stream, prefix="$JS.API"):
    """Requests without a body that change a stream, or another object of the server."""
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
                result = replay(js, [captured(subject)], acknowledged=acknowledged, allowed=allowed)
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
async def test_invalid_reply_subjects_are_rejected(nc, subject, make_event, send_raw, reply):
    async with await subscribe(nc, subject) as requests:
        send_raw(subject, None, b"", reply)
        assert await code_of(respond(await anext(requests), make_event())) == "invalid-subject"
    assert nc.is_connected


@asynccontextmanager
async def imported():
    """A stream ORDERS with a message, and a connection with another prefix of its API."""
    with NatsServer(jetstream=True, config=ACCOUNTS) as server:
        async with (
            await nats.connect(server.url, user="hub", password="s3cret") as hub,
            await nats.connect(server.url, user="app", password="s3cret") as app,
        ):
            await hub.jetstream().add_stream(name="ORDERS", subjects=["orders.>"], storage="memory")
            await hub.jetstream().publish("orders.new", b"1")
            yield server, hub.jetstream(), app


async def test_imported_api_is_rejected_with_known_and_unknown_prefix(make_event):
    async with imported() as (_, hub, app):
        for _ in range(2):
            async with await subscribe(app, "service") as requests:
                for subject in harmful("ORDERS", "hub.api"):
                    assert (
                        await code_of(replay(app.jetstream(), [captured(subject)], acknowledged=False))
                        == "forbidden-subject"
                    )
                    await app.publish("service", b"", subject)
                    assert await code_of(respond(await anext(requests), make_event())) == "forbidden-subject"
            js = app.jetstream(prefix="hub.api")
            for subject in harmful("ORDERS", "hub.api"):
                for allowed in (None, [">"]):
                    assert await code_of(requeue(js, letter(subject, "ORDERS"), allowed=allowed)) == "forbidden-subject"
        assert await count(hub, "ORDERS") == 1
        # No subject below a known prefix is data, even if it is allowed.
        assert await code_of(replay(js, [captured("hub.api.X")], allowed=[">"])) == "forbidden-subject"
        assert (await requeue(js, letter("orders.new", "ORDERS"))).stream == "ORDERS"


async def test_prefix_of_a_connection_is_taken_from_its_context(monkeypatch, tmp_path):
    async with imported() as (server, _, _):
        directory = tmp_path / "nats" / "context"
        directory.mkdir(parents=True)
        context = {"url": server.url, "user": "app", "password": "s3cret", "jetstream_api_prefix": "hub.api"}
        (directory / "hub.json").write_text(json.dumps(context))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        async with await connect(context="hub") as nc:
            with pytest.raises(EncodeError, match="forbidden-subject"):
                check_foreign_subject(nc, "hub.api.X", allowed=[">"])


async def test_data_subjects_like_an_api_can_be_allowed(nc, js):
    """Upper-case subjects; requeueing needs no option, because the stream has these subjects."""
    subject = "SHOP.CONSUMER.CREATE.42"
    await js.add_stream(name="SHOP", subjects=["SHOP.>"], storage="memory")
    assert await code_of(replay(js, [captured(subject)])) == "forbidden-subject"
    assert (await replay(js, [captured(subject)], allowed=["SHOP.>"])).messages == 1
    assert (await requeue(js, letter(subject, "SHOP"))).seq == 2
    await js.delete_stream("SHOP")


async def test_keys_of_a_bucket_are_data(nc, js, subject):
    """They are replayed, and requeued if the dead letter is from the bucket's stream."""
    bucket = subject.replace(".", "_")
    store = await js.create_key_value(bucket=bucket)
    key = f"$KV.{bucket}.color"
    await replay(js, [captured(key)._replace(data=b"red")])
    assert (await store.get("color")).value == b"red"
    await requeue(js, letter(key, f"KV_{bucket}")._replace(data=b"blue"))
    assert (await store.get("color")).value == b"blue"
    await js.delete_key_value(bucket)


# --- Subjects of a stream --------------------------------------------------------------------------------------------


async def test_original_is_requeued_to_its_own_stream_only(js, stream, subject, dead):
    """Not to the stream of dead letters, and not to a missing stream that the author of the dead letter names."""
    other = dead.replace(".", "_")
    assert await code_of(requeue(js, letter(dead, stream))) == "forbidden-subject"
    assert await code_of(requeue(js, letter(subject, "NONE"))) == "stream-not-found"
    assert await code_of(requeue(js, letter(dead, stream), allowed=["test.>"])) == "forbidden-subject"
    assert (await requeue(js, letter(dead, stream), allowed=["dead.>", "test.>"])).stream == other
    assert (await requeue(js, letter(f"{subject}.a", stream))).stream == stream
    assert (await requeue(js, letter(subject, "NONE"), allowed=[subject])).stream == stream


@pytest.mark.parametrize("name", ["ORDERS.billing", "ORDERS billing", "*", ">", "a\r\nb", "é é"])
async def test_stream_names_are_checked_before_the_request(nc, js, subject, name):
    before = nc.stats["out_msgs"]
    assert await code_of(requeue(js, letter(subject, name))) == "invalid-subject"
    assert nc.stats["out_msgs"] == before


async def test_invalid_pattern_is_an_error(nc, js, subject):
    assert await code_of(requeue(js, letter(subject, "S"), allowed=["a..b"])) == "invalid-subject"
    assert await code_of(replay(js, [captured(subject)], allowed=["a..b"])) == "invalid-subject"


async def test_each_stream_is_looked_up_once(nc, js, stream, subject):
    letters = [letter(subject, name, number) for number, name in enumerate([stream, "NONE"] * 50, 1)]
    asked = await nc.subscribe("$JS.API.STREAM.INFO.>")
    outcomes = [outcome async for outcome in requeue_all(js, each(letters), delete=False)]
    assert sum(outcome.ack is not None for outcome in outcomes) == 50
    assert {str(outcome.error.code) for outcome in outcomes if outcome.error} == {"stream-not-found"}
    await nc.flush()
    assert asked.pending_msgs == 3  # once more for the stream, by the publisher: does it accept batches?


async def each(items):
    for item in items:
        yield item


@pytest.fixture
async def derived(js, stream):
    """Add a stream that mirrors or sources others; it is deleted after the test."""
    added = []

    async def derived(name, **config):
        added.append(f"{stream}_{name}")
        await js.add_stream(name=added[-1], storage="memory", **config)
        return added[-1]

    yield derived
    for name in added:
        await js.delete_stream(name)


async def test_originals_of_mirrors_are_requeued_to_the_source_stream(js, stream, subject, derived):
    """Also of mirrors of mirrors and of sourced streams, which receive the copies again."""
    mirror = await derived("mirror", mirror=StreamSource(name=stream))
    second = await derived("second", mirror=StreamSource(name=mirror))
    gathered = await derived("gathered", subjects=[f"own.{subject}"], sources=[StreamSource(name=second)])
    for number, name in enumerate((mirror, second, gathered), 1):
        assert (await requeue(js, letter(subject, name, number))).stream == stream
    assert (await requeue(js, letter(f"own.{subject}", gathered, 9))).stream == gathered
    assert await code_of(requeue(js, letter(f"own.{subject}", mirror))) == "forbidden-subject"


async def test_missing_source_does_not_prevent_others(js, stream, subject, derived):
    await js.add_stream(name=f"{stream}_gone", subjects=[f"gone.{subject}"], storage="memory")
    sources = [StreamSource(name=f"{stream}_gone"), StreamSource(name=stream)]
    sources.append(StreamSource(name="X", external=ExternalStream(api="missing.api", deliver="missing.deliver")))
    gathered = await derived("gathered", sources=sources)
    await js.delete_stream(f"{stream}_gone")
    assert (await requeue(js, letter(subject, gathered), timeout=2)).stream == stream


async def test_streams_that_source_each_other_are_looked_up_once(js, stream, subject, derived):
    one = await derived("one", subjects=[f"one.{subject}"])
    two = await derived("two", subjects=[f"two.{subject}"], sources=[StreamSource(name=one)])
    assert set(await StreamApi.of(js).origin_subjects(two)) == {f"one.{subject}", f"two.{subject}"}


async def test_transformed_subject_must_be_allowed(js, stream, subject, derived):
    """The stored subject is not a subject of the stream, so the operator must state where it belongs."""
    transform = SubjectTransform(src=f"in.{subject}", dest=f"out.{subject}")
    config = {"subjects": [f"in.{subject}"], "subject_transform": transform}
    name = await derived("changed", **config)
    other = await derived("other", subjects=[f"out.{subject}"])
    await js.publish(f"in.{subject}", b"1")
    ((stored,),) = [batch async for batch in read_stream(js, name)]
    assert await code_of(requeue(js, letter(stored.subject, name))) == "forbidden-subject"
    assert (await requeue(js, letter(stored.subject, name), allowed=["out.>"])).stream == other
