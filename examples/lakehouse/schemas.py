"""
What the silver tables contain: change this file for your events.

Names of tables are only here. A message can neither create a table nor choose one, whatever its type is.
"""

from pyspark.sql import DataFrame

# Typed tables: the type of events, and the schema of their data. Events of other types are only in silver.events.
TYPED = {
    "orders_placed": ("com.example.order.placed", "order STRING, total DOUBLE, currency STRING"),
    "orders_cancelled": ("com.example.order.cancelled", "order STRING, reason STRING"),
}

# Extensions with a typed column; a value of another type is rejected. Others are only in the map ce_extensions.
EXTENSIONS = {"priority": "int"}


def repair(messages: DataFrame) -> DataFrame:
    """Correct the columns headers and data of messages from a faulty sender, before they are decoded."""
    return messages
