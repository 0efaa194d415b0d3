"""Messages for streams: which ``Nats-Msg-Id`` and which time to live they get."""

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest

from ce_nats import ApiError, DeliveryError, EncodeError, NatsMessage, PublishError, dedup_id, from_nats_message
from ce_nats.aio import Publisher, connect
from ce_nats.aio import jetstream as ce_js
from ce_nats.aio.link._client import server_info
from ce_nats.aio.publishing._prepare import Outgoing, Preparation, event_id, prepare_for_stream
from ce_nats.codec import _fast_path
from ce_nats.codec.subject_template import SubjectTemplate
from ce_nats.extensions.expiry import time_to_live
from ce_nats.extensions.tracing import TraceContext, trace_of_headers
from ce_nats.testing import NatsServer
from tests.support.caching import available
from tests.support.programs import nats_server
from tests.support.reading import read
from tests.support.tables import each
from tests.support.waiting import until


async def test_events_with_equal_ids_from_two_sources_are_both_stored(js, subject, stream, make_event):
    await ce_js.publish(js, make_event(source="/a"), subject)
    await ce_js.publish(js, make_event(source="/b"), subject)
    assert [from_nats_message(message).get_source() for message in await read(js, stream)] == ["/a", "/b"]


async def test_message_id_can_be_omitted_or_given(js, subject, stream, make_event):
    await ce_js.publish(js, make_event(), subject, dedup=None)
    await ce_js.publish(js, make_event(), subject, headers={"Nats-Msg-Id": "mine"})
    plain, given = await read(js, stream)
    assert "Nats-Msg-Id" not in dict(plain.headers)
    assert [value for name, value in given.headers if name == "Nats-Msg-Id"] == ["mine"]


async def test_event_id_is_the_message_id_of_knative(js, subject, stream, make_event):
    """Knative's channel sends ``Nats-Msg-Id: <id>``, unescaped; a stream with both stores one."""
    await js.publish(subject, b"{}", headers={"Nats-Msg-Id": "event Ω%1"})
    ack = await ce_js.publish(js, make_event("Ω%1"), subject, dedup=event_id)
    assert ack.duplicate
    assert not (await ce_js.publish(js, make_event("Ω%1"), subject)).duplicate


@pytest.mark.parametrize("wrong", ["a\r\nb: c", " a", "a\u00a0", 5, None], ids=ascii)
async def test_custom_message_id_is_checked(js, subject, make_event, wrong):
    with pytest.raises(EncodeError) as info:
        await ce_js.publish(js, make_event(), subject, dedup=lambda event: wrong)
    assert (info.value.code, info.value.header) == ("invalid-header-value", "Nats-Msg-Id")


@each(("attributes", "code"), [({}, "missing-attribute"), ({"id": 1.5}, "invalid-attribute-type")])
def test_event_id_needs_a_valid_id(attributes, code):
    class Event:
        def get_attributes(self):
            return attributes

        def get_data(self):
            return None

    with pytest.raises(EncodeError) as info:
        event_id(Event())
    assert (info.value.code, info.value.attribute) == (code, "id")


def test_subject_must_not_be_empty(nc, make_event):
    options = {"mode": "binary", "format": None, "headers": None, "dedup": None, "trace": None}
    with pytest.raises(EncodeError, match="invalid-subject"):
        prepare_for_stream(nc, make_event(), "", **options)


@pytest.mark.parametrize("dedup", [dedup_id, event_id])
def test_message_id_is_one_header_more(nc, make_event, dedup):
    options = {"mode": "binary", "format": None, "headers": {"a": "b"}, "trace": None}
    plain = prepare_for_stream(nc, make_event(), "orders", dedup=None, **options)
    message = prepare_for_stream(nc, make_event(), "orders", dedup=dedup, **options)
    assert list(message.headers.items()) == [*plain.headers.items(), ("Nats-Msg-Id", dedup(make_event()))]


OPTIONS = {"mode": "binary", "format": None, "dedup": None, "ttl": None, "validate": None}


def test_observer_receives_event_and_subject(nc, make_event):
    observed = []
    observer = SimpleNamespace(send=lambda *arguments: observed.append(arguments))
    event = make_event()
    preparation = Preparation(nc, observer=observer, **OPTIONS)
    prepared = preparation.encode(preparation.validated(event), "orders", headers=None, trace=None)
    assert (prepared.message.subject, observed) == ("orders", [(event, "orders")])


