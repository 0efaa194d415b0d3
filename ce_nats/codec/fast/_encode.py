"""Encode common events, for ``to_nats_message``."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from .. import data, media_type
from ..media_type import DataKind
from ._compile import header_encoders, member_encoders
from ._values import to_json

# Module constants, because member look-up on an enum class is slow in Python 3.11.
_JSON, _TEXT = DataKind.JSON, DataKind.TEXT


def encode_headers(attributes: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    """Return the name and value pairs of ``ce-`` headers, or None if the fast path does not handle the attributes."""
    try:
        pairs: list[tuple[str, str]] = header_encoders[tuple(attributes)](attributes)
        return pairs
    except ValueError:
        return None


def encode_event(attributes: Mapping[str, Any], value: object, has_data: bool) -> bytes | None:
    """
    Return the JSON event, or None if the fast path does not handle it.

    Raises:
        EncodeError: ``invalid-data``.
    """
    try:
        text: bytes = member_encoders[tuple(attributes)](attributes)
        if not has_data:
            return text
        if value.__class__ is bytes:
            return b"".join((text[:-1], b',"data_base64":"', b64encode(value), b'"}'))
        kind = media_type.parse(attributes["datacontenttype"])
        if kind is not None and kind.kind is _TEXT and value.__class__ is str:
            return b"".join((text[:-1], b',"data":', to_json(value), b"}"))
        if kind is None or kind.kind is not _JSON or isinstance(value, data.BYTES):
            return None
    except (KeyError, ValueError):
        return None
    return b"".join((text[:-1], b',"data":', data.encode_json(value), b"}"))
