"""One subscription for the replies of all operations of a connection."""

import asyncio

import nats
import pytest

from ce_nats import DeliveryError
from ce_nats.aio._reply_inbox import Replies, ReplyInbox, reports_no_responders
from ce_nats.aio.link._link import Link
from ce_nats.aio.link._permissions import Denial
from ce_nats.testing import NatsServer
from tests.support.broker import ignore
from tests.support.tables import each
from tests.support.waiting import until


class Operation:
    """An operation that records what it gets."""

    def __init__(self, fault=None):
        self.messages, self.denials, self.errors = [], [], []
        self.fault = fault

    async def open(self, inbox):
        self.replies = Replies(inbox, "an operation", self.receive, denied=self.denied, fail=self.errors.append)
        await self.replies.open()
        return self.replies

    def receive(self, messages):
        if self.fault is not None:
            raise self.fault
        self.messages += [(subject.decode(), data) for subject, _, data, _ in messages]

    def denied(self, denial):
        self.denials.append(denial)
        return True


def other_subscriptions(nc, before):
    return len(nc._subs) - before


async def test_operations_share_a_subscription_and_get_their_own_replies(nc):
    before = len(nc._subs)
    inbox, operations = ReplyInbox.of(nc), [Operation() for _ in range(12)]
    assert ReplyInbox.of(nc) is inbox
    prefixes = [(await one.open(inbox)).prefix for one in operations]
    assert other_subscriptions(nc, before) == 1
    expected = [[] for _ in operations]
    for number in range(100):
        for index in (number % 12, 0, 11):
            await nc.publish(f"{prefixes[index]}{number}", b"%d" % number)
            expected[index].append((f"{prefixes[index]}{number}", b"%d" % number))
    await until(lambda: sum(len(one.messages) for one in operations) == 300)
    assert [one.messages for one in operations] == expected


async def test_replies_of_several_tokens_belong_to_their_operation(nc):
    operation = Operation()
    prefix = (await operation.open(ReplyInbox.of(nc))).prefix
    await nc.publish(f"{prefix}a.2.fail.1.0.$FI", b"")
    await until(lambda: operation.messages == [(f"{prefix}a.2.fail.1.0.$FI", b"")])


async def test_closed_operation_gets_nothing_and_the_next_one_has_another_prefix(nc):
    inbox, first, second = ReplyInbox.of(nc), Operation(), Operation()
    prefix = (await first.open(inbox)).prefix
    first.replies.close()
    assert (await second.open(inbox)).prefix != prefix
    await nc.publish(f"{prefix}1", b"late")
    await nc.publish(f"{prefix[:-3]}", b"without a token")
    await nc.publish(f"{second.replies.prefix}1", b"own")
    await until(lambda: second.messages)
    assert Link.of(nc).permissions.notify(Denial("publish", "none"))
    assert (first.messages, first.denials, len(second.messages), len(second.denials)) == ([], [], 1, 1)


@pytest.mark.parametrize("fault", [RuntimeError("a fault"), asyncio.CancelledError()], ids=["error", "cancelled"])
async def test_fault_of_an_operation_is_its_own(nc, fault, caplog):
    inbox, faulty, other = ReplyInbox.of(nc), Operation(fault), Operation()
    await faulty.open(inbox)
    await other.open(inbox)
    await nc.publish(f"{faulty.replies.prefix}1", b"")
    await nc.publish(f"{other.replies.prefix}1", b"")
    await until(lambda: other.messages)
    assert [type(error.__cause__) for error in faulty.errors] == [type(fault)]
    assert "an operation: a background task failed" in caplog.text
    assert (len(other.messages), other.errors) == (1, [])


async def test_cancelled_operation_leaves_the_subscription_to_others(server):
    """Wherever it is cancelled while it subscribes."""
    nc = await nats.connect(server.url, pending_size=1)  # each command waits until it is sent
    cancelled = 0
    for steps in range(1, 20):
        inbox = ReplyInbox(nc)
        first, second = Operation(), Operation()
        tasks = [asyncio.create_task(one.open(inbox)) for one in (first, second)]
        for _ in range(steps):
            await asyncio.sleep(0)
        cancelled += tasks[0].cancel()
        await asyncio.wait(tasks)
        await nc.publish(f"{second.replies.prefix}1", b"")
        await until(lambda one=second: len(one.messages) == 1)
        await inbox.close()
        assert nc._subs == {}
    assert cancelled > 3
    await nc.close()


async def test_inbox_with_its_own_subject_is_unsubscribed(nc):
    before = len(nc._subs)
    inbox, operation = ReplyInbox(nc, "_TEST.acks"), Operation()
    assert (await operation.open(inbox)).prefix.startswith("_TEST.acks.")
    assert other_subscriptions(nc, before) == 1
    await inbox.close()
    await inbox.close()
    assert other_subscriptions(nc, before) == 0


@pytest.mark.parametrize("ends", ["close", "drain"])
async def test_closed_connection_is_an_error(server, ends):
    nc = await nats.connect(server.url)
    await Operation().open(ReplyInbox.of(nc))
    await getattr(nc, ends)()
    with pytest.raises(DeliveryError, match="an operation: the connection was closed") as info:
        await Operation().open(ReplyInbox.of(nc))
    assert info.value.code == "connection-closed"


async def test_client_that_connects_again_subscribes_again(server):
    nc = await nats.connect(server.url)
    inbox = ReplyInbox.of(nc)
    await Operation().open(inbox)
    await nc.close()
    await nc.connect(server.url)
    operation = Operation()
    await operation.open(inbox)
    await nc.publish(f"{operation.replies.prefix}1", b"")
    await until(lambda: operation.messages)
    await nc.close()


async def test_denied_inbox_fails_its_operations_and_is_subscribed_again_later():
    """Instead of the denied subscription, so that no reply would arrive twice if it was granted later."""
    with NatsServer(
        config='authorization: {users: [{user: u, permissions: {subscribe: {deny: "_INBOX.>"}}}]}'
    ) as server:
        nc = await nats.connect(server.url, user="u", password="", error_cb=ignore)
        for _ in range(2):
            operations = [Operation(), Operation()]
            for one in operations:
                await one.open(ReplyInbox.of(nc))
            await until(lambda ones=operations: all(one.errors for one in ones))
            assert {error.code for one in operations for error in one.errors} == {"permission-denied"}
            assert operations[0].denials == []
            assert len(nc._subs) == 1
        await nc.close()


@each(
    ("data", "status", "expected"),
    [(b"", b"503", True), (b"x", b"503", False), (b"", b"501", False), (b"", b"", False)],
)
def test_status_without_responders_has_no_data(data, status, expected):
    assert reports_no_responders(data, status and b"NATS/1.0 %s\r\n\r\n" % status) is expected