@pytest.mark.parametrize("given", [None, TraceContext(f"00-{'a' * 32}-{'b' * 16}-01")])
def test_trace_of_the_caller_overrides_that_of_the_observer(nc, make_event, given):
    own = TraceContext(f"00-{'c' * 32}-{'d' * 16}-01")
    event = make_event()
    for observer, expected in (
        (None, given),
        (SimpleNamespace(send=lambda *_: None), given),
        (SimpleNamespace(send=lambda *_: SimpleNamespace(trace=own)), given or own),
    ):
        preparation = Preparation(nc, observer=observer, **OPTIONS)
        prepared = preparation.encode(preparation.validated(event), "orders", headers=None, trace=given)
        assert trace_of_headers(prepared.message.headers) == expected


TRACE = TraceContext(f"00-{'a' * 32}-{'b' * 16}-01")


class Subject(str):
    """A string of another class."""


def prepared_or_error(preparation, event, subject, arguments):
    """Return all that a sender uses of a prepared event, or the error."""
    try:
        prepared = preparation.encode(preparation.validated(event), subject, **arguments)
    except EncodeError as error:
        return error.code, error.attribute, error.header, str(error)
    message = prepared.message
    assert (message.subject, message.data) == (prepared.subject, prepared.data)
    return prepared.event, type(prepared.subject), message, prepared.block


@pytest.mark.parametrize(
    "subject",
    ["orders", Subject("orders"), SubjectTemplate("orders.{type}"), SubjectTemplate("orders.{x}"), "", "a b", "a{b", 5],
    ids=repr,
)
@pytest.mark.parametrize(
    "arguments",
    [{}, {"headers": {"a": "b"}}, {"headers": {"Nats-Msg-Id": "c"}}, {"trace": TRACE}],
    ids=repr,
)
@pytest.mark.parametrize("dedup", [None, dedup_id, event_id])
@pytest.mark.parametrize("max_payload", [2**20, 300])
def test_fast_path_prepares_the_same_messages(make_event, monkeypatch, subject, arguments, dedup, max_payload):
    arguments = {"headers": None, "trace": None, **arguments}
    nc = SimpleNamespace(max_payload=max_payload, _server_info={"headers": True})
    preparation = Preparation(nc, observer=None, **{**OPTIONS, "dedup": dedup})
    event = make_event(source="urn:a b")
    found = [prepared_or_error(preparation, event, subject, arguments) for _ in range(10)]
    monkeypatch.setattr(_fast_path, "encode_block", lambda *_: None)
    assert found == [prepared_or_error(preparation, event, subject, arguments)] * 10


@each("options", [{}, {"added_bytes": 0}, {"added_bytes": 20}])
def test_headers_and_payload_have_at_most_the_size_that_the_server_allows(options):
    """Including headers that are added later."""
    preparation = Preparation(SimpleNamespace(max_payload=100), observer=None, **OPTIONS, **options)
    room = 90 - options.get("added_bytes", 0)
    preparation.check_size(NatsMessage("a", bytes(room)), bytes(10))
    with pytest.raises(EncodeError) as info:
        preparation.check_size(NatsMessage("a", bytes(room + 1)), bytes(10))
    assert info.value.code == "payload-too-large"


def test_header_block_has_at_most_65535_bytes():
    preparation = Preparation(SimpleNamespace(max_payload=2**20), observer=None, **OPTIONS)
    preparation.check_size(NatsMessage("a", b"x"), bytes(65_535))
    with pytest.raises(EncodeError) as info:
        preparation.check_size(NatsMessage("a", b"x"), bytes(65_536))
    assert info.value.code == "headers-too-large"


def test_operation_of_an_event_that_is_not_sent_is_abandoned(nc, make_event):
    abandoned, event = [], make_event()
    refusal, failure = EncodeError("invalid-subject", "no"), KeyError("a")
    observer = SimpleNamespace(send=lambda *_: SimpleNamespace(trace=None, abandon=abandoned.append))
    arguments = {"headers": None, "trace": None}

    def refuse(message):
        raise refusal

    for one, expected in ((None, []), (observer, [refusal, failure])):
        preparation = Preparation(nc, observer=one, **OPTIONS)
        with pytest.raises(EncodeError) as info:
            preparation.encode(preparation.validated(event), "orders", **arguments, check=refuse)
        assert info.value is refusal
        preparation.encode(preparation.validated(event), "orders", **arguments).abandon(failure)
        assert abandoned == expected


