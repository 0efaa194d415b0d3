"""
``format("nats")`` against a real server, as tables and as streaming queries.

Tests use Spark if the behaviour depends on it. Other behaviour of the readers is tested by calling them directly, which
is much faster.
"""

import json
import logging
import pickle
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta, timezone
from uuid import uuid4

import nats
import pyarrow as pa
import pytest
from cloudevents.core.v1.event import CloudEvent
from pyspark.sql import functions as fn
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming import StreamingQueryListener

from ce_nats import to_nats_message
from ce_nats.errors import DataLossError, DeliveryError
from ce_nats.spark import deduplicate, explode_cloudevents, stream_lag
from ce_nats.spark.connector import _streams as streams
from ce_nats.spark.connector._blocking import Blocking
from ce_nats.spark.connector._source import NatsDataSource, NatsReader, register
from ce_nats.testing import NatsServer
from tests.support.needs import limits, needs_limits
from tests.support.pausing import paused
from tests.support.reading import publish_all
from tests.support.tables import each

if limits is not None:
    ReadAllAvailable, ReadMaxRows = limits.ReadAllAvailable, limits.ReadMaxRows
    ReadMaxBytes, ReadMinRows = limits.ReadMaxBytes, limits.ReadMinRows

SECONDS = 300  # limit for one query


class Broker:
    """A server with JetStream, and a client for synchronous code."""

    def __init__(self, server, blocking):
        self.server = server
        self._blocking = blocking
        self.connect()

    def connect(self):
        self._nc = self.run(nats.connect(self.server.url))
        self.js = self._nc.jetstream()

    def run(self, coroutine):
        return self._blocking.run(coroutine)

    def add(self, prefix="S", **config):
        """Create a stream in memory with a unique name and the subjects ``name`` and ``name.>``; return the name."""
        name = prefix + uuid4().hex
        self.run(self.js.add_stream(name=name, subjects=[name, f"{name}.>"], storage="memory", **config))
        return name

    def filled(self, count, **options):
        """Add a stream with messages numbered from 0; return its name."""
        name = self.add()
        self.fill(name, count, **options)
        return name

    def both(self, first, second):
        """Add two streams with numbers of messages; return their names, which are sorted."""
        names = sorted((self.add(), self.add()))
        for name, count in zip(names, (first, second)):
            self.fill(name, count)
        return names

    def fill(self, stream, count, subject="{}", payload=b""):
        """Publish messages numbered from 0, and wait until the stream has stored them."""

        async def publish():
            last = (await self.js.stream_info(stream)).state.last_seq + count
            subjects = (f"{stream}.{subject.format(number)}" for number in range(count))
            await publish_all(self.js, [(name, payload or b"%d" % number) for number, name in enumerate(subjects)])
            for _ in range(2_000):
                if (await self.js.stream_info(stream)).state.last_seq >= last:
                    return
            pytest.fail("not all messages arrived")

        self.run(publish())

    def purge(self, stream, **options):
        self.run(self.js.purge_stream(stream, **options))

    def delete(self, stream, *numbers):
        for number in numbers:
            self.run(self.js.delete_msg(stream, number))

    def create_again(self, stream):
        self.run(self.js.delete_stream(stream))
        self.run(self.js.add_stream(name=stream, subjects=[stream, f"{stream}.>"], storage="memory"))

    def state(self, stream):
        return self.run(self.js.stream_info(stream)).state

    def close(self):
        self.run(self._nc.close())


@pytest.fixture(scope="module")
def broker():
    with NatsServer(jetstream=True) as server, Blocking() as blocking:
        broker = Broker(server, blocking)
        yield broker
        broker.close()


@pytest.fixture(scope="module")
def session(spark):
    register(spark)
    return spark


@pytest.fixture
def table(broker, session):
    def load(stream, **options):
        given = {"url": broker.server.url, "stream": stream, **options}
        return session.read.format("nats").options(**given).load()

    return load


@pytest.fixture
def run_query(broker, session, tmp_path):
    """
    Return a function that runs a streaming query until it has read all messages, and returns the query.

    Its attribute ``written`` is a function that returns the stream and sequence of all rows written so far,
    ``checkpoint`` the directory of the checkpoint.
    """

    def run(stream, *, each=None, **options):
        given = {"url": broker.server.url, "stream": stream, "startingOffsets": "earliest", **options}
        rows = session.readStream.format("nats").options(**given).load()
        writer = rows.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer = writer.foreachBatch(each) if each else writer.format("parquet").option("path", str(tmp_path / "rows"))
        query = writer.start()
        try:
            assert query.awaitTermination(SECONDS), "the query did not end"
        finally:
            query.stop()
        return query

    def written():
        found = session.read.parquet(str(tmp_path / "rows")).select("stream", "sequence").collect()
        return sorted((row.stream, row.sequence) for row in found)

    run.written = written
    run.checkpoint = tmp_path / "checkpoint"
    return run


def source(broker, stream, **options):
    return NatsDataSource({"url": broker.server.url, "stream": stream, **options})


def reader(broker, stream, **options):
    given = source(broker, stream, **options)
    return given.reader(given.schema())


def stream_reader(broker, stream, **options):
    given = source(broker, stream, **options)
    made = given.streamReader(given.schema())
    stream_readers.append(made)
    return made


stream_readers = []


@pytest.fixture(autouse=True)
def _stop_readers():
    yield
    while stream_readers:
        stream_readers.pop().stop()


def rows_of(some_reader, partitions):
    """Return the rows that workers read; the reader and the partitions are pickled, as in Spark."""
    some_reader = pickle.loads(pickle.dumps(some_reader))
    batches = [batch for part in pickle.loads(pickle.dumps(partitions)) for batch in some_reader.read(part)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def sequences(some_reader, *offsets):
    return [row["sequence"] for row in rows_of(some_reader, some_reader.partitions(*offsets))]


def wait_until(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.05)


def read_up_to(offset):
    return [part["sequence"] for part in offset.values()]


# --- Rows ------------------------------------------------------------------------------------------------------------


def test_rows_are_messages_as_they_were_stored(broker, table):
    stream = broker.add()
    broker.run(broker.js.publish(f"{stream}.a", b"\0\xff", headers={"ce-id": "1", "Tag": "ü"}))
    broker.run(broker.js.publish(f"{stream}.b", b""))
    rows = table(stream)
    assert rows.schema.simpleString() == (
        "struct<subject:string,reply:string,headers:array<struct<key:string,value:string>>,data:binary,"
        "stream:string,sequence:bigint,timestamp:timestamp>"
    )
    first, second = (row.asDict(recursive=True) for row in rows.orderBy("sequence").collect())
    stored = broker.run(broker.js.get_msg(stream, 1)).time.astimezone(timezone.utc)
    assert abs(first.pop("timestamp").astimezone(timezone.utc) - stored) < timedelta(microseconds=2)
    assert first == {
        "subject": f"{stream}.a",
        "reply": "",
        "headers": [{"key": "ce-id", "value": "1"}, {"key": "Tag", "value": "ü"}],
        "data": b"\0\xff",
        "stream": stream,
        "sequence": 1,
    }
    assert (second["subject"], second["headers"], second["data"], second["sequence"]) == (f"{stream}.b", [], b"", 2)


def test_timestamps_do_not_depend_on_the_time_zone_of_the_session(broker, session, table):
    stream = broker.filled(1)
    (seconds,) = table(stream).select(fn.unix_micros("timestamp")).first()
    assert abs(seconds / 1e6 - time.time()) < 60


def test_an_empty_stream_has_no_rows(broker, table):
    stream = broker.add()
    assert table(stream).count() == 0
    broker.fill(stream, 3)
    broker.purge(stream)
    assert table(stream).count() == 0


def test_partitions_divide_the_rows(broker, table):
    stream = broker.filled(1_000)
    rows = table(stream, minPartitions=3)
    found = rows.select("sequence", fn.spark_partition_id().alias("part")).collect()
    assert sorted(row.sequence for row in found) == list(range(1, 1_001))
    assert sorted({row.part for row in found}) == [0, 1, 2]


def test_large_payloads_are_read_unchanged(broker, table):
    stream = broker.add()
    payload = bytes(range(256)) * 4_000
    broker.fill(stream, 30, payload=payload)
    found = table(stream, minPartitions=2).select(fn.sha2("data", 256).alias("hash"), fn.length("data").alias("size"))
    assert [(row.size, row["count"]) for row in found.groupBy("hash", "size").count().collect()] == [(1_024_000, 30)]


# --- Positions and subjects ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, range(1, 11)),
        ({"startingOffsets": "3", "endingOffsets": "5"}, range(3, 6)),
        ({"subjects": "*.even"}, range(2, 11, 2)),
        ({"subjects": "*.even,*.odd", "startingOffsets": "9"}, (9, 10)),
        ({"subjects": "other.>"}, ()),
        ({"SUBJECTS": "*.odd", "MinPartitions": "4"}, range(1, 11, 2)),
    ],
)
def test_positions_and_subjects_select_messages(broker, options, expected):
    stream = broker.add()
    for number in range(1, 11):
        broker.run(broker.js.publish(f"{stream}.{'odd' if number % 2 else 'even'}", b""))
    assert sequences(reader(broker, stream, **options)) == list(expected)


