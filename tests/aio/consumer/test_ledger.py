"""Where messages are: single steps as tables, and a model of server and clients, with crashes and lost connections."""

import copy
import math
from random import Random
from typing import ClassVar

import pytest

from ce_nats.aio._jetstream_api import Progress
from ce_nats.aio.consumer._attempt import Attempt
from ce_nats.aio.consumer._entry import Entry, Place
from ce_nats.aio.consumer._isolation import Isolation
from ce_nats.aio.consumer._keys import Keys
from ce_nats.aio.consumer._ledger import Arrivals, Effect, Ledger, Prefetch
from ce_nats.redelivery import Action, Blame, Breaker
from ce_nats.wire._ack_subject import AckSubject, ack_subject
from tests.support.tables import each

LIMIT = 5
PREFETCH = 8
NEW = Arrivals(1, [], recheck=False)
TAKEABLE = (Place.INBOX, Place.READY, Place.SUSPECT)
# Of a handler: "acknowledged" and "negative" settle the message before the block ends, "returned" with nats-py's nak().
OUTCOMES = (
    *(*3 * ("done",), *2 * ("failed",)),
    *("acknowledged", "negative", "rejected", "returned", "dropped", "unavailable"),
)
# From each place to others; a delayed message is a suspect at last, too, but rarely.
MOVES = {
    (Place(before), Place(after))
    for before, following in {
        "ready": "taken inbox suspect dropped pending",
        "suspect": "taken inbox dropped",
        "inbox": "blocked ready suspect delayed dropped taken",
        "blocked": "ready suspect inbox taken dropped",
        "taken": "ready suspect blocked delayed dropped pending settled",
        "delayed": "blocked ready dropped",
        "dropped": "settled",
        "pending": "settled",
    }.items()
    for after in following.split()
}


def entry_of(sequence, deliveries=1, consumer_sequence=None, *, kind=Entry):
    origin = AckSubject("S", "c", deliveries, sequence, consumer_sequence or sequence, 1000 + sequence, 0)
    return kind(sequence, deliveries, (b"s", ack_subject(origin).encode(), b"", None))


def ledger_of(*sequences, prefetch=PREFETCH, deliveries=1):
    ledger = Ledger(prefetch, Isolation(LIMIT, 30.0, 0.0, is_expected=False), Breaker(None), 0.002)
    for sequence in sequences:
        assert ledger.arrive([entry_of(sequence, deliveries)], 0.0) == NEW
    return ledger


def begun_keys():
    """Return keys that no other client keeps in order."""
    keys = Keys(0.2)
    keys.has_begun = True
    return keys


def acknowledge(ledger, entry, now):
    """Acknowledge a message, and return whether others may be taken therefore."""
    effect, frees = ledger.settle(entry, Action.ACK, now)
    assert effect is Effect.ACK
    return frees


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
    for _ in range(ahead):
        ledger.handed.put(object())
    assert ledger.free_slots(1.0) == slots


@each(
    ("place", "deliveries", "connection", "expected"),
    [
        (Place.READY, 2, 0, "release"),
        (Place.READY, 2, 1, "nothing"),
        (Place.READY, 1, 0, "recheck"),
        (Place.TAKEN, 2, 0, "nothing"),
        (Place.TAKEN, 1, 0, "recheck"),
        (Place.DROPPED, 2, 0, "nothing"),
        (Place.PENDING, 2, 0, "nothing"),
        (Place.PENDING, 1, 0, "nothing"),
        (Place.SETTLED, 2, 0, "new"),
    ],
)
def test_meaning_of_a_redelivery_depends_on_where_the_message_is(place, deliveries, connection, expected):
    ledger = ledger_of(1)
    if place is not Place.READY:
        entry = ledger.take(0.0)
        if place is Place.DROPPED:
            assert ledger.drop(entry, entry.turn)
        elif place in (Place.PENDING, Place.SETTLED):
            acknowledge(ledger, entry, 0.0)
        if place is Place.SETTLED:
            ledger.settle_acks(0.0)
    arrivals = ledger.arrive([entry_of(1, deliveries)], 0.0, connection)
    assert (arrivals.new, [entry.sequence for entry in arrivals.release], arrivals.recheck) == (
        int(expected == "new"),
        [1] * (expected == "release"),
        expected == "recheck",
    )


