"""Writing rows to NATS, with a real server and a real Spark."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import nats
import pyarrow as pa
import pytest
from cloudevents.core.v1.event import CloudEvent
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType, MapType, StringType, StructType

from ce_nats import ContentMode, EncodeError, Timestamp, from_nats_message, to_nats_message
from ce_nats.spark import cloudevent, from_nats, to_nats
from ce_nats.spark.columns._arrow_functions import HAS_ARROW_FUNCTIONS
from ce_nats.spark.connector._source import NatsDataSource, register
from ce_nats.testing import NatsServer

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

STREAM: dict[str, Any] = {"name": "OUT", "subjects": ["out.>"], "duplicate_window": 3600}
ROW = "subject string, headers array<struct<key string, value string>>, data binary"


@pytest.fixture(scope="module")
def running() -> Iterator[NatsServer]:
    with NatsServer(jetstream=True) as server:
        yield server


@pytest.fixture
def server(running: NatsServer) -> Iterator[NatsServer]:
    """A server with an empty stream OUT."""
    run(running, lambda js: js.add_stream(**STREAM))
    yield running
    run(running, lambda js: js.delete_stream("OUT"))


@pytest.fixture(autouse=True)
def source(spark: SparkSession) -> None:
    register(spark)


def run(server: NatsServer, call: Any) -> Any:
    async def connected() -> Any:
        nc = await nats.connect(server.url)
        try:
            return await call(nc.jetstream())
        finally:
            await nc.close()

    return asyncio.run(connected())


def stored(server: NatsServer) -> list[Any]:
    """All messages of the stream, as nats-py returns them."""

    async def read(js: Any) -> list[Any]:
        last = (await js.stream_info("OUT")).state.last_seq
        return [await js.get_msg("OUT", seq=number) for number in range(1, last + 1)]

    return run(server, read)


def rows_of(events: list[CloudEvent], mode: ContentMode = ContentMode.BINARY) -> list[tuple[Any, ...]]:
    messages = [to_nats_message(event, f"out.{number}", mode=mode) for number, event in enumerate(events)]
    return [(message.subject, message.headers.items(), bytearray(message.data)) for message in messages]


def events(count: int) -> list[CloudEvent]:
    return [
        CloudEvent({"id": f"{number}", "source": "/s", "type": "t", "subject": "Zürich 😀"}, {"number": number})
        for number in range(count)
    ]


def write(frame: DataFrame, server: NatsServer, **options: str) -> None:
    writer = frame.write.format("nats").mode("append").option("url", server.url)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save()


@pytest.mark.parametrize("mode", list(ContentMode))
def test_events_are_stored_unchanged(spark: SparkSession, server: NatsServer, mode: ContentMode) -> None:
    sent = events(50)
    write(spark.createDataFrame(rows_of(sent, mode), ROW).repartition(3), server)
    found = {message.subject: message for message in stored(server)}
    assert len(found) == 50
    for number, event in enumerate(sent):
        decoded = from_nats_message(found[f"out.{number}"])
        assert decoded.get_data() == event.get_data()
        assert {**decoded.get_attributes(), "time": None} == {
            **event.get_attributes(),
            "time": None,
            "datacontenttype": "application/json",
        }
        assert found[f"out.{number}"].headers["Nats-Msg-Id"] == f"/s|{number}"


def test_resent_events_are_stored_once(spark: SparkSession, server: NatsServer) -> None:
    frame = spark.createDataFrame(rows_of(events(300)), ROW)
    write(frame, server)
    write(frame, server, maxPending="7")
    assert run(server, lambda js: js.stream_info("OUT")).state.messages == 300


def test_resent_events_are_stored_again_without_dedup(spark: SparkSession, server: NatsServer) -> None:
    frame = spark.createDataFrame(rows_of(events(3)), ROW)
    write(frame, server, dedup="false")
    write(frame, server, dedup="false")
    assert run(server, lambda js: js.stream_info("OUT")).state.messages == 6


def test_a_repeated_task_stores_no_row_twice(server: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    """Rows without an id: equal rows are different messages, and rows in another order are stored again, not lost."""
    columns = {"subject": ["out.a", "out.a", "out.b"], "data": [b"x", b"x", b"y"]}
    batch = pa.record_batch(columns)
    schema = StructType().add("subject", StringType()).add("data", BinaryType())

    def writer() -> Any:
        return NatsDataSource({"url": server.url}).writer(schema, overwrite=False)

    first = writer()
    caplog.set_level("INFO", "ce_nats")
    for attempt in [batch], [batch.slice(0, 1), batch.slice(1)]:
        first.commit([first.write(iter(attempt)), None])
    assert [(message.subject, message.data) for message in stored(server)] == [*zip(*columns.values())]
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "sink: 3 messages were stored",
        "sink: 0 messages were stored",
    ]
    first.write(iter([batch.take([2, 1, 0])]))
    assert sorted(message.data for message in stored(server)) == [b"x", b"x", b"x", b"y", b"y"]
    writer().write(iter([batch]))
    assert len(stored(server)) == 8


def test_other_columns(spark: SparkSession, server: NatsServer) -> None:
    """Headers in a map, data as STRING, no headers, and the subject from an option."""
    write(spark.sql("select map('a', 'b') headers, 'ü' data"), server, subject="out.map", dedup="false")
    write(spark.sql("select 'out.bare' subject, cast(null as binary) data"), server, dedup="false")
    first, second = stored(server)
    assert (first.subject, first.headers, first.data) == ("out.map", {"a": "b"}, "ü".encode())
    assert (second.subject, second.headers, second.data) == ("out.bare", None, None)


EVENT_HEADERS = {"ce-specversion": "1.0", "ce-id": "a", "ce-source": "/s", "ce-type": "t"}


@pytest.mark.parametrize("further", [{}, {"ce-subject": "Z%C3%BCrich"}, {"CE-Subject": "100%25", "Tag": "a 1%"}])
def test_a_map_of_encoded_headers_is_sent_unchanged(
    spark: SparkSession, server: NatsServer, further: dict[str, str]
) -> None:
    headers = {**EVENT_HEADERS, **further}
    schema = "headers map<string,string>, data string"
    write(spark.createDataFrame([(headers, "x")], schema), server, subject="out.map", dedup="false")
    (message,) = stored(server)
    assert message.headers == headers


@pytest.mark.parametrize(
    ("further", "reason"),
    [
        ({"ce-subject": "Zürich"}, "invalid-header-value.*header ce-subject in a map must be percent-encoded"),
        ({"ce-subject": "a b"}, "must be percent-encoded, got 'a b'; write a column event"),
        ({"ce-subject": "100%"}, "must be percent-encoded, got '100%'"),
        ({"CE-Subject": '"a"'}, "must be percent-encoded"),
        ({"ce-subject": "%C0%A0"}, "invalid-utf8.*must be that of an event"),
        ({"ce-id": ""}, "empty-attribute.*must be that of an event"),
        ({"CE-ID": "a"}, "duplicate-attribute"),
        ({"ce-a-b": "c"}, "invalid-attribute-name"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"dedup": "false"}], ids=["default", "no-dedup"])
def test_a_map_of_headers_that_are_not_encoded_is_rejected(
    server: NatsServer, further: dict[str, str], reason: str, options: dict[str, str]
) -> None:
    headers = pa.array([[*{**EVENT_HEADERS, **further}.items()]], pa.map_(pa.string(), pa.string()))
    schema = StructType().add("headers", MapType(StringType(), StringType()))
    writer = NatsDataSource({"url": server.url, "subject": "out.map", **options}).writer(schema, overwrite=False)
    with pytest.raises(EncodeError, match=reason):
        writer.write(iter([pa.record_batch({"headers": headers})]))
    assert stored(server) == []


def test_an_array_of_headers_is_sent_unchanged(spark: SparkSession, server: NatsServer) -> None:
    """Messages that were read can be written, whether valid or not."""
    pairs = [("ce-id", "a 100%"), ("ce-a-b", "c")]
    write(spark.createDataFrame([("out.x", pairs, bytearray(b"x"))], ROW), server, dedup="false")
    (message,) = stored(server)
    assert message.headers == dict(pairs)


def test_rows_obey_no_instructions(spark: SparkSession, server: NatsServer) -> None:
    """A copy with Nats-Rollup would delete the other messages of the stream; on request it does."""

    async def fill(js: Any) -> None:
        await js.update_stream(**STREAM, allow_rollup_hdrs=True)
        for number in range(5):
            await js.publish("out.a", b"%d" % number)

    run(server, fill)
    rows = [
        ("out.b", [("a", "1"), ("Nats-Rollup", "all")], bytearray(b"copy")),
        ("out.b", [("Nats-Marker-Reason", "MaxAge")], bytearray(b"")),
    ]
    frame = spark.createDataFrame(rows, ROW)
    write(frame, server, dedup="false")
    found = stored(server)
    assert [message.data for message in found] == [*(b"%d" % number for number in range(5)), b"copy"]
    assert found[-1].headers == {"a": "1"}
    write(frame, server, keepInstructions="true")
    assert run(server, lambda js: js.stream_info("OUT")).state.messages == 1


def test_content_mode_is_case_insensitive(spark: SparkSession, server: NatsServer) -> None:
    write(spark.sql(EVENT_ROWS.format(data="X'78'")), server, contentMode="Structured")
    (message,) = stored(server)
    assert message.headers["Content-Type"] == "application/cloudevents+json"


def test_duplicated_headers_are_kept(spark: SparkSession, server: NatsServer) -> None:
    pairs = [("a", "1"), ("A", "2"), ("a", "3")]
    write(spark.createDataFrame([("out.x", pairs, None)], ROW), server, dedup="false")
    options = {"url": server.url, "stream": "OUT"}
    (row,) = spark.read.format("nats").options(**options).load().collect()
    assert [tuple(header) for header in row["headers"]] == pairs


EVENT_ROWS = """
    select 'out.a' subject, named_struct(
        'attributes', named_struct('specversion', '1.0', 'id', 'a', 'source', '/s', 'type', 't', 'subject', 'Zürich 😀',
            'time', timestamp'2020-01-02 03:04:05.5Z', 'n', 5),
        'extensions', map('note', 'a b'),
        'data', {data}) event
