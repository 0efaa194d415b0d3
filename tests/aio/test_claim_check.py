"""Large data of events in an object store."""

import asyncio
import io
import json
from base64 import urlsafe_b64encode

import pytest

from ce_nats import ContentMode, DecodeError, EncodeError, from_nats_message, to_nats_message
from ce_nats.aio import ClaimCheck, DeliveryError, Publisher, PublishError, connect
from ce_nats.aio import jetstream as ce_js
from ce_nats.codec.data import JsonText
from ce_nats.codec.event import DecodedEvent, NotDelivered
from ce_nats.extensions.dataref import ObjectReference, object_name, object_reference
from ce_nats.redelivery import DeadLetter, Reason
from ce_nats.routing import Router
from ce_nats.testing import NatsServer
from tests.support.buckets import bucket, claim_check, state, store
from tests.support.consuming import after, consume, is_settled, take
from tests.support.reading import read
from tests.support.waiting import until

__all__ = ["bucket", "claim_check", "consume", "is_settled", "state", "store"]

LARGE = {"text": "ü" * 1000}
DIGEST = f"SHA-256={urlsafe_b64encode(bytes(32)).decode()}"


def received(event, mode=ContentMode.BINARY, **options):
    """Return an event as a consumer receives it."""
    return from_nats_message(to_nats_message(event, "s", mode=mode), **options)


async def failure(kind, call):
    """Await a call that must fail, and return the code of the error."""
    with pytest.raises(kind) as info:
        await asyncio.wait_for(call, 60)
    return info.value.code


def name_of(event):
    return object_reference(event).name


# --- Data ------------------------------------------------------------------------------------------------------------

DATA = {
    "object": (LARGE, {"datacontenttype": "application/json"}),
    "string": ("ü" * 1000, {"datacontenttype": "application/json"}),
    "array without type": ([1.5] * 1000, {}),
    "suffix": (LARGE, {"datacontenttype": "application/vnd.order+json"}),
    "json text": (JsonText(f"[{'1.50,' * 500}1]"), {"datacontenttype": "application/json"}),
    "bytes as json": (json.dumps(LARGE).encode(), {"datacontenttype": "application/json"}),
    "text": ("ü" * 1000, {"datacontenttype": "text/plain"}),
    "latin text": ("ü" * 2000, {"datacontenttype": "text/plain; charset=iso-8859-1"}),
    "xml": (f"<a>{'b' * 1000}</a>", {"datacontenttype": "application/xml"}),
    "bytes": (bytes(range(256)) * 10, {"datacontenttype": "image/png"}),
    "bytes without type": (b"\xff" * 2000, {}),
    "several chunks": (b"a" * 700_000, {}),
}


@pytest.mark.parametrize("mode", ContentMode)
@pytest.mark.parametrize("name", DATA)
async def test_resolved_event_is_the_event_with_its_data(claim_check, make_event, name, mode):
    """As if its data had been sent in the message."""
    value, attributes = DATA[name]
    event = make_event(1, value, **attributes)
    sent = await claim_check.check_in(event)
    assert not sent.has_data
    for options in ({}, {"parse_data": False}):
        got = received(sent, mode, **options)
        assert not got.has_data
        whole = await claim_check.resolve(got, **options)
        expected = received(event, ContentMode.BINARY, **options)
        assert (whole.data, type(whole.data), whole.has_data) == (expected.data, type(expected.data), True)
        assert {**whole.get_attributes(), "dataref": None} == {**expected.get_attributes(), "dataref": None}
        assert received(whole).data == received(expected).data


async def test_data_as_converts_resolved_data(claim_check, make_event):
    got = received(await claim_check.check_in(make_event(1, LARGE)))
    assert (await claim_check.resolve(got)).data_as(dict[str, str]) == LARGE
    assert (await claim_check.resolve(got, parse_data=False)).data_as(dict[str, str]) == LARGE


@pytest.mark.parametrize(
    "data",
    [None, b"", "", b"a" * 1000, "a" * 998, ["a" * 996], {"a": 1}],
    ids=lambda data: f"{type(data).__name__} {len(data or '')}",
)
async def test_small_data_is_sent_in_the_message(claim_check, state, make_event, data):
    event = make_event(1, data)
    assert await claim_check.check_in(event) is event
    assert (await state()).messages == 0


