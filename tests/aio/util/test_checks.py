"""Error texts for swapped arguments, servers without JetStream, and missing streams."""

import asyncio
import math

import pytest
from nats.js.api import ConsumerConfig

from ce_nats import aio, stan
from ce_nats.aio import Publisher, PullConsumer, replay
from ce_nats.aio._jetstream_api import StreamApi
from ce_nats.aio._util.checks import check_handler, check_hook, check_key, config_differences
from ce_nats.aio._util.patience import RETRY_SECONDS
from ce_nats.aio.consumer._dead_letters import requeue, requeue_all
from ce_nats.aio.jetstream import read_stream
from ce_nats.codec.timestamp import Timestamp
from ce_nats.errors import DeliveryError, EncodeError, ErrorCode
from ce_nats.message import StoredMessage
from ce_nats.stan.migration import Monitor, migrate
from ce_nats.testing import NatsServer
from tests.support.tables import each

STORED = StoredMessage("a", "", [], b"", "S", 1, Timestamp.parse("2024-01-01T00:00:00Z"))
MONITOR = Monitor("http://127.0.0.1:1")
NO_CLIENT = r"^nc must be a connection \(nats\.aio\.client\.Client\), got nats\.js\.client\.JetStreamContext$"
NO_JETSTREAM = r"^js must be a JetStreamContext \(nc\.jetstream\(\)\), got nats\.aio\.client\.Client$"

# One account may use JetStream, the other not.
ACCOUNTS = """
accounts {
  SHOP { jetstream: enabled, users: [{user: shop, password: x}] }
  OTHER { users: [{user: other, password: x}] }
}
"""


async def read(js, stream="S", **options):
    return [batch async for batch in aio.jetstream.read_stream(js, stream, **options)]


async def consume(js, **options):
    async with aio.PullConsumer(js, "S", "worker", **{"dead_letter": None, **options}):
        pass


async def enter_publisher(js):
    async with aio.Publisher(js):
        pass


@pytest.mark.parametrize(
    "use",
    [
        lambda js, event: aio.publish(js, event, "a"),
        lambda js, event: aio.flush(js),
        lambda js, event: aio.subscribe(js, "a"),
        lambda js, event: aio.request(js, event, "a"),
        lambda js, event: stan.connect(js, "cluster", "client"),
        lambda js, event: migrate(js, js, "channel", "S", monitor=MONITOR),
    ],
    ids=["publish", "flush", "subscribe", "request", "stan", "migrate"],
)
async def test_jetstream_in_place_of_a_connection(js, make_event, use):
    with pytest.raises(TypeError, match=NO_CLIENT):
        await use(js, make_event())


@pytest.mark.parametrize(
    "use",
    [
        lambda nc, event: aio.jetstream.publish(nc, event, "a"),
        lambda nc, event: read(nc),
        lambda nc, event: enter_publisher(nc),
        lambda nc, event: consume(nc),
        lambda nc, event: requeue(nc, STORED),
        lambda nc, event: migrate(nc, nc, "channel", "S", monitor=MONITOR),
    ],
    ids=["publish", "read_stream", "Publisher", "PullConsumer", "requeue", "migrate"],
)
async def test_connection_in_place_of_jetstream(nc, make_event, use):
    with pytest.raises(TypeError, match=NO_JETSTREAM):
        await use(nc, make_event())


async def test_other_wrong_types(nc, js):
    with pytest.raises(TypeError, match=r"^nc must be a connection .*, got str$"):
        StreamApi("nats://127.0.0.1:4222")
    with pytest.raises(TypeError, match=r"^subscription must be a Subscription .*, got nats\.aio\.client\.Client$"):
        aio.events(nc)
    with pytest.raises(TypeError, match=r"^create must be a nats\.js\.api\.ConsumerConfig, got dict$"):
        await consume(js, create={"ack_wait": 30})


async def test_server_without_jetstream(make_event):
    with NatsServer() as server:
        async with await aio.connect(server.url) as nc:
            js = nc.jetstream()
            for use in (read(js), consume(js), consume(js, create=ConsumerConfig()), StreamApi(nc).state("S")):
                with pytest.raises(DeliveryError, match=r"JetStream is not enabled on the server$") as info:
                    await asyncio.wait_for(use, RETRY_SECONDS / 2)
                assert info.value.code is ErrorCode.NO_RESPONDERS
            with pytest.raises(DeliveryError, match="a: no stream listens: the server has no JetStream"):
                await aio.jetstream.publish(js, make_event(), "a")
            with pytest.raises(DeliveryError, match=r"no answer on '\$JS\.hub\.API': JetStream has another prefix"):
                await read(
                    nc.jetstream(domain="hub"), retry_timeout=1
                )  # the server with that prefix may be temporarily unavailable


