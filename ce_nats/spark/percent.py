"""
Percent-encode header values, without a Python worker.

NATS protocol binding, section 3.1.3.2; the same rules as ce_nats/percent.py.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column

from .functions import F

__all__ = ["encode"]

# "Space (U+0020), Double-quote (U+0022), Percent (U+0025), any characters outside the printable ASCII range"
_LITERAL: Final = "!#$&-~"
_RUN: Final = f"[{_LITERAL}]++|[^{_LITERAL}]++"


def encode(text: Column) -> Column:
    """
    A header value.

    Args:
        text: Canonical string of an attribute, valid UTF-8.
    """

    def encoded(run: Column) -> Column:
        escapes = F.regexp_replace(F.hex(run), "(..)", "%$1")
        return F.when(run.rlike(f"[^{_LITERAL}]"), escapes).otherwise(run)

    runs = F.regexp_extract_all(text, F.lit(_RUN), F.lit(0))
    escaped = F.array_join(F.transform(runs, encoded), "")
    return F.when(text.rlike(f"[^{_LITERAL}]"), escaped).otherwise(text)