@pytest.mark.parametrize("data", [b"a" * 1001, "a" * 999, ["a" * 997]], ids=lambda data: type(data).__name__)
async def test_data_over_the_limit_is_stored(claim_check, state, make_event, data):
    assert object_reference(await claim_check.check_in(make_event(1, data))) is not None
    assert (await state()).messages == 2  # a chunk and the metadata


async def test_json_null_is_stored_if_all_data_is(js, bucket, make_event):
    claim_check = ClaimCheck(js, bucket, over=0)
    null = from_nats_message(to_nats_message(DecodedEvent(dict(make_event().get_attributes()), has_data=True)))
    whole = await claim_check.resolve(received(await claim_check.check_in(null)))
    assert (whole.has_data, whole.data) == (True, None)


@pytest.mark.parametrize("data", [LARGE, None, b"small"], ids=["large", "none", "small"])
async def test_event_that_refers_to_other_data_is_unchanged(claim_check, state, make_event, data):
    event = make_event(1, data, dataref="https://example.com/data")
    assert await claim_check.check_in(event) is event
    assert (await state()).messages == 0


async def test_resolved_event_can_be_checked_in_again(claim_check, state, make_event):
    sent = await claim_check.check_in(make_event(1, LARGE))
    whole = await claim_check.resolve(received(sent))
    assert (await claim_check.check_in(whole)).get_attributes() == sent.get_attributes()
    changed = DecodedEvent(dict(whole.get_attributes()), {**LARGE, "n": 1})
    assert name_of(await claim_check.check_in(changed)) != name_of(sent)


async def test_invalid_event_is_not_stored(claim_check, state, make_event):
    event = make_event(1, LARGE)
    event._attributes["time"] = "yesterday"
    assert await failure(EncodeError, claim_check.check_in(event)) == "invalid-timestamp"
    event = DecodedEvent(dict(make_event().get_attributes()), NotDelivered(5000))
    assert await failure(EncodeError, claim_check.check_in(event)) == "invalid-data"
    assert await failure(EncodeError, claim_check.check_in(None)) == "invalid-message"
    assert (await state()).messages == 0


# --- Objects ---------------------------------------------------------------------------------------------------------


async def test_retry_does_not_store_twice(claim_check, state, make_event):
    first = await claim_check.check_in(make_event(1, LARGE))
    stored = (await state()).last_seq
    assert (await claim_check.check_in(make_event(1, LARGE))).get_attributes() == first.get_attributes()
    assert (await state()).last_seq == stored


async def test_objects_of_events_do_not_replace_each_other(claim_check, make_event):
    """Neither those of other events with equal data, nor those of an event with the same source and id."""
    events = [make_event(1, LARGE), make_event(2, LARGE), make_event(1, {**LARGE, "b": 1})]
    sent = [received(await claim_check.check_in(event)) for event in events]
    assert len({name_of(event) for event in sent}) == 3
    assert [(await claim_check.resolve(event)).data for event in sent] == [event.get_data() for event in events]


async def test_time_to_live_of_an_object_begins_again(js, subject, make_event):
    """An event that is published again refers to an object that does not expire before its message."""
    bucket = subject.replace(".", "_")
    await js.create_object_store(bucket, storage="memory", ttl=3600)
    try:
        claim_check = ClaimCheck(js, bucket, over=1000)
        for stored in (2, 4):
            sent = await claim_check.check_in(make_event(1, LARGE))
            state = (await js.stream_info(f"OBJ_{bucket}")).state
            assert (state.messages, state.last_seq) == (2, stored)
        assert (await claim_check.resolve(received(sent))).data == LARGE
    finally:
        await js.delete_object_store(bucket)


async def test_object_may_be_replaced_while_it_is_read(js, bucket, store, make_event):
    claim_check = ClaimCheck(js, bucket, over=1000)
    data = b"a" * 1_000_000
    sent = received(await claim_check.check_in(make_event(1, data)))
    replacing = asyncio.create_task(_put_again(store, name_of(sent), data))
    while not replacing.done():
        assert (await claim_check.resolve(sent)).data == data
    await replacing


async def _put_again(store, name, data):
    for _ in range(10):
        await store.put(name, data)