def test_all_waiting_messages_are_released_once_if_several_are_late():
    """In one chunk, in the next one, and together with a new one; those that are handled are not released."""
    ledger = ledger_of(1, 2, 3, 4)
    taken = ledger.take(0.0)
    arrivals = ledger.arrive([entry_of(2, 2), entry_of(5), entry_of(3, 2), entry_of(1, 2)], 0.0)
    assert (arrivals.new, [entry.sequence for entry in arrivals.release]) == (1, [2, 3, 4, 5])
    assert ledger.arrive([entry_of(4, 2), entry_of(3, 3)], 0.0) == Arrivals(0, [], recheck=False)
    assert ledger.isolation.is_permanent
    assert (ledger.waiting, ledger.in_flight()[0]) == (0, taken)


@each(("deliveries", "arrival"), [(13, 1), (15, 3), (4, 1)])
def test_deliveries_before_an_orderly_release_are_explained(deliveries, arrival):
    """A server that has lost its counts delivers a message fewer times than it was released."""
    ledger, entry = ledger_of(), entry_of(7, deliveries)
    other = entry_of(8, deliveries)
    ledger.arrive([entry, other], 0.0, released={7: 12})
    assert (entry.arrival, other.arrival) == (arrival, deliveries)


def test_redelivery_replaces_the_message_in_flight():
    ledger = ledger_of(1)
    entry = ledger.take(0.0)
    ledger.arrive([entry_of(1, 2, 7)], 0.0)
    assert (entry.deliveries, entry.arrival, entry.origin.consumer_sequence) == (2, 1, 7)
    acknowledge(ledger, entry, 0.0)
    assert [one.origin.deliveries for one in ledger.acks] == [2]


# --- Settlement -------------------------------------------------------------------------------------------------------


def test_acknowledgement_is_pending_until_it_is_written():
    ledger = ledger_of(1, 2)
    entry, other = take_all(ledger)
    acknowledge(ledger, entry, 1.0)
    assert entry.is_settled
    assert ledger.sequences() == [1, 2]
    assert ledger.in_flight() == [other]
    ledger.settle_acks(1.0)
    assert entry.place is Place.SETTLED
    assert ledger.sequences() == [2]


@each(("waiting", "age", "is_due"), [(0, 0.0, True), (1, 0.0019, False), (1, 0.002, True)])
def test_acknowledgements_are_due_after_a_delay_or_when_nothing_waits(waiting, age, is_due):
    ledger = ledger_of(*range(1, waiting + 2))
    assert not ledger.are_acks_due(9.0)
    acknowledge(ledger, ledger.take(0.0), 1.0)
    assert ledger.are_acks_due(1.0 + age) is is_due


def test_delivery_dropped_after_its_settlement_is_no_dropped_one():
    ledger = ledger_of(1, 2)
    entry, other = take_all(ledger)
    acknowledge(ledger, entry, 0.0)
    assert not ledger.drop(entry, entry.turn)
    assert not ledger.drop(other, other.turn + 1)
    assert ledger.drop(other, other.turn)
    assert ledger.taken == 0
    assert ledger.in_flight() == [other]


def test_unhandled_messages_are_those_whose_block_was_not_entered():
    ledger = ledger_of(1, 2, 3, 4)
    first, second = ledger.take(0.0), ledger.take(0.0)
    ledger.begin(first)
    assert [entry.sequence for entry in ledger.unhandled()] == [2, 3, 4]
    assert ledger.take(0.0) is None
    assert second.place is Place.TAKEN


def test_message_put_back_is_taken_first():
    ledger = ledger_of(1, 2)
    entry = ledger.take(0.0)
    ledger.put_back(entry)
    assert [entry.sequence for entry in take_all(ledger)] == [1, 2]
    acknowledge(ledger, entry, 0.0)
    ledger.put_back(entry)
    assert ledger.waiting == 0