"""
EVENT_ATTRIBUTES = {
    "specversion": "1.0",
    "id": "a",
    "source": "/s",
    "type": "t",
    "subject": "Zürich 😀",
    "time": Timestamp("2020-01-02T03:04:05.500000Z"),
    "n": 5,
    "note": "a b",
}


@pytest.mark.parametrize("mode", list(ContentMode))
@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("X'ff'", b"\xff"),
        ("""'"ü"'""", "ü"),
        ("to_json(named_struct('total', 12.50BD))", {"total": 12.5}),
        ("""parse_json('{"a": [1.5, null]}')""", {"a": [1.5, None]}),
    ],
    ids=["bytes", "string", "json-text", "variant"],
)
def test_event_structs_are_encoded(
    spark: SparkSession, server: NatsServer, mode: ContentMode, data: str, value: Any
) -> None:
    frame = spark.sql(EVENT_ROWS.format(data=data))
    write(frame, server, contentMode=str(mode))
    (message,) = stored(server)
    event = from_nats_message(message, extension_types={"n": int})
    implied = {} if isinstance(value, bytes) else {"datacontenttype": "application/json"}
    assert event.get_attributes() == {**EVENT_ATTRIBUTES, **implied}
    assert event.get_data() == value
    assert message.headers.pop("Nats-Msg-Id") == "/s|a"
    if not HAS_ARROW_FUNCTIONS:
        return
    kind = frame.schema["event"].dataType
    (row,) = frame.select(to_nats(F.col("event"), content_mode=str(mode), event_type=kind).alias("m")).collect()
    assert message.headers == {header["key"]: header["value"] for header in row["m"]["headers"]}
    assert message.data == bytes(row["m"]["data"])


def test_rows_become_events(spark: SparkSession, server: NatsServer) -> None:
    """Further columns are ignored, and names of columns are case-insensitive."""
    rows = spark.sql("select 7L id, struct(1.50BD total, null none) order, 'x' data, 'y' `key`, 'out.a' Subject")
    event = cloudevent(
        id=F.col("id").cast("string"),
        source=F.lit("/shop"),
        type=F.lit("paid"),
        data="order",
        subject=F.lit("order 7"),
        extensions={"n": F.lit(5)},
    )
    write(rows.withColumn("EVENT", event), server)
    (message,) = stored(server)
    assert message.subject == "out.a"
    assert message.headers == {
        "ce-specversion": "1.0",
        "ce-id": "7",
        "ce-source": "/shop",
        "ce-type": "paid",
        "ce-subject": "order%207",
        "ce-n": "5",
        "ce-datacontenttype": "application/json",
        "Nats-Msg-Id": "/shop|7",
    }
    assert message.data == b'{"total":1.50}'


@pytest.mark.parametrize(
    "headers",
    [
        "array(struct('a' key, cast('ü' as binary) value), struct('b' key, X'31' value))",
        "array(struct(X'61' key, cast('ü' as binary) value), struct(X'62' key, X'31' value))",
        "map('a', cast('ü' as binary), 'b', X'31')",
        "map(X'61', 'ü', X'62', '1')",
    ],
)
def test_headers_in_binary(spark: SparkSession, server: NatsServer, headers: str) -> None:
    write(spark.sql(f"select 'out.a' subject, {headers} headers"), server, dedup="false")
    (row,) = spark.read.format("nats").options(url=server.url, stream="OUT").load().collect()
    assert [tuple(header) for header in row["headers"]] == [("a", "ü"), ("b", "1")]


def test_option_subject_may_be_a_template(spark: SparkSession, server: NatsServer) -> None:
    """As on the command line. A column is not a template, and its braces are rejected when an event is encoded."""
    row = "struct(struct('1.0' specversion, '{id}' id, '/s' source, 't' type) attributes, X'00' data) event"
    write(spark.sql(f"select {row}"), server, subject="out.{type}")
    assert [message.subject for message in stored(server)] == ["out.t"]
    with pytest.raises(Exception, match="use SubjectTemplate to fill in attributes"):
        write(spark.sql(f"select 'out.{{type}}' subject, {row}"), server)
    write(spark.sql("select 'out.{type}' subject, 'a copied message' data"), server)
    assert [message.subject for message in stored(server)] == ["out.t", "out.{type}"]


def test_decoded_events_can_be_written(spark: SparkSession, server: NatsServer) -> None:
    """Messages are read, decoded by from_nats, and their events written to other subjects of the same stream."""
    write(spark.createDataFrame(rows_of(events(20), ContentMode.STRUCTURED), ROW), server)
    read = spark.read.format("nats").options(url=server.url, stream="OUT").load()
    again = read.select(
        F.concat(F.lit("out.again."), "subject").alias("subject"),
        from_nats(F.col("headers"), F.col("data")).alias("event"),
    )
    write(again, server, dedup="false")
    found = stored(server)
    assert len(found) == 40
    decoded = [from_nats_message(message) for message in found]
    by_id = {event.get_id(): event for event in decoded[:20]}
    assert all(by_id[event.get_id()] == event for event in decoded[20:])
    assert all("Nats-Msg-Id" not in message.headers for message in found[20:])


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ("named_struct('attributes', named_struct('id', 'a'))", "missing-attribute"),
        (
            "named_struct('attributes', named_struct('specversion', '1.0', 'id', 'a', 'source', '/s', 'type', 't'),"
            " 'data', 'no JSON')",
            "invalid-data: the data must be valid JSON text, got 'no JSON'",
        ),
    ],
)
def test_events_that_cannot_be_encoded_fail_with_their_code(
    spark: SparkSession, server: NatsServer, event: str, reason: str
) -> None:
    with pytest.raises(Exception, match=reason):
        write(spark.sql(f"select 'out.a' subject, {event} event"), server)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (("nowhere.a", [], bytearray()), "nowhere.a: no stream listens"),
        (("out.a", [("a", "b" * 70_000)], bytearray()), "headers-too-large"),
        (("out.a", [], bytearray(2 * 2**20)), "payload-too-large"),
    ],
    ids=["no-stream", "headers", "payload"],
)
def test_messages_that_cannot_be_sent_fail_with_the_reason(
    spark: SparkSession, server: NatsServer, row: tuple[Any, ...], reason: str
) -> None:
    with pytest.raises(Exception, match=reason):
        write(spark.createDataFrame([row], ROW), server)


@pytest.mark.parametrize(
    ("query", "options", "reason"),
    [
        ("select 'a' subject, 1 data", {}, "column data must be BINARY or STRING, got int"),
        ("select 'a' subject, array(1) headers", {}, "column headers must be ARRAY<"),
        ("select 'a' subject, 'b' reply", {}, "rows must have event, .*; got columns subject, reply"),
        ("select 'a' subject, 'b' payload", {}, "rows must have event, .*; got columns subject, payload"),
        ("select 'a' subject", {}, "rows must have event, .*; got columns subject"),
        ("select 'a' subject, map('a', 'b') headers, 'b' Value", {}, "column Value must be named data, or be dropped"),
        (
            "select 'a' subject, map('a', 'b') header, 'b' data",
            {},
            "column header must be named headers, or be dropped",
        ),
        ("select 'a' topic, 'b' data", {}, "column topic must be named subject"),
        ("select 'a' Subject, 'b' SUBJECT, 'b' data", {}, "rows must have one column subject, got Subject, SUBJECT"),
        ("select 'a' subject, 'paid' event", {}, "an event must be struct<.*, got string; ce_nats.spark.cloudevent"),
        (
            "select 'a' subject, struct(struct(1 id) attributes) event",
            {},
            r"attribute id must be string, got int; convert it with cast\('string'\)",
        ),
        (
            "select 'a' subject, struct(struct('1' id) attributes, struct(1 a) data) event",
            {},
            r"data of an event must be .*, got struct<a:int>; convert it with to_json\(\), or make the event with",
        ),
        ("select 'a' subject, map('a', 1) headers", {}, "or the same with BINARY, got map<string,int>"),
        (
            "select 'a' subject, struct(struct('a' id) attributes) event",
            {"contentMode": "json"},
            "option contentMode must be 'binary' or 'structured', got 'json'",
        ),
        ("select 'a' subject, 'b' data", {"contentMode": "binary"}, "contentMode is for rows with a column event"),
        ("select 'a' data", {}, "the subject is missing"),
        ("select 'a' data", {"subject": "out.{type}"}, "option subject must have no placeholders"),
        ("select 'a' data", {"subject": "out.{"}, "a subject template must be like"),
        ("select 'a' subject, '' data", {"maxPending": "0"}, "maxPending must be an integer from 1"),
        ("select 'a' subject, '' data", {"maxpendings": "1"}, "did you mean maxPending"),
        ("select 'a' subject, '' data", {"dedup": "maybe"}, "option dedup must be"),
    ],
)
def test_invalid_columns_and_options(
    spark: SparkSession, server: NatsServer, query: str, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(Exception, match=reason):
        write(spark.sql(query), server, **options)


def test_overwriting_is_rejected(spark: SparkSession, server: NatsServer) -> None:
    writer = spark.sql("select 'a' subject, '' data").write.format("nats").mode("overwrite").option("url", server.url)
    with pytest.raises(Exception, match="mode must be append"):
        writer.save()


def write_stream(frame: DataFrame, server: NatsServer, checkpoint: Path) -> StreamingQuery:
    """Write the rows that a stream has, and return the query, which has ended."""
    writer = frame.writeStream.format("nats").option("url", server.url).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    assert query.exception() is None
    return query


def test_a_streaming_query_and_its_restart(spark: SparkSession, server: NatsServer, tmp_path: Path) -> None:
    """A query from files to a stream continues at its checkpoint after a restart, and stores no duplicates."""

    def write_new_files() -> None:
        frame = spark.readStream.schema(ROW).parquet(str(tmp_path / "in"))
        write_stream(frame, server, tmp_path / "checkpoint")

    all_rows = rows_of(events(60))
    spark.createDataFrame(all_rows[:40], ROW).write.parquet(str(tmp_path / "in"))
    write_new_files()
    spark.createDataFrame(all_rows[40:], ROW).write.mode("append").parquet(str(tmp_path / "in"))
    write_new_files()
    found = [message.headers["ce-id"] for message in stored(server)]
    assert sorted(found, key=int) == [str(number) for number in range(60)]


def test_a_repeated_micro_batch_stores_no_row_twice(spark: SparkSession, server: NatsServer, tmp_path: Path) -> None:
    """As after a crash of the driver before the commit. The rows are not events."""
    spark.sql("select 'out.a' subject, 'x' data from range(20)").write.parquet(str(tmp_path / "in"))
    for _ in range(2):
        frame = spark.readStream.schema("subject string, data string").parquet(str(tmp_path / "in"))
        query = write_stream(frame, server, tmp_path / "checkpoint")
        assert query.lastProgress.numInputRows == 20
        assert run(server, lambda js: js.stream_info("OUT")).state.messages == 20
        for commit in (tmp_path / "checkpoint" / "commits").iterdir():
            commit.unlink()


def test_secrets_are_not_disclosed(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Plans, errors, the output of workers, and the progress and checkpoint of a query do not contain them."""
    secret = "S3cr3t" + uuid4().hex
    texts = []
    with NatsServer(jetstream=True, config=f"authorization {{ user: alice, password: {secret} }}") as server:
        url = f"nats://alice:{secret}@127.0.0.1:{server.port}"

        async def make() -> None:
            nc = await nats.connect(url)
            await nc.jetstream().add_stream(name="OUT", subjects=["out.>"], storage="memory", duplicate_window=60)
            await nc.close()

        asyncio.run(make())
        spark.createDataFrame(rows_of(events(3)), ROW).write.parquet(str(tmp_path / "in"))
        frame = spark.read.parquet(str(tmp_path / "in"))
        frame.write.format("nats").mode("append").option("url", url).save()
        query = (
            spark.readStream.schema(ROW)
            .parquet(str(tmp_path / "in"))
            .writeStream.format("nats")
            .options(url=f"127.0.0.1:{server.port}", user="alice", password=secret)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        query.explain(extended=True)
        texts += [progress.json for progress in query.recentProgress]
        for bad in (f"nats://alice:{secret}x@127.0.0.1:{server.port}", f"nats://alice:{secret}@127.0.0.1:1"):
            with pytest.raises(Exception, match="cannot connect") as info:
                frame.write.format("nats").mode("append").options(url=bad, retryTimeout="0.2").save()
            texts.append(str(info.value))
        with pytest.raises(Exception, match="nowhere: no stream listens") as info:
            frame.select("headers").write.format("nats").mode("append").options(url=url, subject="nowhere").save()
        texts.append(str(info.value))
    texts += [path.read_text("utf-8", "replace") for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    texts += capfd.readouterr()
    assert "numInputRows" in "".join(texts)
    assert secret not in "".join(texts)


def until_stored(server: NatsServer, count: int) -> None:
    async def wait(js: Any) -> None:
        for _ in range(30_000):
            if (await js.stream_info("OUT")).state.messages >= count:
                return
            await asyncio.sleep(0.01)
        pytest.fail(f"the stream has fewer than {count} messages")

    run(server, wait)


@pytest.fixture
def killed() -> Iterator[NatsServer]:
    with NatsServer(jetstream=True) as server:
        run(server, lambda js: js.add_stream(**STREAM))
        yield server


@pytest.mark.faults
def test_the_server_is_killed_during_a_write(spark: SparkSession, killed: NatsServer) -> None:
    """The server is restarted, and every event is in the stream once."""
    server = killed
    rows = rows_of(events(6000))
    frame = spark.createDataFrame(rows, ROW).repartition(2)

    kills = []

    def kill_and_restart() -> None:
        for part in range(1, 4):
            until_stored(server, part * 1500)
            server.kill()
            kills.append(part)
            server.start()

    thread = threading.Thread(target=kill_and_restart)
    thread.start()
    write(frame, server, maxPending="50", requestTimeout="2")
    thread.join()
    assert len(kills) == 3
    state = run(server, lambda js: js.stream_info("OUT", subjects_filter=">")).state
    assert (state.messages, len(state.subjects)) == (6000, 6000)
