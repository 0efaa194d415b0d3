"""Header blocks of messages, and the event in a block and a payload as the codec decodes it from pairs."""

from types import SimpleNamespace
from typing import Any

from ce_nats import DecodedEvent, DecodeError, ErrorCode, from_nats_message
from ce_nats.errors import preview
from ce_nats.message import Headers, folded
from ce_nats.wire.nats import read_header_block, write_header_block
from tests.support.strategies import without_fast_path

BINARY = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t")]
STRUCTURED = [("Content-Type", "application/cloudevents+json")]
EVENT = b'{"specversion":"1.0","id":"2","source":"/s","type":"t","data":[1]}'


def block(*pairs: tuple[str, str]) -> bytes:
    return write_header_block(pairs)


def decode_pairs(payload: Any, header_block: bytes | None, **options: Any) -> DecodedEvent:
    """Decode the pairs in a header block with the full codec."""
    headers, status = Headers(), None
    if header_block:
        read = read_header_block(header_block, "surrogateescape")
        headers, status = read.headers, read.status
        check_content_types(headers)
    if status is not None:
        description = [("Description", status.description)] if status.description else []
        headers = Headers([("Status", str(status.code).zfill(3)), *description, *headers.items()])
    with without_fast_path():
        return from_nats_message(SimpleNamespace(headers=headers, data=payload, status=status), **options)


def check_content_types(headers: Headers) -> None:
    for name, value in headers.items():
        if folded(name) == "content-type" and any("\ud800" <= character <= "\udfff" for character in value):
            raise DecodeError(
                ErrorCode.INVALID_UTF8,
                f"the value {preview(value)} is not valid UTF-8",
                header=name,
                requirement="H4-ENC-01",
            )