def fill_with_events(broker, stream, tiers):
    for number, tier in enumerate(tiers):
        event = CloudEvent({"id": f"{number}", "source": "/s", "type": "t", "tier": tier}, {"n": number})
        message = to_nats_message(event, f"{stream}.{tier}", mode="structured" if number % 2 else "binary")
        broker.run(broker.js.publish(message.subject, message.data, headers=dict(message.headers.items())))
    broker.run(broker.js.publish(f"{stream}.gold", b"not an event"))


def test_a_filter_selects_events(broker, table, caplog):
    """In both modes; what is not an event is kept. An expression with an error does not pass, and is logged."""
    stream = broker.add()
    fill_with_events(broker, stream, ["gold", "gold", "silver", "silver", "gold"])
    assert sorted(row.sequence for row in table(stream, filter="tier = 'gold'").collect()) == [1, 2, 5, 6]
    some = {"subjects": f"{stream}.gold", "startingOffsets": "2", "filter": "id != '4'"}
    assert sequences(reader(broker, stream, **some)) == [2, 6]
    assert sequences(reader(broker, stream, filter="FALSE", endingOffsets="5")) == []
    assert sequences(reader(broker, stream, filter="region = 'eu'")) == [6]
    assert f"stream {stream}: the event with id '0' does not pass: missing-attribute" in caplog.text


@needs_limits
def test_another_filter_of_a_query_is_noticed(broker, run_query):
    """The offsets have it."""
    stream = broker.add()
    fill_with_events(broker, stream, ["gold", "silver"])
    run_query(stream, filter="tier='gold'", maxMessagesPerTrigger="1")
    fill_with_events(broker, stream, ["silver", "gold"])
    with pytest.raises(Exception, match="events that pass tier = 'gold' up to message 3, and would miss"):
        run_query(stream, filter="tier = 'silver'")
    run_query(stream, filter="tier  =  'gold'")
    fill_with_events(broker, stream, ["silver", "gold"])
    run_query(stream, filter="tier = 'silver'", failOnDataLoss="false")
    assert run_query.written() == [(stream, number) for number in (1, 3, 5, 6, 7, 9)]


def test_positions_by_stream(broker):
    one, other = broker.both(5, 5)
    options = {
        "startingOffsets": json.dumps({one: 2, other: "earliest"}),
        "endingOffsets": json.dumps({one: "latest", other: 3}),
    }
    assert sequences(reader(broker, f"{other},{one}", **options)) == [2, 3, 4, 5, 1, 2, 3]


def test_positions_by_time(broker):
    """The start is inclusive, the end exclusive; deleted messages do not change the result."""
    stream = broker.add()
    for _ in range(9):
        broker.fill(stream, 1)
        time.sleep(0.002)
    times = {n: broker.run(broker.js.get_msg(stream, n)).time.astimezone(timezone.utc) for n in range(1, 10)}
    broker.delete(stream, 4, 5, 8)

    def between(start, end):
        given = {"startingTimestamp": start, "endingTimestamp": end}
        return sequences(reader(broker, stream, **{name: value for name, value in given.items() if value}))

    def text(number, microseconds=0):
        return (times[number] + timedelta(microseconds=microseconds)).isoformat()

    kept = [1, 2, 3, 6, 7, 9]
    assert between(None, None) == kept
    for number in kept:
        assert between(text(number), None) == [n for n in kept if n >= number]
        assert between(text(number, 2), None) == [n for n in kept if n > number]
        assert between(None, text(number, 2)) == [n for n in kept if n <= number]
    assert between(text(2), text(7)) == [2, 3, 6]
    assert between("2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z") == []
    assert between("2120-01-01T00:00:00Z", None) == []
    assert between(str(int(times[2].timestamp() * 1000)), None) == [2, 3, 6, 7, 9]  # in milliseconds, rounded down
    assert between(json.dumps({stream: text(2)}), json.dumps({stream: text(7)})) == [2, 3, 6]
    strict = reader(broker, stream, startingTimestamp="2120-01-01T00:00:00Z", startingTimestampStrategy="error")
    with pytest.raises(ValueError, match=f"stream {stream} has no message stored at or after 2120"):
        strict.partitions()


@each(
    ("options", "text"),
    [
        ({"stream": ""}, "option stream is missing"),
        ({"startingOffset": "1"}, "unknown option 'startingOffset'; did you mean startingOffsets"),
        ({"startingOffsets": "latest"}, "must not be latest"),
        ({"maxMessagesPerTrigger": "5"}, "maxMessagesPerTrigger must be used with streaming queries, got a table"),
        ({"url": ""}, "option url is missing"),
    ],
)
def test_invalid_options(options, text):
    given = NatsDataSource({"url": "nats://localhost", "stream": "A", **options})
    with pytest.raises(ValueError, match=text):
        given.reader(given.schema())


def test_another_schema_is_rejected(broker, session):
    with pytest.raises(Exception, match="the schema of format nats must be struct<subject:string"):
        session.read.format("nats").schema("a int").options(url="nats://localhost", stream="A").load().count()


# --- Filters ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed(broker):
    """200 messages on eight subjects, of which every seventh is deleted, over some time."""
    stream = broker.add()
    for part in range(4):
        broker.fill(stream, 50, subject=f"{part}.{{}}"[:2] + ("x" if part % 2 else "y.z"))
        time.sleep(0.01)
    broker.delete(stream, *range(7, 200, 7))
    return stream


