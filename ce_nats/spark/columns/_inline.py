"""
Add the fields of an event to a DataFrame as columns.

The columns come from ``inline()``, a generator. Without a generator, Spark calls the decoder once for each field, and
again for conditions; on the JVM, the later calls for a message return the row of the first one. Spark keeps a generator
whatever the query selects, and does not move conditions on its columns below it, so that a check inside it runs for
each row, even for ``count()``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

# Name of a temporary column with the struct of an event.
EVENT_COLUMN: Final = "__ce_nats_event"


def add_fields(
    df: DataFrame, event: Column, names: Sequence[str], error: str, failure: Callable[[Column], Column] | None
) -> DataFrame:
    """Add the fields of a struct to the rows as columns."""
    if failure is None:
        return df.select("*", F.inline(F.array(event)).alias(*names))
    decoded = F.col(EVENT_COLUMN)
    code = decoded[error]
    checked = F.when(code.isNotNull(), F.raise_error(failure(code))).otherwise(decoded)
    rows = df.select("*", event.alias(EVENT_COLUMN))
    # Not drop(), which would analyse the DataFrame: Spark refuses this in a pipeline.
    others = F.expr(f"* EXCEPT ({EVENT_COLUMN})")
    return rows.select(others, F.inline(F.array(checked)).alias(*names))