async def test_objects_of_other_clients_are_read(claim_check, store, make_event):
    content = b"a" * 300_000
    await store.put("reports/1 ü", content)
    reference = str(ObjectReference(claim_check.bucket, "reports/1 ü"))
    assert (await claim_check.resolve(received(make_event(dataref=reference)))).data == content
    await store.put("empty", b"")
    empty = received(make_event(dataref=str(ObjectReference(claim_check.bucket, "empty"))))
    assert await claim_check.resolve(empty) == empty


async def test_object_is_read_by_other_clients(claim_check, store, make_event):
    sent = await claim_check.check_in(make_event(1, LARGE))
    assert json.loads((await store.get(name_of(sent))).data) == LARGE


async def test_chunks_fit_into_messages_of_the_server(make_event):
    with NatsServer(jetstream=True, config="max_payload: 10KB") as server:
        async with connect(server.url) as nc:
            js = nc.jetstream()
            await js.create_object_store("DATA")
            claim_check = ClaimCheck(js, "DATA", over=5000)
            sent = received(await claim_check.check_in(make_event(1, b"a" * 50_000)))
            assert (await claim_check.resolve(sent)).data == b"a" * 50_000


# --- Errors ----------------------------------------------------------------------------------------------------------


async def test_deleted_object_is_not_found(claim_check, store, make_event):
    sent = received(await claim_check.check_in(make_event(1, LARGE)))
    await store.delete(name_of(sent))
    assert await failure(DeliveryError, claim_check.resolve(sent)) == "object-not-found"
    assert await claim_check.check_in(make_event(1, LARGE)) == sent
    assert (await claim_check.resolve(sent)).data == LARGE


async def test_object_that_was_never_stored_is_not_found(claim_check, make_event):
    reference = str(ObjectReference(claim_check.bucket, object_name(make_event(), b"")))
    assert (
        await failure(DeliveryError, claim_check.resolve(received(make_event(dataref=reference)))) == "object-not-found"
    )


async def test_missing_bucket_is_named(js, make_event):
    claim_check = ClaimCheck(js, "NONE", over=1000)
    with pytest.raises(DeliveryError, match="there is no bucket NONE") as info:
        await claim_check.check_in(make_event(1, LARGE))
    assert (info.value.code, info.value.err_code) == ("stream-not-found", 10059)
    got = received(make_event(dataref="nats-obj:NONE/name"))
    assert await failure(DeliveryError, claim_check.resolve(got)) == "stream-not-found"


@pytest.mark.parametrize(
    "dataref", ["https://example.com/data", "nats-obj:OTHER/name", "nats-obj:{bucket}", "", "file:///etc/passwd"]
)
async def test_only_the_bucket_of_the_program_is_read(nc, js, claim_check, make_event, dataref):
    """The sender chooses the reference; an object in another bucket exists, and is not requested."""
    await js.create_object_store("OTHER", storage="memory")
    try:
        await (await js.object_store("OTHER")).put("name", b"secret")
        requests = await nc.subscribe("$JS.API.>")
        await nc.flush()
        got = received(make_event(dataref=dataref.format(bucket=claim_check.bucket)))
        with pytest.raises(DecodeError) as info:
            await claim_check.resolve(got)
        assert (info.value.code, info.value.attribute) == ("unsupported-dataref", "dataref")
        await nc.flush()
        assert requests.pending_msgs == 0
        await js.stream_info("OBJ_OTHER")
        await until(lambda: requests.pending_msgs == 1)  # because the subscription receives requests
    finally:
        await js.delete_object_store("OTHER")


async def test_link_to_another_bucket_is_not_followed(js, bucket, store, claim_check, make_event):
    """nats-py's get() reads the bucket that a link names."""
    await js.create_object_store("SECRET", storage="memory")
    try:
        await (await js.object_store("SECRET")).put("key", b"secret")
        link = {"name": "link", "bucket": bucket, "nuid": "a", "options": {"link": {"bucket": "SECRET", "name": "key"}}}
        await js.publish(f"$O.{bucket}.M.{urlsafe_b64encode(b'link').decode()}", json.dumps(link).encode())
        assert (await store.get("link")).data == b"secret"
        got = received(make_event(dataref=f"nats-obj:{bucket}/link"))
        assert await failure(DecodeError, claim_check.resolve(got)) == "unsupported-dataref"
    finally:
        await js.delete_object_store("SECRET")


