"""Functions for events that are columns: parsing JSON data, and removing duplicate events."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from ...codec.nesting import MAX_LEVELS
from .json import STRICT, is_deeper, is_json


def parse_data(
    data: Column | str,
    datacontenttype: Column | str,
    schema: StructType | str | None = None,
    *,
    drop_malformed: bool = True,
) -> Column:
    """
    JSON data of events as Spark values.

        events.withColumn("reading", parse_data("ce_data", "ce_datacontenttype", "celsius double"))

    Args:
        data: ``ce_data``, a column or its name: BINARY, JSON text in UTF-8 if the data is JSON.
        datacontenttype: ``ce_datacontenttype``, a column or its name. Data is parsed if this is a JSON media type
            (CloudEvents JSON format 3.1), or NULL, which means JSON in structured mode. For other data the result is
            NULL.
        schema: Type of the result, as ``from_json`` takes it; by default VARIANT, which keeps the types of the JSON
            values.
        drop_malformed: True returns NULL for text that is not JSON or is nested more than 128 levels deep; False fails
            the query.
    """
    data, datacontenttype = (F.col(one) if isinstance(one, str) else one for one in (data, datacontenttype))
    text = F.when(datacontenttype.isNull() | is_json(datacontenttype), data.cast("string"))
    if schema is None:
        too_deep, reason = is_deeper(text, MAX_LEVELS), f"malformed: JSON nested more than {MAX_LEVELS} levels deep"
        if drop_malformed:
            return F.when(~too_deep, F.try_parse_json(text))
        return F.when(too_deep, F.raise_error(F.lit(reason))).otherwise(F.parse_json(text))
    mode = "PERMISSIVE" if drop_malformed else "FAILFAST"
    return F.from_json(text, schema, {**STRICT, "mode": mode, "maxNestingDepth": str(MAX_LEVELS)})


def deduplicate(df: DataFrame, *, prefix: str = "ce_", within: str | None = None, time: str = "timestamp") -> DataFrame:
    """
    Remove duplicate events: rows with the same source and id (CloudEvents "id").

    Rows without an event are all kept, because they have neither source nor id.

    Args:
        df: The result of ``explode_cloudevents``.
        prefix: Prefix of its columns.
        within: For a streaming query, the largest time between duplicates, for example ``"10 minutes"``. The query
            keeps state for that long; duplicates that are further apart may both remain.
        time: For a streaming query, the TIMESTAMP column that this time is measured with. It should be the time when a
            message was stored, because ``ce_time`` is set by the sender and optional.

    Raises:
        ValueError: ``within`` is missing for a streaming query, or given for a table.
    """
    keys = [f"{prefix}source", f"{prefix}id"]
    if df.isStreaming != (within is not None):
        raise ValueError("within must be given for a streaming DataFrame, and only for one")
    is_event = F.col(f"{prefix}id").isNotNull()
    events, others = df.where(is_event), df.where(~is_event)
    if within is None:
        return events.dropDuplicates(keys).unionByName(others)
    return events.withWatermark(time, within).dropDuplicatesWithinWatermark(keys).unionByName(others)
