"""Ranges of stream sequences, and their pieces."""

import pickle
from random import Random

from ce_nats._ranges import StreamRange, StreamState, split
from ce_nats.errors import DataLossError
from tests.support.tables import each


@each("seed", range(20))
def test_pieces_cover_the_range_in_order(seed):
    random = Random(seed)
    wanted = []
    for stream in "abc":
        first = random.randrange(1, 100)
        wanted.append(StreamRange(stream, first, first + random.choice([-1, 0, 1, 10, 1_000]), from_beginning=True))
    count = random.randrange(1, 30)
    largest = random.choice([None, 1, 7, 2_000])
    pieces = split(wanted, count, largest)
    assert [(item.stream, number) for item in pieces for number in range(item.first, item.last + 1)] == [
        (item.stream, number) for item in wanted for number in range(item.first, item.last + 1)
    ]
    assert all(len(item) for item in pieces)
    if largest is None or largest > 1_001:
        assert len(pieces) <= count + len(wanted)
    else:
        assert max(map(len, pieces)) <= largest
    # Only the first piece begins at the beginning of the stream.
    begins = {(item.stream, item.first) for item in wanted}
    assert all(item.from_beginning == ((item.stream, item.first) in begins) for item in pieces)


def test_pieces_have_equal_sizes():
    sizes = [len(item) for item in split([StreamRange("a", 1, 1_000), StreamRange("b", 1, 3_000)], 8)]
    assert sizes == [500] * 8


def test_few_messages_have_few_pieces():
    assert len(split([StreamRange("a", 1, 3)], 10)) == 3


@each("last", [4, 3])
def test_range_that_ends_before_its_first_sequence_is_empty(last):
    empty = StreamRange("a", 5, last)
    assert len(empty) == 0
    assert split([empty], 10) == []
    assert split([empty, StreamRange("a", 1, 4)], 2) == [StreamRange("a", 1, 2), StreamRange("a", 3, 4)]


def test_every_range_is_at_least_one_piece():
    wanted = [StreamRange("a", 1, 1_000), StreamRange("b", 1, 1)]
    assert split(wanted, 1) == split(wanted, 0) == wanted


def test_range_has_all_subjects_and_any_creation_time_by_default():
    assert StreamRange("a", 1, 2) == StreamRange("a", 1, 2, created="", subjects=(), from_beginning=False)


def test_state_is_that_of_a_stream_with_limits_by_default():
    assert StreamState("a", "then", 1, 2, 2) == StreamState("a", "then", 1, 2, 2, retention="limits", size=0)


def test_ranges_and_errors_can_be_pickled():
    wanted = StreamRange("a", 1, 2, "then", ("x.>",), True)
    assert pickle.loads(pickle.dumps(wanted)) == wanted
    error = DataLossError.gone("a", 3, 3, 4)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (DataLossError, str(error))
    assert "stream a: message 3 is gone" in str(copy)
