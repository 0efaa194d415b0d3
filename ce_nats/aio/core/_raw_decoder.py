"""Decode events from the payloads and raw header blocks of received frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from ...codec import _fast_path
from ...codec.attributes import ExtensionTypes, check_extension_types
from ...codec.binary import Dialect
from ...codec.binding import DialectName, Mode, from_nats_message
from ...codec.event import DecodedEvent
from ...codec.mode import CONTENT_TYPE, ContentMode
from ...errors import DecodeError, ErrorCode, choice, preview
from ...message import Headers, folded
from ...wire.nats import Status, read_header_block

RawDecoder: TypeAlias = Callable[[bytes, bytes | None], DecodedEvent]

_CONTENT_TYPE: Final = CONTENT_TYPE.lower()


class _Message(NamedTuple):
    data: bytes
    headers: Headers
    status: Status | None


def raw_decoder(
    *,
    mode: Mode | None = None,
    dialect: DialectName = Dialect.SPEC,
    parse_data: bool = True,
    extension_types: ExtensionTypes | None = None,
) -> RawDecoder:
    """
    Return a function that decodes an event from a payload and a raw header block.

    The function returns the event that :func:`~ce_nats.from_nats_message` returns for the headers in the block, and
    raises the same errors. It also raises the errors of :func:`~ce_nats.wire.nats.decode_header_block`, but
    ``invalid-utf8`` only for ``Content-Type`` and headers that start with ``ce-``: other headers are not checked.
    Unlike in nats-py's dict of headers, a duplicated header is visible. A status of the server becomes the headers
    ``Status`` and ``Description``, as in messages of nats-py.

    The arguments of the function are the payload and the block, from ``NATS/1.0`` to the empty line; None and ``b""``
    mean no headers.

    Raises:
        ValueError: ``mode`` is not a content mode, or ``dialect`` not a dialect.
        TypeError: ``extension_types`` is not a mapping.
    """
    content_mode = None if mode is None else choice(ContentMode, mode, "mode")
    variant = choice(Dialect, dialect, "dialect")
    check_extension_types(extension_types)

    def decode(payload: bytes, block: bytes | None) -> DecodedEvent:
        return from_nats_message(
            _read_message(payload, block),
            mode=content_mode,
            dialect=variant,
            parse_data=parse_data,
            extension_types=extension_types,
        )

    if variant is not Dialect.SPEC:
        return decode
    return _fast_path.block_decoder(decode, content_mode, parse_data, extension_types) or decode


def _read_message(payload: bytes, block: bytes | None) -> _Message:
    if not block:
        return _Message(payload, Headers(), None)
    read = read_header_block(block, "surrogateescape")
    if not block.isascii():
        _check_content_types(read.headers)
    if read.status is None:
        return _Message(payload, read.headers, None)
    status = [("Status", f"{read.status.code:03}")]
    if read.status.description:
        status.append(("Description", read.status.description))
    return _Message(payload, Headers._of([*status, *read.headers.items()]), read.status)


def _check_content_types(headers: Headers) -> None:
    for name, value in headers.items():
        if folded(name) == _CONTENT_TYPE and not _is_utf8(value):
            raise DecodeError(
                ErrorCode.INVALID_UTF8,
                f"the value {preview(value)} is not valid UTF-8",
                header=name,
                requirement="H4-ENC-01",
            )


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
