"""
CloudEvents out of captured NATS messages, as native Spark columns: no Python worker in the plan.

The same rules and error codes as ``ce_nats.from_nats_message(message, parse_data=False)``. A row that cannot be decoded
has a code in its error column and nothing in the others; it never fails the query.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType

from . import binary, headers as header_columns, mode as modes, structured
from .attributes import fault
from .expressions import let

def _general(headers: Column, shape: DataType, data: Column, types: Mapping[str, DataType]) -> Column:
    return let(header_columns.columns(headers, shape), lambda found: F.when(found["code"].isNotNull(), fault(found["code"])).otherwise(
        let(F.transform(found["names"], header_columns.fold), lambda names: let(
            modes.inspect(names, found["values"], F.coalesce(F.length(data), F.lit(0)) == 0),
            lambda state: F.when(state["code"].isNotNull(), fault(state["code"])).when(state["mode"] == modes.BINARY,
               binary.decode(names, found["values"], F.when(F.length(data) > 0, data), types))
             .otherwise(structured.decode(F.coalesce(data, F.lit(b"")), state["is_marked"], types))))))
