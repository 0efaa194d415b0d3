"""Background loops of a consumer that raise what they do not expect: everyone who waits gets the error."""

import asyncio

import pytest
from nats.aio.client import Client
from nats.js.api import ConsumerConfig

from ce_nats import DeliveryError
from ce_nats.aio import PullConsumer
from tests.support.consuming import after, publish

__all__ = ["publish"]


class BrokenClient(Client):
    """A client whose methods raise RuntimeError for some messages."""

    breaks_at = ""

    async def publish(self, subject, payload=b"", *args, **options):
        self._check(subject, payload)
        await super().publish(subject, payload, *args, **options)

    async def request(self, subject, payload=b"", *args, **options):
        self._check(subject, payload)
        return await super().request(subject, payload, *args, **options)

    @property
    def pending_data_size(self):
        self._check("+WPI", b"")  # nats-py itself does not use this property
        return super().pending_data_size

    def _check(self, subject, payload):
        if self.breaks_at and self.breaks_at in f"{subject} {payload!r}":
            raise RuntimeError("broken")


@pytest.fixture
async def broken(server):
    client = BrokenClient()
    await client.connect(server.url)
    yield client
    await client.close()


@pytest.fixture
async def consumer(broken, stream):
    create = ConsumerConfig(ack_wait=0.6)
    async with PullConsumer(broken.jetstream(), stream, "c", dead_letter=None, create=create) as consumer:
        yield consumer


async def _fails(awaitable):
    """Check that everyone who waits gets the error."""
    with pytest.raises(DeliveryError, match=r"a background task failed: RuntimeError\('broken'\)") as caught:
        await after(awaitable)
    assert caught.value.code == "delivery-failed"
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("key", [None, lambda delivery: delivery.sequence % 3], ids=["no key", "key"])
async def test_failure_of_fetching_ends_run_and_iterations(broken, consumer, publish, caplog, key):
    handled = asyncio.Event()

    async def handle(delivery):
        handled.set()

    await publish(1)
    running = asyncio.create_task(consumer.run(handle, concurrency=2, key=key))
    await after(handled.wait())
    reader = asyncio.create_task(anext(consumer))
    broken.breaks_at = "CONSUMER.MSG.NEXT"  # the next request, when the present one has expired
    await _fails(running)
    await _fails(reader)
    await _fails(anext(consumer))
    assert "a background task failed" in caplog.text
    assert {repr(record.exc_info[1]) for record in caplog.records if record.exc_info} == {"RuntimeError('broken')"}


async def test_failure_of_extending_ends_iterations(broken, consumer, publish):
    await publish(1)
    async with await after(anext(consumer)):
        broken.breaks_at = "+WPI"
        await _fails(anext(consumer))
        broken.breaks_at = ""


async def test_failure_of_recovering_ends_run(broken, consumer, publish):
    async def handle(delivery):
        """Not called: it is not known whether messages are missing."""
        raise AssertionError

    await publish(1)
    broken.breaks_at = "CONSUMER.INFO"
    await _fails(consumer.run(handle, key=lambda delivery: 1))


async def test_key_that_raises_cancelled_error_is_a_failure_of_its_event(consumer, publish):
    await publish(*range(20))
    handled, keys = set(), []

    def key(delivery):
        keys.append(delivery.sequence)
        if delivery.sequence == 5 and keys.count(5) == 1:
            raise asyncio.CancelledError
        return delivery.sequence % 3

    async def handle(delivery):
        handled.add(delivery.sequence)
        if len(handled) == 20:
            consumer.stop()

    await after(consumer.run(handle, concurrency=2, key=key))
    assert handled == set(range(1, 21))
