"""Limits of micro-batches. No server is needed."""

from random import Random

from ce_nats._ranges import StreamState
from ce_nats.spark.connector._limits import Limits, Waiting, estimate, shares
from tests.support.tables import each


def state(messages: int, size: int, last: int | None = None) -> StreamState:
    return StreamState("S", "then", 1, last or messages, messages, size=size)


@each("seed", range(30))
def test_shares_add_up_to_the_limit(seed: int) -> None:
    random = Random(seed)
    backlogs = [random.choice([0, 1, 5, 100, 10**9]) for _ in range(random.randrange(1, 8))]
    most = random.randrange(0, 300)
    granted = shares(backlogs, most)
    assert sum(granted) == min(most, sum(backlogs))
    assert all(0 <= share <= backlog for share, backlog in zip(granted, backlogs))
    # A share below the backlog is at most 1 smaller than the largest share.
    assert all(share >= max(granted) - 1 for share, backlog in zip(granted, backlogs) if share < backlog)


def granted(limits: Limits, states: list[StreamState], backlogs: list[int]) -> list[int]:
    return limits.grant(states, [state.last - backlog for state, backlog in zip(states, backlogs)], backlogs, estimate)


@each(
    ("limits", "states", "backlogs", "expected"),
    [
        (Limits(max_bytes=1_000), [state(100, 10_000)], [100], [10]),
        (Limits(max_bytes=999), [state(100, 10_000)], [100], [9]),
        (Limits(max_bytes=1), [state(100, 10_000)], [100], [1]),
        (Limits(max_bytes=1), [state(100, 10_000), state(3, 10**9), state(5, 50)], [100, 3, 0], [1, 1, 0]),
        (Limits(max_bytes=2_000), [state(100, 10_000), state(100, 50_000)], [100, 100], [10, 2]),
        (Limits(max_bytes=2_000), [state(100, 10_000), state(100, 50_000)], [3, 100], [3, 3]),
        (Limits(max_bytes=2_000), [state(100, 50_000), state(100, 10_000)], [1, 100], [1, 15]),
        (Limits(max_bytes=1_000), [state(100, 10_000, last=200)], [200], [10]),
        (Limits(max_bytes=1_000, max_messages=4), [state(100, 10_000), state(9, 9)], [100, 9], [2, 2]),
        (Limits(max_bytes=1_000, max_messages=1), [state(100, 10_000), state(9, 9)], [0, 9], [0, 1]),
        (Limits(max_bytes=10_000), [state(100, 10_000)], [100], [100]),
        (Limits(max_bytes=5), [state(0, 0, last=7)], [7], [7]),
        (Limits(max_bytes=1), [state(0, 0, last=7), state(1, 1)], [7, 1], [7, 1]),
        (Limits(max_bytes=1), [state(0, 0, last=7), state(2, 2)], [7, 2], [7, 1]),
        (Limits(max_bytes=5), [state(7, 0)], [7], [7]),
    ],
)
def test_a_maximum_is_divided(
    limits: Limits, states: list[StreamState], backlogs: list[int], expected: list[int]
) -> None:
    assert granted(limits, states, backlogs) == expected
    if limits.allow(states, backlogs):
        assert expected == backlogs


def test_a_micro_batch_is_allowed_if_its_streams_are_not_larger() -> None:
    """A few messages of a large stream may have nearly all of its bytes."""
    limits = Limits(max_bytes=1_000)
    assert limits.allow([state(100, 1_000), state(100, 1_001)], [100, 0])
    assert not limits.allow([state(100, 1_001)], [1])


@each("seed", range(30))
def test_all_messages_are_granted_in_steps(seed: int) -> None:
    """Each step is below the maximum, except for one message of each stream, and no stream with a backlog waits."""
    random = Random(seed)
    sizes = [[random.choice([1, 77, 10**6]) for _ in range(count)] for count in (1, 20, 300)]
    states = [state(len(some), sum(some)) for some in sizes]
    limits = Limits(max_bytes=random.choice([1, 100, 10**5]), max_messages=random.choice([None, 50]))

    def fit(stream: StreamState, first: int, last: int, most: int) -> tuple[int, int]:
        some = sizes[states.index(stream)]
        fitting = [end for end in range(first, last + 1) if sum(some[first - 1 : end]) <= most]
        end = max(fitting, default=first)
        return end, sum(some[first - 1 : end])

    read, steps = [0, 0, 0], 0
    while backlogs := [stream.last - at for stream, at in zip(states, read)]:
        if not any(backlogs):
            break
        shares = limits.grant(states, read, backlogs, fit)
        assert all(0 < share <= backlog or share == backlog == 0 for share, backlog in zip(shares, backlogs))
        beyond = [sum(some[at : at + share]) for some, at, share in zip(sizes, read, shares) if share > 1]
        assert sum(beyond) <= (limits.max_bytes or 0)
        assert sum(shares) <= (limits.max_messages or 321)
        read = [at + share for at, share in zip(read, shares)]
        steps += 1
    assert steps <= 300


def test_messages_wait_for_the_minimum() -> None:
    """The delay begins with the first check that finds some, and anew after each micro-batch."""
    now = 1_000.0
    waiting = Waiting(Limits(min_messages=10, max_delay=60.0), lambda: now)
    assert waiting.continues(0)
    now += 3_600
    assert waiting.continues(1)
    now += 59
    assert waiting.continues(9)
    assert not waiting.continues(10)
    assert waiting.continues(9)
    now += 59
    assert waiting.continues(9)
    now += 1
    assert waiting.continues(9) is False
    assert waiting.continues(1)
    now += 3_600
    assert waiting.continues(0)  # for example, because the stream was purged
    assert waiting.continues(1)


def test_without_a_minimum_no_message_waits() -> None:
    assert not Waiting(Limits()).continues(0)
    assert not Waiting(Limits()).continues(1)


def test_messages_wait_for_a_minimum_for_15_minutes_by_default() -> None:
    assert Limits().max_delay == 900