async def test_account_without_jetstream(make_event):
    with NatsServer(jetstream=True, config=ACCOUNTS) as server:
        async with await aio.connect(f"nats://other:x@127.0.0.1:{server.port}") as nc:
            js = nc.jetstream()
            for use in (read(js), consume(js), consume(js, create=ConsumerConfig())):
                with pytest.raises(DeliveryError, match=r"JetStream is not enabled for this account$"):
                    await asyncio.wait_for(use, RETRY_SECONDS / 2)
            with pytest.raises(DeliveryError, match="a: no stream listens: JetStream is not enabled for this account"):
                await aio.jetstream.publish(js, make_event(), "a")
            with pytest.raises(DeliveryError, match=r"JetStream is not enabled for this account$"):
                await StreamApi(nc).state("S")


async def test_subject_without_a_stream(js, make_event, subject):
    with pytest.raises(DeliveryError, match=r"create one with js\.add_stream\(name=\.\.\., subjects=\['test\.") as info:
        await aio.jetstream.publish(js, make_event(), subject)
    assert info.value.code is ErrorCode.NO_RESPONDERS


async def test_dead_letter_subject_without_a_stream(js, stream, subject, caplog):
    """It is logged before the first message: the subject may be mapped, or imported."""
    dead = f"dead.{subject}"

    async def enter(**options):
        options = {"dead_letter": dead, "create": ConsumerConfig(), **options}
        async with aio.PullConsumer(js, stream, "worker", **options):
            pass

    await enter()
    (text,) = caplog.messages
    assert f"no stream listens on the subject for dead letters, '{dead}', in this account: create one with " in text
    assert "check_dead_letter=False omits this check" in text
    await enter(check_dead_letter=False)
    await js.add_stream(name=f"dead_{stream}", subjects=[f"dead.{subject}"], storage="memory")
    try:
        await enter()
    finally:
        await js.delete_stream(f"dead_{stream}")
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("filters", "is_refused"),
    [
        ({}, True),
        ({"filter_subject": ">"}, True),
        ({"filter_subject": "loop.*"}, True),
        ({"filter_subjects": ["loop.a", "loop.dead"]}, True),
        ({"filter_subject": "loop.a"}, False),
    ],
)
async def test_consumer_must_not_read_its_dead_letters(js, subject, filters, is_refused):
    def own(pattern):
        return pattern if pattern == ">" else pattern.replace("loop", f"{subject}_loop")

    name, changed = subject.replace(".", "_") + "_loop", {}
    for key, value in filters.items():
        changed[key] = own(value) if isinstance(value, str) else list(map(own, value))
    await js.add_stream(name=name, subjects=[own("loop.>")], storage="memory")
    try:
        options = {"dead_letter": own("loop.dead"), "create": ConsumerConfig(**changed)}
        entering = aio.PullConsumer(js, name, "worker", **options).__aenter__()
        if is_refused:
            with pytest.raises(DeliveryError, match="it reads the subject for dead letters, ") as info:
                await entering
            assert info.value.code is ErrorCode.INCOMPATIBLE_CONFIG
        else:
            await (await entering).__aexit__(None, None, None)
    finally:
        await js.delete_stream(name)


@pytest.mark.parametrize("answer", ["denied", "silence"])
async def test_unanswered_lookup_of_the_dead_letter_stream_is_ignored(answer):
    """The minimum permissions of a consumer do not include it."""
    names = "$JS.API.STREAM.NAMES"
    deny = f'permissions: {{publish: {{deny: ["{names}"]}}}}' if answer == "denied" else ""
    to = "" if answer == "denied" else f'mappings: {{"{names}": "not.answered"}}'
    config = f"accounts {{ A {{ jetstream: enabled, users: [{{user: a, password: x, {deny}}}], {to} }} }}"
    with NatsServer(jetstream=True, config=config) as server:
        reported = []

        async def report(error):
            reported.append(error)

        async with await aio.connect(f"nats://a:x@127.0.0.1:{server.port}", error_cb=report) as nc:
            js = nc.jetstream()
            await js.add_stream(name="S", subjects=["orders"], storage="memory")
            if answer == "silence":
                await nc.subscribe("not.answered", cb=_ignore)
            await asyncio.wait_for(consume(js, dead_letter="dead", create=ConsumerConfig()), 20)
            await nc.flush()
        assert reported == []


async def _ignore(message):
    pass


async def test_counts_must_be_positive(nc, js, stream):
    """A window without a slot, or a batch without a message, would wait forever."""
    for call, name in (
        (lambda: Publisher(js, window=0), "window"),
        (lambda: PullConsumer(js, stream, "c", dead_letter=None, prefetch=0), "prefetch"),
    ):
        with pytest.raises(ValueError, match=rf"^{name} must be 1 or more, got 0$"):
            call()
    with pytest.raises(ValueError, match=r"^batch_size must be 1 or more, got 0$"):
        await anext(read_stream(js, stream, batch_size=0))
    with pytest.raises(ValueError, match=r"^window must be 1 or more, got 0$"):
        await replay(js, [], window=0)
    with pytest.raises(ValueError, match=r"^rate must be above 0, got 0$"):
        await replay(js, [], rate=0)