def test_messages_that_wait_for_other_threads_are_put_back_during_an_outage():
    """In order, after the one that has failed."""
    ledger = ledger_of(1, 2, 3, 4)
    failed, *others = (ledger.take(0.0) for _ in range(3))
    for entry in others:
        ledger.handed.put(Attempt(None, entry, None))
    ledger.hold(failed, is_first=True)
    assert (ledger.waiting, ledger.taken, len(ledger.handed)) == (4, 0, 0)
    assert [entry.sequence for entry in take_all(ledger)] == [1, 2, 3, 4]


# --- Suspects ---------------------------------------------------------------------------------------------------------


def test_suspect_is_taken_alone():
    ledger = ledger_of(1)
    ledger.arrive([entry_of(2, LIMIT + 1)], 0.0)
    ledger.arrive([entry_of(3)], 0.0)
    first, third = take_all(ledger)
    assert (first.sequence, third.sequence) == (1, 3)
    assert not acknowledge(ledger, first, 0.0)
    assert acknowledge(ledger, third, 0.0)
    suspect = ledger.take(0.0)
    assert suspect.sequence == 2
    assert ledger.isolation.is_alone(suspect)
    ledger.arrive([entry_of(4)], 0.0)
    assert ledger.take(1.0) is None
    assert ledger.pause(1.0) == 29.0
    assert ledger.free_slots(1.0) == 0
    assert acknowledge(ledger, suspect, 1.0)
    assert ledger.take(1.0).sequence == 4


def test_suspect_is_taken_with_others_after_a_while():
    ledger = ledger_of(1)
    ledger.arrive([entry_of(2, LIMIT + 1)], 0.0)
    first = ledger.take(0.0)
    assert ledger.take(29.9) is None
    assert ledger.pause(29.5) == 0.5
    suspect = ledger.take(30.0)
    assert suspect.sequence == 2
    assert not ledger.isolation.is_alone(suspect)
    assert first.place is Place.TAKEN


# --- Outages ----------------------------------------------------------------------------------------------------------


def test_one_message_is_taken_after_each_pause_of_an_outage():
    ledger = ledger_of(1, 2, 3)
    first, second = ledger.take(0.0), ledger.take(0.0)
    assert ledger.breaker.fail(1, 0.0, is_declared=True) is Blame.OUTAGE
    ledger.hold(first, is_first=True)
    assert (ledger.waiting, ledger.taken) == (2, 1)
    assert ledger.take(0.4) is None
    assert ledger.pause(0.4) == pytest.approx(0.1)
    assert ledger.take(0.5) is first
    assert ledger.take(0.5) is None
    ledger.put_back(first)
    assert ledger.take(0.5) is first
    ledger.breaker.succeed()
    assert ledger.take(0.5).sequence == 3
    assert second.place is Place.TAKEN


def test_tasks_wait_for_messages_during_an_outage():
    ledger = ledger_of()
    ledger.breaker.fail(1, 0.0, is_declared=True)
    assert ledger.pause(0.5) is None


# --- Keys -------------------------------------------------------------------------------------------------------------


def keyed(keys, **options):
    """Return a ledger with messages of these keys, none of which is missing."""
    ledger = ledger_of(**options)
    ledger.keep_order(Keys(0.2))
    for number, _ in enumerate(keys, 1):
        ledger.arrive([entry_of(number)], 0.0)
    ledger.keys.begin_request(ledger.sequences())
    assert ledger.keys.complete(Progress(len(keys), len(keys), 0, len(keys)), ledger.sequences())
    for entry in list(ledger.keys.inbox):
        ledger.admit(entry, keys[entry.sequence - 1], 0.0)
    return ledger


def test_first_message_of_each_key_is_taken():
    ledger = keyed("aab")
    first, third = take_all(ledger)
    assert (first.sequence, third.sequence) == (1, 3)
    assert acknowledge(ledger, first, 0.0)
    assert ledger.take(0.0).sequence == 2