async def test_object_with_other_content_is_refused(claim_check, store, make_event):
    """A client that can write to the bucket cannot change the data of an event, because its name has the digest."""
    sent = received(await claim_check.check_in(make_event(1, LARGE)))
    await store.put(name_of(sent), b'{"text":"other"}')
    assert await failure(DecodeError, claim_check.resolve(sent)) == "digest-mismatch"


@pytest.mark.parametrize("removed", ["first", "middle", "last", "all"])
async def test_damaged_object_is_refused(js, bucket, claim_check, make_event, removed):
    """nats-py's get() waits forever if no chunk is left."""
    sent = received(await claim_check.check_in(make_event(1, b"a" * 700_000)))
    chunks = f"$O.{bucket}.C.>"
    if removed == "all":
        await js.purge_stream(f"OBJ_{bucket}", subject=chunks)
    else:
        await js.delete_msg(f"OBJ_{bucket}", {"first": 1, "middle": 3, "last": 6}[removed])
    assert await failure(DecodeError, claim_check.resolve(sent)) == "digest-mismatch"


METADATA = {
    "no json": b"{",
    "no object": b"[]",
    "no utf-8": b'{"nuid":"\xff"}',
    "no nuid": {"nuid": ""},
    "wildcard": {"nuid": ">"},
    "several tokens": {"nuid": "a.b"},
    "negative size": {"size": -1},
    "size as text": {"size": "5"},
    "no digest": {"digest": ""},
    "short digest": {"digest": "SHA-256=YQ=="},
    "link as text": {"options": {"link": "SECRET"}},
    "link": {"options": {"link": {"bucket": "SECRET", "name": "key"}}},
}


@pytest.mark.parametrize("name", METADATA)
async def test_malformed_metadata_is_an_error(js, bucket, claim_check, make_event, name):
    sent = received(await claim_check.check_in(make_event(1, LARGE)))
    subject = f"$O.{bucket}.M.{urlsafe_b64encode(name_of(sent).encode()).decode()}"
    known = json.loads((await js.get_last_msg(f"OBJ_{bucket}", subject)).data)
    wrong = METADATA[name]
    await js.publish(subject, wrong if isinstance(wrong, bytes) else json.dumps({**known, **wrong}).encode())
    kind, code = (DecodeError, "unsupported-dataref") if name == "link" else (DeliveryError, "unexpected-answer")
    assert await failure(kind, claim_check.resolve(sent)) == code
    assert await failure(DeliveryError, claim_check.check_in(make_event(1, LARGE))) == "unexpected-answer"


async def test_wildcard_in_metadata_deletes_no_other_object(js, bucket, store, claim_check, make_event):
    """nats-py's put() would delete all chunks of the bucket."""
    sent = received(await claim_check.check_in(make_event(1, LARGE)))
    name = object_name(make_event(2, LARGE), to_nats_message(make_event(2, LARGE)).data)
    metadata = json.dumps({"name": name, "bucket": bucket, "nuid": ">", "size": 1, "chunks": 1, "digest": DIGEST})
    await js.publish(f"$O.{bucket}.M.{urlsafe_b64encode(name.encode()).decode()}", metadata.encode())
    assert await failure(DeliveryError, claim_check.check_in(make_event(2, LARGE))) == "unexpected-answer"
    assert (await claim_check.resolve(sent)).data == LARGE
    await store.put(name, b"b")
    assert await failure(DecodeError, claim_check.resolve(sent)) == "digest-mismatch"


async def test_object_larger_than_its_metadata_states_is_refused(js, bucket, claim_check, make_event):
    """Chunks of a client that can write to the bucket are not read beyond the size."""
    sent = received(await claim_check.check_in(make_event(1, b"a" * 2000)))
    subject = f"$O.{bucket}.M.{urlsafe_b64encode(name_of(sent).encode()).decode()}"
    known = json.loads((await js.get_last_msg(f"OBJ_{bucket}", subject)).data)
    for _ in range(20):
        await js.publish(f"$O.{bucket}.C.{known['nuid']}", b"a" * 100_000)
    await js.publish(subject, json.dumps(known).encode())
    assert await failure(DecodeError, claim_check.resolve(sent)) == "digest-mismatch"


