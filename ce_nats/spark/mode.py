"""
Is a message an event in binary mode, in structured mode, or no event?

NATS binding, section 3; the decision table of ce_nats/mode.py.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column

from ..errors import ErrorCode
from . import media_type
from .expressions import at, let, when_first
from .functions import F

__all__ = ["BINARY", "STRUCTURED", "inspect"]

BINARY: Final = "binary"
STRUCTURED: Final = "structured"
CONTENT_TYPE: Final = "content-type"
PREFIX: Final = "ce-"

_STRUCTURED: Final = ("application/cloudevents", "application/cloudevents+json")
_BATCH: Final = "application/cloudevents-batch"
_OTHER_FORMAT: Final = "application/cloudevents+"
_BLANKS: Final = " \t"


def inspect(names: Column, values: Column, is_empty: Column) -> Column:
    """
    A struct of ``mode`` and ``code``, one of which is NULL, and ``is_marked``.

    Args:
        names: Header names, in wire order, ASCII letters in lower case.
        values: Header values, likewise.
        is_empty: Whether there is no payload.
    """
    content_types = F.filter(values, lambda _, place: at(names, place) == CONTENT_TYPE)
    is_binary = F.exists(names, lambda name: name.startswith(PREFIX))
    return let(
        content_types,
        lambda found: let(
            F.btrim(at(found, 0), F.lit(_BLANKS)),
            lambda content_type: let(
                F.lower(F.btrim(F.substring_index(content_type, ";", 1), F.lit(_BLANKS))),
                lambda essence: _decide(F.size(found) > 1, content_type, essence, is_binary, is_empty),
            ),
        ),
    )


def _decide(is_repeated: Column, content_type: Column, essence: Column, is_binary: Column, is_empty: Column) -> Column:
    is_structured = F.coalesce(essence.isin(*_STRUCTURED), F.lit(False))
    # What is no media type, because of what stands behind the ";", has no charset to object to.
    is_utf8 = ~media_type.is_valid(content_type) | media_type.is_utf8(media_type.charset(content_type))
    error = when_first(
        (is_repeated, ErrorCode.DUPLICATE_HEADER),
        (essence.startswith(_BATCH), ErrorCode.BATCH_NOT_SUPPORTED),
        (is_structured & ~is_utf8, ErrorCode.UNSUPPORTED_CHARSET),
        (~is_structured & essence.startswith(_OTHER_FORMAT), ErrorCode.UNSUPPORTED_FORMAT),
        (~is_structured & ~is_binary & is_empty, ErrorCode.NOT_A_CLOUDEVENT),
    )
    mode = F.when(is_binary & ~is_structured, F.lit(BINARY)).otherwise(F.lit(STRUCTURED))
    return let(
        error,
        lambda code: F.struct(
            F.when(code.isNull(), mode).alias("mode"), code.alias("code"), is_structured.alias("is_marked")
        ),
    )
