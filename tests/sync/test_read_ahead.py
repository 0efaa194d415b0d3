"""How many items are read ahead."""

from ce_nats.sync._read_ahead import ReadAhead
from tests.support.tables import each


def limits(most, steps):
    """Return the limits after steps, each a number of taken items and the seconds in which they were taken."""
    ahead, taken, now, found = ReadAhead(most, 0.0), 0, 0.0, []
    for count, seconds in steps:
        taken, now = taken + count, now + seconds
        found.append(ahead.limit(taken, now))
    return found


@each(
    ("most", "steps", "expected"),
    [
        (64, [(1, 1e-5)] * 8, [2, 4, 8, 16, 32, 64, 64, 64]),
        (5, [(1, 1e-5)] * 4, [2, 4, 5, 5]),
        (1, [(1, 1e-5)] * 2, [1, 1]),
        (64, [(1, 0.001)] * 5, [2, 4, 5, 5, 5]),  # as many as are taken in 5 ms
        (64, [(1, 0.1)] * 2, [1, 1]),
        (64, [(1, 1e-5)] * 6 + [(32, 3.2), (1, 1e-5)], [2, 4, 8, 16, 32, 64, 1, 2]),  # handlers become slow
        (64, [(0, 1e-5), (1, 1e-5), (1, 0.0), (1, 1e-5)], [1, 2, 2, 4]),  # nothing is learnt without items or time
    ],
)
def test_limit_follows_the_rate(most, steps, expected):
    assert limits(most, steps) == expected