async def test_object_of_another_size_is_refused(js, bucket, claim_check, make_event):
    sent = received(await claim_check.check_in(make_event(1, LARGE)))
    subject = f"$O.{bucket}.M.{urlsafe_b64encode(name_of(sent).encode()).decode()}"
    known = json.loads((await js.get_last_msg(f"OBJ_{bucket}", subject)).data)
    await js.publish(subject, json.dumps({**known, "size": known["size"] + 1}).encode())
    assert await failure(DecodeError, claim_check.resolve(sent)) == "digest-mismatch"


async def test_size_is_limited(js, bucket, store, make_event):
    claim_check = ClaimCheck(js, bucket, over=1000, max_size=5000)
    assert await failure(EncodeError, claim_check.check_in(make_event(1, b"a" * 5001))) == "data-too-large"
    sent = received(await claim_check.check_in(make_event(1, b"a" * 5000)))
    assert len((await claim_check.resolve(sent)).data) == 5000
    await store.put("huge", io.BytesIO(b"a" * 5001))
    got = received(make_event(dataref=f"nats-obj:{bucket}/huge"))
    assert await failure(DecodeError, claim_check.resolve(got)) == "data-too-large"


async def test_data_of_another_type_is_an_error(claim_check, store, make_event):
    await store.put("text", b"no json")
    got = received(make_event(dataref=f"nats-obj:{claim_check.bucket}/text", datacontenttype="application/json"))
    assert await failure(DecodeError, claim_check.resolve(got)) == "invalid-json"


async def test_full_bucket_is_an_error_without_a_retry(js, subject, make_event):
    bucket = subject.replace(".", "_")
    await js.create_object_store(bucket, storage="memory", max_bytes=300_000)
    try:
        with pytest.raises(DeliveryError, match="maximum bytes exceeded") as info:
            await ClaimCheck(js, bucket, over=1000).check_in(make_event(1, b"a" * 500_000))
        assert (info.value.code, info.value.err_code) == ("temporarily-unavailable", 10077)
        state = (await js.stream_info(f"OBJ_{bucket}")).state
        assert (state.messages, state.last_seq) == (0, 2)  # one attempt, whose chunks were deleted
    finally:
        await js.delete_object_store(bucket)


USERS = """
authorization {
  users: [
    {user: admin, password: a}
    {user: writer, password: a, permissions: {publish: {deny: "%s"}}}
  ]
}
"""


@pytest.mark.parametrize("denied", ["$O.DATA.C.>", "$O.DATA.M.>", "$JS.API.STREAM.MSG.GET.OBJ_DATA"])
async def test_missing_permission_to_store_is_an_error(make_event, denied):
    with NatsServer(jetstream=True, config=USERS % denied) as server:
        async with connect(server.url, user="admin", password="a") as nc:
            await nc.jetstream().create_object_store("DATA")
        async with connect(server.url, user="writer", password="a") as nc:
            claim_check = ClaimCheck(nc.jetstream(), "DATA", over=1000)
            assert await failure(DeliveryError, claim_check.check_in(make_event(1, LARGE))) == "permission-denied"


@pytest.mark.parametrize("denied", ["$JS.API.STREAM.MSG.GET.OBJ_DATA", "$JS.API.CONSUMER.>"])
async def test_missing_permission_to_read_is_an_error(make_event, denied):
    """Without the permission to create a consumer, chunks are requested one by one."""
    with NatsServer(jetstream=True, config=USERS % denied) as server:
        async with connect(server.url, user="admin", password="a") as nc:
            await nc.jetstream().create_object_store("DATA")
            sent = received(await ClaimCheck(nc.jetstream(), "DATA", over=1000).check_in(make_event(1, LARGE)))
        async with connect(server.url, user="writer", password="a") as nc:
            claim_check = ClaimCheck(nc.jetstream(), "DATA")
            if "CONSUMER" in denied:
                assert (await claim_check.resolve(sent)).data == LARGE
            else:
                assert await failure(DeliveryError, claim_check.resolve(sent)) == "permission-denied"


