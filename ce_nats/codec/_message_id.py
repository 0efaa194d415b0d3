"""The ``Nats-Msg-Id`` of events, by which a stream detects duplicates."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from ._bounded_cache import BoundedCache
from .percent import encode

# In characters. Longer ids are hashed, so that the header stays short.
MAX_LENGTH: Final = 256


def dedup_text(source: str, identifier: str) -> str:
    """Return the result of :func:`ce_nats.dedup_id` for a source and an id that were checked."""
    # An object of another class can be equal to a cached source. Ids are not cached: each event has another one.
    first = source_parts[source] if source.__class__ is str else _part(source)
    text = f"{first}|{_part(identifier)}"
    return text if len(text) <= MAX_LENGTH else hashed(text)


def hashed(text: str) -> str:
    """Return the message id in place of one that is too long."""
    return f"sha256:{sha256(text.encode('ascii')).hexdigest()}"


def _part(text: str) -> str:
    return encode(text).replace("|", "%7C")


# Sources as they are written before the "|".
source_parts: Final[BoundedCache[str]] = BoundedCache(_part)
