"""Queues of keys, and order per key of a client whose simulated server loses messages, acknowledgements and state."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ce_nats.aio._jetstream_api import Progress
from ce_nats.aio.consumer._key_order import Continuity, KeyOrder, OtherClients
from tests.support.tables import each


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abc")), unique_by=lambda pair: pair[0]), st.randoms())
def test_messages_of_a_key_are_first_one_after_the_other(messages, random):
    """Each one is the first of its key once, in order if they are added in order; keys do not wait for each other."""
    order, first, done = KeyOrder(), {}, []
    for number, key in sorted(messages):
        is_first = order.add(number, key)
        assert is_first == (key not in first)
        first.setdefault(key, number)
        assert order.add(number, key) is False
    while first:
        key = random.choice(sorted(first))
        number = first.pop(key)
        done.append((number, key))
        following = order.finish(number)
        if following is not None:
            first[key] = following
    assert sorted(done) == sorted(messages)
    for key in "abc":
        numbers = [number for number, its_key in done if its_key == key]
        assert numbers == sorted(numbers)


def test_late_message_is_queued_by_its_sequence_after_the_running_one():
    order = KeyOrder()
    assert [order.add(number, "a") for number in (5, 9, 2, 7)] == [True, False, False, False]
    assert [order.finish(number) for number in (5, 2, 7, 9)] == [2, 7, 9, None]


def test_message_that_waits_can_be_removed():
    order = KeyOrder()
    for number in (1, 2, 3):
        order.add(number, None)
    assert order.finish(2) is None
    assert order.finish(2) is None
    assert order.finish(1) == 3


def test_key_that_is_not_hashable_is_an_error_without_an_effect():
    order = KeyOrder()
    with pytest.raises(TypeError):
        order.add(1, [])
    assert order.add(1, "a")


@each(
    ("progress", "in_flight", "missing"),
    [
        (Progress(0, 0, 0, 0), [], 0),
        (Progress(10, 10, 0, 3), [2, 3, 4], 0),
        (Progress(10, 10, 0, 3), [2, 3], 1),
        (Progress(10, 10, 2, 3), [1, 2, 3, 4, 5], 0),  # 1 and 2 were removed from the stream
        (Progress(10, 10, 2, 3), [1, 2, 3, 4], 1),
        (Progress(4, 4, 0, 3), [3, 4, 5, 6], 1),  # the server has lost its state, and will deliver 5 and 6 again
    ],
)
def test_unacknowledged_messages_that_are_not_in_flight_are_missing(progress, in_flight, missing):
    continuity = Continuity()
    assert continuity.missing(progress, in_flight) == missing
    assert continuity.is_complete == (missing == 0)


def test_gap_in_deliveries_is_detected_until_nothing_is_missing():
    continuity = Continuity()
    assert continuity.missing(Progress(3, 3, 3, 0), []) == 0
    continuity.receive(4)
    assert continuity.is_complete
    continuity.receive(6)
    continuity.receive(8)
    assert not continuity.is_complete
    assert continuity.missing(Progress(6, 6, 3, 3), [4, 6]) == 1
    assert continuity.missing(Progress(6, 6, 3, 3), [4, 5, 6]) == 1  # the delivery before the eighth is not here
    continuity.receive(7)
    assert continuity.missing(Progress(6, 6, 3, 3), [4, 5, 6]) == 0
    continuity.receive(9)
    assert continuity.is_complete


def test_server_that_counts_from_an_earlier_number_again_is_not_waited_for():
    continuity = Continuity()
    for number in (7, 8):
        continuity.receive(number)
    assert continuity.missing(Progress(2, 2, 2, 0), []) == 1  # the response may be older than the deliveries
    continuity.begin_request([])
    assert continuity.missing(Progress(2, 2, 2, 0), []) == 0
    continuity.receive(3)
    assert continuity.is_complete


def test_messages_that_the_server_will_deliver_for_the_first_time_again_are_missing():
    """As are others before them, which this client may not have."""
    continuity = Continuity()
    continuity.receive(2)
    continuity.begin_request([2])
    assert continuity.missing(Progress(0, 0, 0, 0), [2]) == 1
    assert continuity.missing(Progress(2, 2, 0, 2), [1, 2]) == 0


class Server:
    """A consumer of a stream: what it delivers next, and what it waits for."""

    def __init__(self):
        self.delivered = self.deliveries = 0
        self.pending = set()
        self.queue = []  # to redeliver

    def next(self, last):
        """Deliver a message: its sequences in the stream and in the consumer; None if there is none."""
        if self.queue:
            sequence = self.queue.pop(0)
        elif self.delivered < last:
            sequence = self.delivered = self.delivered + 1
            self.pending.add(sequence)
        else:
            return None
        self.deliveries += 1
        return sequence, self.deliveries

    def acknowledge(self, sequence):
        self.pending.discard(sequence)
        if sequence in self.queue:
            self.queue.remove(sequence)

    def expire(self, sequences):
        self.queue += [sequence for sequence in sorted(sequences) if sequence not in self.queue]

    def progress(self):
        floor = min(self.pending) - 1 if self.pending else self.delivered
        return Progress(self.delivered, self.deliveries, floor, len(self.pending))


class Client:
    """A process with a gate: messages wait in the inbox until none is missing, and then for those of their keys."""

    def __init__(self, keys):
        self.keys = keys
        self.order, self.continuity = KeyOrder(), Continuity()
        self.in_flight, self.inbox, self.first, self.handled = set(), [], [], set()

    def receive(self, sequence, consumer_sequence):
        """Return whether it only needs another acknowledgement."""
        self.continuity.receive(consumer_sequence)
        if sequence in self.handled:
            return True
        if sequence not in self.in_flight:
            self.in_flight.add(sequence)
            self.inbox.append(sequence)
        self.admit()
        return False

    def check(self, progress):
        self.continuity.begin_request(self.in_flight)
        self.continuity.missing(progress, self.in_flight)
        self.admit()

    def admit(self):
        if self.continuity.is_complete:
            self.first += [number for number in sorted(self.inbox) if self.order.add(number, self.keys[number])]
            self.inbox.clear()

    def finish(self, sequence):
        self.first.remove(sequence)
        self.in_flight.remove(sequence)
        self.handled.add(sequence)
        following = self.order.finish(sequence)
        if following is not None:
            self.first.append(following)


class OrderPerKey(RuleBasedStateMachine):
    """No event is handled before all earlier events of its key were handled, whatever is lost."""

    @initialize()
    def begin(self):
        self.keys = {}
        self.server, self.saved = Server(), Server()
        self.client = Client(self.keys)
        self.acks = []  # on their way
        self.handled = set()

    @rule(keys=st.text("ab", min_size=1, max_size=4))
    def publish(self, keys):
        for key in keys:
            self.keys[len(self.keys) + 1] = key

    @rule(is_lost=st.booleans(), count=st.integers(1, 4))
    def deliver(self, is_lost, count):
        for _ in range(count):
            found = self.server.next(len(self.keys))
            if found is not None and not is_lost and self.client.receive(*found):
                self.acks.append(found[0])

    @rule(random=st.randoms())
    def expire(self, random):
        """Ack deadlines expire, those of messages in flight included, and in any order."""
        self.server.expire(sequence for sequence in self.server.pending if random.random() < 0.5)

    @rule()
    def acknowledge(self):
        while self.acks:
            self.server.acknowledge(self.acks.pop())

    @rule()
    def lose_acknowledgements(self):
        self.acks.clear()

    @rule()
    def check(self):
        self.client.check(self.server.progress())

    @precondition(lambda self: self.client.first)
    @rule(random=st.randoms())
    def handle(self, random):
        """A failed one would still be in flight, so it makes no difference to the server."""
        sequence = random.choice(self.client.first)
        earlier = {number for number in range(1, sequence) if self.keys[number] == self.keys[sequence]}
        assert earlier <= self.handled
        assert sequence not in self.client.handled
        self.handled.add(sequence)
        self.client.finish(sequence)
        self.acks.append(sequence)

    @rule(random=st.randoms())
    def work(self, random):
        """Most of the time nothing special happens."""
        for _ in range(random.randrange(10)):
            self.deliver(is_lost=random.random() < 0.1, count=1)
            if self.client.first and random.random() < 0.5:
                self.handle(random)
            if random.random() < 0.5:
                self.acknowledge()
            if random.random() < 0.2:
                self.check()

    @rule(end=st.sampled_from(["client", "server", "save"]))
    def restart(self, end):
        """A server restarts with the state that it has saved, which may lack deliveries and acknowledgements."""
        if end == "client":
            self.client = Client(self.keys)
        elif end == "save":
            self.saved = copy.deepcopy(self.server)
        else:
            self.server = copy.deepcopy(self.saved)

    def teardown(self):
        """In the end everything is handled, once nothing is lost any more."""
        for _ in range(2 * len(getattr(self, "keys", ())) + 2):
            self.server.expire(self.server.pending - self.client.in_flight)
            self.deliver(is_lost=False, count=len(self.keys) + 1)
            self.acknowledge()
            self.check()
            while self.client.first:
                self.handle(_First())
        if hasattr(self, "keys"):
            assert self.handled == set(self.keys)


class _First:
    def choice(self, items):
        return items[0]


OrderPerKey.TestCase.settings = settings(stateful_step_count=50)
TestOrderPerKey = OrderPerKey.TestCase


@each(
    ("requests", "states"),
    [
        ([(0, 0), (1, 1), (2, 0)], "alone alone alone"),
        ([(0, 2), (1, 2), (1.8, 1), (2.4, 2), (3.8, 2), (5, 2)], "shared shared shared shared shared in-use"),
        ([(0, 2), (1.5, 1), (1.6, 0), (2, 2)], "shared shared alone shared"),
        ([(0, 2), (4, 1), (5, 2), (9, 3), (9.5, 3), (10.5, 3)], "shared alone shared shared shared shared"),
    ],
)
def test_other_clients_are_seen_by_their_requests(requests, states):
    others = OtherClients()
    seen = [str(others.observe(count, float(now)).value).replace(" ", "-") for now, count in requests]
    assert " ".join(seen) == states