def test_prepared_event_is_that_of_the_caller_unless_its_data_was_stored(nc, make_event):
    given, valid, claim = make_event(1), make_event(2), make_event(3)
    preparation = Preparation(nc, observer=None, **OPTIONS)
    outgoing = Outgoing(valid, given)
    for event, expected in ((valid, given), (claim, claim)):
        prepared = preparation.encode(outgoing.with_reference(event), "orders", headers=None, trace=None)
        assert prepared.event is expected
        assert prepared.message.headers.get("ce-id") == f"event%20{event.get_id()[-1]}"


def test_server_with_headers_gets_them_if_one_without_is_accepted(nc, make_event):
    options = {"mode": "binary", "format": None, "headers": None, "trace": None, "headerless": True}
    message = prepare_for_stream(nc, make_event(), "orders", dedup=event_id, **options)
    assert message.headers.get("Nats-Msg-Id") == "event 1"


async def test_server_without_headers_is_an_error_unless_it_is_accepted(monkeypatch, nc, make_event):
    monkeypatch.setitem(server_info(nc), "headers", False)
    event, no_headers = make_event(), {"mode": "structured", "format": None, "headers": None, "dedup": None}
    message = prepare_for_stream(nc, event, "orders", **no_headers, headerless=True, trace=None)
    assert not message.headers
    options = {**OPTIONS, "mode": "structured", "observer": None}
    outgoing, arguments = Outgoing(event, event), {"headers": None, "trace": None}
    assert Preparation(nc, headerless=True, **options).encode(outgoing, "orders", **arguments).block == b""
    with pytest.raises(EncodeError, match="headers-not-supported"):
        prepare_for_stream(nc, event, "orders", **no_headers, trace=None)
    with pytest.raises(EncodeError, match="headers-not-supported"):
        Preparation(nc, **options).encode(outgoing, "orders", **arguments)


# --- Time to live -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def ttl_stream(js, stream):
    """The stream, which allows a time to live of messages."""
    config = (await js.stream_info(stream)).config
    await js.update_stream(config.evolve(allow_msg_ttl=True))
    return stream


def in_seconds(seconds):
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


async def test_expirytime_is_the_time_to_live(js, subject, ttl_stream, make_event):
    await ce_js.publish(js, make_event(1, expirytime=in_seconds(3600)), subject, ttl=time_to_live)
    await ce_js.publish(js, make_event(2), subject, ttl=time_to_live)
    async with Publisher(js, ttl=time_to_live) as publisher:
        await publisher.publish(make_event(3, expirytime=in_seconds(1800)), subject)
        await publisher.publish(make_event(4, expirytime="9999-12-31T00:00:00Z"), subject)
    await ce_js.publish(js, make_event(5, expirytime=in_seconds(60)), subject)
    headers = [dict(message.headers).get("Nats-TTL") for message in await read(js, ttl_stream)]
    assert headers == ["3600s", None, "1800s", "3153600000s", None]


async def test_stream_deletes_an_event_when_it_expires(js, subject, ttl_stream, make_event):
    """A sub-second rest is rounded up: the shortest time to live that a server accepts is one second."""
    at = in_seconds(0.3)
    ack = await ce_js.publish(js, make_event(1, expirytime=at), subject, ttl=time_to_live)
    await ce_js.publish(js, make_event(2), subject, ttl=time_to_live)

    async def is_deleted():
        return (await js.stream_info(ttl_stream)).state.first_seq > ack.seq

    await until(is_deleted)
    assert in_seconds(0) > at
    assert [from_nats_message(message).id for message in await read(js, ttl_stream)] == ["event 2"]


async def test_far_expiry_is_kept_by_the_server(js, subject, ttl_stream, make_event):
    """A larger number of seconds overflows in the server, which then deletes the message at once."""
    await ce_js.publish(js, make_event(1, expirytime="9999-12-31T00:00:00Z"), subject, ttl=time_to_live)
    await ce_js.publish(js, make_event(2, expirytime=in_seconds(0.1)), subject, ttl=time_to_live)

    async def second_is_deleted():
        return (await js.stream_info(ttl_stream)).state.messages == 1

    await until(second_is_deleted)
    assert [from_nats_message(message).id for message in await read(js, ttl_stream)] == ["event 1"]


async def test_expired_event_is_not_published(js, subject, ttl_stream, make_event):
    with pytest.raises(EncodeError) as info:
        await ce_js.publish(js, make_event(1, expirytime=in_seconds(0)), subject, ttl=time_to_live)
    assert info.value.code == "event-expired"
    async with Publisher(js, ttl=time_to_live) as publisher:
        with pytest.raises(EncodeError, match="event-expired"):
            await publisher.publish(make_event(1, expirytime=in_seconds(0)), subject)
        await publisher.publish(make_event(2, expirytime=in_seconds(60)), subject)
    assert [from_nats_message(message).id for message in await read(js, ttl_stream)] == ["event 2"]


