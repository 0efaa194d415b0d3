"""The window of unacknowledged messages: who waits for a slot, and what ends a message."""

import asyncio
import gc
import weakref
from contextlib import asynccontextmanager

import nats
import pytest
from nats.aio.msg import Msg

from ce_nats import DeliveryError, ErrorCode
from ce_nats.aio import _natspy
from ce_nats.aio._natspy import subscription_id
from ce_nats.aio._permissions import ConnectionWatch, Denial
from ce_nats.aio.publishing._ack_window import AckWindow, Pending, is_no_responders, reports_no_responders
from tests.support.scripted_server import ACK, NO_RESPONDERS, REFUSED, SECONDS, scripted
from tests.support.tables import each
from tests.support.waiting import until


class Window(AckWindow[Pending]):
    """
    Every answer acknowledges its message; ``checks`` counts the calls of the timer.

    ``faults`` has exceptions by the place where they are raised: ``check``, ``receive``, ``failed`` or ``denied``.
    """

    def __init__(self, nc, size):
        super().__init__(nc, size)
        self.faults = {}
        self.checks = 0
        self.checked = asyncio.Event()
        self.outcomes = []
        self.blocks = []

    async def publish(self, subject="orders"):
        item = Pending(subject, asyncio.get_running_loop().create_future())
        token = self._add(item)
        await self.nc.publish(subject, b"", reply=f"{self._prefix}{token}")
        return token, item

    def _raise(self, place):
        if place in self.faults:
            raise self.faults[place]

    def _receive(self, token, data, block):
        self._raise("receive")
        self.blocks.append(block)
        self._finish(token, data)

    async def _check(self):
        self._raise("check")
        self.checks += 1
        self.checked.set()

    def _acknowledged(self, item, ack):
        self.outcomes.append(ack)

    def _failed(self, item, error):
        self.outcomes.append(error)
        self._raise("failed")

    def _on_denial(self, denial):
        self._raise("denied")
        return super()._on_denial(denial)


@asynccontextmanager
async def opened(*script, size=2):
    async with scripted(*script) as (server, nc):
        window = Window(nc, size)
        await window.open(nc.new_inbox())
        try:
            yield server, window
        finally:
            await window.close()


def answer(server, frame, payload):
    """Return the frame of an answer to a message."""
    (sid,) = (sid for inbox, sid in server.sids.items() if frame.reply.startswith(inbox))
    return f"MSG {frame.reply} {sid} {len(payload)}\r\n".encode() + payload + b"\r\n"


async def test_answer_acknowledges_its_own_message():
    async with opened(size=10) as (server, window):
        items = [(await window.publish())[1] for _ in range(3)]
        await server.receives(3)
        server.send(server.received[1], ACK)
        await asyncio.wait_for(items[1].ack, SECONDS)
        assert list(window.pending.values()) == [items[0], items[2]]
        assert len(window.outcomes) == 1


async def test_slot_is_free_after_an_answer_not_after_a_cancelled_future():
    async with opened() as (server, window):
        for _ in range(2):
            _, item = await window.publish()
        assert window.is_full
        item.ack.cancel()  # the message stays unacknowledged although the caller does not await it
        third = asyncio.create_task(window.wait_for_slot())
        window.checked.clear()
        await asyncio.wait_for(window.checked.wait(), SECONDS)
        assert not third.done()
        server.send(server.received[0], ACK)
        await asyncio.wait_for(third, SECONDS)
        assert not window.is_full


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
@pytest.mark.parametrize("error", [None, DeliveryError(ErrorCode.TIMEOUT, "orders")], ids=["acknowledged", "failed"])
async def test_half_of_the_window_is_free_when_senders_wake(size, finished, error):
    async with opened(size=size) as (_, window):
        tokens = [(await window.publish())[0] for _ in range(size)]
        following = await waiting_for_slot(window)
        for token in tokens[:finished]:
            if error is None:
                window._finish(token, b"")
            else:
                window._fail(token, error)
        assert await is_awake(following)


