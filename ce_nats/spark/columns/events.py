"""What is done with events once they are columns: reading their data, and dropping what came twice."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from ...codec.nesting import MAX_LEVELS
from .json import STRICT, is_deeper, is_json

__all__ = ["deduplicate", "parse_data"]


def parse_data(
    data: Column | str,
    datacontenttype: Column | str,
    schema: StructType | str | None = None,
    *,
    drop_malformed: bool = True,
) -> Column:
    """
    JSON data as values.

        events.withColumn("reading", parse_data("ce_data", "ce_datacontenttype", "celsius double"))

    Args:
        data: ``ce_data``: BINARY, JSON text in UTF-8 where the data is JSON.
        datacontenttype: ``ce_datacontenttype``. Data is read where this says JSON (CloudEvents JSON format 3.1), or is
            NULL, which means JSON in structured mode; of other data the result is NULL.
        schema: Type of the result, as ``from_json`` takes it; by default VARIANT, which keeps the types of what is
            there.
        drop_malformed: Whether text that is not JSON, or is nested more than 128 levels deep, is NULL, too; otherwise
            it fails the query.
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
    One row for each event, which is what source and id together say (CloudEvents "id").

    Messages that are not events have neither, and all stay.

    Args:
        df: What ``explode_cloudevents`` gives.
        prefix: As there.
        within: For a streaming query, how far apart copies of an event can be, ``"10 minutes"`` say: the query
            remembers events for that long. Copies that are further apart may both stay.
        time: For a streaming query, the TIMESTAMP column that this is measured by: when a message was stored, rather
            than ``ce_time``, which a sender may leave out or invent.

    Raises:
        ValueError: ``within`` is missing for a streaming query, or given for another.
    """
    keys = [f"{prefix}source", f"{prefix}id"]
    if df.isStreaming != (within is not None):
        raise ValueError("within is for streaming queries, which cannot do without")
    is_event = F.col(f"{prefix}id").isNotNull()
    events, others = df.where(is_event), df.where(~is_event)
    if within is None:
        return events.dropDuplicates(keys).unionByName(others)
    return events.withWatermark(time, within).dropDuplicatesWithinWatermark(keys).unionByName(others)
