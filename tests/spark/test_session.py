"""SQL functions do what the columns do, and the data source is known."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ce_nats.spark import from_nats, register, to_nats
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
    for function, mode in (("to_nats", "binary"), ("to_nats_structured", "structured")):
        encoded = spark.sql(f"SELECT {function}(event) AS message FROM decoded")
        assert (
            encoded.collect()
            == spark.table("decoded").select(to_nats(F.col("event"), mode=mode).alias("message")).collect()
        )
    errors = spark.sql("SELECT ce_nats.from_nats(headers, data).error AS code FROM captured").where("code IS NOT NULL")
    assert errors.distinct().count() > 20