async def test_timer_wakes_for_a_slot_before_half_of_the_window_is_free():
    async with opened(size=4) as (server, window):
        for _ in range(4):
            await window.publish()
        fifth = asyncio.create_task(window.wait_for_slot())
        await server.receives(4)
        server.send(server.received[0], ACK)
        await asyncio.wait_for(fifth, SECONDS)
        assert len(window.pending) == 3


async def test_answers_count_as_received_messages():
    async with opened(ACK, NO_RESPONDERS) as (_, window):
        stats = window.nc.stats
        messages, octets = stats["in_msgs"], stats["in_bytes"]
        answers = [await asyncio.wait_for((await window.publish())[1].ack, SECONDS) for _ in range(2)]
        assert (stats["in_msgs"] - messages, stats["in_bytes"] - octets) == (2, len(answers[0]))
        assert window.blocks == [b"NATS/1.0\r\n\r\n", b"NATS/1.0 503\r\n\r\n"]


async def test_drain_waits_until_nothing_is_pending():
    async with opened() as (server, window):
        token, _ = await window.publish()
        await server.receives(1)
        draining = asyncio.create_task(window.drain())
        await asyncio.sleep(0)
        assert not draining.done()
        window._fail(token, DeliveryError(ErrorCode.TIMEOUT, "orders"))
        await asyncio.wait_for(draining, SECONDS)
        assert [str(error) for error in window.outcomes] == ["timeout: orders"]


async def test_second_answer_to_a_message_is_ignored():
    async with opened(ACK) as (server, window):
        _, item = await window.publish()
        await asyncio.wait_for(item.ack, SECONDS)
        server.send(server.received[0], REFUSED)
        await window.nc.flush()
        assert (len(window.outcomes), window._failure) == (1, None)


async def test_dropped_message_frees_its_slot():
    async with opened(size=1) as (_, window):
        token, item = await window.publish()
        following = await waiting_for_slot(window)
        window._drop(token)
        assert await is_awake(following)
        assert item.ack.cancelled()
        assert window.pending == {}
        assert window.outcomes == []


async def test_close_cancels_pending_futures_and_the_timer():
    async with scripted() as (_, nc):
        tasks = asyncio.all_tasks()
        window = Window(nc, 2)
        await window.open(nc.new_inbox())
        _, item = await window.publish()
        await asyncio.wait_for(window.checked.wait(), SECONDS)
        await window.close()
        assert asyncio.all_tasks() <= tasks
    assert item.ack.cancelled()
    assert not window.is_open
    with pytest.raises(asyncio.CancelledError):
        await item.ack


async def test_all_answers_of_one_read_are_processed_in_order():
    async with opened(size=100) as (server, window):
        for _ in range(100):
            await window.publish()
        await server.receives(100)
        answers = [answer(server, frame, b"%d" % number) for number, frame in enumerate(server.received)]
        received = window._subscription.delivered
        server.writer.write(b"".join(answers))
        await until(lambda: not window.pending)
        assert window.outcomes == [b"%d" % number for number in range(100)]
        assert window._subscription.delivered - received == 100


async def test_error_in_one_of_many_answers_fails_the_messages_after_it(caplog):
    """The messages before it are acknowledged, and messages of other subscriptions arrive."""
    async with opened(size=10) as (server, window):
        items = [(await window.publish())[1] for _ in range(4)]
        await server.receives(4)
        receive, fault = window._receive, ValueError("third answer")

        def fail_third(token, data, block):
            if token == "3":
                raise fault
            receive(token, data, block)

        window._receive = fail_third
        server.writer.write(b"".join(answer(server, frame, b"ok") for frame in server.received))
        for item in items[2:]:
            with pytest.raises(DeliveryError, match="third answer") as info:
                await asyncio.wait_for(item.ack, SECONDS)
            assert info.value.__cause__ is fault
        assert [item.ack.result() for item in items[:2]] == [b"ok", b"ok"]
        assert "a background task failed" in caplog.text
        assert window._failure is info.value
        await window.nc.flush()