def test_key_continues_at_the_end_of_the_block():
    ledger = keyed("aa")
    entry = ledger.take(0.0)
    ledger.begin(entry)
    assert not acknowledge(ledger, entry, 0.0)
    assert ledger.take(0.0) is None
    assert ledger.end_block(entry, entry.turn, 0.0)
    assert ledger.take(0.0).sequence == 2


@each("is_block_longer", [True, False])
def test_failed_message_of_a_key_is_taken_again_after_its_delay(is_block_longer):
    ledger = keyed("aab")
    entry, _ = take_all(ledger)
    turn = entry.turn
    ledger.begin(entry)
    assert ledger.settle(entry, Action.RETRY, 0.0) == (Effect.DELAY, True)
    assert (entry.place, entry.retries) == (Place.DELAYED, 1)
    steps = [lambda: ledger.end_delay(entry, 0.0), lambda: ledger.end_block(entry, turn, 0.0)]
    for step in steps if is_block_longer else reversed(steps):
        assert ledger.take(0.0) is None
        step()
    assert ledger.take(0.0) is entry


def test_message_settled_before_is_acknowledged_again():
    ledger = keyed("a")
    entry = ledger.take(0.0)
    acknowledge(ledger, entry, 0.0)
    ledger.settle_acks(0.0)
    assert ledger.arrive([entry_of(1, 2, 2)], 0.0).new == 0
    assert [one.deliveries for one in ledger.acks] == [2]
    ledger.settle_acks(0.0)
    assert ledger.sequences() == []


@each(("now", "is_new"), [(19.0, True), (20.0, False)])
@each("is_acknowledged", [True, False])
def test_message_settled_after_its_deadline_is_acknowledged_again(now, is_new, is_acknowledged):
    """Its redelivery was on its way."""
    ledger = ledger_of(1, 2)
    ledger.handled.extend(0.0, 10.0)
    entry, other = take_all(ledger)
    if is_acknowledged:
        acknowledge(ledger, entry, now)
        ledger.settle_acks(now)
    else:
        ledger.settle(entry, Action.DEAD_LETTER, now)
    assert ledger.settle(other, Action.RETRY, now)[0] is Effect.NAK
    assert ledger.arrive([entry_of(2, 2, 3), entry_of(1, 2, 4)], now).new == 1 + is_new


def test_messages_may_be_taken_when_the_order_is_not_kept_any_more():
    ledger = keyed("aaa")
    entry = ledger.take(0.0)
    ledger.settle(entry, Action.RETRY, 0.0)
    ledger.end_order(0.0)
    assert [entry.sequence for entry in take_all(ledger)] == [1, 2, 3]


# --- A model of server and clients ------------------------------------------------------------------------------------


class NotedEntry(Entry):
    """Records each change of the place of a message."""

    moves: ClassVar[set[tuple[Place, Place]]] = set()

    @property
    def place(self):
        return self._place

    @place.setter
    def place(self, place):
        self.moves.add((getattr(self, "_place", place), place))
        self._place = place


class Server:
    """A consumer on a server, with explicit acknowledgements; what it saves may lack its last changes."""

    def __init__(self):
        self.published = 0
        self.delivered = 0  # the last message that was delivered for the first time
        self.number = 0  # of the last delivery
        self.deliveries = {}  # of unacknowledged messages
        self.due = []  # to be delivered again
        self.acked = set()

    def deliver(self, count):
        """Return up to a number of deliveries, redeliveries first."""
        delivered = []
        while len(delivered) < count and (self.due or self.delivered < self.published):
            if self.due:
                sequence = self.due.pop(0)
            else:
                sequence = self.delivered = self.delivered + 1
            self.number += 1
            self.deliveries[sequence] = self.deliveries.get(sequence, 0) + 1
            delivered.append(entry_of(sequence, self.deliveries[sequence], self.number, kind=NotedEntry))
        return delivered

    def acknowledge(self, sequence):
        if sequence <= self.delivered:
            self.acked.add(sequence)
            self.deliveries.pop(sequence, None)
            if sequence in self.due:
                self.due.remove(sequence)

    def expire(self, sequences):
        self.due += [sequence for sequence in sequences if sequence in self.deliveries and sequence not in self.due]

    @property
    def progress(self):
        floor = min(self.deliveries, default=self.delivered + 1) - 1
        return Progress(self.delivered, self.number, floor, len(self.deliveries))