CONDITIONS = [
    "subject = '{s}.0.y.z'",
    "subject = '{s}.0.y.*'",
    "subject = 'a b'",
    "subject = '{s}.0.y%2Ez'",
    "subject <=> '{s}.1.x'",
    "subject in ('{s}.1.x', '{s}.2.y.z', 'other')",
    "subject in ('{s}.1.x', null)",
    "subject like '{s}.2.%'",
    "subject like '{s}.%z'",
    "subject not in ('{s}.1.x')",
    "subject = '{s}.1.x' or sequence = 3",
    "subject = '{s}.1.x' and subject = '{s}.2.y.z'",
    "subject like '{s}.1.%' and subject = '{s}.1.x'",
    "sequence = 50",
    "sequence = 49",
    "sequence >= 190 and sequence != 195",
    "sequence > 190 and sequence < 193",
    "sequence <= 3",
    "sequence in (3, 70, 150, 5000)",
    "sequence > 10.5 and sequence < 12",
    "sequence > 1000",
    "sequence < 0",
    "stream = '{s}' and sequence = 1",
    "stream = 'other'",
    "stream in ('other', '{s}') and subject = '{s}.3.x'",
    "timestamp >= timestamp'{t}'",
    "timestamp < timestamp'{t}'",
    "timestamp = timestamp'{t}'",
    "timestamp > timestamp'{t}' and subject = '{s}.3.x' and sequence < 180",
    "timestamp < timestamp'1999-01-01 00:00:00'",
    "reply = '' and data = X'30'",
    "reply is null",
    "subject is not null and size(headers) = 0",
]


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)])
def test_a_filter_never_changes_the_result(broker, session, table, mixed, step):
    """Conditions select the same rows of the source as of rows that were read before; by default every fourth one."""
    rows = table(mixed, minPartitions=1).localCheckpoint()
    instant = rows.where("sequence = 100").first().timestamp.strftime("%Y-%m-%d %H:%M:%S.%f")
    conditions = [condition.format(s=mixed, t=instant) for condition in CONDITIONS[::step]]
    selected = rows.selectExpr("sequence", *(f"({where}) AS c{place}" for place, where in enumerate(conditions)))
    selected = selected.collect()
    expected = [[row.sequence for row in selected if row[f"c{place}"]] for place in range(len(conditions))]
    found = [
        sorted(row.sequence for row in table(mixed, minPartitions=1).where(where).collect()) for where in conditions
    ]
    assert dict(zip(conditions, found)) == dict(zip(conditions, map(sorted, expected)))
    assert sum(map(len, found)) > 500 / step


def test_a_filter_does_not_apply_to_later_queries(session, table, mixed):
    """Spark 4.3 reuses a source's plan with pushed filters for later queries on the same DataFrame."""
    name = "spark.sql.python.filterPushdown.enabled"
    before = session.conf.get(name, None)
    try:
        for setting in ("true", "false"):
            session.conf.set(name, setting)
            messages = table(mixed)
            whole = messages.count()
            assert 0 < messages.where(f"subject = '{mixed}.1.x'").count() < whole
            assert 0 < messages.where("sequence < 60").count() < whole
            assert messages.count() == whole
    finally:
        session.conf.unset(name) if before is None else session.conf.set(name, before)


# --- Tables and lost messages ----------------------------------------------------------------------------------------


def test_purged_messages_are_an_error_with_their_sequences(broker, table):
    stream = broker.filled(20)
    broker.purge(stream, seq=11)
    with pytest.raises(Exception, match=rf"stream {stream}: messages 5 to 10 are gone .* failOnDataLoss=false"):
        table(stream, startingOffsets=5).count()
    assert table(stream, startingOffsets=5, failOnDataLoss="false").count() == 10
    assert table(stream, startingOffsets=11).count() == 10
    assert table(stream).count() == 10


def test_messages_lost_between_planning_and_reading_are_an_error(broker, caplog):
    stream = broker.filled(20)
    for fails in ("true", "false"):
        planned = reader(broker, stream, startingOffsets="3", minPartitions="2", failOnDataLoss=fails)
        partitions = planned.partitions()
        broker.purge(stream, seq=15)
        if fails == "true":
            with pytest.raises(DataLossError, match=f"stream {stream}: messages 3 to 11 are gone"):
                rows_of(planned, partitions)
            broker.fill(stream, 20)
            broker.create_again(stream)
            broker.fill(stream, 20)
        else:
            with caplog.at_level(logging.WARNING, "ce_nats"):
                assert [row["sequence"] for row in rows_of(planned, partitions)] == list(range(15, 21))
            assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_deleted_messages_are_not_a_loss(broker):
    stream = broker.filled(50)
    broker.delete(stream, *range(10, 20), 49, 50)
    kept = [*range(1, 10), *range(20, 49)]
    assert sequences(reader(broker, stream, startingOffsets="1", minPartitions="5")) == kept


def test_the_error_names_a_missing_stream(broker, table):
    with pytest.raises(Exception, match="there is no stream NOTHING"):
        table("NOTHING").count()


def test_no_consumer_remains(broker, table):
    """Also if Spark needs only some rows and stops the worker early."""
    stream = broker.filled(5_000, payload=bytes(1_000))
    assert len(table(stream, minPartitions=2).limit(3).collect()) == 3
    assert table(stream, minPartitions=2).count() == 5_000
    for _ in range(20 * SECONDS):
        if broker.state(stream).consumer_count == 0:
            break
        time.sleep(0.05)
    assert broker.state(stream).consumer_count == 0


@pytest.mark.faults
def test_a_read_continues_after_restarts_of_the_server(session, tmp_path):
    """The second partition waits for each restart, when its reader still has to request further messages."""
    stops = 33_000, 41_000, 49_000
    with NatsServer(jetstream=True) as server, Blocking() as blocking:
        broker = Broker(server, blocking)
        broker.run(broker.js.add_stream(name="S", subjects=["S.>"]))
        broker.fill("S", 60_000, payload=bytes(1_000))
        broker.close()
        rows = session.read.format("nats").options(url=server.url, stream="S", minPartitions=2).load()

        @fn.udf("bigint", useArrow=False)
        def waiting(sequence, data):
            if sequence in stops:
                (tmp_path / f"reached {sequence}").touch()
                end = time.monotonic() + SECONDS
                while not (tmp_path / f"restarted {sequence}").exists() and time.monotonic() < end:
                    time.sleep(0.01)
            return sequence

        result = []
        read = rows.select(waiting("sequence", "data").alias("n")).agg(fn.count("n"), fn.sum("n"))
        thread = threading.Thread(target=lambda: result.append(read.first()))
        thread.start()
        for stop in stops:
            wait_until((tmp_path / f"reached {stop}").exists)
            server.kill()
            server.restart()
            (tmp_path / f"restarted {stop}").touch()
        thread.join(SECONDS)
        assert [tuple(row) for row in result] == [(60_000, 60_000 * 60_001 // 2)]


def test_an_unavailable_server_is_an_error_at_once(session):
    started = time.perf_counter()
    options = {"url": "nats://127.0.0.1:1", "stream": "S", "retryTimeout": "600"}
    rows = session.read.format("nats").options(**options).load()
    with pytest.raises(Exception, match=r"cannot connect to nats://127\.0\.0\.1:1"):
        rows.count()
    assert time.perf_counter() - started < 300


# --- Secrets ---------------------------------------------------------------------------------------------------------


def test_secrets_are_not_disclosed(session, capfd):
    """Plans, errors, the output of workers and the progress of a query do not contain them."""
    secret = "S3cr3t" + uuid4().hex
    with NatsServer(jetstream=True, config=f"authorization {{ user: alice, password: {secret} }}") as server:
        address = f"127.0.0.1:{server.port}"

        async def make():
            nc = await nats.connect(f"nats://alice:{secret}@{address}")
            await nc.jetstream().add_stream(name="S", subjects=["S"], storage="memory")
            await nc.jetstream().publish("S", b"")
            await nc.close()

        with Blocking() as blocking:
            blocking.run(make())
        texts = []
        ways = (
            {"url": f"nats://alice:{secret}@{address}"},
            {"url": f"alice:{secret}@{address}"},
            {"url": address, "user": "alice", "password": secret},
        )
        for options in ways:
            rows = session.read.format("nats").options(stream="S", **options).load()
            assert rows.where("sequence > 0").count() == 1
            rows.explain("extended")
            texts.append(repr(rows))
            given = NatsDataSource({"stream": "S", **options})
            for made in (given.reader(given.schema()), given.streamReader(given.schema())):
                texts += [repr(made), repr(vars(made)), repr(made._connection)]
        query = session.readStream.format("nats").options(stream="S", **ways[0]).load()
        query = query.writeStream.format("noop").trigger(availableNow=True).start()
        assert query.awaitTermination(SECONDS)
        query.explain(extended=True)
        texts += [json.dumps(progress, default=str) for progress in query.recentProgress]
        for options in (
            {"url": f"nats://alice:{secret}@127.0.0.1:1"},
            {"url": f"nats://alice:{secret}/x@{address}"},
            {"url": f"nats://alice:{secret}x@{address}"},
            {"url": address, "token": secret},
            {"url": address, "pasword": secret},
            {"url": address, "user": "alice", "password": secret, "stream": "NOTHING"},
        ):
            with pytest.raises(Exception, match=r"option|stream|connect") as info:
                session.read.format("nats").options(**{"stream": "S", **options}).load().count()
            texts.append(str(info.value))
    texts += capfd.readouterr()
    assert "BatchScan nats" in "".join(texts)
    assert secret not in "".join(texts)


def test_ten_thousand_subjects(broker):
    """A stream with ten thousand subjects, read as a whole, by a list of subjects, and by one subject."""
    stream = broker.filled(10_000, subject="a.{}")
    whole = reader(broker, stream, minPartitions="2")
    assert len({row["subject"] for row in rows_of(whole, whole.partitions())}) == 10_000
    some = ",".join(f"{stream}.a.{number}" for number in range(0, 10_000, 100))
    assert {number % 100 for number in sequences(reader(broker, stream, subjects=some))} == {1}
    many = ",".join(f"{stream}.a.{number}" for number in range(0, 10_000, 10))
    assert sequences(reader(broker, stream, subjects=many)) == list(range(1, 10_001, 10))
    assert sequences(reader(broker, stream, subjects=f"{stream}.a.9999")) == [10_000]


# --- Streaming: the reader -------------------------------------------------------------------------------------------


@needs_limits
def test_offsets_advance_with_new_messages(broker):
    stream = broker.filled(10)
    query = stream_reader(broker, stream, startingOffsets="earliest")
    start = query.initialOffset()
    end = query.latestOffset(start, ReadAllAvailable())
    assert (read_up_to(start), read_up_to(end)) == ([0], [10])
    assert json.loads(json.dumps(end)) == end
    assert sequences(query, start, end) == list(range(1, 11))
    assert query.latestOffset(end, ReadAllAvailable()) == end
    assert query.partitions(end, end) == []
    broker.fill(stream, 2)
    following = query.latestOffset(end, ReadAllAvailable())
    assert sequences(query, end, following) == [11, 12]
    assert query.reportLatestOffset() == following


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 10),
        ({"startingOffsets": "earliest"}, 0),
        ({"startingTimestamp": "2020-01-01T00:00:00Z"}, 2),
        ({"startingTimestamp": "2120-01-01T00:00:00Z"}, 10),
    ],
)
def test_a_query_begins_at_its_starting_position(broker, options, expected):
    stream = broker.filled(10)
    broker.purge(stream, seq=3)
    query = stream_reader(broker, stream, **options)
    assert read_up_to(query.initialOffset()) == [expected]


