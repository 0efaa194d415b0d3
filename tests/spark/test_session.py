"""SQL functions do what the columns do, and the data source is known."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ce_nats.spark import from_nats, register, to_nats
from tests.spark.test_columns import ROWS

SCHEMA = "sequence long, headers array<struct<key string, value string>>, data binary"


def test_sql_functions_are_the_columns(spark: SparkSession, capsys) -> None:
    register(spark)
    frame = spark.createDataFrame(ROWS, SCHEMA)
    frame.createOrReplaceTempView("captured")
    event = from_nats(F.col("headers"), F.col("data"))
    decoded = spark.sql("SELECT from_nats(headers, data) AS event FROM captured ORDER BY sequence")
    assert decoded.collect() == frame.orderBy("sequence").select(event.alias("event")).collect()
    decoded.createOrReplaceTempView("decoded")
    for function, mode in (("to_nats", "binary"), ("to_nats_structured", "structured")):
        encoded = spark.sql(f"SELECT {function}(event) AS message FROM decoded")
        assert encoded.collect() == decoded.select(to_nats(F.col("event"), mode=mode).alias("message")).collect()
        encoded.explain(True)
        assert "Python" not in capsys.readouterr().out
    assert spark.sql("SELECT from_nats(headers, data).error AS e FROM captured WHERE sequence = 2").first().e == (
        "invalid-utf8"
    )
