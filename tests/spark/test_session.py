"""Registration in a session: SQL functions have the results of the Python functions, and the data source is found."""

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ce_nats.spark import _session as session
from ce_nats.spark import from_nats, register, to_nats
from ce_nats.spark.columns._arrow_functions import HAS_ARROW_FUNCTIONS
from ce_nats.spark.connector import _source as source
from ce_nats.spark.connector._source import NatsDataSource
from tests.support.needs import needs_arrow_functions
from tests.support.spark_rows import MESSAGES, ROWS, SCHEMA, chosen, message


def test_sql_functions_give_the_same_columns(spark: SparkSession) -> None:
    register(spark)
    rows = [(case.id, *message(case)) for case in chosen()]
    frame = spark.createDataFrame([(name, pairs, bytearray(data)) for name, pairs, data in rows], SCHEMA)
    frame.createOrReplaceTempView("captured")
    event = from_nats(F.col("headers"), F.col("data"))
    decoded = spark.sql("SELECT ce_nats.from_nats(headers, data) AS event FROM captured ORDER BY id")
    assert decoded.collect() == frame.orderBy("id").select(event.alias("event")).collect()
    decoded.limit(50).createOrReplaceTempView("decoded")
    encoders = (("to_nats", "binary"), ("to_nats_structured", "structured"))
    for function, mode in encoders if HAS_ARROW_FUNCTIONS else ():
        encoded = spark.sql(f"SELECT {function}(event) AS message FROM decoded")
        assert (
            encoded.collect()
            == spark.table("decoded").select(to_nats(F.col("event"), content_mode=mode).alias("message")).collect()
        )
    errors = spark.sql("SELECT ce_nats.from_nats(headers, data).error AS code FROM captured").where("code IS NOT NULL")
    assert errors.distinct().count() > 20


@needs_arrow_functions
def test_sql_functions_have_plain_names(spark: SparkSession) -> None:
    """The names are the same in every session, with the jar or without."""
    register(spark)
    spark.createDataFrame(ROWS, MESSAGES).createOrReplaceTempView("rows_to_decode")
    names = {row.function for row in spark.sql("SHOW USER FUNCTIONS").collect()}
    assert {"from_nats", "to_nats", "to_nats_structured", "cesql"} <= names
    events = "SELECT {} AS event FROM rows_to_decode ORDER BY sequence"
    plain = spark.sql(events.format("from_nats(headers, data)")).collect()
    assert [row.event.error for row in plain] == [None, "invalid-utf8", None]
    assert plain == spark.sql(events.format("ce_nats.from_nats(headers, data)")).collect()
    messages = spark.sql("SELECT to_nats(from_nats(headers, data)) AS message FROM rows_to_decode ORDER BY sequence")
    assert [row.message.error for row in messages.collect()] == [None, "invalid-utf8", None]


@needs_arrow_functions
@pytest.mark.parametrize(
    ("event", "found"),
    [
        ("1", "int"),
        ("NULL", "void"),
        ("named_struct('id', '1')", "struct<id:string>"),
        ("named_struct('attributes', 'a')", "struct<attributes:string>"),
    ],
)
def test_other_columns_than_events_are_rejected_with_the_expected_type(
    spark: SparkSession, event: str, found: str
) -> None:
    register(spark)
    with pytest.raises(PythonException) as info:
        spark.sql(f"SELECT to_nats({event})").collect()
    expected = "TypeError: an event must be struct<attributes:struct<specversion:string,"
    assert expected in str(info.value)
    assert f"error:string>, got {found}" in str(info.value)


@needs_arrow_functions
def test_null_literals_are_missing_fields(spark: SparkSession) -> None:
    register(spark)
    core = "'1.0' AS specversion, '1' AS id, '/s' AS source, 't' AS type, NULL AS subject"
    event = f"named_struct('attributes', struct({core}), 'extensions', map(), 'data', NULL)"
    (row,) = spark.sql(f"SELECT to_nats({event}) AS message").collect()
    assert [name for name, _ in row.message.headers] == ["ce-specversion", "ce-id", "ce-source", "ce-type"]


def test_functions_that_need_a_newer_pyspark_are_not_registered(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "HAS_ARROW_FUNCTIONS", False)
    with pytest.warns(
        UserWarning, match=r"^from_nats, .*, to_nats_structured and cesql in Spark SQL need pyspark 4\.1 or later, got"
    ):
        register(spark)


def test_registering_new_sessions_of_a_registered_one(spark: SparkSession) -> None:
    """Spark raises an error, because it looks up the name of a data source in the active session."""
    register(spark)
    spark.createDataFrame([], "nothing int")  # makes this session the active one
    options = {"url": "nats://127.0.0.1:1", "stream": "S"}
    for other in (spark.newSession(), spark.newSession()):
        with pytest.raises(AnalysisException, match="DATA_SOURCE_ALREADY_EXISTS"):
            other.dataSource.register(NatsDataSource)
        register(other)
        register(other)
        assert SparkSession.getActiveSession() == spark
        for known in (other, spark):
            assert known.read.format("nats").options(**options).load().columns[0] == "subject"
        query = "SELECT ce_nats.from_nats(NULL, NULL).error AS code"
        assert other.sql(query).collect()[0].code == "not-a-cloudevent"


def test_another_data_source_of_the_same_name_is_not_replaced(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NatsDataSource, "name", classmethod(lambda cls: "parquet"))
    with pytest.raises(AnalysisException, match="Data source 'parquet' already exists"):
        source.register(spark)