@needs_limits
def test_a_limit_is_never_exceeded_and_all_messages_are_read(broker):
    one, other = broker.both(25, 4)
    query = stream_reader(broker, f"{one},{other}", startingOffsets="earliest", maxMessagesPerTrigger="6")
    assert query.getDefaultReadLimit() == ReadMaxRows(6)
    offset, found = query.initialOffset(), []
    for _ in range(5):
        end = query.latestOffset(offset, ReadMaxRows(6))
        rows = rows_of(query, query.partitions(offset, end))
        assert 0 < len(rows) <= 6
        found += [(row["stream"], row["sequence"]) for row in rows]
        offset = end
    assert query.latestOffset(offset, ReadMaxRows(6)) == offset
    assert sorted(found) == [*((one, n) for n in range(1, 26)), *((other, n) for n in range(1, 5))]
    assert read_up_to(query.reportLatestOffset()) == [25, 4]


@needs_limits
def test_a_limit_in_bytes_is_that_of_the_messages(broker):
    """Not of the average message of the stream. Each stream with messages advances by at least one."""
    small, large = sorted((broker.add(), broker.add()))
    broker.fill(small, 100, payload=bytes(100))
    broker.fill(large, 300)
    broker.fill(large, 3, payload=bytes(50_000))
    broker.fill(large, 20, payload=bytes(4_000))
    broker.delete(large, 5, 306)
    options = {"startingOffsets": "earliest", "maxBytesPerTrigger": "20000"}
    query = stream_reader(broker, f"{small},{large}", **options)
    assert query.getDefaultReadLimit() == ReadMaxBytes(20_000)
    offset, sizes = query.initialOffset(), []
    while (end := query.latestOffset(offset, query.getDefaultReadLimit())) != offset:
        rows = rows_of(query, query.partitions(offset, end))
        sizes.append([len(row["subject"]) + len(row["data"]) for row in rows])
        offset = end
    assert sum(map(len, sizes)) == 421
    assert all(sum(batch) <= 20_000 or sum(size > 20_000 for size in batch) == 1 for batch in sizes)
    assert len(sizes) == 10
    assert query.latestOffset(query.initialOffset(), ReadAllAvailable()) == end


@needs_limits
def test_subjects_of_a_query_cannot_grow_unnoticed(broker, run_query):
    """The offsets have the subjects."""
    stream = broker.add()
    for subject in "abc" * 5:
        broker.run(broker.js.publish(f"{stream}.{subject}", b""))
    one, two = f"{stream}.a,{stream}.b", f"{stream}.b,{stream}.c"
    run_query(stream, subjects=one)
    broker.run(broker.js.publish(f"{stream}.b", b""))
    for _ in range(2):
        with pytest.raises(Exception, match=f"up to message 15, and would miss earlier messages on {stream}.c"):
            run_query(stream, subjects=two)
    run_query(stream, subjects=one)
    for subject in "abc":
        broker.run(broker.js.publish(f"{stream}.{subject}", b""))
    run_query(stream, subjects=two, failOnDataLoss="false")
    broker.run(broker.js.publish(f"{stream}.c", b""))
    run_query(stream, subjects=two)
    run_query(stream, subjects=f"{stream}.c")
    expected = [number for number in range(1, 16) if number % 3] + [16, 18, 19, 20]
    assert run_query.written() == [(stream, number) for number in expected]


@needs_limits
def test_messages_wait_for_the_minimum(broker):
    stream = broker.filled(3)
    options = {"startingOffsets": "earliest", "minMessagesPerTrigger": "5"}
    query = stream_reader(broker, stream, **options)
    limit = query.getDefaultReadLimit()
    assert limit == ReadMinRows(5)
    start = query.initialOffset()
    assert query.latestOffset(start, limit) == start
    assert read_up_to(query.reportLatestOffset()) == [3]
    assert query.latestOffset(start, ReadAllAvailable()) != start  # the trigger "once"
    broker.fill(stream, 2)
    end = query.latestOffset(start, limit)
    assert sequences(query, start, end) == [1, 2, 3, 4, 5]
    broker.fill(stream, 1)
    assert query.latestOffset(end, limit) == end
    query.prepareForTriggerAvailableNow()
    assert read_up_to(query.latestOffset(end, limit)) == [6]


@needs_limits
def test_messages_wait_at_most_for_the_delay(broker):
    stream = broker.add()
    options = {"startingOffsets": "earliest", "minMessagesPerTrigger": "5", "maxMessagesPerTrigger": "8"}
    query = stream_reader(broker, stream, **options, maxTriggerDelay="200ms")
    limit, start = query.getDefaultReadLimit(), query.initialOffset()
    broker.fill(stream, 10)
    end = query.latestOffset(start, limit)
    assert sequences(query, start, end) == list(range(1, 9))
    assert query.latestOffset(end, limit) == end
    time.sleep(0.25)
    assert sequences(query, end, query.latestOffset(end, limit)) == [9, 10]
    restarted = stream_reader(broker, stream, **options, maxTriggerDelay="200ms")
    assert restarted.latestOffset(end, limit) == end


