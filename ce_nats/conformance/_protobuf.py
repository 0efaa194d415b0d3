"""
Run the conformance cases of the Protobuf event format on ce_nats, as in ``_adapter``.

Needs the extra ``protobuf``; without it these cases are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ..codec.binding import from_nats_message, to_nats_message
from ..codec.formats import find
from ..message import Headers, NatsMessage
from ._cases import octets, spell
from ._events import Fields, Input, SpelledEvent, event_fields, extension_types


def _encode(given: Input) -> Fields:
    event = SpelledEvent(given["event"]["attributes"], given["event"]["data"])
    return {"data": spell(to_nats_message(event, mode="structured", format="protobuf").data)}


def _decode(given: Input) -> Fields:
    headers = Headers({"Content-Type": find("protobuf").media_type})  # raises the ImportError
    event = from_nats_message(
        NatsMessage("", octets(given["data"]), headers),
        parse_data=given.get("parse_data", True),
        extension_types=extension_types(given),
    )
    return event_fields(event)


PROTOBUF_OPERATIONS: Final[Mapping[str, Callable[[Input], Fields]]] = {
    "formats.protobuf.encode": _encode,
    "formats.protobuf.decode": _decode,
}
