"""Where events are, and how far each consumer is with them."""

import asyncio
import json

import pytest
from nats.js.api import ConsumerConfig

from ce_nats.aio import PullConsumer, Reject
from ce_nats.aio._jetstream_api import Progress
from ce_nats.cli._find import standing
from ce_nats.codec.timestamp import Timestamp
from ce_nats.message import StoredMessage
from tests.support.reading import until_stored
from tests.support.tables import each

NOON = "2026-01-31T12:00:00Z"


@pytest.fixture
def dead(with_js, stream, subject):
    """Yield the name of a stream for dead letters."""
    name = f"dead_{stream}"
    with_js(lambda js: js.add_stream(name=name, subjects=[f"dead.{subject}"], storage="memory"))
    yield name
    with_js(lambda js: js.delete_stream(name))


@pytest.fixture
def filled(at_server, with_js, stream, subject, dead, event):
    """Return a stream with three events, the second of which is dead-lettered, and consumers of it."""

    async def consume(js):
        config = ConsumerConfig(ack_wait=30)
        async with PullConsumer(js, stream, "billing", dead_letter=f"dead.{subject}", create=config) as consumer:

            async def handle(delivery):
                if delivery.sequence == 2:
                    raise Reject("no such customer")

            running = asyncio.create_task(consumer.run(handle))
            await until_stored(js, dead, 1)
            consumer.stop()
            await running
        await js.add_consumer(stream, ConsumerConfig(durable_name="late", deliver_policy="new", ack_policy="explicit"))
        await js.add_consumer(
            stream, ConsumerConfig(durable_name="other", filter_subject=f"{subject}.x", ack_policy="explicit")
        )

    for number in (1, 2, 3):
        given = event(number, source="/shop", time=NOON)
        assert at_server("pub", "-J", subject, given).exit_code == 0
    with_js(consume)
    return stream


