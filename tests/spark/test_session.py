"""SQL functions do what the columns do, and the data source is known."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ce_nats.spark import from_nats, register, session, to_nats
from ce_nats.spark.arrow_functions import HAS_ARROW_FUNCTIONS
from tests.spark.test_vectors import SCHEMA, chosen, message


def test_sql_functions_are_the_columns(spark: SparkSession) -> None:
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
            == spark.table("decoded").select(to_nats(F.col("event"), mode=mode).alias("message")).collect()
        )
    errors = spark.sql("SELECT ce_nats.from_nats(headers, data).error AS code FROM captured").where("code IS NOT NULL")
    assert errors.distinct().count() > 20


def test_what_needs_a_newer_pyspark_is_left_out_with_a_warning(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "HAS_ARROW_FUNCTIONS", False)
    with pytest.warns(
        UserWarning, match=r"^to_nats and to_nats_structured in Spark SQL need pyspark 4\.1 or later, got"
    ):
        register(spark)
