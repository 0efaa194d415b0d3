"""``USING nats`` in Spark SQL: views and tables, with a real server."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import nats
import pytest
from pyspark.sql import DataFrame, SparkSession

from ce_nats import from_nats_message
from ce_nats.spark import register
from ce_nats.spark.connector._blocking import Blocking
from ce_nats.testing import NatsServer

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer(jetstream=True) as server, Blocking() as blocking:
        nc = blocking.run(nats.connect(server.url))
        blocking.run(nc.jetstream().add_stream(name="SQL", subjects=["sql.>"], storage="memory"))
        blocking.run(nc.close())
        yield server


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


@pytest.fixture
def name(session: SparkSession) -> Iterator[str]:
    """Name of a table or view that is dropped after the test."""
    name = "t" + uuid4().hex
    yield name
    session.catalog.dropTempView(name)
    session.sql(f"DROP TABLE IF EXISTS {name}")


def stored(session: SparkSession, server: NatsServer, subject: str) -> DataFrame:
    options = {"url": server.url, "stream": "SQL", "subjects": subject}
    return session.read.format("nats").options(**options).load()


def test_a_view_that_is_created_again_has_later_messages(session: SparkSession, server: NatsServer, name: str) -> None:
    """Spark 4.3 keeps the plan of a view, and that of a DataFrame; Spark 4.0 does not."""
    view = f"TEMPORARY VIEW {name} USING nats OPTIONS (url '{server.url}', stream 'SQL', subjects 'sql.view')"
    count = f"SELECT count(*) AS messages FROM {name}"
    session.sql(f"CREATE {view}")
    assert session.sql(count).first()["messages"] == 0
    message = session.sql("SELECT 'sql.view' AS subject, '' AS data")
    message.write.format("nats").mode("append").option("url", server.url).save()
    session.sql(f"CREATE OR REPLACE {view}")
    assert session.sql(count).first()["messages"] == 1


def test_messages_are_inserted_into_a_view(session: SparkSession, server: NatsServer, name: str) -> None:
    columns = "subject STRING, headers ARRAY<STRUCT<key STRING, value STRING>>, data STRING"
    session.sql(f"CREATE TEMPORARY VIEW {name} ({columns}) USING nats OPTIONS (url '{server.url}', dedup 'false')")
    session.sql(f"INSERT INTO {name} VALUES ('sql.m.1', array(struct('Tag', 'a')), 'one'), ('sql.m.2', NULL, 'two')")
    session.sql(f"INSERT INTO {name} (data, headers, subject) SELECT 'three', NULL, 'sql.m.3'")
    rows = stored(session, server, "sql.m.*").orderBy("subject").collect()
    assert [(row.subject, bytes(row.data)) for row in rows] == [
        ("sql.m.1", b"one"),
        ("sql.m.2", b"two"),
        ("sql.m.3", b"three"),
    ]
    assert [tuple(header) for header in rows[0].headers] == [("Tag", "a")]


def test_events_are_inserted_into_a_view(session: SparkSession, server: NatsServer, name: str) -> None:
    attributes = "specversion STRING, id STRING, source STRING, type STRING"
    event = f"STRUCT<attributes: STRUCT<{attributes.replace(' ', ': ').replace(',:', ',')}>, data: BINARY>"
    options = f"url '{server.url}', subject 'sql.events', contentMode 'structured'"
    session.sql(f"CREATE TEMPORARY VIEW {name} (event {event}) USING nats OPTIONS ({options})")
    values = "named_struct('specversion', '1.0', 'id', id, 'source', '/sql', 'type', 't')"
    rows = "VALUES ('a'), ('b') AS given(id)"
    session.sql(f"INSERT INTO {name} SELECT named_struct('attributes', {values}, 'data', X'78') FROM {rows}")
    found = stored(session, server, "sql.events").collect()
    events = [from_nats_message(_Message(row.headers, bytes(row.data))) for row in found]
    assert sorted((event.get_id(), event.get_data()) for event in events) == [("a", b"x"), ("b", b"x")]


class _Message:
    def __init__(self, headers: list[tuple[str, str]], data: bytes) -> None:
        self.headers = [tuple(header) for header in headers]
        self.data = data


def test_a_table_takes_its_options_from_each_query(session: SparkSession, server: NatsServer, name: str) -> None:
    session.sql(f"CREATE TABLE {name} (subject STRING, data STRING) USING nats")
    session.sql(f"INSERT INTO {name} WITH (url '{server.url}') VALUES ('sql.table', 'x')")
    assert stored(session, server, "sql.table").count() == 1
    session.sql(f"DROP TABLE {name}")
    session.sql(f"CREATE TABLE {name} USING nats")
    query = f"SELECT data FROM {name} WITH (url '{server.url}', stream 'SQL', subjects 'sql.table')"
    assert [bytes(row.data) for row in session.sql(query).collect()] == [b"x"]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TEMPORARY VIEW {name} USING nats",
        "CREATE TEMPORARY VIEW {name} USING nats OPTIONS (stream 'SQL')",
    ],
)
def test_a_view_without_a_url_is_rejected(session: SparkSession, name: str, statement: str) -> None:
    with pytest.raises(Exception, match="option url is missing"):
        session.sql(statement.format(name=name))


@pytest.mark.parametrize("options", ["url 'nats://127.0.0.1:1', stream 'SQL'", "stream 'SQL'"])
def test_options_of_a_table_are_rejected(session: SparkSession, name: str, options: str) -> None:
    """Spark does not pass them to the data source when the table is used."""
    with pytest.raises(Exception, match=r"table of format nats must be created without OPTIONS: .* TEMPORARY VIEW"):
        session.sql(f"CREATE TABLE {name} USING nats OPTIONS ({options})")


@pytest.mark.parametrize("statement", ["SELECT * FROM {name}", "INSERT INTO {name} VALUES ('sql.x', 'x')"])
def test_the_error_without_options_has_the_missing_one(session: SparkSession, name: str, statement: str) -> None:
    """Spark does not request the schema of a table with columns, so its OPTIONS cannot be rejected."""
    session.sql(f"CREATE TABLE {name} (subject STRING, data STRING) USING nats OPTIONS (url 'nats://127.0.0.1:1')")
    with pytest.raises(Exception, match=r"option url is missing.*Spark does not pass the OPTIONS of CREATE TABLE to"):
        session.sql(statement.format(name=name)).collect()
