"""Functions for columns of events: parse JSON data, and remove duplicate events."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField, StructType

from ...codec._nesting import MAX_LEVELS
from .._pipelines import in_pipeline
from ._json import STRICT, is_deeper, is_json
from ._names import column_of, quoted

# Names of temporary columns.
_ROW: Final = "__ce_nats_row"
_TIME: Final = "__ce_nats_time"


def parse_data(
    data: Column | str,
    datacontenttype: Column | str,
    schema: StructType | str | None = None,
    *,
    drop_malformed: bool = True,
) -> Column:
    """
    Parse JSON data of events to Spark values.

        events.withColumn("reading", parse_data("ce_data", "ce_datacontenttype", "celsius double"))

    Args:
        data: ``ce_data``, a column or its name: BINARY, JSON text in UTF-8 if the data is JSON.
        datacontenttype: ``ce_datacontenttype``, a column or its name. Data is parsed if this is a JSON media type
            (CloudEvents JSON format 3.1), or NULL, which means JSON in structured mode. For other data the result is
            NULL.
        schema: Type of the result, as for ``from_json``; by default VARIANT, which keeps the types of the JSON
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

    All rows without an event are kept, because they have neither source nor id. The input is read once.

    Args:
        df: The result of ``explode_cloudevents``.
        prefix: Prefix of its columns.
        within: For a streaming query, the maximum time between duplicates, for example ``"10 minutes"``. The query
            keeps state for this time; duplicates further apart may both remain. It is the delay of a watermark: Spark
            drops events that are older than the newest event of earlier micro-batches by more than this time. So with
            several streams of different ages, it must be at least the difference between them.
        time: For a streaming query, the TIMESTAMP column by which ``within`` is measured. It should be the time when a
            message was stored, because ``ce_time`` is set by the sender and optional.

    Raises:
        ValueError: ``within`` is missing for a streaming query, or given for a table.
        RuntimeError: Spark does not give the schema, in a declarative pipeline.
    """
    if in_pipeline():
        raise RuntimeError(
            "deduplicate() needs the schema, which a pipeline does not have yet: use withWatermark() and "
            f'dropDuplicatesWithinWatermark(["{prefix}source", "{prefix}id"]) for rows without an error'
        )
    keys = [f"{prefix}source", f"{prefix}id", _ROW]
    if df.isStreaming != (within is not None):
        raise ValueError("within must be given for a streaming DataFrame, and only for a streaming one")
    is_event = F.col(quoted(f"{prefix}id")).isNotNull()
    # NULL for events, and unique for other rows, so that each of those is kept.
    marked = df.withColumn(_ROW, F.when(~is_event, F.expr("uuid()")))
    if within is None:
        return marked.dropDuplicates(keys).drop(_ROW)
    # Rows without an event get NULL here: Spark drops late rows, and NULL is never late.
    timed = marked.withColumn(_TIME, F.when(is_event, column_of(df.columns, time))).withWatermark(_TIME, within)
    kept = timed.dropDuplicatesWithinWatermark(keys)
    watermark = timed.schema[_TIME].metadata
    return kept.select(*(_with_watermark(field, time, watermark) for field in df.schema))


def _with_watermark(field: StructField, time: str, watermark: dict[str, Any]) -> Column:
    """Return a column; that of ``time`` with the watermark, which later operators can then use."""
    column = F.col(quoted(field.name))
    if field.name.lower() != time.lower():
        return column
    return column.alias(field.name, metadata={**field.metadata, **watermark})
