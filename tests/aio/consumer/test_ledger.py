"""Where messages are: single steps as tables, and a model of server and clients, with crashes and lost connections."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ce_nats.aio._jetstream_api import Progress
from ce_nats.aio.consumer._entry import Arrival, Entry, Place
from ce_nats.aio.consumer._isolation import Isolation
from ce_nats.aio.consumer._keys import Keys
from ce_nats.aio.consumer._ledger import Ledger
from ce_nats.wire._ack_subject import AckSubject, ack_subject
from tests.support.tables import each

LIMIT = 5
PREFETCH = 8


def entry_of(sequence, deliveries=1, consumer_sequence=None):
    origin = AckSubject("S", "c", deliveries, sequence, consumer_sequence or sequence, 1000 + sequence, 0)
    return Entry(sequence, deliveries, (b"s", ack_subject(origin).encode(), b"", None))


def ledger_of(*sequences, prefetch=PREFETCH, deliveries=1):
    ledger = Ledger(prefetch, Isolation(LIMIT, 30.0, 0.0, is_expected=False), 0.002)
    for sequence in sequences:
        assert ledger.arrive(entry_of(sequence, deliveries), 0.0) is Arrival.NEW
    return ledger


def begun_keys():
    """Return keys that no other client keeps in order."""
    keys = Keys(0.2)
    keys.has_begun = True
    return keys


def take_all(ledger, now=0.0):
    taken = []
    while (entry := ledger.take(now)) is not None:
        taken.append(entry)
    return taken


# --- Arrival ----------------------------------------------------------------------------------------------------------


def test_messages_are_taken_in_the_order_of_arrival():
    ledger = ledger_of(3, 1, 2)
    assert (ledger.waiting, ledger.taken) == (3, 0)
    assert [entry.sequence for entry in take_all(ledger)] == [3, 1, 2]
    assert (ledger.waiting, ledger.taken) == (0, 3)


def ledger_with(taken, waiting):
    """Return a ledger with taken and waiting messages."""
    ledger = ledger_of(*range(1, taken + waiting + 1))
    for _ in range(taken):
        ledger.take(0.0)
    return ledger


@each(
    ("taken", "waiting", "slots"),
    [(4, 0, 8), (4, 1, 7), (4, 4, 4), (4, 5, 0), (4, 8, 0), (0, 0, 1), (0, 1, 0), (1, 0, 3), (1, 1, 2), (1, 2, 0)],
)
def test_messages_are_fetched_when_half_of_them_are_left_and_few_at_first(taken, waiting, slots):
    assert ledger_with(taken, waiting).free_slots(1.0) == slots


@each(("ahead", "slots"), [(0, 6), (1, 5), (2, 4), (3, 0)])
def test_taken_messages_that_wait_for_a_handler_count_as_waiting(ahead, slots):
    ledger = ledger_with(4, 2)
    ledger.ahead = lambda: ahead
    assert ledger.free_slots(1.0) == slots


@each(
    ("place", "deliveries", "connection", "arrival"),
    [
        (Place.READY, 2, 0, Arrival.LATE),
        (Place.READY, 2, 1, Arrival.AGAIN),
        (Place.READY, 1, 0, Arrival.UNCOUNTED),
        (Place.TAKEN, 2, 0, Arrival.AGAIN),
        (Place.TAKEN, 1, 0, Arrival.UNCOUNTED),
        (Place.DROPPED, 2, 0, Arrival.AGAIN),
        (Place.PENDING, 2, 0, Arrival.SETTLED),
        (Place.PENDING, 1, 0, Arrival.SETTLED),
        (Place.SETTLED, 2, 0, Arrival.NEW),
    ],
)
def test_meaning_of_a_redelivery_depends_on_where_the_message_is(place, deliveries, connection, arrival):
    ledger = ledger_of(1)
    if place is not Place.READY:
        entry = ledger.take(0.0)
        if place is Place.DROPPED:
            assert ledger.drop(entry, entry.turn)
        elif place in (Place.PENDING, Place.SETTLED):
            ledger.acknowledge(entry, 0.0)
        if place is Place.SETTLED:
            ledger.settle_acks()
    assert ledger.arrive(entry_of(1, deliveries), 0.0, connection) is arrival


def test_redelivery_replaces_the_message_in_flight():
    ledger = ledger_of(1)
    entry = ledger.take(0.0)
    ledger.arrive(entry_of(1, 2, 7), 0.0)
    assert (entry.deliveries, entry.arrival, entry.origin.consumer_sequence) == (2, 1, 7)
    ledger.acknowledge(entry, 0.0)
    assert [one.origin.deliveries for one in ledger.acks] == [2]


# --- Settlement -------------------------------------------------------------------------------------------------------


def test_acknowledgement_is_pending_until_it_is_written():
    ledger = ledger_of(1, 2)
    entry, other = take_all(ledger)
    ledger.acknowledge(entry, 1.0)
    assert entry.is_settled
    assert ledger.sequences() == [1, 2]
    assert ledger.in_flight() == [other]
    ledger.settle_acks()
    assert entry.place is Place.SETTLED
    assert ledger.sequences() == [2]


@each(("waiting", "age", "is_due"), [(0, 0.0, True), (1, 0.0019, False), (1, 0.002, True)])
def test_acknowledgements_are_due_after_a_delay_or_when_nothing_waits(waiting, age, is_due):
    ledger = ledger_of(*range(1, waiting + 2))
    assert not ledger.are_acks_due(9.0)
    ledger.acknowledge(ledger.take(0.0), 1.0)
    assert ledger.are_acks_due(1.0 + age) is is_due


def test_delivery_dropped_after_its_settlement_is_no_dropped_one():
    ledger = ledger_of(1, 2)
    entry, other = take_all(ledger)
    ledger.acknowledge(entry, 0.0)
    assert not ledger.drop(entry, entry.turn)
    assert not ledger.drop(other, other.turn + 1)
    assert ledger.drop(other, other.turn)
    assert ledger.taken == 0
    assert ledger.in_flight() == [other]


def test_unhandled_messages_are_those_whose_block_was_not_entered():
    ledger = ledger_of(1, 2, 3, 4)
    first, second = ledger.take(0.0), ledger.take(0.0)
    first.has_started = True
    assert [entry.sequence for entry in ledger.unhandled()] == [2, 3, 4]
    assert ledger.take(0.0) is None
    assert second.place is Place.TAKEN


def test_message_put_back_is_taken_first():
    ledger = ledger_of(1, 2)
    entry = ledger.take(0.0)
    ledger.put_back(entry)
    assert [entry.sequence for entry in take_all(ledger)] == [1, 2]
    ledger.acknowledge(entry, 0.0)
    ledger.put_back(entry)
    assert ledger.waiting == 0


# --- Suspects ---------------------------------------------------------------------------------------------------------


def test_suspect_is_taken_alone():
    ledger = ledger_of(1)
    ledger.arrive(entry_of(2, LIMIT + 1), 0.0)
    ledger.arrive(entry_of(3), 0.0)
    first, third = take_all(ledger)
    assert (first.sequence, third.sequence) == (1, 3)
    assert not ledger.acknowledge(first, 0.0)
    assert ledger.acknowledge(third, 0.0)
    suspect = ledger.take(0.0)
    assert suspect.sequence == 2
    assert ledger.isolation.is_alone(suspect)
    ledger.arrive(entry_of(4), 0.0)
    assert ledger.take(1.0) is None
    assert ledger.pause(1.0) == 29.0
    assert ledger.free_slots(1.0) == 0
    assert ledger.acknowledge(suspect, 1.0)
    assert ledger.take(1.0).sequence == 4


def test_suspect_is_taken_with_others_after_a_while():
    ledger = ledger_of(1)
    ledger.arrive(entry_of(2, LIMIT + 1), 0.0)
    first = ledger.take(0.0)
    assert ledger.take(29.9) is None
    assert ledger.pause(29.5) == 0.5
    suspect = ledger.take(30.0)
    assert suspect.sequence == 2
    assert not ledger.isolation.is_alone(suspect)
    assert first.place is Place.TAKEN


# --- Keys -------------------------------------------------------------------------------------------------------------


def keyed(keys, **options):
    """Return a ledger with messages of these keys, none of which is missing."""
    ledger = ledger_of(**options)
    ledger.keep_order(Keys(0.2))
    for number, _ in enumerate(keys, 1):
        ledger.arrive(entry_of(number), 0.0)
    ledger.keys.begin_request(ledger.sequences())
    assert ledger.keys.complete(Progress(len(keys), len(keys), 0, len(keys)), ledger.sequences())
    for entry in list(ledger.keys.inbox):
        ledger.admit(entry, keys[entry.sequence - 1], 0.0)
    return ledger


def test_first_message_of_each_key_is_taken():
    ledger = keyed("aab")
    first, third = take_all(ledger)
    assert (first.sequence, third.sequence) == (1, 3)
    assert ledger.acknowledge(first, 0.0)
    assert ledger.take(0.0).sequence == 2


def test_key_continues_at_the_end_of_the_block():
    ledger = keyed("aa")
    entry = ledger.take(0.0)
    entry.has_started = True
    assert not ledger.acknowledge(entry, 0.0)
    assert ledger.take(0.0) is None
    assert ledger.end_block(entry, entry.turn, 0.0)
    assert ledger.take(0.0).sequence == 2


@each("is_block_longer", [True, False])
def test_failed_message_of_a_key_is_taken_again_after_its_delay(is_block_longer):
    ledger = keyed("aab")
    entry, _ = take_all(ledger)
    turn, entry.has_started = entry.turn, True
    ledger.delay(entry)
    assert (entry.place, entry.retries) == (Place.DELAYED, 1)
    steps = [lambda: ledger.end_delay(entry, 0.0), lambda: ledger.end_block(entry, turn, 0.0)]
    for step in steps if is_block_longer else reversed(steps):
        assert ledger.take(0.0) is None
        step()
    assert ledger.take(0.0) is entry


def test_message_settled_before_is_acknowledged_again():
    ledger = keyed("a")
    entry = ledger.take(0.0)
    ledger.acknowledge(entry, 0.0)
    ledger.settle_acks()
    assert ledger.arrive(entry_of(1, 2, 2), 0.0) is Arrival.SETTLED
    assert [one.deliveries for one in ledger.acks] == [2]
    ledger.settle_acks()
    assert ledger.sequences() == []


def test_messages_may_be_taken_when_the_order_is_not_kept_any_more():
    ledger = keyed("aaa")
    entry = ledger.take(0.0)
    ledger.delay(entry)
    ledger.end_order(0.0)
    assert [entry.sequence for entry in take_all(ledger)] == [1, 2, 3]


# --- A model of server and clients ------------------------------------------------------------------------------------


class Server:
    """A consumer on a server, with explicit acknowledgements."""

    def __init__(self):
        self.published = 0
        self.delivered = 0  # the last message that was delivered for the first time
        self.number = 0  # of the last delivery
        self.deliveries = {}  # of unacknowledged messages
        self.due = []  # to be delivered again
        self.acked = set()

    def deliver(self, count):
        """Yield up to a number of deliveries, redeliveries first."""
        for _ in range(count):
            if self.due:
                sequence = self.due.pop(0)
            elif self.delivered < self.published:
                self.delivered += 1
                sequence = self.delivered
            else:
                return
            self.number += 1
            self.deliveries[sequence] = self.deliveries.get(sequence, 0) + 1
            yield entry_of(sequence, self.deliveries[sequence], self.number)

    def acknowledge(self, sequence):
        self.acked.add(sequence)
        self.deliveries.pop(sequence, None)
        if sequence in self.due:
            self.due.remove(sequence)

    def expire(self, sequence):
        if sequence in self.deliveries and sequence not in self.due:
            self.due.append(sequence)
            self.due.sort()

    @property
    def progress(self):
        floor = min(self.deliveries, default=self.delivered + 1) - 1
        return Progress(self.delivered, self.number, floor, len(self.deliveries))


class Consuming(RuleBasedStateMachine):
    """
    One client at a time: it crashes, loses its connection, fails, or drops deliveries.

    Nothing is acknowledged without a finished handler, no message is handled twice at once, and in the end everything
    was handled, of each key in order.
    """

    @initialize(has_keys=st.booleans(), prefetch=st.sampled_from([1, 2, 8]))
    def begin(self, has_keys, prefetch):
        self.server = Server()
        self.has_keys, self.prefetch = has_keys, prefetch
        self.now = 0.0
        self.connection = 0
        self.handled = {}  # number of finished handlers
        self.first_times = []
        self.start_client()

    def start_client(self):
        self.ledger = Ledger(self.prefetch, Isolation(LIMIT, 30.0, self.now, is_expected=False), 0.002)
        self.running = []
        self.dropped = []
        if self.has_keys:
            self.ledger.keep_order(begun_keys())

    # The parts of a consumer that are not the ledger.

    def receive(self, entry):
        arrival = self.ledger.arrive(entry, self.now, self.connection)
        if arrival is Arrival.LATE:
            self.ledger.isolation.stay_one_by_one()
            for waiting in self.ledger.withdraw():
                self.ledger.settle(waiting, self.now, is_final=False)
                self.server.expire(waiting.sequence)

    def recover(self):
        keys = self.ledger.keys
        if keys is None:
            return
        if not keys.is_complete:
            self.write_acks(is_lost=False)
            keys.begin_request(self.ledger.sequences())
            keys.complete(self.server.progress, self.ledger.sequences())
        while keys.inbox and keys.is_complete:
            entry = keys.inbox[0]
            self.ledger.admit(entry, entry.sequence % 3, self.now)

    def write_acks(self, is_lost):
        for entry in self.ledger.acks:
            assert self.handled.get(entry.sequence)
            if not is_lost:
                self.server.acknowledge(entry.sequence)
        self.ledger.settle_acks()

    def finish(self, entry):
        """End a handler and its block without an error."""
        if entry.sequence not in self.handled:
            self.first_times.append(entry.sequence)
        self.handled[entry.sequence] = self.handled.get(entry.sequence, 0) + 1
        turn = entry.turn
        self.ledger.acknowledge(entry, self.now)
        self.ledger.end_block(entry, turn, self.now)

    # Events.

    @rule(count=st.integers(1, 12))
    def publish(self, count):
        self.server.published += count

    @rule(is_lost=st.booleans(), most=st.integers(1, 10))
    def fetch(self, is_lost, most):
        for entry in self.server.deliver(min(most, self.ledger.free_slots(self.now))):
            if not is_lost:
                self.receive(entry)
        if is_lost:
            self.connection += 1
        self.recover()

    @rule()
    def take(self):
        entry = self.ledger.take(self.now)
        if entry is not None:
            assert entry.sequence not in [one.sequence for one in self.running]
            entry.has_started = True
            self.running.append(entry)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), outcome=st.sampled_from(["done", "done", "failed", "dropped"]))
    def end_handler(self, data, outcome):
        entry = data.draw(st.sampled_from(self.running))
        self.running.remove(entry)
        turn = entry.turn
        if outcome == "done":
            self.finish(entry)
        elif outcome == "dropped":
            assert self.ledger.drop(entry, turn)
            self.dropped.append(entry)
        elif self.has_keys:
            self.ledger.delay(entry)
            self.ledger.end_block(entry, turn, self.now)
        else:
            self.ledger.settle(entry, self.now, is_final=False)
            self.server.expire(entry.sequence)

    @rule(is_lost=st.booleans())
    def write(self, is_lost):
        self.write_acks(is_lost)

    @rule(seconds=st.sampled_from([0.1, 1.0, 31.0]))
    def wait(self, seconds):
        self.now += seconds
        self.end_delays()
        self.recover()

    def end_delays(self):
        for entry in self.ledger.in_flight():
            self.ledger.end_delay(entry, self.now)

    @precondition(lambda self: self.server.deliveries)
    @rule(data=st.data())
    def expire(self, data):
        """The process misses an ack deadline, or the message was lost."""
        self.server.expire(data.draw(st.sampled_from(sorted(self.server.deliveries))))

    @rule()
    def crash(self):
        for sequence in self.server.deliveries:
            self.server.expire(sequence)
        self.start_client()

    @rule()
    def change_order(self):
        """A call of run() with a key ends, and one without begins, or the other way round."""
        if self.has_keys:
            self.ledger.end_order(self.now)
        elif not self.ledger.acks:
            self.ledger.keep_order(begun_keys())
            for entry in self.running:
                self.ledger.admit(entry, entry.sequence % 3, self.now)
        else:
            return
        self.has_keys = not self.has_keys
        self.first_times.clear()
        self.is_mixed = True
        self.recover()

    # Promises.

    is_mixed = False

    @invariant()
    def numbers_are_right(self):
        if hasattr(self, "ledger"):
            places = [entry.place for entry in self.ledger.in_flight()]
            assert self.ledger.taken == places.count(Place.TAKEN) == len(self.running)
            waiting = {Place.INBOX, Place.BLOCKED, Place.READY, Place.SUSPECT, Place.DELAYED}
            assert self.ledger.waiting == sum(place in waiting for place in places)

    @invariant()
    def memory_is_bounded(self):
        if hasattr(self, "ledger"):
            most = self.prefetch * (66 if self.has_keys or self.is_mixed else 2)
            assert self.ledger.waiting <= most + 64 * self.is_mixed

    @invariant()
    def keys_are_in_order(self):
        if hasattr(self, "ledger") and self.has_keys and not self.is_mixed:
            for key in range(3):
                own = [sequence for sequence in self.first_times if sequence % 3 == key]
                assert own == sorted(own)

    def teardown(self):
        """Without further faults, everything is handled."""
        if not hasattr(self, "ledger"):
            return
        for entry in [*self.running]:
            self.running.remove(entry)
            self.finish(entry)
        if any(entry.place is Place.DROPPED for entry in self.dropped):
            self.crash()  # dropped deliveries are held until the consumer is left
        for _ in range(30 + 4 * self.server.published):
            self.now += 31.0
            held = {entry.sequence for entry in self.ledger.in_flight()}
            for sequence in list(self.server.deliveries):
                if sequence not in held:
                    self.server.expire(sequence)
            self.end_delays()
            for entry in self.server.deliver(self.ledger.free_slots(self.now)):
                self.receive(entry)
            self.recover()
            while (entry := self.ledger.take(self.now)) is not None:
                entry.has_started = True
                self.finish(entry)
            self.write_acks(is_lost=False)
            if len(self.server.acked) == self.server.published:
                break
        assert self.server.acked == set(range(1, self.server.published + 1))
        assert set(self.handled) == self.server.acked
        self.numbers_are_right()
        self.keys_are_in_order()


TestConsuming = Consuming.TestCase
TestConsuming.settings = settings(stateful_step_count=60)