def found(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_event_its_consumers_and_its_dead_letter(at_server, filled, dead, subject):
    result = at_server("find", filled, "--id", "2", "--dead-letters", dead, "--json")
    message, letter = found(result)
    assert (message["place"], message["stream"], message["sequence"]) == ("stream", filled, 2)
    assert (message["subject"], message["invalid"]) == (subject, None)
    assert message["event"] == {"id": "2", "source": "/shop", "type": "t", "time": NOON}
    assert message["consumers"]["late"] == "before its start"
    assert message["consumers"]["billing"] in ("settled", "in flight or settled")
    assert "other" not in message["consumers"]
    assert (letter["place"], letter["stream"], letter["of"], letter["subject"]) == ("dead letter", dead, 2, subject)
    assert (letter["reason"], letter["consumer"], letter["text"]) == ("rejected", "billing", "no such customer")
    assert letter["event"] == message["event"]


def test_text(at_server, filled, dead, subject):
    result = at_server("find", filled, "--id", "2", "--dead-letters", dead)
    message, event, *consumers, letter, again, reason = result.stdout.splitlines()
    assert message.startswith(f"message 2 of {filled} on {subject}, ")
    assert event == again == f"  id '2', source '/shop', type 't', time '{NOON}'"
    assert len(consumers) == 2
    assert "  consumer late: before its start" in consumers
    assert letter.startswith(f"dead letter: message 1 of {dead} on {subject}, ")
    assert reason == "  rejected by billing, message 2: Reject: no such customer"


def test_dead_letter_of_a_message_that_is_not_in_the_stream_any_more(at_server, with_js, filled, dead):
    with_js(lambda js: js.delete_msg(filled, 2))
    result = at_server("find", filled, "--id", "2", "--dead-letters", dead, "--json")
    assert [one["place"] for one in found(result)] == ["dead letter"]


@pytest.mark.parametrize(
    ("options", "sequences"),
    [
        (["--source", "/shop"], [1, 2, 3]),
        (["--source", "/shop", "--id", "3"], [3]),
        (["--type", "u"], []),
        (["--since", "1h", "--type", "t"], [1, 2, 3]),
        (["--until", "1h"], []),
        (["--since", "2020-01-01", "--until", "2021-01-01T00:00:00Z"], []),
    ],
    ids=str,
)
def test_selection(at_server, filled, options, sequences):
    result = at_server("find", filled, *options, "--json")
    assert [one["sequence"] for one in found(result)] == sequences
    assert result.exit_code == int(not sequences)


def test_time_ends_between_messages(at_server, filled, stored):
    first, second, _ = stored(filled)
    for since, until, expected in [
        (first.timestamp, first.timestamp, [1]),
        (second.timestamp, "0s", [2, 3]),
        (first.timestamp, second.timestamp, [1, 2]),
    ]:
        result = at_server("find", filled, "--since", since, "--until", until, "--json")
        assert [one["sequence"] for one in found(result)] == expected


def test_message_that_is_not_valid_and_a_capture(at_server, with_js, stream, subject, tmp_path):
    headers = {"ce-specversion": "1.0", "ce-id": "7", "ce-type": "t"}
    with_js(lambda js: js.publish(subject, b"", headers=headers))
    capture = tmp_path / "c.jsonl"
    assert at_server("capture", capture, "--stream", stream).exit_code == 0
    result = at_server("find", stream, "--id", "7", "--capture", capture, "--json")
    message, copy = found(result)
    assert message["event"] == {"id": "7", "source": None, "type": "t", "time": None}
    assert message["invalid"] == "missing-attribute"
    assert (copy["place"], copy["path"], copy["sequence"]) == ("capture", str(capture), 1)
    assert "not a valid event: missing-attribute" in at_server("find", stream, "--id", "7").stdout


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "events must be selected"),
        (["--since", "yesterday"], "--since must be a time such as"),
        (["--until", "1"], "--until must be a time such as"),
        (["--since", "99999999999w"], "--since must be a time such as"),
    ],
    ids=str,
)
def test_wrong_usage(at_server, options, text):
    result = at_server("find", "S", *options)
    assert (result.exit_code, text in result.stderr) == (2, True)


def test_missing_streams_and_captures(at_server, stream, tmp_path):
    assert at_server("find", "NONE", "--id", "1").exit_code == 3
    assert at_server("find", stream, "--id", "1", "--dead-letters", "NONE").exit_code == 3
    assert at_server("find", stream, "--id", "1", "--capture", tmp_path / "none.jsonl").exit_code == 2


def position(delivered, ack_floor, **config):
    return Progress(delivered, delivered, ack_floor, 0, 0, config, "2026-01-31T13:00:00Z")


@each(
    ("sequence", "consumer", "expected"),
    [
        (5, position(9, 5), "settled"),
        (6, position(9, 5), "in flight or settled"),
        (9, position(9, 5), "in flight or settled"),
        (10, position(9, 5), "not delivered yet"),
        (5, position(9, 5, filter_subject="orders.>"), "settled"),
        (5, position(9, 5, filter_subject="other"), None),
        (5, position(9, 5, filter_subjects=["other", "*.paid"]), "settled"),
        (5, position(9, 5, deliver_policy="by_start_sequence", opt_start_seq=6), "before its start"),
        (6, position(9, 6, deliver_policy="by_start_sequence", opt_start_seq=6), "settled"),
        (5, position(9, 5, deliver_policy="by_start_time", opt_start_time="2026-01-31T12:00:01Z"), "before its start"),
        (5, position(9, 5, deliver_policy="by_start_time", opt_start_time=NOON), "settled"),
        (5, position(9, 5, deliver_policy="new"), "before its start"),
        (5, position(9, 5, deliver_policy="all"), "settled"),
    ],
)
def test_what_a_consumer_knows_of_a_message(sequence, consumer, expected):
    message = StoredMessage("orders.paid", "", [], b"", "S", sequence, Timestamp.parse(NOON))
    assert standing(consumer, message) == expected
