"""Batches, and what a handler asks for single events of them."""

import pytest

from ce_nats.aio import Batch, BatchError
from tests.support.consuming import after, consume, number_of, publish
from tests.support.tables import each

__all__ = ["consume", "publish"]


@pytest.fixture
async def handled_in(publish, consume):
    """Call a function with a batch of three events, and return what it returns."""

    async def handled_in(function):
        await publish(1, 2, 3)
        found = []
        async with consume() as consumer:

            async def handle(batch):
                found.append(function(batch))
                if sum(len(one) for one in sizes) + len(batch) == 3:
                    consumer.stop()
                sizes.append(batch)

            sizes = []
            await after(consumer.run_batches(handle, max_events=3, max_wait=5))
        return found, sizes

    return handled_in


async def test_sequence_of_events(handled_in):
    def read(batch):
        assert batch.events == list(batch) == [batch[index] for index in range(len(batch))] == batch[:]
        assert batch.events == [delivery.event for delivery in batch.deliveries]
        assert batch[-1].get_data() == {"n": number_of(batch[-1])}
        assert f"Batch({len(batch)} events, sequences from {batch.deliveries[0].sequence})" == repr(batch)
        assert batch != list(batch)
        return [number_of(event) for event in batch]

    found, _ = await handled_in(read)
    assert [number for numbers in found for number in numbers] == [1, 2, 3]


async def test_columns(handled_in, subject, stream):
    rows = [row for batch in (await handled_in(Batch.columns))[0] for row in batch.to_pylist()]
    assert [row["sequence"] for row in rows] == [1, 2, 3]
    assert {row["subject"] for row in rows} == {subject}
    assert {row["stream"] for row in rows} == {stream}
    assert [int(row["ce_id"].split()[1]) for row in rows] == [1, 2, 3]
    assert [row["ce_data"] for row in rows] == [b'{"n":1}', b'{"n":2}', b'{"n":3}']
    assert {row["ce_error"] for row in rows} == {None}


async def test_columns_of_declared_extensions(handled_in):
    [columns, *_], _ = await handled_in(lambda batch: batch.columns(extensions={"tier": "string"}))
    assert "ce_tier" in columns.schema.names


@pytest.mark.parametrize("index", [3, -4])
async def test_index_out_of_range(handled_in, index):
    def mark(batch):
        for method in (batch.reject, batch.nak):
            with pytest.raises(IndexError):
                method(index)

    await handled_in(mark)


async def test_delay_is_checked(handled_in):
    def mark(batch):
        for delay in (-1, float("nan")):
            with pytest.raises(ValueError, match="delay"):
                batch.nak(0, delay)

    await handled_in(mark)


@each("errors", [None, [ValueError()], {"0": ValueError()}, {0: "error"}, {True: ValueError()}])
def test_error_of_another_type(errors):
    with pytest.raises(TypeError, match="errors must be a mapping of indexes to exceptions"):
        BatchError(errors)


def test_error_without_events():
    with pytest.raises(ValueError, match="at least one"):
        BatchError({})


def test_error_text():
    error = BatchError({2: ValueError("unknown"), 5: ValueError("other")})
    assert str(error) == "2 events of the batch have failed; event 2: unknown"
    assert [*error.errors] == [2, 5]
