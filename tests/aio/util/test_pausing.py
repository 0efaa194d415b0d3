import time

import pytest

from ce_nats.aio._util.pausing import pause, random_number


def test_random_numbers_differ():
    numbers = {random_number() for _ in range(100)}
    assert len(numbers) > 50
    assert all(0 <= number < 1 for number in numbers)


@pytest.mark.parametrize("seconds", [0, 0.2])
async def test_pause_lasts_at_least_half_of_its_maximum(seconds):
    """The event loop may wake one tick of its clock early."""
    before = time.monotonic()
    await pause(seconds)
    assert time.monotonic() - before >= seconds / 2 - time.get_clock_info("monotonic").resolution
