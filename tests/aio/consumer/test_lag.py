"""The lag of a consumer, for its instrumentation."""

from ce_nats.aio._jetstream_api import Lag
from tests.support.consuming import consume, publish, take
from tests.support.waiting import until

__all__ = ["consume", "publish"]


class Instruments:
    def __init__(self):
        self.lags = []

    def process(self, received):
        return None

    def record(self, outcome):
        pass

    def lag(self, stream, consumer, lag):
        self.lags.append((stream, consumer, lag))


async def test_lag_is_reported_until_the_consumer_is_left(publish, consume, stream):
    await publish(1, 2)
    instruments = Instruments()
    async with consume(instrumentation=instruments) as consumer:
        await until(lambda: instruments.lags)
        async with await take(consumer):
            pass
    (name, durable, lag), *others = instruments.lags
    assert (name, durable, type(lag)) == (stream, "c", Lag)
    assert lag.pending + lag.ack_pending == 2
    assert others[-1:] == [(stream, "c", None)]


async def test_consumer_that_is_deleted_has_no_lag(publish, consume, js, stream, caplog):
    """It is the iteration that fails."""
    instruments = Instruments()
    async with consume(instrumentation=instruments):
        await until(lambda: instruments.lags)
        await js.delete_consumer(stream, "c")
    assert [lag is None for _, _, lag in instruments.lags] == [False, True]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_only_instrumentations_cause_requests(consume, nc):
    requests, counts = [], []

    async def note(message):
        requests.append(message.subject)

    await nc.subscribe("$JS.API.CONSUMER.INFO.>", cb=note)
    instruments = Instruments()
    for options in ({}, {"on_outcome": repr}, {"instrumentation": instruments}):
        async with consume(**options):
            if "instrumentation" in options:
                await until(lambda: instruments.lags)
        await nc.flush()
        counts.append(len(requests) - sum(counts))
    assert counts[2] == counts[1] + 1