READ_FAST = [f'"$JS.API.CONSUMER.{name}.OBJ_DATA.*"' for name in ("CREATE", "MSG.NEXT", "DELETE")]
STORE_AGAIN = ['"$JS.API.STREAM.INFO.OBJ_DATA"', '"$JS.API.STREAM.PURGE.OBJ_DATA"']


@pytest.mark.parametrize("size", [2000, 300_000])
async def test_documented_permissions_suffice(make_event, size):
    """Those of docs/permissions.md."""
    get, info = '"$JS.API.STREAM.MSG.GET.OBJ_DATA"', '"$JS.API.STREAM.INFO.OBJ_DATA"'
    allowed = {"reader": [get, info], "fast": [get, info, *READ_FAST], "writer": [get, '"$O.DATA.>"'], "again": None}
    allowed["again"] = [*allowed["writer"], *STORE_AGAIN]
    rules = "permissions: {publish: {allow: [%s]}, subscribe: '_INBOX.>'}"
    users = [f"{{user: {name}, password: a, {rules % ', '.join(subjects)}}}" for name, subjects in allowed.items()]
    config = f"authorization {{ users: [{{user: admin, password: a}}, {', '.join(users)}] }}"
    event = make_event(1, b"a" * size)
    with NatsServer(jetstream=True, config=config) as server:

        async def run(user, call):
            async with connect(server.url, user=user, password="a") as nc:
                return await call(ClaimCheck(nc.jetstream(), "DATA", over=1000))

        async with connect(server.url, user="admin", password="a") as nc:
            await nc.jetstream().create_object_store("DATA", ttl=3600)
            sent = await run("writer", lambda claim_check: claim_check.check_in(event))
            for number in range(300):  # more sequences than are read one by one
                await nc.jetstream().publish("$O.DATA.C.other", b"%d" % number)
        await run("again", lambda claim_check: claim_check.check_in(event))
        for user in ("reader", "fast"):
            whole = await run(user, lambda claim_check: claim_check.resolve(received(sent)))
            assert len(whole.data) == size


async def test_restarted_server_is_awaited(make_event):
    with NatsServer(jetstream=True) as server:
        async with connect(server.url, reconnect_time_wait=0.05) as nc:
            js = nc.jetstream(timeout=1)
            await js.create_object_store("DATA")
            claim_check = ClaimCheck(js, "DATA", over=1000)
            data = b"a" * 5_000_000
            server.kill()
            storing = asyncio.create_task(claim_check.check_in(make_event(1, data)))
            await asyncio.sleep(0)
            server.start()
            sent = received(await asyncio.wait_for(storing, 60))
            server.kill()
            reading = asyncio.create_task(claim_check.resolve(sent))
            await asyncio.sleep(0)
            server.start()
            assert (await asyncio.wait_for(reading, 60)).data == data


async def test_lost_server_is_an_error(make_event):
    with NatsServer(jetstream=True) as server:
        async with connect(server.url, reconnect_time_wait=0.05) as nc:
            js = nc.jetstream()
            await js.create_object_store("DATA")
            sent = received(await ClaimCheck(js, "DATA", over=1000).check_in(make_event(1, LARGE)))
            claim_check = ClaimCheck(nc.jetstream(timeout=0.2), "DATA", over=1000, retry_timeout=0.2)
            server.kill()
            await until(lambda: not nc.is_connected)
            assert await failure(DeliveryError, claim_check.check_in(make_event(2, LARGE))) == "timeout"
            assert await failure(DeliveryError, claim_check.resolve(sent)) == "timeout"
            server.start()
            await until(lambda: nc.is_connected)
        assert await failure(DeliveryError, claim_check.resolve(sent)) == "connection-closed"
        assert await failure(DeliveryError, claim_check.check_in(make_event(2, LARGE))) == "connection-closed"