async def test_answer_after_closing_is_ignored():
    async with scripted() as (server, nc):
        window = Window(nc, 2)
        await window.open(nc.new_inbox())
        await window.publish()
        await server.receives(1)
        await window.close()
        server.writer.write(answer(server, server.received[0], b"late"))
        await nc.flush()
        assert window.outcomes == []


async def test_replies_arrive_below_the_inbox():
    async with opened(ACK) as (_, window):
        assert window._subscription.subject == f"{window._prefix}*"
        assert window._prefix.count(".") == 2


async def test_window_of_a_closed_connection_is_not_opened():
    async with scripted() as (_, nc):
        await nc.close()
        with pytest.raises(DeliveryError, match="acknowledgements: the connection was closed") as info:
            await Window(nc, 2).open("_INBOX.x")
        assert info.value.code == "connection-closed"


async def test_close_removes_the_receiver_of_its_subscription():
    async with scripted() as (_, nc):
        window = Window(nc, 2)
        await window.open(nc.new_inbox())
        receivers = _natspy._Reading.of(nc)._receivers
        assert list(receivers) == [b"%d" % subscription_id(window._subscription)]
        assert len(nc._subs) == 1
        await window.close()
        assert receivers == {}
        assert nc._subs == {}
        assert ConnectionWatch.of(nc)._listeners == {}


async def test_cancelled_window_leaves_nothing(server):
    """Neither a subscription, nor a listener for denials, nor a task, wherever it is cancelled."""
    nc = await nats.connect(server.url, pending_size=1)  # each command waits until it is sent
    tasks = asyncio.all_tasks()

    async def open_and_close():
        window = Window(nc, 2)
        windows.append(weakref.ref(window))
        await window.open(nc.new_inbox())
        await window.close()

    for steps in range(1, 1000):
        windows = []
        task = asyncio.create_task(open_and_close())
        for _ in range(steps):
            await asyncio.sleep(0)
        if task.done():
            break
        task.cancel()
        await asyncio.wait((task,))
        del task
        await until(lambda: not nc._subs and asyncio.all_tasks() <= tasks)
        gc.collect()
        assert windows[0]() is None  # a listener would keep it
    assert steps > 5
    await nc.close()


class Unsent(Pending):
    @property
    def was_sent(self):
        return False


@pytest.mark.parametrize(("subject", "failed"), [("b", [3]), ("A", [1]), ("c", []), ("_INBOX.other", [])])
async def test_denied_publish_fails_the_oldest_message_that_was_sent_to_the_subject(subject, failed):
    """The server has not received other messages to the subject before."""
    async with opened(size=10) as (_, window):
        loop = asyncio.get_running_loop()
        items = [
            kind(to, loop.create_future())
            for kind, to in ((Unsent, "a"), (Pending, "a"), (Unsent, "b"), (Pending, "b"), (Pending, "b"))
        ]
        for item in items:
            window._add(item)
        assert window._on_denial(Denial("publish", subject.lower())) is bool(failed)
        assert [number for number, item in enumerate(items) if item.ack.done()] == failed
        assert [item for item in items if item not in window.pending.values()] == [items[number] for number in failed]


async def test_denied_inbox_fails_all_messages():
    async with opened(size=10) as (_, window):
        items = [(await window.publish())[1] for _ in range(3)]
        assert not window._on_denial(Denial("subscription", "other.*"))
        assert window.outcomes == []
        assert ConnectionWatch.of(window.nc)._notify(Denial("subscription", f"{window._prefix}*".lower()))
        assert [str(error.code) for error in window.outcomes] == ["permission-denied"] * 3
        assert all(item.ack.done() for item in items)
        assert window.pending == {}


# --- Faults of this package ------------------------------------------------------------------------------------------

