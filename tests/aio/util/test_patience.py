import inspect
import time
from contextlib import suppress

import pytest

from ce_nats.aio import Publisher
from ce_nats.aio._util.patience import Patience


def fail(patience):
    """Count a failed attempt, without the pause after it."""
    waiting = patience.wait()
    with suppress(StopIteration):
        waiting.send(None)
    waiting.close()


async def test_short_attempts_are_repeated_until_the_time_is_over():
    patience = Patience(timeout=5, retry_timeout=3)
    began = time.monotonic()
    seconds = [patience.seconds]
    while await patience.wait():
        seconds.append(patience.seconds)
    assert 1 < time.monotonic() - began < 30
    assert seconds[0] == 2
    assert max(seconds) <= 3
    assert 5 < len(seconds) < 20


async def test_attempts_get_longer_for_a_slow_server():
    patience = Patience(timeout=60, retry_timeout=600)
    seconds = []
    for _ in range(8):
        seconds.append(patience.seconds)
        fail(patience)
    assert seconds == [2, 2, 2, 2, 4, 8, 16, 32]


async def test_length_of_attempts_is_limited():
    patience = Patience(timeout=1e6, retry_timeout=1e6)
    for _ in range(20):
        fail(patience)
    assert patience.seconds == 2048


async def test_last_attempt_has_a_minimum_length():
    """Also if there is less time left."""
    patience = Patience(timeout=5, retry_timeout=0.05)
    assert not await patience.wait()
    assert patience.seconds == 0.1


def test_requests_are_repeated_for_half_a_minute_by_default():
    patience = Patience(timeout=5)
    assert patience._retry_timeout == inspect.signature(Publisher).parameters["retry_timeout"].default == 30


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
