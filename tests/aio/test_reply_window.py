"""Messages whose replies are awaited: who waits for a slot, and what ends a message."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from ce_nats import DeliveryError, ErrorCode
from ce_nats.aio._reply_inbox import ReplyInbox
from ce_nats.aio._reply_window import Pending, ReplyWindow, Unacknowledged
from ce_nats.aio.link._link import Link
from ce_nats.aio.link._permissions import Denial
from tests.support.scripted_server import ACK, NO_RESPONDERS, REFUSED, SECONDS, scripted
from tests.support.tables import each
from tests.support.waiting import until


class Window(ReplyWindow[Pending]):
    """
    Every answer ends its message; ``checks`` counts the calls of the timer.

    ``faults`` has exceptions by their places: ``check``, ``read``, ``done`` or ``denied``.
    """

    def __init__(self, nc, size):
        super().__init__(size, name="a window", read=self.read, check=self.check, done=self.done, denied=self.denied)
        self.nc = nc
        self.faults = {}
        self.checked = asyncio.Event()
        self.outcomes = {}
        self.blocks = []

    async def publish(self, subject="orders"):
        item = self.unacknowledged.add(Pending(self.unacknowledged.new_token(), subject, 0.0))
        await self.nc.publish(subject, b"", reply=f"{self.prefix}{item.token}")
        return item

    @property
    def pending(self):
        return list(self.unacknowledged.items.values())

    def fault(self, place):
        if place in self.faults:
            raise self.faults[place]

    def read(self, item, data, block):
        self.fault("read")
        self.blocks.append(block)
        return None if data == b"later" else data

    def check(self, now):
        self.fault("check")
        self.checked.set()

    def done(self, item, outcome):
        self.outcomes[item.token] = outcome
        if isinstance(outcome, DeliveryError):
            self.fault("done")

    def denied(self, denial):
        self.fault("denied")
        return self.deny(denial)


@asynccontextmanager
async def opened(*script, size=2):
    async with scripted(*script) as (server, nc):
        window = Window(nc, size)
        await window.open(ReplyInbox.of(nc))
        try:
            yield server, window
        finally:
            await window.close()


async def ended(window, *items):
    await until(lambda: all(item.token in window.outcomes for item in items))
    return [window.outcomes[item.token] for item in items]


ERROR = DeliveryError(ErrorCode.TIMEOUT, "orders")


# --- The messages -----------------------------------------------------------------------------------------------------


def pending(*subjects, kind=Pending):
    messages = Unacknowledged(4)
    return messages, [messages.add(kind(messages.new_token(), subject, float(n))) for n, subject in enumerate(subjects)]


def test_room_is_what_the_size_leaves():
    messages, _ = pending("a", "a", "a")
    assert (messages.room, messages.is_half_free) == (1, False)
    messages, _ = pending("a", "a")
    assert (messages.room, messages.is_half_free) == (2, True)


@each(("now", "expected"), [(-1.0, 0), (0.0, 1), (1.5, 2), (2.0, 3), (9.0, 3)])
def test_messages_are_due_at_their_time(now, expected):
    messages, items = pending("a", "b", "c")
    assert messages.due(now) == items[:expected]


class Unsent(Pending):
    @property
    def was_sent(self):
        return False


@each(("subject", "expected"), [("b", 1), ("A", 0), ("c", None), ("_INBOX.other", None)])
def test_denial_refers_to_the_oldest_message_that_was_sent_to_the_subject(subject, expected):
    """The server has not received other messages to the subject before."""
    messages, items = pending("a", "b", "b")
    denied = messages.denied(Denial("publish", subject.lower()))
    assert denied is (None if expected is None else items[expected])
    assert pending("a", "b", kind=Unsent)[0].denied(Denial("publish", subject.lower())) is None


# --- Replies ----------------------------------------------------------------------------------------------------------


async def test_answer_ends_its_own_message():
    async with opened(size=10) as (server, window):
        items = [await window.publish() for _ in range(3)]
        await server.receives(3)
        server.reply(server.received[1].reply, b"later")
        server.reply(server.received[1].reply, b"ok")
        assert await ended(window, items[1]) == [b"ok"]
        assert window.pending == [items[0], items[2]]
        assert len(window.blocks) == 2


async def test_slot_is_free_after_an_answer():
    async with opened() as (server, window):
        for _ in range(2):
            await window.publish()
        assert window.is_full
        third = asyncio.create_task(window.wait_for_slot())
        window.checked.clear()
        await asyncio.wait_for(window.checked.wait(), SECONDS)
        assert not third.done()
        server.send((await first(server)), ACK)
        await asyncio.wait_for(third, SECONDS)
        assert not window.is_full


async def first(server):
    await server.receives(1)
    return server.received[0]


async def waiting_for_slot(window):
    task = asyncio.create_task(window.wait_for_slot())
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def is_awake(task):
    """Return whether a task is done before the timer of the window runs."""
    for _ in range(3):
        await asyncio.sleep(0)
    return task.done()


@pytest.mark.parametrize(("size", "finished"), [(1, 1), (2, 1), (4, 2), (5, 3), (6, 3)])
@pytest.mark.parametrize("outcome", [b"", ERROR], ids=["acknowledged", "failed"])
async def test_half_of_the_window_is_free_when_senders_wake(size, finished, outcome):
    async with opened(size=size) as (_, window):
        items = [await window.publish() for _ in range(size)]
        following = await waiting_for_slot(window)
        for item in items[:finished]:
            window.finish(item, outcome)
        assert await is_awake(following)


async def test_timer_wakes_for_a_slot_before_half_of_the_window_is_free():
    async with opened(size=4) as (server, window):
        for _ in range(4):
            await window.publish()
        fifth = asyncio.create_task(window.wait_for_slot())
        server.send(await first(server), ACK)
        await asyncio.wait_for(fifth, SECONDS)
        assert len(window.pending) == 3


async def test_answers_count_as_received_messages():
    async with opened(ACK, NO_RESPONDERS) as (_, window):
        stats = window.nc.stats
        messages, octets = stats["in_msgs"], stats["in_bytes"]
        answers = await ended(window, await window.publish(), await window.publish())
        assert (stats["in_msgs"] - messages, stats["in_bytes"] - octets) == (2, sum(map(len, answers)))
        assert window.blocks == [b"NATS/1.0\r\n\r\n", b"NATS/1.0 503\r\n\r\n"]


async def test_drain_waits_until_nothing_is_pending():
    async with opened() as (_, window):
        item = await window.publish()
        draining = asyncio.create_task(window.drain())
        await asyncio.sleep(0)
        assert not draining.done()
        window.finish(item, ERROR)
        await asyncio.wait_for(draining, SECONDS)
        assert window.outcomes == {item.token: ERROR}


async def test_second_answer_to_a_message_is_ignored():
    async with opened(ACK) as (server, window):
        item = await window.publish()
        outcomes = await ended(window, item)
        server.send(server.received[0], REFUSED)
        await window.nc.flush()
        assert [window.outcomes[item.token]] == outcomes
        window.finish(item, ERROR)
        assert [window.outcomes[item.token]] == outcomes


async def test_dropped_message_frees_its_slot():
    async with opened(size=1) as (_, window):
        item = await window.publish()
        following = await waiting_for_slot(window)
        window.drop(item)
        assert await is_awake(following)
        assert window.pending == []
        assert window.outcomes == {}


async def test_all_answers_of_one_read_are_processed_in_order():
    async with opened(size=100) as (server, window):
        for _ in range(100):
            await window.publish()
        await server.receives(100)
        for number, frame in enumerate(server.received):
            server.reply(frame.reply, b"%d" % number)
        await until(lambda: not window.pending)
        assert list(window.outcomes.values()) == [b"%d" % number for number in range(100)]


async def test_error_in_one_of_many_answers_fails_the_messages_after_it(caplog):
    """The messages before it have ended, and messages of other subscriptions arrive."""
    fault = ValueError("third answer")

    def read(item, data, block):
        if item.token == "3":
            raise fault
        return data

    async with scripted() as (server, nc):
        window = ReplyWindow(10, name="a window", read=read, check=lambda now: None, done=lambda *one: ends.append(one))
        ends = []
        await window.open(ReplyInbox.of(nc))
        for _ in range(4):
            item = window.unacknowledged.add(Pending(window.unacknowledged.new_token(), "orders", 0.0))
            await nc.publish("orders", b"", reply=f"{window.prefix}{item.token}")
        await server.receives(4)
        for frame in server.received:
            server.reply(frame.reply, b"ok")
        await until(lambda: len(ends) == 4)
        error = window.unacknowledged.failure
        assert error.__cause__ is fault
        assert [outcome for _, outcome in ends] == [b"ok", b"ok", error, error]
        assert "a window: a background task failed" in caplog.text
        await nc.flush()
        await window.close()


# --- Closing, denials and faults --------------------------------------------------------------------------------------


async def test_close_ends_the_timer_and_waiting_senders():
    async with scripted() as (server, nc):
        tasks = asyncio.all_tasks()
        window = Window(nc, 2)
        await window.open(ReplyInbox.of(nc))
        for _ in range(2):
            await window.publish()
        await server.receives(2)
        waiting = [asyncio.create_task(window.wait_for_slot()), asyncio.create_task(window.drain())]
        await asyncio.wait_for(window.checked.wait(), SECONDS)
        await window.close()
        await asyncio.wait_for(asyncio.gather(*waiting), SECONDS)
        assert not window.is_open
        assert asyncio.all_tasks() <= tasks
        server.reply(server.received[0].reply, b"late")
        await nc.flush()
        assert window.outcomes == {}


async def test_window_that_was_not_opened_is_closed():
    window = Window(None, 2)
    assert (window.prefix, window.is_open) == ("", False)
    await window.close()


async def test_denied_inbox_fails_all_messages():
    async with opened(size=10) as (_, window):
        items = [await window.publish() for _ in range(3)]
        permissions, inbox = Link.of(window.nc).permissions, ReplyInbox.of(window.nc)
        assert not permissions.notify(Denial("subscription", "other.>"))
        assert window.outcomes == {}
        assert permissions.notify(Denial("subscription", inbox.subject.lower()))
        assert [error.code for error in await ended(window, *items)] == ["permission-denied"] * 3
        assert window.unacknowledged.failure.code == "permission-denied"
        assert window.pending == []


FAULTS = pytest.mark.parametrize(
    "fault", [RuntimeError("a fault"), asyncio.CancelledError()], ids=["error", "cancelled"]
)


async def check_failed(window, items, fault, caplog):
    """Check that a fault was logged, and that everyone has got it: messages, and those who wait for a slot."""
    outcomes = await ended(window, *items)
    error = window.unacknowledged.failure
    assert error.code == "delivery-failed"
    assert error.__cause__ is fault or type(error.__cause__) is type(fault)
    assert outcomes == [error] * len(items)
    await asyncio.wait_for(asyncio.gather(window.drain(), window.wait_for_slot()), SECONDS)
    assert "a window: a background task failed" in caplog.text
    await window.nc.flush()  # nats-py still reads


@FAULTS
async def test_fault_of_the_timer_fails_all_messages(fault, caplog):
    async with opened() as (_, window):
        items = [await window.publish() for _ in range(2)]
        waiting = asyncio.create_task(window.wait_for_slot())
        window.faults["check"] = fault
        await check_failed(window, items, fault, caplog)
        await asyncio.wait_for(waiting, SECONDS)


@FAULTS
async def test_fault_while_a_reply_is_processed_fails_all_messages(fault, caplog):
    """nats-py's reading task calls the window, and would end."""
    async with opened() as (server, window):
        items = [await window.publish() for _ in range(2)]
        window.faults["read"] = fault
        await server.receives(2)
        server.send(server.received[1], ACK)
        await check_failed(window, items, fault, caplog)


@FAULTS
async def test_fault_while_a_denial_is_processed_fails_all_messages(fault, caplog):
    async with opened() as (server, window):
        items = [await window.publish() for _ in range(2)]
        window.faults["denied"] = fault
        await server.receives(2)
        server.writer.write(b"-ERR 'Permissions Violation for Publish to \"orders\"'\r\n")
        await check_failed(window, items, fault, caplog)


@FAULTS
@pytest.mark.parametrize("place", ["task", "callback"])
async def test_fault_of_a_task_or_a_callback_fails_all_messages(fault, place, caplog):
    async def work():
        raise fault

    def call():
        raise fault

    async with opened() as (_, window):
        items = [await window.publish() for _ in range(2)]
        if place == "task":
            window.start_task(work())
        else:
            window.guard(call)
        await check_failed(window, items, fault, caplog)


@FAULTS
async def test_fault_while_a_failure_is_reported_does_not_stop_others(fault, caplog):
    async with opened() as (_, window):
        items = [await window.publish() for _ in range(2)]
        window.faults.update(check=ZeroDivisionError(), done=fault)
        await check_failed(window, items, ZeroDivisionError(), caplog)