async def test_stream_without_ttl_refuses(js, subject, stream, make_event):
    event = make_event(expirytime=in_seconds(60))
    with pytest.raises(ApiError) as info:
        await ce_js.publish(js, event, subject, ttl=time_to_live)
    assert (info.value.code, info.value.err_code) == ("publish-refused", 10166)
    with pytest.raises(PublishError) as raised:
        async with Publisher(js, ttl=time_to_live) as publisher:
            await publisher.publish(event, subject)
    assert raised.value.failures[0].error.err_code == 10166
    assert await read(js, stream) == []


async def test_given_header_overrides_ttl(js, subject, ttl_stream, make_event):
    event = make_event(expirytime=in_seconds(-5))
    await ce_js.publish(js, event, subject, headers={"Nats-TTL": "2h"}, ttl=time_to_live)
    ((message),) = await read(js, ttl_stream)
    assert [value for name, value in message.headers if name == "Nats-TTL"] == ["2h"]


@pytest.mark.parametrize("wrong", ["1s\r\na: b", " 1s", 5], ids=ascii)
async def test_custom_time_to_live_is_checked(js, subject, make_event, wrong):
    with pytest.raises(EncodeError) as info:
        await ce_js.publish(js, make_event(), subject, ttl=lambda event: wrong)
    assert (info.value.code, info.value.header) == ("invalid-header-value", "Nats-TTL")


async def test_older_server_is_an_error(make_event):
    """It would ignore the header, store the message, and never delete it."""
    executable = available(lambda: nats_server("2.10.26"), "nats-server 2.10.26")
    with NatsServer(jetstream=True, executable=executable) as server:
        async with connect(server.url) as nc:
            js = nc.jetstream()
            await js.add_stream(name="ORDERS", subjects=["orders"])
            with pytest.raises(DeliveryError, match=r"needs nats-server 2\.11 or later, got 2\.10\.26") as info:
                await ce_js.publish(js, make_event(expirytime=in_seconds(60)), "orders", ttl=time_to_live)
            assert info.value.code == "incompatible-config"
            await ce_js.publish(js, make_event(2), "orders", ttl=time_to_live)
            assert [from_nats_message(message).id for message in await read(js, "ORDERS")] == ["event 2"]


@pytest.mark.parametrize(("version", "is_accepted"), [("2.10.99", False), ("2.11.0", True), ("3.0.0", True)])
async def test_first_version_with_ttl(monkeypatch, nc, js, subject, ttl_stream, make_event, version, is_accepted):
    monkeypatch.setattr(nc._current_server, "server_version", version)
    publishing = ce_js.publish(js, make_event(expirytime=in_seconds(3600)), subject, ttl=time_to_live)
    if is_accepted:
        assert (await publishing).seq == 1
    else:
        with pytest.raises(DeliveryError, match=r"needs nats-server 2\.11 or later, got 2\.10\.99"):
            await publishing


async def test_message_id_needs_headers(monkeypatch, nc, js, subject, make_event):
    monkeypatch.setitem(server_info(nc), "headers", False)
    with pytest.raises(EncodeError, match=r"'Nats-Msg-Id' cannot be sent; use dedup=None$") as info:
        await ce_js.publish(js, make_event(), subject, headerless=True)
    assert (info.value.code, info.value.header) == ("headers-not-supported", "Nats-Msg-Id")


async def test_ttl_needs_headers(monkeypatch, nc, js, subject, make_event):
    monkeypatch.setitem(server_info(nc), "headers", False)
    with pytest.raises(EncodeError, match="use ttl=None") as info:
        await ce_js.publish(js, make_event(), subject, dedup=None, headerless=True, ttl=time_to_live)
    assert (info.value.code, info.value.header) == ("headers-not-supported", "Nats-TTL")


async def test_messages_of_a_batch_have_a_time_to_live(js, subject, ttl_stream, make_event):
    """Of fast ingest, which acknowledges several messages at once."""
    await ce_js.configure_stream(js, ttl_stream, allow_batched=True)
    async with Publisher(js, ttl=time_to_live) as publisher:
        for number in range(200):
            await publisher.publish(make_event(number, expirytime=in_seconds(600)), subject)
    assert publisher.batched > 0
    headers = [dict(message.headers)["Nats-TTL"] for message in await read(js, ttl_stream)]
    assert headers == ["600s"] * 200
