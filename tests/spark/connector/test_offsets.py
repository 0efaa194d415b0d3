"""Offsets: the end of the next batch, and the ranges between two offsets. No server is needed."""

from random import Random

import pytest

from ce_nats._ranges import StreamState
from ce_nats.errors import DataLossError, DecodeError
from ce_nats.spark.connector._limits import Limits
from ce_nats.spark.connector._offsets import (
    advance,
    at,
    changed,
    check_selection,
    checked,
    ranges,
    shorter_than,
    unread,
)
from tests.support.tables import each


def state(name, first, last, created="then", messages=None):
    return StreamState(name, created, first, last, last - first + 1 if messages is None else messages)


def offset(**sequences):
    return {name: {"sequence": sequence, "created": "then"} for name, sequence in sequences.items()}


def refuse(error):
    raise error


@each("seed", range(30))
def test_all_messages_are_read_with_any_limit(seed):
    """Offsets never decrease, no step exceeds the limit, and the number of steps is bounded."""
    random = Random(seed)
    states = {}
    for name in "abc"[: random.randrange(1, 4)]:
        first = random.choice([1, 50])
        states[name] = state(name, first, first + random.choice([-1, 0, 7, 200]))
    start = {name: at(states[name], random.choice([0, states[name].last])) for name in states if random.random() < 0.8}
    most = random.randrange(1, 50)
    whole = advance(start, states, on_loss=refuse)
    total = sum(map(len, ranges(start, whole, states, (), refuse)))
    here, steps = start, 0
    while (following := advance(here, states, limits=Limits(most), on_loss=refuse)) != here:
        read = sum(map(len, ranges(here, following, states, (), refuse)))
        assert read <= most
        assert all(part["sequence"] >= here.get(name, {"sequence": 0})["sequence"] for name, part in following.items())
        total -= read
        here, steps = following, steps + 1
        assert steps < 1_000
    assert (here, total) == (whole if whole != start else start, 0)


def test_a_query_starts_at_the_first_message_of_the_stream():
    states = {"a": state("a", 101, 200)}
    end = advance(offset(a=0), states, limits=Limits(10), on_loss=refuse)
    assert end == offset(a=110)
    (only,) = ranges(offset(a=0), end, states, ("x",), refuse)
    assert (only.first, only.last, only.from_beginning, only.subjects) == (101, 110, True, ("x",))


def test_removed_messages_are_a_loss_unless_nothing_was_read_yet():
    states = {"a": state("a", 101, 200)}
    with pytest.raises(DataLossError, match="messages 51 to 100 are gone"):
        ranges(offset(a=50), offset(a=150), states, (), refuse)
    with pytest.raises(DataLossError, match="messages 51 to 60 are gone"):
        ranges(offset(a=50), offset(a=60), states, (), refuse)
    losses = []
    (only,) = ranges(offset(a=50), offset(a=150), states, (), losses.append)
    assert (only.first, only.last, len(losses)) == (101, 150, 1)
    assert ranges(offset(a=50), offset(a=60), states, (), losses.append) == []
    (only,) = ranges(offset(a=100), offset(a=150), states, (), refuse)
    assert (only.first, only.from_beginning) == (101, False)


def test_messages_removed_from_the_end_are_a_loss():
    """A backup was restored, for example."""
    states = {"a": state("a", 1, 20)}
    text = "had messages up to 50, and now ends at 20: messages 21 to 50 are gone"
    with pytest.raises(DataLossError, match=text):
        ranges(offset(a=10), offset(a=50), states, (), refuse)
    losses = []
    (only,) = ranges(offset(a=10), offset(a=50), states, (), losses.append)
    assert (only.first, len(losses)) == (11, 1)
    assert ranges(offset(a=50), offset(a=50), states, (), refuse) == []
    with pytest.raises(DataLossError, match=text):
        advance(offset(a=50), states, on_loss=refuse)
    assert advance(offset(a=50), states, on_loss=losses.append) == offset(a=50)
    assert advance(offset(a=20), states, on_loss=refuse) == offset(a=20)


def test_a_stream_that_was_created_again_is_a_loss_and_not_read():
    again = {"a": state("a", 1, 200, created="later"), "b": state("b", 1, 20)}
    start, end = offset(a=5, b=5), offset(a=10, b=10)
    text = "stream a: it was created at then, and the stream with its name now was created at later"
    with pytest.raises(DataLossError, match=text):
        ranges(start, end, again, (), refuse)
    losses = []
    assert [found.stream for found in ranges(start, end, again, (), losses.append)] == ["b"]
    assert len(losses) == 1


def test_unread_messages():
    """Sequences before the stream's first message do not count."""
    states = {"a": state("a", 101, 200), "b": state("b", 1, 10), "c": state("c", 5, 4, messages=0)}
    assert unread(offset(a=0, b=10, c=0), states, refuse) == 100
    assert unread(offset(a=150, b=4, gone=7), states, refuse) == 50 + 6
    with pytest.raises(DataLossError, match="deleted and created again"):
        unread({"a": {"sequence": 5, "created": "before"}}, states, refuse)
    states["b"] = state("b", 1, 10, created="now")
    assert unread(offset(b=7), {"b": states["b"]}, lambda loss: None) == 10


def test_a_gap_is_skipped_in_one_step():
    states = {"a": state("a", 1, 1_000, messages=20)}
    end = advance(offset(a=5), states, limits=Limits(10), skip=lambda state, sequence: 900, on_loss=refuse)
    assert end == offset(a=910)
    end = advance(offset(a=5), states, limits=Limits(10), skip=lambda state, sequence: state.last, on_loss=refuse)
    assert end == offset(a=1_000)


