"""Permissions, or JetStream, that are removed while a publisher has events in flight."""

import asyncio
import json
import signal
from collections import Counter
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import nats
import pytest

from ce_nats import from_nats_message
from ce_nats.aio import DeliveryError, Publisher, PublishError, replay
from ce_nats.aio.jetstream import read_stream
from ce_nats.message import StoredMessage
from ce_nats.testing import NatsServer
from tests.support.broker import ignore
from tests.support.waiting import SECONDS, until

pytestmark = pytest.mark.faults


def config(*, deny=(), jetstream=True):
    """Return a configuration with the users ``all`` and ``some``; the latter may not publish to some subjects."""
    users = [
        {"user": "all", "password": "p"},
        {"user": "some", "password": "p", "permissions": {"publish": {"deny": list(deny)}}},
    ]
    return json.dumps({"accounts": {"A": {"jetstream": "enabled" if jetstream else "disabled", "users": users}}})


class Broker:
    """A server with a stream, and connections of both users."""

    def __init__(self, server, nc, admin):
        self.server, self.nc, self.js, self.admin = server, nc, nc.jetstream(), admin.jetstream()

    def reload(self, **changes):
        Path(self.server._directory, "server.conf").write_text(config(**changes))
        self.server._processes[-1].send_signal(signal.SIGHUP)

    async def stored(self):
        """Return the numbers of the stored events."""
        found = [message async for batch in read_stream(self.admin, "S") for message in batch]
        return [int(from_nats_message(message).get_id().split()[1]) for message in found]


@asynccontextmanager
async def broker(*, allow_batched=True, deny=()):
    with NatsServer(jetstream=True, config=config(deny=deny)) as server:
        nc = await nats.connect(server.url, user="some", password="p", error_cb=ignore)
        admin = await nats.connect(server.url, user="all", password="p")
        await admin.jetstream().add_stream(name="S", subjects=["s.>"], allow_batched=allow_batched)
        yield Broker(server, nc, admin)
        await nc.close()
        await admin.close()


async def publish_until_failure(publisher, make_event, change, *subjects):
    """Publish events without a pause, call a function after a thousand, and return the failures by event number."""
    failures = []
    number = 0
    while not failures:
        try:
            await publisher.publish(make_event(number), subjects[number % len(subjects)])
        except PublishError as error:
            failures += error.failures
            break  # this event was not sent
        number += 1
        if number == 1000:
            change()
        if number % 50 == 0:
            await asyncio.sleep(0)
    try:
        await asyncio.wait_for(publisher.flush(), SECONDS)
    except PublishError as error:
        failures += error.failures
    return number, {int(failure.event.get_id().split()[1]): failure for failure in failures}


def codes(failures):
    return Counter(failure.error.code.value for failure in failures.values())


@pytest.mark.parametrize("subjects", [["s.a"], ["s.a", "s.b"], ["s.b", "s.b", "s.a"]], ids=" ".join)
@pytest.mark.parametrize("fast_ingest", [True, False], ids=["batches", "one by one"])
async def test_each_event_is_either_stored_or_denied(make_event, subjects, fast_ingest):
    """
    Events that the server has received before the removal are stored, the following ones have failed, at once.

    The errors of the server do not say which event was denied. The oldest one failed, although it was stored; and the
    others waited for ``retry_timeout``, because a denied event leaves a gap in its batch.
    """
    async with broker() as broken:
        async with Publisher(broken.js, retry_timeout=10 * SECONDS, fast_ingest=fast_ingest) as publisher:
            count, failures = await publish_until_failure(
                publisher, make_event, lambda: broken.reload(deny=["s.a"]), *subjects
            )
            assert codes(failures) == {"permission-denied": len(failures)}
            assert {failure.subject for failure in failures.values()} == {"s.a"}
            stored = await broken.stored()
            assert sorted([*stored, *failures]) == list(range(count))
            if fast_ingest:
                assert stored == sorted(stored)
            assert publisher.acknowledged == len(stored)
            # Others are still published.
            await publisher.publish(make_event(count), "s.b")
        assert (await broken.stored())[-1] == count