def test_without_arguments_messages_wait_for_the_minimum(broker):
    """Spark 4.0 and 4.1 call latestOffset() without arguments, and do not pass the position of a restarted query."""
    stream = broker.filled(3)
    options = {"startingOffsets": "earliest", "minMessagesPerTrigger": "5"}
    query = stream_reader(broker, stream, **options)
    start = query.initialOffset()
    assert query.latestOffset() == start
    broker.fill(stream, 3)
    assert read_up_to(query.latestOffset()) == [6]
    assert read_up_to(stream_reader(broker, stream, **options).latestOffset()) == [6]


@needs_limits
def test_long_gaps_are_skipped_without_empty_batches(broker):
    """Deleted messages and other subjects before the first message to read are skipped at once."""
    stream = broker.filled(3, subject="a")
    broker.fill(stream, 500, subject="b")
    broker.fill(stream, 3, subject="a")
    options = {"startingOffsets": "earliest", "maxMessagesPerTrigger": "2", "subjects": f"{stream}.a"}
    query = stream_reader(broker, stream, **options)
    offset, batches = query.initialOffset(), []
    while (end := query.latestOffset(offset, query.getDefaultReadLimit())) != offset:
        batches.append(sequences(query, offset, end))
        offset = end
    assert [number for batch in batches for number in batch] == [1, 2, 3, 504, 505, 506]
    assert len(batches) <= 5
    broker.purge(stream, subject=f"{stream}.b")
    query = stream_reader(broker, stream, startingOffsets="earliest", maxMessagesPerTrigger="4")
    end = query.latestOffset({stream: {**query.initialOffset()[stream], "sequence": 3}}, ReadMaxRows(4))
    assert read_up_to(end) == [506]


def test_without_arguments_the_reader_keeps_track_of_the_offset(broker):
    """Spark 4.0 and 4.1 call latestOffset() without arguments."""
    stream = broker.filled(10)
    query = stream_reader(broker, stream, startingOffsets="earliest", maxMessagesPerTrigger="4")
    offsets = [query.initialOffset(), query.latestOffset()]
    assert sequences(query, *offsets) == [1, 2, 3, 4]
    assert [read_up_to(query.latestOffset()) for _ in range(3)] == [[8], [10], [10]]
    restarted = stream_reader(broker, stream, maxMessagesPerTrigger="4")
    assert sequences(restarted, *offsets) == [1, 2, 3, 4]
    assert read_up_to(restarted.latestOffset()) == [8]


@needs_limits
def test_available_now_ends_at_the_last_message_of_its_start(broker):
    stream = broker.filled(10)
    query = stream_reader(broker, stream, startingOffsets="earliest")
    start = query.initialOffset()
    query.prepareForTriggerAvailableNow()
    broker.fill(stream, 5)
    end = query.latestOffset(start, ReadMaxRows(7))
    assert read_up_to(end) == [7]
    end = query.latestOffset(end, ReadMaxRows(7))
    assert read_up_to(end) == [10]
    assert query.latestOffset(end, ReadMaxRows(7)) == end
    assert read_up_to(query.reportLatestOffset()) == [15]


@needs_limits
def test_a_stream_that_is_added_later_is_read_from_its_beginning(broker):
    one, other = broker.both(3, 3)
    query = stream_reader(broker, one)
    start = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    query = stream_reader(broker, f"{one},{other}")
    assert sequences(query, start, query.latestOffset(start, ReadAllAvailable())) == [1, 2, 3]


def test_streams_by_pattern(broker):
    """A table has the streams that match when it is planned; positions by stream must be for exactly these."""
    prefix = "P" + uuid4().hex
    one, other, _ = (broker.add(f"{prefix}{suffix}") for suffix in ("_1", "_2", "3"))
    broker.fill(one, 3)
    broker.fill(other, 2)
    pattern = {"streamPattern": f"{prefix}_.*"}

    def found(**options):
        table = reader(broker, "", **pattern, **options)
        return [(row["stream"], row["sequence"]) for row in rows_of(table, table.partitions())]

    assert found() == [(one, 1), (one, 2), (one, 3), (other, 1), (other, 2)]
    assert found(startingOffsets=json.dumps({one: 3, other: 2})) == [(one, 3), (other, 2)]
    with pytest.raises(ValueError, match="startingOffsets must have positions for"):
        found(startingOffsets=json.dumps({one: 3}))
    for missing in (f"{prefix}", f"{prefix}_*"):
        pattern["streamPattern"] = missing
        with pytest.raises(ValueError, match="streamPattern must match a stream"):
            found()
        with pytest.raises(ValueError, match="streamPattern must match a stream"):
            stream_reader(broker, "", **pattern).initialOffset()


@needs_limits
@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_query_with_a_pattern_finds_new_streams(broker, fails):
    """They are read from their beginning, whatever the starting offset is; deleted ones keep their position."""
    prefix = "P" + uuid4().hex
    one = broker.add(f"{prefix}_1")
    broker.fill(one, 3)
    options = {"streamPattern": f"{prefix}_.*", "startingOffsets": "latest", "failOnDataLoss": fails}
    query = stream_reader(broker, "", **options)
    start = query.initialOffset()
    assert (list(start), read_up_to(start)) == ([one], [3])
    other = broker.add(f"{prefix}_0")
    broker.fill(other, 4)
    broker.purge(other, seq=3)
    end = query.latestOffset(start, ReadAllAvailable())
    assert (list(end), read_up_to(end)) == ([other, one], [4, 3])
    assert sequences(query, start, end) == [3, 4]
    assert query.reportLatestOffset() == end
    broker.run(broker.js.delete_stream(other))
    if fails == "true":
        with pytest.raises(DataLossError, match=f"stream {other}: it no longer exists"):
            query.latestOffset(end, ReadAllAvailable())
        return
    assert query.latestOffset(end, ReadAllAvailable()) == end
    broker.run(broker.js.delete_stream(one))
    assert query.latestOffset(end, ReadAllAvailable()) == end
    restarted = stream_reader(broker, "", **options)
    restarted.prepareForTriggerAvailableNow()
    assert restarted.latestOffset(end, ReadAllAvailable()) == end
    broker.run(broker.js.add_stream(name=one, subjects=[one, f"{one}.>"], storage="memory"))
    broker.fill(one, 2)
    assert sequences(query, end, query.latestOffset(end, ReadAllAvailable())) == [1, 2]


@needs_limits
def test_available_now_leaves_streams_created_later_to_the_next_run(broker):
    prefix = "P" + uuid4().hex
    one = broker.add(f"{prefix}_1")
    broker.fill(one, 3)
    query = stream_reader(broker, "", streamPattern=f"{prefix}.*", startingOffsets="earliest")
    query.prepareForTriggerAvailableNow()
    start = query.initialOffset()
    other = broker.add(f"{prefix}_2")
    broker.fill(other, 2)
    end = query.latestOffset(start, ReadAllAvailable())
    assert list(end) == [one]
    assert query.latestOffset(end, ReadAllAvailable()) == end
    following = stream_reader(broker, "", streamPattern=f"{prefix}.*")
    following.prepareForTriggerAvailableNow()
    assert sequences(following, end, following.latestOffset(end, ReadAllAvailable())) == [1, 2]