def test_gaps_are_only_looked_up_when_a_stream_is_read_in_part():
    def skip(state, sequence):
        raise AssertionError("asked")

    states = {"a": state("a", 1, 10)}
    assert advance(offset(a=5), states, limits=Limits(5), skip=skip, on_loss=refuse) == offset(a=10)
    assert advance(offset(a=5), states, skip=skip, on_loss=refuse) == offset(a=10)
    with pytest.raises(AssertionError):
        advance(offset(a=4), states, limits=Limits(5), skip=skip, on_loss=refuse)


def test_a_target_is_not_exceeded():
    states = {"a": state("a", 1, 10), "b": state("b", 1, 10), "c": state("c", 1, 10, created="now")}
    target = offset(a=7, c=7)
    end = advance(offset(a=5, b=3), states, target=target, on_loss=refuse)
    assert {name: part["sequence"] for name, part in end.items()} == {"a": 7, "b": 3, "c": 0}
    assert advance(offset(a=9), {"a": states["a"]}, target=target, on_loss=refuse) == offset(a=9)


def test_a_stream_that_is_not_read_keeps_its_position():
    states = {name: state(name, 1, 10) for name in "abc"}
    start = offset(a=5, b=5, c=5)
    end = advance(start, {"b": states["b"]}, on_loss=refuse)
    assert end == offset(a=5, b=10, c=5)
    assert list(end) == list("abc")  # Spark compares offsets as text
    assert changed(start, end) == ["b"]
    (only,) = ranges(start, end, {"b": states["b"]}, (), refuse)
    assert (only.stream, only.first, only.last) == ("b", 6, 10)
    again = advance(end, states, on_loss=refuse)
    assert [(part.stream, part.first) for part in ranges(end, again, states, (), refuse)] == [("a", 6), ("c", 6)]


def test_a_stream_that_was_created_again_while_it_was_not_read_is_a_loss():
    end = advance(offset(a=5, b=5), {"a": state("a", 1, 10)}, on_loss=refuse)
    states = {"a": state("a", 1, 10), "b": state("b", 1, 3, created="now")}
    text = "stream b: it was created at then, and the stream with its name now was created at now"
    with pytest.raises(DataLossError, match=text):
        advance(end, states, on_loss=refuse)
    losses = []
    again = advance(end, states, on_loss=losses.append)
    assert (again["b"]["sequence"], len(losses)) == (3, 1)


@each(
    "found",
    [
        [],
        12,
        None,
        {"a": {}},
        {"topic": {"0": 5}},
        {"a": 5},
        {"a": {"sequence": 5}},
        {"a": {"sequence": "5", "created": "then"}},
        {"a": {"sequence": True, "created": "then"}},
        {"a": {"sequence": -1, "created": "then"}},
        {"a": {"sequence": 5, "created": None}},
    ],
)
def test_offsets_of_another_source_are_an_error(found):
    with pytest.raises(DecodeError, match="the offset in the checkpoint must have") as info:
        checked(found)
    assert info.value.code == "invalid-message"


def test_offsets_of_this_source_are_accepted():
    assert checked(offset(a=0, b=5)) == offset(a=0, b=5)
    assert checked({}) == {}


def test_states_that_end_before_an_offset_of_the_same_stream():
    states = {name: state(name, 1, 5) for name in "abc"} | {"d": state("d", 1, 5, created="later")}
    assert shorter_than(offset(a=5, b=6, d=6, gone=6), states) == [states["b"]]


@each(
    ("before", "now", "added"),
    [
        (["a", "b.*"], ["a", "b.c"], []),
        (["a"], ["b"], ["b"]),
        (["a"], ["a", "b"], ["b"]),
        (["a"], [], [">"]),
        ([">"], [], []),
        (["b.*"], ["b.>", "c"], ["b.>", "c"]),
        ([], ["a"], []),
        (None, [], []),
    ],
)
def test_subjects_that_are_added_after_a_restart_miss_messages(before, now, added):
    """Those that are left out do not."""
    start = {} if before is None else {"subjects": before}
    text = f"the query has read {', '.join(before or ())} up to message 5, and would miss earlier messages on "
    check(start, {"subjects": now} if now else {}, text + ", ".join(added) if added else None)


@each(
    ("before", "now", "is_wider"),
    [
        ("a = 'b'", "a = 'b'", False),
        ("a = 'b'", "a = 'c'", True),
        ("a = 'b'", None, True),
        (None, "a = 'b'", False),
    ],
)
def test_another_filter_after_a_restart_misses_messages(before, now, is_wider):
    text = "read the events that pass a = 'b' up to message 5, and would miss earlier messages that did not pass"
    first, second = ({} if expression is None else {"filter": expression} for expression in (before, now))
    check(first, second, text if is_wider else None)


def check(before, now, text):
    """Check what is missing from a query with a selection that is restarted with another one."""
    states = {"a": state("a", 1, 9), "b": state("b", 1, 9), "new": state("new", 1, 9)}
    start = {"a": {**offset(a=5)["a"], **before}, "b": {**offset(b=0)["b"], **before}}
    losses = []
    check_selection(checked(start), states, now, losses.append)
    assert [loss.stream for loss in losses] == ["a"] * (text is not None)
    assert all(text in str(loss) for loss in losses)
    end = advance(start, states, selection=now, on_loss=refuse)
    assert [{name: part[name] for name in now} for part in end.values()] == [now] * 3
    assert [len(part) for part in end.values()] == [2 + len(now)] * 3
    check_selection(end, states, now, refuse)