async def test_cancelled_storing_can_be_repeated(nc, js, bucket, claim_check, make_event):
    event = make_event(1, b"a" * 5_000_000)
    chunks = asyncio.Event()

    async def note(message):
        chunks.set()

    await nc.subscribe(f"$O.{bucket}.C.>", cb=note)
    await nc.flush()
    storing = asyncio.create_task(claim_check.check_in(event))
    await asyncio.wait_for(chunks.wait(), 60)
    storing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await storing
    sent = received(await claim_check.check_in(event))
    assert (await claim_check.resolve(sent)).data == event.get_data()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"over": -1}, "over must be"),
        ({"over": 2, "max_size": 1}, "over must be"),
        ({"max_size": 0}, "max_size must be"),
    ],
)
def test_arguments_are_checked(js, options, text):
    with pytest.raises(ValueError, match=text):
        ClaimCheck(js, "DATA", **options)


def test_names_and_types_are_checked(nc, js):
    with pytest.raises(EncodeError, match="bucket must"):
        ClaimCheck(js, "DATA.x")
    with pytest.raises(TypeError, match="js must be a JetStreamContext"):
        ClaimCheck(nc, "DATA")


# --- Publishers and consumers ----------------------------------------------------------------------------------------


async def test_published_events_refer_to_their_data(js, subject, stream, claim_check, make_event):
    """Data is stored before the event; consumers without a claim check see the attribute."""
    small = make_event(1, {"n": 1})
    for event in (small, make_event(2, LARGE)):
        await ce_js.publish(js, event, subject, claim_check=claim_check)
    outcomes = []
    async with Publisher(js, claim_check=claim_check, on_outcome=outcomes.append) as publisher:
        await publisher.publish(make_event(3, LARGE), subject)
        again = await publisher.publish(make_event(2, LARGE), subject)
    assert (await again).duplicate
    events = [from_nats_message(message) for message in await read(js, stream)]
    assert [event.id for event in events] == ["event 1", "event 2", "event 3"]
    assert ["dataref" in event.extensions for event in events] == [False, True, True]
    assert [event.data for event in events] == [{"n": 1}, None, None]
    assert [(await claim_check.resolve(event)).data for event in events] == [{"n": 1}, LARGE, LARGE]
    assert {outcome.kind.value for outcome in outcomes} == {"published"}


async def test_event_is_not_published_if_its_data_is_not_stored(js, subject, stream, make_event):
    claim_check = ClaimCheck(js, "NONE", over=1000)
    event = make_event(1, LARGE)
    assert (
        await failure(DeliveryError, ce_js.publish(js, event, subject, claim_check=claim_check)) == "stream-not-found"
    )
    async with Publisher(js, claim_check=claim_check) as publisher:
        assert await failure(DeliveryError, publisher.publish(event, subject)) == "stream-not-found"
        await publisher.publish(make_event(2, {"n": 1}), subject)
    assert [from_nats_message(message).id for message in await read(js, stream)] == ["event 2"]


async def test_object_is_kept_if_publishing_fails(js, subject, claim_check, state, make_event):
    publishing = ce_js.publish(js, make_event(1, LARGE), f"none.{subject}", claim_check=claim_check)
    assert await failure(DeliveryError, publishing) == "no-responders"
    assert (await state()).messages == 2


async def test_delivery_resolves_data_once(js, subject, stream, store, claim_check, consume, is_settled, make_event):
    for number, data in enumerate((LARGE, {"n": 1})):
        await ce_js.publish(js, make_event(number, data), subject, claim_check=claim_check)
    async with consume(claim_check=claim_check) as consumer:
        async with await take(consumer) as event:
            assert not event.has_data
        delivery = await take(consumer)
        async with delivery as event:
            assert await delivery.resolve() is event
    await is_settled()
    async with consume("again", claim_check=claim_check) as consumer:
        delivery = await take(consumer)
        async with delivery:
            whole = await delivery.resolve()
            await store.delete(name_of(whole))
            assert await delivery.resolve() is delivery.event is whole
            assert whole.data_as(dict[str, str]) == LARGE


async def test_consumer_without_a_claim_check_returns_the_event(js, subject, stream, claim_check, consume, make_event):
    await ce_js.publish(js, make_event(1, LARGE), subject, claim_check=claim_check)
    async with consume() as consumer:
        delivery = await take(consumer)
        async with delivery as event:
            assert await delivery.resolve() is event
            assert event.extensions["dataref"].startswith(f"nats-obj:{claim_check.bucket}/")