NUMBERS = {
    "timeout of a request": lambda nc, js, event, value: aio.request(nc, event, "a", timeout=value),
    "timeout of a publish": lambda nc, js, event, value: aio.jetstream.publish(js, event, "a", timeout=value),
    "batch_size": lambda nc, js, event, value: read(js, batch_size=value),
    "start": lambda nc, js, event, value: read(js, start=value),
    "end": lambda nc, js, event, value: read(js, end=value),
    "retry_timeout of a reader": lambda nc, js, event, value: read(js, retry_timeout=value),
    "timeout of a requeue": lambda nc, js, event, value: requeue(js, STORED, timeout=value),
    "retry_timeout of a requeue": lambda nc, js, event, value: requeue(js, STORED, retry_timeout=value),
    "timeout of requeue_all": lambda nc, js, event, value: anext(requeue_all(js, [], timeout=value)),
    "retry_timeout of requeue_all": lambda nc, js, event, value: anext(requeue_all(js, [], retry_timeout=value)),
    "window": lambda nc, js, event, value: replay(js, [], window=value),
    "rate": lambda nc, js, event, value: replay(js, [], rate=value),
    "timeout of a migration": lambda nc, js, event, value: migrate(nc, js, "a", "S", monitor=MONITOR, timeout=value),
}


@pytest.mark.parametrize("name", NUMBERS)
async def test_numbers_are_checked(nc, js, make_event, name):
    """``tests/test_numbers.py`` has what is refused."""
    with pytest.raises((ValueError, EncodeError), match=f"{name.split()[0]} must be "):
        await NUMBERS[name](nc, js, make_event(), math.nan)


@pytest.mark.parametrize("name", ["over", "max_size", "retry_timeout"])
def test_numbers_of_a_claim_check_are_checked(js, name):
    with pytest.raises(ValueError, match=f"^{name} must be "):
        aio.ClaimCheck(js, "DATA", **{name: math.nan})


async def _asynchronous(*_):
    pass


@each(("key", "text"), [("a", "'a'"), (_asynchronous, "<function _asynchronous at ")])
def test_key_is_a_function_that_is_not_async(key, text):
    check_key(None)
    check_key(str.upper)
    with pytest.raises(TypeError, match=f"^key must be a function that is not async, or None, got {text}"):
        check_key(key)


@each(("hook", "kind"), [("a", "str"), (_asynchronous, "function")])
def test_hook_is_a_function_that_is_not_async(hook, kind):
    check_hook("on_error", None)
    check_hook("on_error", print)
    with pytest.raises(TypeError, match=f"^on_error must be a function that is not async, got {kind}$"):
        check_hook("on_error", hook)


def test_lambdas_are_accepted_as_handlers():
    check_handler(lambda delivery: None)
    with pytest.raises(TypeError, match="handler must be an async function"):
        check_handler(print)


def test_fields_that_differ_are_named_if_one_of_them_is_not_empty():
    existing = ConsumerConfig(max_deliver=5, description="")
    assert config_differences(ConsumerConfig(max_deliver=5, max_waiting=0), existing) == []
    assert config_differences(ConsumerConfig(max_deliver=0), existing) == ["max_deliver is 5, not 0"]
    assert config_differences(ConsumerConfig(description="a"), existing) == ["description is '', not 'a'"]


def test_fields_that_a_consumer_sets_are_not_compared():
    existing = ConsumerConfig(name="a", durable_name="a", ack_policy="explicit")
    assert config_differences(ConsumerConfig(name="b", durable_name="b", ack_policy="none"), existing) == []


@each(
    ("wanted", "existing", "differences"),
    [
        ({"a": "1"}, {"a": "1", "_nats.level": "2"}, []),
        ({"a": "1"}, {"a": "2", "_nats.level": "2"}, ["metadata is {'a': '2'}, not {'a': '1'}"]),
        ({"a": "1"}, {"_nats.level": "2"}, ["metadata is {}, not {'a': '1'}"]),
        ({"a": "1"}, None, ["metadata is None, not {'a': '1'}"]),
        ({}, None, []),
        (None, {"a": "1"}, []),
    ],
)
def test_metadata_differs_only_in_its_own_keys(wanted, existing, differences):
    """The server adds others."""
    assert config_differences(ConsumerConfig(metadata=wanted), ConsumerConfig(metadata=existing)) == differences


def test_backoff_of_the_server_overrides_ack_wait():
    existing = ConsumerConfig(max_deliver=5, ack_wait=1, backoff=[1, 2])
    wanted = ConsumerConfig(max_deliver=3, ack_wait=30, backoff=[1, 2])
    assert config_differences(wanted, existing) == ["max_deliver is 5, not 3"]
    assert config_differences(ConsumerConfig(ack_wait=30), existing) == ["ack_wait is 1, not 30"]