FAULTS = pytest.mark.parametrize(
    "fault", [RuntimeError("a fault"), asyncio.CancelledError()], ids=["error", "cancelled"]
)


async def check_failed(window, items, fault, caplog):
    """Check that a fault was logged, and that everyone has got it: messages, and those who wait for a slot."""
    with pytest.raises(DeliveryError) as info:
        await asyncio.wait_for(items[0].ack, SECONDS)
    assert info.value.code == "delivery-failed"
    assert info.value.__cause__ is fault or type(info.value.__cause__) is type(fault)
    assert [item.ack.exception() for item in items] == [info.value] * len(items)
    assert window.outcomes == [info.value] * len(items)
    await asyncio.wait_for(asyncio.gather(window.drain(), window.wait_for_slot()), SECONDS)
    assert "acknowledgements: a background task failed" in caplog.text
    await window.nc.flush()  # nats-py still reads


@FAULTS
async def test_fault_of_the_timer_fails_all_messages(fault, caplog):
    async with opened() as (_, window):
        items = [(await window.publish())[1] for _ in range(2)]
        waiting = asyncio.create_task(window.wait_for_slot())
        window.faults["check"] = fault
        await check_failed(window, items, fault, caplog)
        await asyncio.wait_for(waiting, SECONDS)


@FAULTS
async def test_fault_while_a_reply_is_processed_fails_all_messages(fault, caplog):
    """nats-py's reading task calls the window, and would end."""
    async with opened() as (server, window):
        items = [(await window.publish())[1] for _ in range(2)]
        window.faults["receive"] = fault
        await server.receives(2)
        server.send(server.received[1], ACK)
        await check_failed(window, items, fault, caplog)


@FAULTS
async def test_fault_while_a_denial_is_processed_fails_all_messages(fault, caplog):
    async with opened() as (server, window):
        items = [(await window.publish())[1] for _ in range(2)]
        window.faults["denied"] = fault
        await server.receives(2)
        server.writer.write(b"-ERR 'Permissions Violation for Publish to \"orders\"'\r\n")
        await check_failed(window, items, fault, caplog)


@FAULTS
async def test_fault_of_another_task_fails_all_messages(fault, caplog):
    async def work():
        raise fault

    async with opened() as (_, window):
        items = [(await window.publish())[1] for _ in range(2)]
        window.start_task(work())
        await check_failed(window, items, fault, caplog)


@FAULTS
async def test_fault_while_a_failure_is_reported_does_not_stop_others(fault, caplog):
    async with opened() as (_, window):
        items = [(await window.publish())[1] for _ in range(2)]
        window.faults.update(check=ZeroDivisionError(), failed=fault)
        await check_failed(window, items, ZeroDivisionError(), caplog)


async def test_waiting_ends_when_the_window_is_closed():
    async with opened() as (_, window):
        for _ in range(2):
            await window.publish()
        waiting = [asyncio.create_task(window.wait_for_slot()), asyncio.create_task(window.drain())]
        await asyncio.sleep(0)
        await window.close()
        await asyncio.wait_for(asyncio.gather(*waiting), SECONDS)


async def test_error_of_a_message_that_is_not_awaited_is_not_logged():
    """It is an outcome."""
    logged = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: logged.append(context["message"]))
    async with opened() as (_, window):
        token, item = await window.publish()
        window._fail(token, DeliveryError(ErrorCode.TIMEOUT, "orders"))
        assert item.ack.done()
        del item
        gc.collect()
    assert logged == []


@each(
    ("data", "status", "expected"), [(b"", "503", True), (b"x", "503", False), (b"", "501", False), (b"", None, False)]
)
def test_status_without_responders_has_no_data(data, status, expected):
    headers = None if status is None else {"Status": status}
    assert is_no_responders(Msg(None, "a", data=data, headers=headers)) is expected
    assert reports_no_responders(data, b"" if status is None else f"NATS/1.0 {status}\r\n\r\n".encode()) is expected