def test_without_arguments_a_query_with_a_pattern_finds_new_streams(broker):
    """Spark 4.0 and 4.1 call latestOffset() without arguments, also first after a restart."""
    prefix = "P" + uuid4().hex
    options = {"streamPattern": f"{prefix}.*", "startingOffsets": "earliest"}
    broker.fill(one := broker.add(f"{prefix}_1"), 3)
    query = stream_reader(broker, "", **options)
    start = query.initialOffset()
    broker.fill(other := broker.add(f"{prefix}_2"), 2)
    end = query.latestOffset()
    assert sequences(query, start, end) == [1, 2, 3, 1, 2]
    assert stream_reader(broker, "", **options).latestOffset() == end
    assert list(end) == [one, other]


@needs_limits
def test_a_purge_is_a_loss_unless_the_messages_were_read(broker, caplog):
    stream = broker.filled(10)
    query = stream_reader(broker, stream, startingOffsets="5")
    start = query.initialOffset()
    end = query.latestOffset(start, ReadAllAvailable())
    broker.purge(stream, seq=5)
    assert sequences(query, start, end) == [5, 6, 7, 8, 9, 10]
    broker.purge(stream, seq=8)
    with pytest.raises(DataLossError, match=f"stream {stream}: messages 5 to 7 are gone"):
        query.partitions(start, end)
    broker.purge(stream)
    with pytest.raises(DataLossError, match=f"stream {stream}: messages 5 to 10 are gone"):
        query.partitions(start, end)
    tolerant = stream_reader(broker, stream, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "ce_nats"):
        assert sequences(tolerant, start, end) == []
        assert sequences(tolerant, start, end) == []
    assert len(caplog.records) == 1


@needs_limits
def test_messages_that_limits_remove_are_a_loss(broker):
    stream = broker.add(max_msgs=10)
    broker.fill(stream, 10)
    query = stream_reader(broker, stream, startingOffsets="earliest")
    offset = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    broker.fill(stream, 15)
    end = query.latestOffset(offset, ReadAllAvailable())
    with pytest.raises(DataLossError, match=f"stream {stream}: messages 11 to 15 are gone"):
        query.partitions(offset, end)


@needs_limits
def test_a_full_stream_can_be_read_from_its_beginning(broker):
    """Messages that limits remove between the first offset and the first batch are not a loss."""
    stream = broker.add(max_msgs=10)
    broker.fill(stream, 10)
    query = stream_reader(broker, stream, startingOffsets="earliest")
    start = query.initialOffset()
    end = query.latestOffset(start, ReadAllAvailable())
    broker.fill(stream, 3)
    assert sequences(query, start, end) == list(range(4, 11))
    planned = reader(broker, stream)
    partitions = planned.partitions()
    broker.fill(stream, 3)
    assert [row["sequence"] for row in rows_of(planned, partitions)] == list(range(7, 14))


@needs_limits
@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_stream_that_was_created_again_is_detected(broker, fails):
    """The new stream has other messages with the same sequences."""
    stream = broker.filled(10)
    query = stream_reader(broker, stream, startingOffsets="earliest", failOnDataLoss=fails)
    start = query.initialOffset()
    end = query.latestOffset(start, ReadMaxRows(5))
    planned = query.partitions(start, end)
    broker.create_again(stream)
    broker.fill(stream, 20, subject="new")
    if fails == "true":
        with pytest.raises(DataLossError, match="deleted and created again"):
            rows_of(query, planned)
        with pytest.raises(DataLossError, match="deleted and created again"):
            query.partitions(start, end)
        with pytest.raises(DataLossError, match="deleted and created again"):
            query.latestOffset(end, ReadAllAvailable())
    else:
        assert rows_of(query, planned) == []
        assert query.partitions(start, end) == []
        following = query.latestOffset(end, ReadAllAvailable())
        assert sequences(query, end, following) == list(range(1, 21))
        assert query.latestOffset(following, ReadAllAvailable()) == following


@needs_limits
def test_reading_resumes_for_a_stream_that_is_added_again(broker):
    one, other = broker.both(3, 3)
    both = f"{one},{other}"
    query = stream_reader(broker, both, startingOffsets="earliest")
    offset = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    broker.fill(one, 2)
    broker.fill(other, 2)
    for names, expected in ((one, [(one, 4), (one, 5)]), (both, [(other, 4), (other, 5)])):
        query = stream_reader(broker, names)
        end = query.latestOffset(offset, ReadAllAvailable())
        rows = rows_of(query, query.partitions(offset, end))
        assert [(row["stream"], row["sequence"]) for row in rows] == expected
        assert query.latestOffset(end, ReadAllAvailable()) == end
        offset = end


@needs_limits
def test_a_stream_that_was_deleted_while_not_in_the_options(broker):
    """This is a loss only when the stream is added to the options again."""
    one, other = broker.both(3, 3)
    query = stream_reader(broker, f"{one},{other}", startingOffsets="earliest")
    offset = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    broker.run(broker.js.delete_stream(other))
    broker.fill(one, 2)
    query = stream_reader(broker, one)
    end = query.latestOffset(offset, ReadAllAvailable())
    assert sequences(query, offset, end) == [4, 5]
    query = stream_reader(broker, f"{one},{other}")
    with pytest.raises(DataLossError, match=f"stream {other}: it no longer exists"):
        query.latestOffset(end, ReadAllAvailable())


@needs_limits
def test_without_arguments_the_reader_keeps_positions_of_streams_not_in_the_options(broker):
    """Spark 4.0 and 4.1 call latestOffset() without arguments."""
    one, other = broker.both(3, 3)
    query = stream_reader(broker, f"{one},{other}", startingOffsets="earliest")
    start = query.initialOffset()
    start = query.latestOffset()
    broker.fill(one, 2)
    query = stream_reader(broker, one)
    end = query.latestOffset()
    assert list(end) == [one]
    assert sequences(query, start, end) == [4, 5]
    assert query.latestOffset() == {**end, other: start[other]}


@needs_limits
@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_stream_that_was_deleted_is_detected(broker, fails, caplog):
    """Like a stream that was created again."""
    stream, other = broker.both(10, 3)
    query = stream_reader(broker, f"{stream},{other}", startingOffsets="earliest", failOnDataLoss=fails)
    start = query.initialOffset()
    end = query.latestOffset(start, ReadMaxRows(13))
    planned = query.partitions(start, end)
    broker.run(broker.js.delete_stream(stream))
    broker.fill(other, 2)
    reason = f"stream {stream}: it no longer exists"
    if fails == "true":
        with pytest.raises(DataLossError, match=reason):
            rows_of(query, planned)
        with pytest.raises(DataLossError, match=reason):
            query.partitions(start, end)
        with pytest.raises(DataLossError, match=f"{reason}.*Set failOnDataLoss=false"):
            query.latestOffset(end, ReadAllAvailable())
        return
    with caplog.at_level(logging.WARNING, "ce_nats"):
        assert [row["stream"] for row in rows_of(query, planned)] == [other] * 3
        assert sequences(query, start, end) == [1, 2, 3]
        following = query.latestOffset(end, ReadAllAvailable())
    assert reason in caplog.text
    assert (sequences(query, end, following), following[stream]) == ([4, 5], end[stream])
    query.prepareForTriggerAvailableNow()
    assert query.latestOffset(following, ReadAllAvailable()) == following
    broker.run(broker.js.add_stream(name=stream, subjects=[stream, f"{stream}.>"], storage="memory"))
    broker.fill(stream, 2)
    query = stream_reader(broker, f"{stream},{other}", failOnDataLoss="false")
    again = query.latestOffset(following, ReadAllAvailable())
    assert sequences(query, following, again) == [1, 2]


@needs_limits
def test_a_missing_stream_is_an_error_also_with_fail_on_data_loss_false(broker):
    stream = broker.add()
    options = {"failOnDataLoss": "false"}
    for query in (stream_reader(broker, "nosuch", **options), reader(broker, "nosuch", **options)):
        with pytest.raises(DeliveryError, match="there is no stream nosuch"):
            query.partitions() if isinstance(query, NatsReader) else query.initialOffset()
    start = stream_reader(broker, stream).initialOffset()
    query = stream_reader(broker, f"{stream},nosuch", **options)
    query.prepareForTriggerAvailableNow()
    with pytest.raises(DeliveryError, match="there is no stream nosuch"):
        query.latestOffset(start, ReadAllAvailable())


