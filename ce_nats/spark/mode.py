"""Names of the content modes, as they stand in columns, and what headers of attributes begin with."""

from __future__ import annotations

from typing import Final

__all__ = ["BINARY", "PREFIX", "STRUCTURED"]

BINARY: Final = "binary"
STRUCTURED: Final = "structured"
PREFIX: Final = "ce-"
