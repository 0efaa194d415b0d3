"""
Captures of stored messages: a directory of Parquet files, or a file of JSON lines.

A capture keeps messages as they are, decodable or not: subject, headers as an array of pairs (they repeat, and their
order counts), payload bytes, and where in which stream they were. It is the row that ``ce_nats.spark`` explodes.
"""

from .files import (
    IfExists,
    behind,
    capture,
    check_same_stream,
    count_captured,
    last_captured,
    open_capture,
    read_capture,
)
from .json_lines import JsonLinesCapture, as_json_line, from_json_line
from .parquet import ParquetParts
from .result import CaptureResult

__all__ = [
    "CaptureResult",
    "IfExists",
    "JsonLinesCapture",
    "ParquetParts",
    "as_json_line",
    "behind",
    "capture",
    "check_same_stream",
    "count_captured",
    "from_json_line",
    "last_captured",
    "open_capture",
    "read_capture",
]
