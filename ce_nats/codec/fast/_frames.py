"""
Encode common events in binary mode as a header block and a payload, for publishers.

``to_nats_message`` returns headers as pairs, which a publisher writes as a block after it has added the message id. For
common events a compiled function writes the block at once, message id included, as one f-string.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from ...message import MSG_ID
from .. import data, media_type
from .._bounded_cache import BoundedCache, Names
from .._message_id import MAX_LENGTH, hashed, source_parts
from ..attributes import are_valid_names
from ..event import EventLike, attributes_data_and_presence
from ..media_type import DataKind
from ..mode import PREFIX
from ._compile import CompiledConverters, Converter, compiled, header_values
from ._values import decline


def encode_block(event: EventLike, has_message_id: bool) -> tuple[bytes, bytes] | None:
    """Return header block and payload of an event in binary mode, or None if the fast path does not handle it."""
    attributes, value, has_data = attributes_data_and_presence(event)
    try:
        block = (blocks_with_id if has_message_id else blocks_without_id)[tuple(attributes)](attributes)
    except ValueError:
        return None
    if not has_data:
        return block, b""
    if value.__class__ is bytes:
        return block, value
    if value.__class__ in _JSON_CLASSES:
        return block, _encoders[attributes["datacontenttype"]](value)
    return block, data.encode(value, attributes.get("datacontenttype"))


def _encoder_of_data(content_type: str) -> Callable[[Any], bytes]:
    kind = media_type.parse(content_type)
    is_json = kind is not None and kind.kind is DataKind.JSON and kind.is_utf8
    return data.encode_json if is_json else partial(data.encode, content_type=content_type)


_JSON_CLASSES: Final = frozenset({dict, list, str, int, float, bool})
_encoders: Final = BoundedCache(_encoder_of_data)


def block_encoder_source(names: Sequence[str], *, has_message_id: bool) -> str:
    """Return the source text of a function that encodes attributes as a header block."""
    lines, results = header_values(names)
    place = {name: f"v{number}" for number, name in enumerate(names)}
    # Evaluated first: it declines sources that percent-encoding refuses.
    lines.append(f"source = {results['source']}")
    fields = {PREFIX + name: f"{{{result}}}" for name, result in results.items()}
    fields |= {"ce-source": "{source}", "ce-specversion": "1.0"}
    if has_message_id:
        lines += [
            f"identifier = {place['id']}.replace('|', '%7C')",
            f'message_id = f"{{source_parts[{place["source"]}]}}|{{identifier}}"',
            f"if len(message_id) > {MAX_LENGTH}:",
            "    message_id = hashed(message_id)",
        ]
        fields[MSG_ID] = "{message_id}"
    block = "".join(f"{name}: {value}\\r\\n" for name, value in fields.items())
    return "\n    ".join([*lines, f'return f"NATS/1.0\\r\\n{block}\\r\\n".encode()'])


def _encoder(names: Names, *, has_message_id: bool) -> Converter:
    if not are_valid_names(names):
        return decline
    return compiled(
        block_encoder_source(names, has_message_id=has_message_id), {"source_parts": source_parts, "hashed": hashed}
    )


blocks_with_id: Final = CompiledConverters(lambda names: _encoder(names, has_message_id=True))
blocks_without_id: Final = CompiledConverters(lambda names: _encoder(names, has_message_id=False))
