"""
Captures of stored messages: a directory of Parquet files, or a file of JSON lines.

A capture stores messages unchanged, decodable or not: subject, headers as an array of pairs (names may repeat, and
their order matters), payload bytes, stream, sequence and timestamp. ``ce_nats.spark`` and ``ce_nats.arrow`` decode its
rows.
"""

from ._files import (
    IfExists,
    check_same_stream,
    count_captured,
    last_captured,
    messages_after,
    open_capture,
    read_capture,
    write_capture,
)
from ._json_lines import JsonLinesCapture, as_json_line, from_json_line
from ._parquet import ParquetParts
from ._result import CaptureResult

__all__ = [
    "CaptureResult",
    "IfExists",
    "JsonLinesCapture",
    "ParquetParts",
    "as_json_line",
    "check_same_stream",
    "count_captured",
    "from_json_line",
    "last_captured",
    "messages_after",
    "open_capture",
    "read_capture",
    "write_capture",
]
