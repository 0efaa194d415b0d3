"""
The one place that uses the fast path, the folder ``fast``.

Each of its functions returns None for an event that the fast path does not handle; the full codec then encodes or
decodes it. If the folder does not exist, that applies to all events.
"""

from __future__ import annotations

from typing import Any


def _decline(*_: Any) -> Any:
    return None


try:
    from .fast import block_decoder as block_decoder
    from .fast import decode as decode
    from .fast import encode_block as encode_block
    from .fast import encode_event as encode_event
    from .fast import encode_headers as encode_headers
except ImportError:
    block_decoder = decode = encode_block = encode_event = encode_headers = _decline  # type: ignore[assignment]