@needs_limits
def test_available_now_ends_if_a_stream_was_created_again(broker):
    stream = broker.filled(10)
    query = stream_reader(broker, stream, startingOffsets="earliest", failOnDataLoss="false")
    offset = query.initialOffset()
    query.prepareForTriggerAvailableNow()
    broker.create_again(stream)
    broker.fill(stream, 5)
    for _ in range(3):
        end = query.latestOffset(offset, ReadAllAvailable())
        assert sequences(query, offset, end) == []
        if end == offset:
            break
        offset = end
    else:
        pytest.fail("the query does not end")


@needs_limits
def test_a_state_of_the_past_is_no_loss(broker):
    """A leader without its replicas may report a state before the offset. The next leader has the messages."""
    stream = broker.filled(10)
    query = stream_reader(broker, stream, startingOffsets="earliest")
    end = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    ahead = {stream: {**end[stream], "sequence": 15}}
    with ThreadPoolExecutor() as pool:
        latest = pool.submit(query.latestOffset, ahead, ReadAllAvailable())
        planned = pool.submit(stream_reader(broker, stream).partitions, end, ahead)
        broker.fill(stream, 5)
        assert latest.result(SECONDS) == ahead
        assert [row["sequence"] for row in rows_of(query, planned.result(SECONDS))] == [*range(11, 16)]


@needs_limits
def test_offsets_never_decrease(broker, monkeypatch):
    """A stream that was restored from a backup ends before the last message that was read."""
    for module in ("ce_nats.spark.connector._source", "ce_nats.aio.reading._range_reader"):
        monkeypatch.setattr(f"{module}.OLD_STATE_SECONDS", 0.2)
    stream = broker.filled(10)
    for fails in ("true", "false"):
        query = stream_reader(broker, stream, startingOffsets="earliest", failOnDataLoss=fails)
        end = query.latestOffset(query.initialOffset(), ReadAllAvailable())
        ahead = {stream: {**end[stream], "sequence": 15}}
        if fails == "true":
            with pytest.raises(DataLossError, match="messages 11 to 15 are gone"):
                query.latestOffset(ahead, ReadAllAvailable())
            with pytest.raises(DataLossError, match="messages 11 to 15 are gone"):
                query.partitions(end, ahead)
        else:
            assert query.latestOffset(ahead, ReadAllAvailable()) == ahead
            assert sequences(query, end, ahead) == []


@needs_limits
def test_a_purge_does_not_move_the_newest_offset(broker):
    stream = broker.filled(10)
    query = stream_reader(broker, stream, startingOffsets="earliest")
    end = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    broker.purge(stream)
    assert query.latestOffset(end, ReadAllAvailable()) == end


@needs_limits
def test_requests_succeed_after_restarts_of_the_server(tmp_path):
    """All requests use one connection, which is established again after a loss."""
    with NatsServer(jetstream=True) as server, Blocking() as blocking:
        broker = Broker(server, blocking)
        broker.run(broker.js.add_stream(name="S", subjects=["S.>"]))
        broker.fill("S", 3)
        broker.close()
        query = stream_reader(broker, "S", startingOffsets="earliest", requestTimeout="600", retryTimeout="60")
        start = query.initialOffset()
        session = query._streams._session
        assert read_up_to(query.latestOffset(start, ReadAllAvailable())) == [3]
        assert query._streams._session is session
        server.kill()
        server.restart()
        started = time.perf_counter()
        assert read_up_to(query.latestOffset(start, ReadAllAvailable())) == [3]
        assert time.perf_counter() - started < 60
        server.kill()
        late = threading.Timer(1, server.restart)
        late.start()
        assert read_up_to(query.latestOffset(start, ReadAllAvailable())) == [3]
        late.join()


@pytest.mark.faults
@needs_limits
def test_a_connection_that_is_lost_during_a_request_is_detected_at_once():
    with NatsServer(jetstream=True) as server, Blocking() as blocking:
        broker = Broker(server, blocking)
        broker.run(broker.js.add_stream(name="S", subjects=["S"]))
        broker.close()
        query = stream_reader(broker, "S", requestTimeout="600", retryTimeout="0.1")
        start = query.initialOffset()
        late = threading.Timer(0.5, server.kill)
        started = time.perf_counter()
        with paused(server):
            late.start()
            with pytest.raises(DeliveryError):
                query.latestOffset(start, ReadAllAvailable())
            late.join()
        assert time.perf_counter() - started < 300


@needs_limits
def test_an_idle_connection_is_replaced(broker, monkeypatch):
    """The server would close it, because its PINGs are not answered between two requests."""
    stream = broker.add()
    query = stream_reader(broker, stream)
    start = query.initialOffset()
    session = query._streams._session
    monkeypatch.setattr(streams, "_MAX_IDLE_SECONDS", 0.0)
    assert query.latestOffset(start, ReadAllAvailable()) == start
    assert query._streams._session is not session
    assert session._client.is_closed


# --- Streaming: Spark ------------------------------------------------------------------------------------------------


def test_a_query_adds_no_variable_to_those_that_queries_share(broker, session):
    """Two that start at the same time would damage Spark's map of them. Other functions do not get them."""
    fresh = session.newSession()  # no query has set a variable in its map
    register(fresh)

    def variables():
        source = fresh._jsparkSession.sessionState().dataSourceManager().lookupDataSource("nats")
        return dict(source.dataSourceCls().envVars())

    before = variables()
    options = {"url": broker.server.url, "stream": broker.filled(3), "startingOffsets": "earliest"}
    rows = fresh.readStream.format("nats").options(**options).load()
    query = rows.writeStream.format("noop").trigger(availableNow=True).start()
    assert query.awaitTermination(SECONDS)
    assert query.lastProgress.numInputRows == 3
    assert variables().keys() == before.keys()
    assert variables() != before
    assert "SPARK_BUFFER_SIZE" not in session.sparkContext.environment


def test_available_now_reads_the_same_rows_as_a_table(broker, run_query, table):
    one, other = sorted((broker.add(), broker.add()))
    broker.fill(one, 200, subject="a.{}")
    broker.fill(other, 100, subject="a.{}")
    broker.delete(one, 5, 6, 199, 200)
    query = run_query(f"{one},{other}", maxMessagesPerTrigger=60, minPartitions=2)
    rows = table(f"{one},{other}").select("stream", "sequence").collect()
    assert run_query.written() == sorted((row.stream, row.sequence) for row in rows)
    assert len(run_query.written()) == 296
    progress = [json.loads(item.json) for item in query.recentProgress]
    counts = [item["numInputRows"] for item in progress if item["numInputRows"]]
    if limits is None:
        assert counts == [296]
        return
    assert max(counts) <= 60
    assert len(counts) == 5
    (last,) = progress[-1]["sources"]
    assert last["endOffset"] == last["latestOffset"]
    assert {name: part["sequence"] for name, part in last["endOffset"].items()} == {one: 200, other: 100}
    lags = [stream_lag(item) for item in query.recentProgress if item["numInputRows"]]
    assert [sum(lag.values()) for lag in lags] == [240, 180, 120, 60, 0]
    assert lags[-1] == {one: 0, other: 0}


