import time

import pytest

from ce_nats.aio._util.patience import Patience


async def test_short_attempts_are_repeated_until_the_time_is_over():
    patience = Patience(timeout=5, retry_timeout=3)
    began = time.monotonic()
    seconds = [patience.seconds]
    while await patience.wait():
        seconds.append(patience.seconds)
    assert 1 < time.monotonic() - began < 30
    assert seconds[0] == 2
    assert max(seconds) <= 3
    assert len(seconds) > 5


async def test_attempts_get_longer_for_a_slow_server():
    patience = Patience(timeout=60, retry_timeout=600)
    seconds = []
    for _ in range(8):
        seconds.append(patience.seconds)
        assert await patience.wait()
    assert seconds == [2, 2, 2, 2, 4, 8, 16, 32]


async def test_progress_restarts_the_time():
    patience = Patience(timeout=5, retry_timeout=0.05)
    assert not await patience.wait()
    patience.reset()
    assert (patience.seconds, await patience.wait()) == (2, False)


@pytest.mark.parametrize("timeout", [0.5, 60])
async def test_single_attempt_gets_all_the_time(timeout):
    patience = Patience(timeout, retry_timeout=0)
    assert patience.seconds == timeout
    assert not await patience.wait()


async def test_limit_of_one_request_is_kept():
    assert Patience(timeout=0.5, retry_timeout=30).seconds == 0.5
