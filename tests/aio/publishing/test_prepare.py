"""Messages for streams: which ``Nats-Msg-Id`` they get."""

import pytest

from ce_nats import EncodeError, dedup_id, from_nats_message
from ce_nats.aio import jetstream as ce_js
from ce_nats.aio.publishing._prepare import event_id, prepare_for_stream
from tests.support.reading import read


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


@pytest.mark.parametrize(("attributes", "code"), [({}, "missing-attribute"), ({"id": 1.5}, "invalid-attribute-type")])
def test_event_id_needs_a_valid_id(attributes, code):
    class Event:
        def get_attributes(self):
            return attributes

        def get_data(self):
            return None

    with pytest.raises(EncodeError) as info:
        event_id(Event())
    assert info.value.code == code


@pytest.mark.parametrize("dedup", [dedup_id, event_id])
def test_message_id_is_one_header_more(nc, make_event, dedup):
    options = {"mode": "binary", "format": None, "headers": {"a": "b"}, "trace": None}
    plain = prepare_for_stream(nc, make_event(), "orders", dedup=None, **options)
    message = prepare_for_stream(nc, make_event(), "orders", dedup=dedup, **options)
    assert list(message.headers.items()) == [*plain.headers.items(), ("Nats-Msg-Id", dedup(make_event()))]
