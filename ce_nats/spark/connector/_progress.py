"""Lag of streaming queries, from the progress that Spark reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...errors import preview


def stream_lag(progress: Mapping[str, Any] | str | None) -> dict[str, int]:
    """
    Return the number of messages that a streaming query had not read after a micro-batch, by stream.

    Deleted messages and messages on other subjects count. Before Spark 4.2, messages that ``maxMessagesPerTrigger`` or
    another limit left to later micro-batches do not, because Spark does not request the end of the streams.

    Args:
        progress: ``query.lastProgress``, an item of ``query.recentProgress``, ``event.progress`` of a
            ``StreamingQueryListener``, or their JSON. None, of a query without a micro-batch so far, has no streams.

    Returns:
        Number of messages by name of the stream, for all sources of ``format("nats")`` in the query. If several sources
        read streams of the same name, the largest number.

    Raises:
        TypeError: ``progress`` is of another type.
        ValueError: ``progress`` is not a progress, or not JSON.
    """
    lag: dict[str, int] = {}
    for source in _sources(progress):
        end, newest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
        for name, part in newest.items():
            read = end.get(name)
            # The position in a deleted stream with the same name does not apply to this one.
            sequence = read["sequence"] if read is not None and read["created"] == part["created"] else 0
            lag[name] = max(lag.get(name, 0), part["sequence"] - sequence)
    return dict(sorted(lag.items()))


def _sources(progress: Mapping[str, Any] | str | None) -> list[Mapping[str, Any]]:
    if progress is None:
        return []
    if not isinstance(progress, (Mapping, str)):
        raise TypeError(f"progress must be the progress of a streaming query or its JSON, got {preview(progress)}")
    # Offsets of a StreamingQueryProgress are text, which is not JSON in pyspark 4.0: "{'ORDERS': ...}".
    text = progress if isinstance(progress, str) else getattr(progress, "json", None)
    given = progress if text is None else _json(text)
    sources = given.get("sources") if isinstance(given, Mapping) else None
    if not isinstance(sources, list) or not all(isinstance(source, Mapping) for source in sources):
        raise ValueError(f"progress must be the progress of a streaming query or its JSON, got {preview(progress)}")
    return sources


def _offset(value: object) -> Mapping[str, Any]:
    """Return an offset as _offsets.py describes it; empty if it is of another source, or does not exist yet."""
    offset = _json(value) if isinstance(value, str) else value
    is_ours = isinstance(offset, Mapping) and all(
        isinstance(part, Mapping) and isinstance(part.get("sequence"), int) and "created" in part
        for part in offset.values()
    )
    return offset if is_ours and isinstance(offset, Mapping) else {}


def _json(text: str) -> object:
    """Return decoded JSON, or None if the text is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