@pytest.mark.parametrize("options", [{"headers_only": True}, {"parse_data": False}], ids=str)
async def test_options_of_the_consumer_apply(js, subject, stream, claim_check, consume, make_event, options):
    await ce_js.publish(js, make_event(1, LARGE), subject, claim_check=claim_check)
    async with consume(claim_check=claim_check, **options) as consumer:
        delivery = await take(consumer)
        async with delivery:
            data = (await delivery.resolve()).data
            assert data == (
                LARGE
                if "headers_only" in options
                else json.dumps(LARGE, ensure_ascii=False, separators=(",", ":")).encode()
            )


async def test_data_that_cannot_be_read_is_dead_lettered(
    js, subject, stream, store, claim_check, consume, is_settled, dead_letters, make_event
):
    """At once if a retry has the same result; a missing object is retried. A dead letter keeps the reference."""
    await ce_js.publish(js, make_event(1, dataref="https://example.com/data"), subject)
    await store.put("text", b"no json")
    reference = f"nats-obj:{claim_check.bucket}/text"
    await ce_js.publish(js, make_event(2, dataref=reference, datacontenttype="application/json"), subject)
    await ce_js.publish(js, make_event(3, dataref=f"nats-obj:{claim_check.bucket}/none"), subject)
    calls = []

    async def handle(delivery):
        calls.append(delivery.sequence)
        await delivery.resolve()

    errors = []
    options = {"max_deliveries": 2, "on_error": lambda error, delivery: errors.append(error.code)}
    async with consume(claim_check=claim_check, **options) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await is_settled()
        letters = [DeadLetter.split(letter.headers) for letter in await dead_letters(3)]
        consumer.stop()
        await after(running)
    assert sorted(calls) == [1, 2, 3, 3]
    assert [(letter.error, letter.reason) for letter, _ in letters] == [
        ("unsupported-dataref", Reason.REJECTED),
        ("invalid-json", Reason.REJECTED),
        ("object-not-found", Reason.EXHAUSTED),
    ]
    assert dict(letters[2][1])["ce-dataref"].endswith("/none")


async def test_error_of_another_event_is_a_failure_of_the_handler(
    claim_check, js, subject, stream, consume, make_event
):
    await ce_js.publish(js, make_event(1), subject)
    async with consume(claim_check=claim_check) as consumer:
        other = received(make_event(2, dataref="https://example.com/data"))
        with pytest.raises(DecodeError):
            async with await take(consumer):
                await claim_check.resolve(other)
        async with await take(consumer) as event:
            assert event.id == "event 1"


async def test_failures_have_the_event_that_refers_to_its_data(js, subject, claim_check, make_event):
    """So that a publisher does not keep large data until it is acknowledged. The event can be published again."""
    small = make_event(2, {"n": 1})

    async def publish_both():
        async with Publisher(js, claim_check=claim_check) as publisher:
            await publisher.publish(make_event(1, LARGE), f"none.{subject}")
            await publisher.publish(small, f"none.{subject}")

    with pytest.raises(PublishError) as info:
        await publish_both()
    first, second = (failure.event for failure in info.value.failures)
    assert second is small
    assert (await claim_check.resolve(received(first))).data == LARGE
    assert await claim_check.check_in(first) is first


async def test_event_is_validated_with_its_data(js, subject, stream, claim_check, consume, state, make_event):
    schemas = {"com.example.test": dict[str, str]}
    async with Publisher(js, claim_check=claim_check, validate=schemas) as publisher:
        with pytest.raises(EncodeError, match="data-mismatch"):
            await publisher.publish(make_event(1, [LARGE]), subject)
        assert (await state()).messages == 0
        await publisher.publish(make_event(2, LARGE), subject)
    async with consume(claim_check=claim_check, validate=schemas) as consumer, await take(consumer) as event:
        assert event.data == LARGE


async def test_router_passes_resolved_data(js, subject, stream, claim_check, consume, is_settled, make_event):
    await ce_js.publish(js, make_event(1, LARGE), subject, claim_check=claim_check)
    found = []
    router = Router()

    @router.on("com.example.*")
    async def handle(text: dict[str, str]) -> None:
        found.append(text)
        consumer.stop()

    async with consume(claim_check=claim_check) as consumer:
        await after(consumer.run(router))
    assert found == [LARGE]
    await is_settled()