class Client:
    """
    The parts of a consumer that are not the ledger.

    Args:
        server: Where its messages are.
        prefetch: As for the ledger.
        has_keys: Whether the order of keys is kept; the key of a message is its sequence modulo 3.
        has_key: Returns whether the function for the key of a message succeeds.
        now: Time in seconds.
    """

    def __init__(self, server, prefetch, has_keys, has_key, now):
        self.server, self.has_key = server, has_key
        self.ledger = Ledger(prefetch, Isolation(2, 30.0, now, is_expected=False), Breaker(None), 0.002)
        self.connection = 0
        self.requested = 0  # messages of the open request that have not arrived
        self.latest = {}  # number of the latest delivery of each message
        self.running = []  # entries with a handler
        self.blocks = []  # entries that were settled in their blocks, and their turns
        self.dropped, self.settled = set(), set()
        self.returned = set()  # they do not hold back later ones of their keys, which are not known to the client
        self.early = set()  # that had a handler before the order was kept
        self.alone = None  # the suspect that is handled alone, and until when
        self.waiting_since = math.inf  # time since which suspects wait
        if has_keys:
            self.keep_order()

    def keep_order(self):
        self.ledger.keep_order(begun_keys())
        self.settled = set()
        self.early = {entry.sequence for entry in self.running}
        for entry in self.running:
            self.ledger.admit(entry, entry.sequence % 3, 0.0)

    def fetch(self, now, most):
        """Send a request if none is open, and return up to a number of messages."""
        if not self.requested:
            self.requested = self.ledger.free_slots(now)
            assert self.requested <= 1 or not self.ledger.isolation.is_one_by_one(now)
        entries = self.server.deliver(min(most, self.requested))
        self.requested -= len(entries)
        return entries

    def lose_connection(self):
        self.connection += 1
        self.requested = 0

    def receive(self, entries, now):
        self.latest.update({entry.sequence: entry.origin.consumer_sequence for entry in entries})
        self.arrive(entries, now)
        self.recover(now)

    def arrive(self, entries, now):
        self.release(self.ledger.arrive(entries, now, self.connection).release, now)

    def release(self, entries, now):
        for entry in entries:
            self.ledger.remove(entry, now, is_final=False)
        self.server.expire([entry.sequence for entry in entries])

    def recover(self, now):
        keys = self.ledger.keys
        if keys is not None and not keys.is_complete:
            self.ask(lambda: None)
        while keys is not None and keys.inbox and keys.is_complete:
            entry = keys.inbox[0]
            if self.has_key(entry):
                self.ledger.admit(entry, entry.sequence % 3, now)
            else:
                self.ledger.admit_without_key(entry)
                self.returned.add(entry.sequence)
                if entry.sequence % 2:
                    self.ledger.settle(entry, Action.RETRY, now)
                else:  # to be dead-lettered beside handlers
                    self.ledger.set_aside(entry)
                    self.running.append(entry)

    def ask(self, meanwhile):
        """Request the progress of the consumer; other things happen until the response has arrived."""
        keys = self.ledger.keys
        keys.begin_request(self.ledger.sequences())
        progress = self.server.progress
        meanwhile()
        keys.complete(progress, self.ledger.sequences())

    def take(self, now, finished, batch=None):
        """Take a message, and check that it may be handled now, with those of a batch."""
        wait = self.ledger.breaker.wait(now)
        entry = self.ledger.take(now, gathers=batch is not None)
        together = {one.sequence for one in batch or []}
        is_one_alone = self.alone is not None and now < self.alone[1]
        if entry is None:
            is_blocked = is_one_alone or wait != 0
            assert is_blocked or all(one.place is not Place.READY for one in self.ledger.in_flight())
            assert is_blocked or not self.follows(together)
            return None
        assert entry.sequence not in {one.sequence for one in self.running}
        assert not is_one_alone
        assert wait == 0
        if entry.arrival > 2:
            assert not self.running or now >= self.waiting_since + 30.0
            self.alone = (entry, now + 30.0)
        if self.ledger.keys is not None and entry.sequence not in self.early:
            assert entry.sequence not in self.settled
            assert entry not in [one for one, _ in self.blocks]
            earlier = set(range(entry.sequence % 3, entry.sequence, 3)) - {0}
            assert earlier <= finished | self.dropped | self.returned | together
            handled = self.running + [one for one, _ in self.blocks]
            assert not (earlier - together) & {one.sequence for one in handled if one.has_key}
        return entry

    def follows(self, together):
        """Return whether a message waits for those of a batch, and for no others."""
        for key in {sequence % 3 for sequence in together}:
            queued = [one for one in self.ledger.in_flight() if one.has_key and one.sequence % 3 == key]
            others = [one for one in queued if one.sequence not in together and one.place is not Place.INBOX]
            is_first = others and all(one.sequence in together for one in queued if one.sequence < others[0].sequence)
            if is_first and others[0].place is Place.BLOCKED and others[0].arrival <= 2:
                return True
        return False

    def put_back(self, entry):
        self.ledger.put_back(entry)
        if self.alone is not None and self.alone[0] is entry:
            self.alone = None

    def end(self, entry, outcome, now):
        """End a handler; the block of one that has acknowledged its message ends later."""
        self.running.remove(entry)
        if self.alone is not None and self.alone[0] is entry:
            self.alone = None
        turn, has_keys = entry.turn, self.ledger.keys is not None
        if outcome in ("done", "acknowledged"):
            self.ledger.breaker.succeed()
        if outcome == "unavailable":
            blame = self.ledger.breaker.fail(entry.sequence, now, is_declared=True)
            self.ledger.hold(entry, is_first=blame is Blame.OUTAGE)
        elif outcome == "dropped":
            assert self.ledger.drop(entry, turn)
            self.dropped.add(entry.sequence)
        elif outcome in ("failed", "negative") and has_keys:
            self.ledger.settle(entry, Action.RETRY, now)
        elif outcome in ("failed", "negative", "returned"):
            self.release([entry], now)
            self.returned |= {entry.sequence} if has_keys else set()
        else:
            self.settled.add(entry.sequence)
            if outcome == "rejected":
                assert self.ledger.settle(entry, Action.DEAD_LETTER, now)[0] is Effect.TERM
                self.server.acknowledge(entry.sequence)
            else:
                acknowledge(self.ledger, entry, now)
        assert not self.ledger.drop(entry, turn)
        if outcome in ("acknowledged", "negative"):
            self.blocks.append((entry, turn))
        else:
            self.ledger.end_block(entry, turn, now)

    def end_blocks(self, now):
        while self.blocks:
            entry, turn = self.blocks.pop()
            self.ledger.end_block(entry, turn, now)

    def write(self, finished, *, is_lost):
        for entry in self.ledger.acks:
            assert entry.sequence in finished
            if not is_lost:
                self.server.acknowledge(entry.sequence)
        for entry in {entry.sequence: entry for entry in self.ledger.acks}.values():
            assert entry.origin.consumer_sequence == self.latest[entry.sequence]
        self.ledger.settle_acks(0.0)

    def end_delays(self, now):
        for entry in self.ledger.in_flight():
            self.ledger.end_delay(entry, now)


