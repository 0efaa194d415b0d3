"""Queues of keys, gaps in deliveries, and other clients; test_ledger has a model of all of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@each(
    ("together", "waiting"),
    [
        ([5], []),
        ([2], [2]),
        ([5, 2, 9], []),
        ([5, 9], [9]),
        ([2, 5], [2]),
        ([9, 5, 2], [9]),
        ([6, 5, 8, 2], []),
        ([8, 5], [8]),
        ([1, 5], []),  # one without a key
    ],
)
def test_messages_that_are_handled_together_follow_each_other(together, waiting):
    order = KeyOrder()
    for number, key in ((5, "a"), (9, "a"), (2, "a"), (6, "b"), (8, "b")):
        order.add(number, key)
    assert order.out_of_turn(together) == waiting


def test_message_that_follows_another_one():
    order = KeyOrder()
    for number, key in ((5, "a"), (9, "a"), (2, "a"), (6, "b")):
        order.add(number, key)
    assert [order.following(number) for number in (5, 2, 9, 6, 1)] == [2, 9, None, None, None]


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
