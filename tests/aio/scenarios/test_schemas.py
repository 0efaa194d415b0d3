"""Schemas of publishers, consumers and subscriptions, in both content modes."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from ce_nats import EncodeError, ErrorCode, aio
from ce_nats.aio import jetstream as ce_js
from ce_nats.errors import DeliveryError, Reject
from ce_nats.redelivery import DeadLetter
from ce_nats.schemas import Schemas
from tests.support.consuming import after, consume, is_settled
from tests.support.waiting import until

__all__ = ["consume", "is_settled"]

KIND = "com.example.test"
COUNT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
URI = "https://example.com/count/1"


@dataclass
class Count:
    n: int


@pytest.fixture
def send(js, subject, stream, make_event):
    """Publish an event with each data."""

    async def send(*data, **options):
        for number, value in enumerate(data, 1):
            await ce_js.publish(js, make_event(number, value), subject, **options)

    return send


@pytest.fixture
def run(consume, is_settled):
    """Run a consumer until all messages are settled; return the numbers of the events that were handled."""

    async def run(**options):
        seen = []

        async def handle(delivery):
            seen.append(delivery.event.id)

        async with consume(**options) as consumer:
            running = asyncio.create_task(consumer.run(handle))
            await is_settled()
            consumer.stop()
            await after(running)
        return seen

    return run


@pytest.mark.parametrize("mode", ["binary", "structured"])
@pytest.mark.parametrize("schema", [COUNT, Count], ids=["json", "model"])
async def test_publisher_refuses_wrong_data(js, stream, subject, make_event, mode, schema):
    outcomes = []
    async with aio.Publisher(js, validate={KIND: schema}, mode=mode, on_outcome=outcomes.append) as publisher:
        await publisher.publish(make_event(1, {"n": 1}), subject)
        with pytest.raises(EncodeError) as caught:
            await publisher.publish(make_event(2, {"n": "x"}), subject)
        await publisher.publish(make_event(3, {"n": 3}), subject)
    assert caught.value.code is ErrorCode.DATA_MISMATCH
    assert caught.value.message.startswith(f"event 'event 2' of type '{KIND}': the data must ")
    assert (await js.stream_info(stream)).state.messages == publisher.acknowledged == len(outcomes) == 2


async def test_publisher_sets_dataschema(js, stream, subject, make_event):
    schemas = Schemas({}, dataschema={KIND: URI})
    event = make_event(1, {"n": 1})
    async with aio.Publisher(js, validate=schemas) as publisher:
        await publisher.publish(event, subject)
    assert (await js.get_msg(stream, 1)).headers["ce-dataschema"] == URI
    assert "dataschema" not in event.get_attributes()


async def test_failures_have_the_given_event(js, make_event, claim_check):
    event, schemas = make_event(1, {"n": 1}), Schemas({}, dataschema={KIND: URI})
    with pytest.raises(aio.PublishError) as caught:
        async with aio.Publisher(js, validate=schemas, claim_check=claim_check) as publisher:
            await publisher.publish(event, "no.stream")
    assert caught.value.failures[0].event is event


async def test_atomic_batch_with_wrong_data_is_abandoned(js, stream, subject, make_event):
    await ce_js.configure_stream(js, stream, allow_atomic=True)

    async def publish():
        async with aio.AtomicBatch(js, validate={KIND: COUNT}) as batch:
            await batch.publish(make_event(1, {"n": 1}), subject)
            await batch.publish(make_event(2, {"n": "x"}), subject)

    with pytest.raises(EncodeError, match=r"event 'event 2'"):
        await publish()
    assert (await js.stream_info(stream)).state.messages == 0


async def test_exception_of_a_function_sends_nothing(js, stream, subject, make_event):
    def check(event):
        return event.data["n"] > 0

    async with aio.Publisher(js, validate=check) as publisher:
        with pytest.raises(KeyError):
            await publisher.publish(make_event(1, {}), subject)
        with pytest.raises(EncodeError, match="returned False"):
            await publisher.publish(make_event(2, {"n": 0}), subject)
        await publisher.publish(make_event(3, {"n": 1}), subject)
    assert (await js.stream_info(stream)).state.messages == 1


@pytest.mark.parametrize("mode", ["binary", "structured"])
@pytest.mark.parametrize("parse_data", [True, False])
@pytest.mark.parametrize("schema", [COUNT, Count], ids=["json", "model"])
async def test_consumer_dead_letters_wrong_data_at_once(run, send, dead_letters, mode, parse_data, schema):
    await send({"n": 1}, {"n": "x"}, {"n": 3}, mode=mode)
    assert await run(validate={KIND: schema}, parse_data=parse_data) == ["event 1", "event 3"]
    (letter,) = await dead_letters(1)
    found = DeadLetter.split(letter.headers)[0]
    assert (found.sequence, found.reason.value, found.error, found.deliveries) == (2, "rejected", "data-mismatch", 1)
    assert found.text.startswith(f"event 'event 2' of type '{KIND}': the data must ")


async def test_consumer_refuses_another_dataschema(run, send, js, subject, make_event, dead_letters):
    await send({"n": 1})
    for number, uri in ((2, URI), (3, "https://example.com/count/2")):
        await ce_js.publish(js, make_event(number, {"n": 1}, dataschema=uri), subject)
    assert await run(validate=Schemas({KIND: COUNT}, dataschema={KIND: URI})) == ["event 1", "event 2"]
    (letter,) = await dead_letters(1)
    assert DeadLetter.split(letter.headers)[0].text.endswith(f"dataschema must be '{URI}', got '{URI[:-1]}2'")


async def test_consumer_without_dead_letters_logs_wrong_data(run, send, caplog):
    await send({"n": "x"})
    assert await run(validate={KIND: COUNT}, dead_letter=None) == []
    assert "data-mismatch: event 'event 1' of type" in caplog.text


async def test_message_is_redelivered_after_an_exception_of_the_function(run, send, dead_letters):
    calls, errors = [], []

    def check(event):
        calls.append(event.id)
        if len(calls) == 1:
            raise KeyError("n")

    await send({"n": 1})
    handled = await run(
        validate=check, on_error=lambda error, delivery: errors.append((type(error), delivery.sequence))
    )
    assert (handled, calls, errors) == (["event 1"], ["event 1"] * 2, [(KeyError, 1)])
    assert await dead_letters(0) == []


async def test_exception_of_the_function_holds_back_its_key(consume, is_settled, send):
    calls, seen = [], []

    def check(event):
        calls.append(event.id)
        if calls == ["event 1"]:
            raise KeyError("n")

    async def handle(delivery):
        seen.append(delivery.event.id)

    await send({"n": 1}, {"n": 2}, {"n": 3})
    async with consume(validate=check, on_error=lambda *_: None) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=3, key=lambda delivery: delivery.event.type))
        await is_settled()
        consumer.stop()
        await after(running)
    assert seen == ["event 1", "event 2", "event 3"]


async def test_message_on_which_the_function_always_fails_is_dead_lettered(run, send, dead_letters):
    def check(event):
        raise KeyError("n")

    await send({"n": 1})
    assert await run(validate=check, max_deliveries=2, on_error=lambda *_: None) == []
    (letter,) = await dead_letters(1)
    found = DeadLetter.split(letter.headers)[0]
    assert (found.reason.value, found.error, found.deliveries) == ("exhausted", "KeyError", 2)


async def test_expired_events_are_not_checked(run, js, subject, stream, make_event, dead_letters):
    await ce_js.publish(js, make_event(1, {"n": "x"}, expirytime="2020-01-01T00:00:00Z"), subject)
    assert await run(validate={KIND: COUNT}, skip_expired=True) == []
    assert await dead_letters(0) == []


async def test_consumer_with_headers_only_cannot_validate(consume, stream):
    with pytest.raises(DeliveryError, match="validate= needs the data") as caught:
        async with consume(headers_only=True, validate={KIND: COUNT}):
            pass
    assert caught.value.code is ErrorCode.INCOMPATIBLE_CONFIG


@pytest.fixture
async def claim_check(js, subject):
    """Stores data of more than 100 bytes."""
    name = subject.replace(".", "_")
    await js.create_object_store(name, storage="memory")
    yield aio.ClaimCheck(js, name, over=100)
    await js.delete_object_store(name)


async def test_data_in_an_object_store_is_checked(run, js, subject, stream, make_event, claim_check, dead_letters):
    large = {"text": "x" * 200}
    async with aio.Publisher(js, validate={KIND: COUNT}, claim_check=claim_check) as publisher:
        await publisher.publish(make_event(1, {"n": 1, **large}), subject)
        with pytest.raises(EncodeError, match=r"event 'event 2'"):
            await publisher.publish(make_event(2, {"n": "x", **large}), subject)
    await ce_js.publish(js, make_event(3, {"n": "x", **large}), subject, claim_check=claim_check)
    assert (await js.stream_info(f"OBJ_{stream}")).state.messages == 4  # chunks and metadata of two objects
    assert await run(validate={KIND: COUNT}, claim_check=claim_check) == ["event 1"]
    (letter,) = await dead_letters(1)
    assert DeadLetter.split(letter.headers)[0].error == "data-mismatch"


async def test_data_that_is_not_resolved_is_refused(run, js, subject, make_event, claim_check, dead_letters):
    event = make_event(1, {"n": 1, "text": "x" * 200})
    await ce_js.publish(js, event, subject, claim_check=claim_check)
    assert await run(validate={KIND: COUNT}) == []
    assert len(await dead_letters(1)) == 1


async def test_object_that_is_gone_is_a_failure(run, js, subject, stream, make_event, claim_check, dead_letters):
    event = make_event(1, {"n": 1, "text": "x" * 200})
    await ce_js.publish(js, event, subject, claim_check=claim_check)
    await js.purge_stream(f"OBJ_{stream}")
    errors = []
    options = {"claim_check": claim_check, "max_deliveries": 2, "on_error": lambda error, _: errors.append(error.code)}
    assert await run(validate={KIND: COUNT}, **options) == []
    (letter,) = await dead_letters(1)
    assert DeadLetter.split(letter.headers)[0].reason.value == "exhausted"
    assert errors == ["object-not-found"] * 2


@pytest.mark.parametrize("wrong", [5, {"a": 5}, {5: {}}, {KIND: {"type": "x"}}], ids=range(4))
async def test_invalid_schemas_are_rejected_before_anything_is_opened(js, nc, wrong):
    count = len(nc._subs)
    for use in (
        lambda: aio.Publisher(js, validate=wrong),
        lambda: aio.PullConsumer(js, "S", "c", dead_letter=None, validate=wrong),
    ):
        with pytest.raises((TypeError, ValueError)):
            use()
    with pytest.raises((TypeError, ValueError)):
        await aio.subscribe(nc, "a", validate=wrong)
    assert len(nc._subs) == count


async def test_subscription_yields_wrong_data_as_an_error(nc, make_event):
    def check(event):
        if event.data["n"] > 1:
            raise Reject("too many")

    for validate in ({KIND: COUNT}, {KIND: Count}, check):
        async with aio.subscribe(nc, "checked", validate=validate) as received:
            await aio.publish(nc, make_event(1, {"n": 1}), "checked")
            await aio.publish(nc, make_event(2, {"n": 2 if validate is check else "x"}), "checked")
            first, second = [await after(anext(received)) for _ in range(2)]
        assert first.event.data == {"n": 1}
        assert second.error.code is ErrorCode.DATA_MISMATCH
        assert second.message.headers["ce-id"] == "event%202"


async def test_subscription_raises_exceptions_of_the_function_and_continues(nc, make_event):
    async with aio.subscribe(nc, "checked", validate=lambda event: event.data["n"]) as received:
        await aio.publish(nc, make_event(1, {}), "checked")
        await aio.publish(nc, make_event(2, {"n": 1}), "checked")
        with pytest.raises(KeyError):
            await after(anext(received))
        assert (await after(anext(received))).event.id == "event 2"


HOSTILE = {"multipleOf": 0.01}
HUGE = 10**400 + 1


async def test_publisher_refuses_data_that_makes_the_validator_fail(js, stream, subject, make_event):
    async with aio.Publisher(js, validate={KIND: HOSTILE}) as publisher:
        with pytest.raises(EncodeError, match="raised OverflowError for the data") as caught:
            await publisher.publish(make_event(1, HUGE), subject)
        await publisher.publish(make_event(2, 1), subject)
    assert caught.value.code is ErrorCode.DATA_MISMATCH
    assert isinstance(caught.value.__cause__, OverflowError)
    assert (await js.stream_info(stream)).state.messages == 1


@pytest.mark.parametrize("parse_data", [True, False])
async def test_consumer_dead_letters_data_that_makes_the_validator_fail(run, send, dead_letters, parse_data):
    """At once, and not after five deliveries; later events are handled."""
    await send(HUGE, 1)
    assert await run(validate={KIND: HOSTILE}, parse_data=parse_data) == ["event 2"]
    (letter,) = await dead_letters(1)
    found = DeadLetter.split(letter.headers)[0]
    assert (found.sequence, found.reason.value, found.error, found.deliveries) == (1, "rejected", "data-mismatch", 1)


async def test_handler_whose_model_fails_for_the_data_is_not_called_again(consume, is_settled, send, dead_letters):
    calls = []

    async def handle(delivery):
        calls.append(delivery.event.id)
        delivery.event.data_as(set[Any])

    await send([[1]], [1])
    async with consume() as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await is_settled()
        consumer.stop()
        await after(running)
    assert calls == ["event 1", "event 2"]
    assert DeadLetter.split((await dead_letters(1))[0].headers)[0].error == "data-mismatch"


async def test_subscription_continues_after_data_that_makes_the_validator_fail(nc, make_event):
    async with aio.subscribe(nc, "checked", validate={KIND: HOSTILE}) as received:
        for number, value in enumerate((HUGE, 1), 1):
            await aio.publish(nc, make_event(number, value), "checked")
        first, second = [await after(anext(received)) for _ in range(2)]
    assert first.error.code is ErrorCode.DATA_MISMATCH
    assert isinstance(first.error.__cause__, OverflowError)
    assert second.event.data == 1


async def test_checks_of_a_publisher_and_a_consumer_agree(run, js, subject, stream, make_event):
    """Events that a publisher accepts are handled by a consumer with the same schemas."""
    schemas = Schemas({KIND: COUNT}, dataschema={KIND: URI}, unknown="refuse")
    async with aio.Publisher(js, validate=schemas) as publisher:
        for number in range(1, 20):
            await publisher.publish(make_event(number, {"n": number}), subject)
    await until(lambda: publisher.acknowledged == 19)
    assert len(await run(validate=schemas)) == 19
