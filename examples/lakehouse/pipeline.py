"""
Write the messages of a JetStream stream to bronze, silver and gold tables, in Delta or Iceberg.

    pip install 'ce-nats[spark]' 'pyspark==4.2.*'  # for Iceberg 4.1
    python examples/lakehouse/pipeline.py --format delta --stream ORDERS --warehouse lake [--continuous]

Without --continuous it processes what is new and stops, so run it as often as you like. It can be killed at any time.

bronze.messages        Messages as stored.
silver.events          Events of all types.
silver.rejects         Other messages, with the reason: an error code, or schema-mismatch (see schemas.py).
silver.orders_placed   Events of one type, with the fields of their data as columns. One table for each type of
silver.orders_cancelled    schemas.py.
gold.hourly_sales      Orders by the hour of their event time, each counted once.
gold.late_orders       Orders that were stored too late for that.
"""

from __future__ import annotations

import argparse
import os
from functools import partial

from lake import Lake, add_arguments
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from schemas import EXTENSIONS, TYPED, repair

from ce_nats.spark import deduplicate, explode_cloudevents, parse_data

MESSAGE = ("stream", "sequence", "subject", "timestamp")
# An order counts in gold if it was stored at most an hour after its time, and was not replayed.
LATE = "replayed OR timestamp - time > INTERVAL 60 MINUTES OR time - timestamp > INTERVAL 5 MINUTES"
# Such an order is at most 60 + 5 minutes older than those before it, so Spark drops none of them as late.
WATERMARK = "65 minutes"


def bronze(lake: Lake, url: str, stream: str) -> list[StreamingQuery]:
    source = lake.spark.readStream.format("nats").options(url=url, stream=stream, startingOffsets="earliest")
    return [lake.append_stream(source.load(), "bronze.messages")]


def silver(lake: Lake) -> list[StreamingQuery]:
    messages = decode(lake.read_stream("bronze.messages"))
    rejects = messages.where("reason IS NOT NULL").select(*MESSAGE, "headers", "data", "reason")
    return [
        lake.append_stream(events(messages), "silver.events"),
        lake.append_stream(rejects, "silver.rejects"),
    ]


def decode(messages: DataFrame) -> DataFrame:
    """Add the columns of events, and ``reason``: why a message is rejected, or NULL."""
    decoded = explode_cloudevents(repair(messages), extensions=EXTENSIONS)
    mismatch = [
        F.when((F.col("ce_type") == event_type) & ~fits(schema), "schema-mismatch")
        for event_type, schema in TYPED.values()
    ]
    return decoded.withColumn("reason", F.coalesce("ce_error", *mismatch))


def fits(schema: str) -> Column:
    """Return whether the data has a schema. Missing fields are NULL, further fields are ignored."""
    data = parse_data("ce_data", "ce_datacontenttype", f"{schema}, _corrupt_record STRING")
    return data.isNotNull() & data["_corrupt_record"].isNull()


def events(messages: DataFrame, *, replayed: bool = False) -> DataFrame:
    good = messages.where("reason IS NULL").withColumn("replayed", F.lit(replayed))
    return good.drop("reason", "reply", "headers", "data", "ce_error")


def typed(lake: Lake) -> list[StreamingQuery]:
    stored = lake.read_stream("silver.events")
    queries = []
    for table, (event_type, schema) in TYPED.items():
        data = parse_data("ce_data", "ce_datacontenttype", schema).alias("fields")
        rows = stored.where(F.col("ce_type") == event_type).withColumn("fields", data)
        rows = rows.select(*MESSAGE, "replayed", "ce_id", "ce_source", "ce_time", "ce_extensions", "fields.*")
        queries.append(lake.append_stream(rows, f"silver.{table}"))
    return queries


def gold(lake: Lake) -> list[StreamingQuery]:
    placed = lake.read_stream("silver.orders_placed")
    placed = placed.withColumn("time", F.coalesce("ce_time", "timestamp"))
    on_time = deduplicate(placed.where(f"NOT ({LATE})"), within=WATERMARK, time="time")
    by_hour = on_time.groupBy(F.window("time", "1 hour"), "currency")
    sales = by_hour.agg(F.count("*").alias("orders"), F.sum("total").alias("total"))
    sales = sales.select(F.col("window.start").alias("hour"), "currency", "orders", "total")
    return [
        lake.upsert_stream(sales, "gold.hourly_sales", keys=("hour", "currency")),
        lake.append_stream(placed.where(LATE), "gold.late_orders"),
    ]


def main() -> None:
    parser = add_arguments(argparse.ArgumentParser(description=__doc__.split("\n")[1]))
    parser.add_argument("--url", default=os.environ.get("NATS_URL", "nats://127.0.0.1:4222"))
    parser.add_argument("--stream", required=True)
    parser.add_argument("--continuous", action="store_true", help="wait for further messages")
    arguments = parser.parse_args()

    lake = Lake(arguments.format, arguments.warehouse, continuous=arguments.continuous)
    for layer in (partial(bronze, url=arguments.url, stream=arguments.stream), silver, typed, gold):
        queries = layer(lake)
        if not arguments.continuous:
            for query in queries:
                query.awaitTermination()
    if arguments.continuous:
        lake.spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
