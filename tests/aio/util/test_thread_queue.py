"""A queue between an event loop and other threads."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from ce_nats.aio._util.thread_queue import ThreadQueue
from tests.support.synchronous import SECONDS


@pytest.fixture
def queue():
    """A queue with the numbers 0, 1 and 2."""
    queue = ThreadQueue()
    for number in range(3):
        queue.put(number)
    return queue


def test_item_is_taken_once_it_is_removed_from_the_list(queue):
    taken = queue.take()
    assert queue.take() is taken
    assert taken == [0]
    with ThreadPoolExecutor() as pool:
        assert pool.submit(queue.take).result(SECONDS) == [1]
    del taken[0]
    assert queue.take() == [2]
    assert queue.taken == 3
    assert len(queue) == 0


def test_empty_queue_gives_an_empty_list_or_waits(queue):
    queue.give_back()
    assert queue.take() == []
    with pytest.raises(StopIteration):
        queue.wait(0.01)
    with ThreadPoolExecutor() as pool:
        item = pool.submit(queue.wait, None)
        queue.put(3)
        assert item.result(SECONDS) == [3]


def test_items_that_no_thread_has_taken_are_given_back(queue):
    assert queue.take() == [0]
    assert queue.give_back() == [1, 2]
    assert queue.take() == [0]
    assert (queue.taken, len(queue)) == (1, 0)


def test_end_comes_after_the_items_and_stays(queue):
    queue.end()
    for number in range(3):
        assert queue.take() == [number]
        del queue.take()[0]
    for take in (queue.take, queue.take, lambda: queue.wait(None)):
        with pytest.raises(StopIteration):
            take()


def test_end_is_not_given_back(queue):
    queue.end()
    assert queue.give_back() == [0, 1, 2]
    with pytest.raises(StopIteration):
        queue.wait(None)


def test_first_error_of_the_end_is_raised_in_every_thread():
    queue = ThreadQueue()
    error = KeyError()
    for end in (error, ValueError(), None):
        queue.end(end)
    with ThreadPoolExecutor(3) as pool:
        assert [pool.submit(queue.wait, None).exception(SECONDS) for _ in range(3)] == [error] * 3


def test_refusing_queue_returns_no_item_not_even_one_that_was_taken_before(queue):
    assert queue.take() == [0]
    queue.refuse()
    for _ in range(2):
        with pytest.raises(StopIteration):
            queue.take()
