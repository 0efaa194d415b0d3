"""
Three tables of the stream ORDERS.

bronze   Messages as captured.
events   CloudEvents, with their attributes as columns.
rejects  Messages that are not CloudEvents, with the error code.
"""

import os

from pyspark import pipelines
from pyspark.sql import DataFrame, SparkSession

from ce_nats.spark import explode_cloudevents, register

spark = SparkSession.active()
register(spark)  # here, because Spark refuses it in the functions of tables


@pipelines.table
def bronze() -> DataFrame:
    url = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
    options = {"url": url, "stream": "ORDERS", "startingOffsets": "earliest"}
    return spark.readStream.format("nats").options(**options).load()


@pipelines.temporary_view
def decoded() -> DataFrame:
    return explode_cloudevents(spark.readStream.table("bronze"))


@pipelines.table
def events() -> DataFrame:
    names = ("id", "source", "type", "subject", "time", "extensions", "data")
    valid = spark.readStream.table("decoded").where("ce_error IS NULL")
    return valid.select("sequence", *(f"ce_{name}" for name in names))


@pipelines.table
def rejects() -> DataFrame:
    invalid = spark.readStream.table("decoded").where("ce_error IS NOT NULL")
    return invalid.select("sequence", "subject", "headers", "data", "ce_error")