@each(("given", "events", "size"), [(None, 500, 500), (None, 10, 64), (64, 500, 64), (1, 500, 1), (1000, 500, 1000)])
def test_a_whole_batch_may_wait_unless_the_number_is_given(given, events, size):
    prefetch = Prefetch(given)
    assert prefetch.size == (given or 64)
    prefetch.follow(events)
    assert (prefetch.size, prefetch.half) == (size, size // 2)


class Simulation:
    """
    Clients crash, stop, lose their connection, fail and drop deliveries; the server forgets what it has not saved.

    Nothing is acknowledged without a finished handler, no client handles a message twice at once, with keys none before
    all earlier ones of its key, nor again, and in the end everything was handled.
    """

    def __init__(self, seed):
        self.random = random = Random(seed)
        self.server, self.now = Server(), 0.0
        self.server.published = random.randint(1, 20)
        self.saved = copy.deepcopy(self.server)
        self.finished = set()  # messages with a finished handler
        self.is_ending = False
        self.is_slow = random.random() < 0.5
        self.prefetch = random.choice([1, 4, 16])
        self.has_had_keys = has_keys = random.random() < 0.6
        count = 1 if has_keys else random.randint(1, 2)
        self.clients = [Client(self.server, self.prefetch, has_keys, self.has_key, self.now) for _ in range(count)]

    def run(self, steps):
        often = [self.fetch, self.take, self.end_handler, self.handle_batch]
        rare = [
            self.publish,
            self.restart_client,
            self.restart_server,
            self.change_order,
            self.expire,
            self.ask,
            self.wait,
        ]
        for _ in range(steps):
            step = self.random.choice(
                [*3 * often, self.write, self.write, self.end_blocks, self.publish, self.random.choice(rare)]
            )
            step(self.random.choice(self.clients))
            self.check_numbers()
        self.end()

    def has_key(self, _):
        return self.is_ending or self.random.random() > 0.03

    def is_rarely(self):
        return self.random.random() < 0.1

    def publish(self, _):
        self.server.published += self.random.randint(1, 3)

    def fetch(self, client, *, is_lost=None):
        """Receive messages, or lose them with the connection."""
        entries = client.fetch(self.now, self.random.randint(1, 4))
        if self.is_rarely() if is_lost is None else is_lost:
            client.lose_connection()
        else:
            client.receive(entries, self.now)

    def take(self, client):
        """Take a message; a task that is cancelled puts it back."""
        entry = client.take(self.now, self.finished)
        if entry is None:
            return
        if self.is_rarely():
            client.put_back(entry)
        else:
            client.ledger.begin(entry)
            client.running.append(entry)

    def handle_batch(self, client):
        """Handle messages together, in their order; those after a failed one of their key are handled later."""
        batch = []
        for _ in range(self.random.randint(1, 8)):
            entry = client.take(self.now, self.finished, batch)
            if entry is not None:
                client.running.append(entry)
                batch.append(entry)
                if client.alone is not None and client.alone[0] is entry:
                    break
            elif self.random.random() < 0.3:
                self.fetch(client)
        client.ledger.end_batch(batch)
        for entry in batch:
            if entry.place is not Place.TAKEN:
                client.running.remove(entry)
        batch = [entry for entry in batch if entry in client.running]
        for entry in batch:
            client.ledger.begin(entry)
        for entry in batch:
            handled = [one for one in batch if one.is_settled or one in client.running]
            if entry in client.ledger.out_of_turn(handled):
                client.running.remove(entry)
                turn = entry.turn
                client.ledger.hold(entry, is_first=True)
                client.ledger.end_block(entry, turn, self.now)
            else:
                self.finish(client, entry, self.random.choice(OUTCOMES if entry.has_key else ["rejected", "failed"]))

    def end_handler(self, client):
        if client.running:
            entry = self.random.choice(client.running)
            self.finish(client, entry, self.random.choice(OUTCOMES if entry.has_key else ["rejected", "failed"]))

    def finish(self, client, entry, outcome="done"):
        if outcome in ("done", "acknowledged", "rejected"):
            self.finished.add(entry.sequence)
        client.end(entry, outcome, self.now)

    def end_blocks(self, client):
        client.end_blocks(self.now)

    def write(self, client):
        client.write(self.finished, is_lost=self.is_rarely())

    def ask(self, client):
        """Messages arrive before the response, and others are lost."""
        if client.ledger.keys is not None:
            client.ask(lambda: self.receive_some(client))
            client.recover(self.now)

    def receive_some(self, client):
        for entry in client.fetch(self.now, 8):
            if self.random.random() < 0.8:
                client.latest[entry.sequence] = entry.origin.consumer_sequence
                client.arrive([entry], self.now)

    def wait(self, _):
        self.now += self.random.choice([0.1, 1.0, 31.0])
        for client in self.clients:
            client.end_delays(self.now)
            client.recover(self.now)

    def expire(self, _):
        """Ack deadlines expire, for lost messages, and in some runs also for those that a client has not handled."""
        held = {sequence for client in self.clients for sequence in client.ledger.sequences()}
        self.server.expire(
            sequence
            for sequence in self.server.deliveries
            if self.random.random() < 0.5 and (self.is_slow or sequence not in held)
        )

    def restart_client(self, client):
        """A client crashes, or its handlers return and it releases the other messages."""
        if self.random.random() < 0.5:
            for entry in [*client.running]:
                self.finish(client, entry)
            client.write(self.finished, is_lost=False)
            client.release(client.ledger.unhandled(), self.now)
        self.clients.remove(client)
        self.clients.append(Client(self.server, self.prefetch, client.ledger.keys is not None, self.has_key, self.now))

    def restart_server(self, _):
        """The server saves its state, or returns to what it has saved."""
        if self.random.random() < 0.5:
            self.saved = copy.deepcopy(self.server)
            return
        self.server.__dict__.update(copy.deepcopy(self.saved).__dict__, published=self.server.published)
        for client in self.clients:
            client.lose_connection()

    def change_order(self, client):
        """A call of run() with a key ends, and one without begins, or the other way round."""
        if client.ledger.keys is not None:
            client.ledger.end_order(self.now)
        elif len(self.clients) == 1 and not client.blocks:
            self.has_had_keys = True
            client.keep_order()
            client.recover(self.now)

    def check_numbers(self):
        for client in self.clients:
            ledger = client.ledger
            places = [entry.place for entry in ledger.in_flight()]
            waiting = [place for place in places if place in (*TAKEABLE, Place.BLOCKED, Place.DELAYED)]
            assert ledger.taken == places.count(Place.TAKEN) == len(client.running)
            assert ledger.waiting == len(waiting) <= self.prefetch * (130 if self.has_had_keys else 2)
            if Place.SUSPECT not in waiting and client.alone is None:
                client.waiting_since = math.inf
            else:
                client.waiting_since = min(client.waiting_since, self.now)
            assert ledger.isolation.alone in (None, *client.running)

    def end(self):
        """Without further faults, everything is handled."""
        self.is_ending = True
        for client in [*self.clients]:
            for entry in [*client.running]:
                self.finish(client, entry)
            self.end_blocks(client)
            if client.dropped:  # they are held until the consumer is left
                self.restart_client(client)
        everything = set(range(1, self.server.published + 1))
        for _ in range(60 + 8 * self.server.published):
            self.now += 31.0
            held = {sequence for client in self.clients for sequence in client.ledger.sequences()}
            self.server.expire(sorted(set(self.server.deliveries) - held))
            for client in self.clients:
                client.end_delays(self.now)
                for _ in range(3):
                    self.fetch(client, is_lost=False)
                    self.check_numbers()
                    while (entry := client.take(self.now, self.finished)) is not None:
                        client.running.append(entry)
                    self.now += 31.0 * self.is_slow
                for entry in [*client.running]:
                    self.finish(client, entry)
                client.write(self.finished, is_lost=False)
            self.check_numbers()
            if self.server.acked == everything:
                break
        assert self.server.acked == everything <= self.finished


def test_messages_are_handled_whatever_happens_and_all_moves_occur():
    NotedEntry.moves.clear()
    for steps in (30, 100, 200):
        for seed in range(300):
            try:
                Simulation(seed).run(steps)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, {steps} steps") from error
    moves = {move for move in NotedEntry.moves if move[0] is not move[1]}
    assert moves - {(Place.DELAYED, Place.SUSPECT)} == MOVES