async def test_unknown_outcome_is_a_timeout_without_delay(make_event):
    """Without permission to read the stream it is not known which of the events before are stored."""
    async with broker() as broken:
        async with Publisher(broken.js, retry_timeout=10 * SECONDS) as publisher:
            denied = ["s.a", "$JS.API.STREAM.MSG.GET.>"]
            count, failures = await publish_until_failure(
                publisher, make_event, lambda: broken.reload(deny=denied), "s.a"
            )
            stored = await broken.stored()
        assert set(codes(failures)) <= {"permission-denied", "timeout"}
        assert codes(failures)["permission-denied"]
        not_stored = {number for number, one in failures.items() if one.error.code == "permission-denied"}
        assert not not_stored.intersection(stored)
        for failure in failures.values():
            if failure.error.code == "timeout":
                assert "the retry was refused: the server denies permission to publish to 's.a'" in str(failure.error)
        assert publisher.acknowledged + len(failures) == count
        assert set(range(count)) - failures.keys() <= set(stored)


async def test_permission_may_be_given_back(make_event):
    async with broker() as broken:
        async with Publisher(broken.js, retry_timeout=10 * SECONDS) as publisher:
            count, failures = await publish_until_failure(
                publisher, make_event, lambda: broken.reload(deny=["s.a"]), "s.a", "s.b"
            )
            broken.reload()

            async def is_allowed():
                with suppress(DeliveryError):
                    await (await publisher.publish(make_event(10**6), "s.a"))
                    return True
                return False

            await until(is_allowed)
            batched = publisher.batched
            for number in range(count, count + 1000):
                await publisher.publish(make_event(number), "s.a" if number % 2 else "s.b")
        assert publisher.batched - batched > 500
        stored = [number for number in await broken.stored() if number < 10**6]
        assert stored == [number for number in range(count + 1000) if number not in failures]


async def test_replay_ends_with_the_denial(make_event):
    def messages():
        for number in range(100_000):
            if number == 1000:
                broken.reload(deny=["s.a"])
            headers = [("Nats-Msg-Id", str(number))]
            yield StoredMessage("s.a", "", headers, b"{}", "S", number, None)

    async with broker() as broken:
        results = []
        with pytest.raises(DeliveryError) as info:
            await asyncio.wait_for(
                replay(broken.js, messages(), retry_timeout=10 * SECONDS, on_end=results.append), SECONDS
            )
        assert info.value.code == "permission-denied"
        assert results[0].messages == (await broken.admin.stream_info("S")).state.messages


@pytest.mark.parametrize("subjects", [["s.a"], ["s.a", "s.b"]], ids=" ".join)
async def test_events_fail_at_once_if_jetstream_is_removed(make_event, subjects):
    """Events that were not sent failed with ``timeout``, after ``retry_timeout``."""
    async with broker() as broken:
        publisher = Publisher(broken.js, retry_timeout=10 * SECONDS)
        await publisher.__aenter__()

        async def is_removed():
            with suppress(nats.errors.Error):
                await broken.admin.account_info()
                return False
            return True

        failed = {}

        async def collect(awaitable):
            """Add the failures that an operation raises."""
            try:
                await asyncio.wait_for(awaitable, SECONDS)
            except PublishError as error:
                failed.update((int(one.event.get_id().split()[1]), one) for one in error.failures)

        for number in range(2000):
            await collect(publisher.publish(make_event(number), subjects[number % len(subjects)]))
        broken.reload(jetstream=False)
        await until(is_removed)
        await collect(publisher.flush())
        for number in range(2000, 2500):
            await publisher.publish(make_event(number), subjects[number % len(subjects)])
        await collect(publisher.flush())
        others = {number for number, failure in failed.items() if failure.error.code != "timeout"}
        assert {failed[number].error.code for number in others} == {"no-responders"}
        assert others.issuperset(range(2000, 2500))
        assert "JetStream is not enabled for this account" in str(failed[2499].error)
        # Only those that the stream may have stored are unknown.
        assert all(number < min(others) for number in failed.keys() - others)
        await publisher.__aexit__(None, None, None)
        broken.reload()
        stored = []

        async def is_back():
            with suppress(DeliveryError):
                stored[:] = await broken.stored()
                return True
            return False

        await until(is_back)
        assert not others.intersection(stored)