def test_a_deduplicated_stream_is_read_once(broker, session):
    stream = broker.add()
    headers = {"ce-specversion": "1.0", "ce-source": "/s", "ce-type": "t"}
    for number in range(20):
        event = {**headers, "ce-id": str(number % 10)} if number < 15 else {}
        broker.run(broker.js.publish(stream, b"", headers=event or None))
    given = {"url": broker.server.url, "stream": stream, "startingOffsets": "earliest"}
    events = explode_cloudevents(session.readStream.format("nats").options(**given).load())
    query = deduplicate(events, within="1 hour").writeStream.format("memory").queryName(stream)
    query = query.trigger(availableNow=True).start()
    assert query.awaitTermination(SECONDS)
    assert sum(progress.numInputRows for progress in query.recentProgress) == 20
    found = sorted(str(row.ce_id) for row in session.table(stream).collect())
    assert found == sorted([*map(str, range(10)), *["None"] * 5])


def test_a_restart_continues_at_the_checkpoint(broker, run_query):
    """The starting position of the options is then ignored."""
    stream = broker.filled(10)
    run_query(stream)
    broker.fill(stream, 10)
    run_query(stream, startingOffsets="latest")
    assert run_query.written() == [(stream, number) for number in range(1, 21)]
    offsets = sorted((run_query.checkpoint / "offsets").glob("[0-9]*"))
    assert [json.loads(path.read_text().splitlines()[-1])[stream]["sequence"] for path in offsets] == [10, 20]


def test_an_edited_checkpoint_stops_the_query_with_a_clear_error(broker, run_query):
    stream = broker.filled(10)
    run_query(stream)
    offsets = run_query.checkpoint / "offsets"
    (path,) = offsets.glob("[0-9]*")
    path.write_text(path.read_text().replace('"sequence"', '"0"'))
    (offsets / f".{path.name}.crc").unlink()
    with pytest.raises(Exception, match="invalid-message: the offset in the checkpoint must have the sequence"):
        run_query(stream)
    assert run_query.written() == [(stream, number) for number in range(1, 11)]


@needs_limits
def test_a_failed_batch_is_read_again(broker, run_query):
    stream = broker.filled(30)
    seen = []

    def each(rows, number):
        found = sorted(row.sequence for row in rows.select("sequence").collect())
        seen.append((number, found))
        if len(seen) == 2:
            raise RuntimeError("the second batch fails")

    with pytest.raises(Exception, match="the second batch fails"):
        run_query(stream, each=each, maxMessagesPerTrigger=10)
    broker.fill(stream, 5)
    run_query(stream, each=each, maxMessagesPerTrigger=10)
    batches = [list(range(1, 11)), list(range(11, 21)), list(range(11, 21)), list(range(21, 31)), list(range(31, 36))]
    assert [found for _, found in seen] == batches
    assert [number for number, _ in seen] == [0, 1, 1, 2, 3]


@needs_limits
def test_a_loss_between_two_runs_stops_the_query(broker, run_query):
    """With failOnDataLoss=false it continues, also if a stream was created again or deleted."""
    streams = purged, renewed, deleted = sorted(broker.add() for _ in range(3))
    for stream in streams:
        broker.fill(stream, 10)
    names = ",".join(streams)
    run_query(names)
    broker.fill(purged, 10)
    broker.purge(purged, seq=15)
    with pytest.raises(Exception, match=f"stream {purged}: messages 11 to 14 are gone"):
        run_query(names)
    broker.create_again(renewed)
    broker.fill(renewed, 12)
    broker.run(broker.js.delete_stream(deleted))
    run_query(names, failOnDataLoss="false")
    broker.run(broker.js.add_stream(name=deleted, subjects=[deleted, f"{deleted}.>"], storage="memory"))
    broker.fill(deleted, 2)
    run_query(names, failOnDataLoss="false")
    read = {purged: [*range(1, 11), *range(15, 21)], renewed: [*range(1, 11), *range(1, 13)]}
    read[deleted] = [*range(1, 11), 1, 2]
    assert run_query.written() == sorted((stream, number) for stream in streams for number in read[stream])


@pytest.mark.long
@needs_limits
def test_a_stream_that_is_not_in_the_options_of_one_run_is_resumed_in_the_next(broker, run_query):
    one, other = broker.both(3, 3)
    run_query(f"{one},{other}")
    broker.fill(one, 2)
    broker.fill(other, 2)
    run_query(one)
    broker.fill(one, 1)
    run_query(f"{one},{other}")
    assert run_query.written() == [
        *((one, number) for number in range(1, 7)),
        *((other, number) for number in range(1, 6)),
    ]


def test_available_now_does_not_wait_for_the_minimum(broker, run_query):
    """It reads all messages, in micro-batches with the maximum number of bytes."""
    stream = broker.filled(20, payload=bytes(1_000))
    query = run_query(stream, minMessagesPerTrigger="1000", maxBytesPerTrigger="12000")
    assert run_query.written() == [(stream, number) for number in range(1, 21)]
    assert stream_lag(query.lastProgress) == {stream: 0}
    if limits is not None:
        assert len(query.recentProgress) >= 2


@needs_limits
def test_a_running_query_finds_new_streams_and_reports_its_lag(broker, session, tmp_path):
    """Two messages wait for a third, of another stream. The lag is that after the micro-batch."""
    prefix = "P" + uuid4().hex
    one = broker.add(f"{prefix}_1")
    broker.fill(one, 3)
    reported = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event):  # noqa: N802
            pass

        def onQueryProgress(self, event):  # noqa: N802
            reported.append((stream_lag(event.progress), stream_lag(event.progress.json)))

        def onQueryIdle(self, event):  # noqa: N802
            pass

        def onQueryTerminated(self, event):  # noqa: N802
            pass

    batches = []

    def write(rows, number):
        batches.append(sorted((row.stream, row.sequence) for row in rows.select("stream", "sequence").collect()))
        if len(batches) == 1:
            broker.fill(one, 2)

    options = {"streamPattern": f"{prefix}_.*", "startingOffsets": "earliest", "minMessagesPerTrigger": "3"}
    rows = session.readStream.format("nats").options(url=broker.server.url, **options).load()
    session.streams.addListener(listener := Listener())
    query = rows.writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(write).start()
    try:
        wait_until(lambda: reported)
        assert batches == [[(one, 1), (one, 2), (one, 3)]]
        other = broker.add(f"{prefix}_2")
        broker.fill(other, 1)
        wait_until(lambda: len(reported) > 1)
        assert batches[1:] == [[(one, 4), (one, 5), (other, 1)]]
        assert reported == [({one: 0}, {one: 0}), ({one: 0, other: 0}, {one: 0, other: 0})]
        assert stream_lag(query.lastProgress) == {one: 0, other: 0}
    finally:
        query.stop()
        session.streams.removeListener(listener)


def test_a_running_query_reads_new_messages(broker, session):
    stream = broker.add()
    rows = session.readStream.format("nats").options(url=broker.server.url, stream=stream).load()
    query = rows.writeStream.format("memory").queryName(stream).start()
    try:
        # The query starts after the last message at this time, so publish only when it has started.
        for _ in range(20 * SECONDS):
            if query.lastProgress is not None:
                break
            time.sleep(0.05)
        for part in range(1, 4):
            broker.fill(stream, 20)
            end = time.monotonic() + SECONDS
            while session.table(stream).count() < 20 * part and time.monotonic() < end:
                time.sleep(0.05)
            assert sorted(row.sequence for row in session.table(stream).collect()) == list(range(1, 20 * part + 1))
        assert broker.state(stream).consumer_count == 0
    finally:
        query.stop()


# --- The module ------------------------------------------------------------------------------------------------------


def test_importing_the_source_does_not_import_nats():
    """The driver may have only Spark; workers import nats-py when they read."""
    code = (
        "import ce_nats.spark.connector._source, sys; "
        "sys.exit('nats' in sys.modules or 'asyncio.events' not in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=SECONDS).returncode == 0


def test_a_placeholder_partition_has_no_rows(broker):
    """Spark reads a placeholder if a reader returns no partitions."""
    for placeholder in (InputPartition(None), None):
        assert list(reader(broker, "A").read(placeholder)) == []
