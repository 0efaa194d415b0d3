"""Make nats-py's messages of raw ones, and keep malformed messages from ending its read loop."""

from __future__ import annotations

import re
from typing import Final, cast

from nats.aio import client
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.protocol import parser

from ...errors import DecodeError, ErrorCode, preview
from ...message import UnreadableHeaders
from ...wire.nats import decode_header_block
from ._frame_splitter import RawMessage
from ._private import get, put

_PLAIN_BLOCK: Final = b"NATS/1.0\r\n"
_HAS_OWN_PARSER: Final = getattr(client, "parse_email", None) is None


def accept_malformed_messages(nc: Client) -> None:
    """
    Prevent malformed messages from ending nats-py's read loop.

    A message whose subject is not UTF-8, or whose header block is malformed, gets
    :class:`~ce_nats.message.UnreadableHeaders`, which raise an error when the message is decoded. A reply subject that
    is not UTF-8 is omitted.
    """
    get(nc, "_build_message")
    process_headers, parse_lines = get(nc, "_process_headers"), get(nc, "_parse_header_lines")

    # Both do the same as nats-py's functions, without calling them, which would slow down each message.
    async def read_headers(block: bytes | None) -> dict[str, str] | None:
        if not block:
            return None
        if _HAS_OWN_PARSER and block.startswith(_PLAIN_BLOCK):
            return parse_lines(block[len(_PLAIN_BLOCK) :]) or None
        try:
            return cast("dict[str, str] | None", await process_headers(block))
        except (IndexError, UnicodeDecodeError):
            return UnreadableHeaders(_block_error(block))

    def build(sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None) -> Msg:
        return _build_message(nc, sid, subject, reply, data, headers)

    put(nc, "_process_headers", read_headers)
    put(nc, "_build_message", build)
    _split_lines_at_spaces()


def message_of(nc: Client, sid: int, raw: RawMessage) -> Msg:
    """
    Return nats-py's message for a raw one.

    Its headers are those that nats-py returns, or :class:`~ce_nats.message.UnreadableHeaders` if it cannot read them,
    also on a connection without :func:`accept_malformed_messages`. Never raises.
    """
    subject, reply, data, block = raw
    return _build_message(nc, sid, subject, reply, data, _headers_of(nc, block))


def _headers_of(nc: Client, block: bytes | None) -> dict[str, str] | None:
    """Return the headers of a block, as nats-py's function does, which only suspends to report an error."""
    if not block:
        return None
    if _HAS_OWN_PARSER and block.startswith(_PLAIN_BLOCK):
        return get(nc, "_parse_header_lines")(block[len(_PLAIN_BLOCK) :]) or None
    reading = get(nc, "_process_headers")(block)
    try:
        reading.send(None)
    except StopIteration as done:
        return cast("dict[str, str] | None", done.value)
    except (IndexError, UnicodeDecodeError):
        pass
    else:
        reading.close()
    return UnreadableHeaders(_block_error(block))


def _build_message(
    nc: Client, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
) -> Msg:
    try:
        return nc.msg_class(
            subject=subject.decode(), reply=reply.decode(), data=data, headers=headers, _client=nc, _sid=sid
        )
    except UnicodeDecodeError:
        is_subject = _as_utf8(subject) != subject
        error = DecodeError(
            ErrorCode.INVALID_UTF8,
            f"{'subject' if is_subject else 'reply subject'} {preview(subject if is_subject else reply)} "
            "is not valid UTF-8",
            requirement="NP-08",
        )
        reply = reply if _as_utf8(reply) == reply else b""
        return _build_message(nc, sid, _as_utf8(subject), reply, data, UnreadableHeaders(error, headers))


def _as_utf8(text: bytes) -> bytes:
    return text.decode("utf-8", "replace").encode()


def _block_error(block: bytes) -> DecodeError:
    try:
        decode_header_block(block)
    except DecodeError as error:
        return error
    return DecodeError(ErrorCode.INVALID_HEADER_BLOCK, f"nats-py cannot read the header block {preview(block)}")


# Replacements in nats-py's regular expressions for MSG and HMSG.
_AT_SPACES: Final = ((b"[^\\s]", b"[^ \t\r\n]"), (b"[^\\S\r\n]", b"[ \t]"), (b"\\s", b"[ \t]"))


def _split_lines_at_spaces() -> None:
    """
    Prevent nats-py from splitting a subject at a vertical tab or a form feed, which servers accept in subjects.

    nats-py delivers a message to ``a<VT>2`` to the subscription with id 2 of a client that has subscribed to ``*``;
    other such subjects end the connection. The regular expressions are shared by all connections.
    """
    for name in ("MSG_RE", "HMSG_RE"):
        pattern = get(parser, name).pattern
        for old, new in _AT_SPACES:
            pattern = pattern.replace(old, new)
        put(parser, name, re.compile(pattern))
