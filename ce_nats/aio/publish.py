"""
Send events on a NATS connection.

NATS binding, section 3. Encoding is ``ce_nats.to_nats_message``; this module adds what a server and nats-py ask for.
Sizes are checked before anything is sent, because nats-py leaves headers out of its own check and the server then cuts
the connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

import nats.errors
from nats.aio.client import Client

from ..binding import to_nats_message
from ..errors import DeliveryError, EncodeError, ErrorCode, preview
from ..message import Headers, HeadersLike, NatsMessage, check_subject
from ..mode import ContentMode

__all__ = ["flush", "publish"]

# "NATS/1.0" CRLF before the header lines, CRLF behind them; ": " and CRLF in each.
_BLOCK_BYTES: Final = 12
_LINE_BYTES: Final = 4


async def publish(
    nc: Client,
    event: Any,
    subject: str,
    *,
    mode: ContentMode = ContentMode.BINARY,
    reply: str = "",
    headers: HeadersLike = None,
) -> None:
    """
    Publish an event. As with core NATS altogether, nobody says whether it arrived; :func:`flush` waits until the
    server has it.

    Args:
        nc: An open connection.
        event: As :func:`ce_nats.to_nats_message` takes it.
        subject: NATS subject to publish to.
        mode: ``BINARY`` or ``STRUCTURED``.
        reply: Reply subject, or ``""``.
        headers: Further headers, as :func:`ce_nats.to_nats_message` takes them. Repeated names are sent as they are
            (receivers on nats-py see the last one only).

    Raises:
        EncodeError: What :func:`ce_nats.to_nats_message` raises; ``payload-too-large`` where headers and payload are
            together larger than the server takes; ``invalid-subject`` without a subject; ``invalid-header-name`` and
            ``invalid-header-value`` for headers that nats-py refuses or would change. Nothing was sent.
        DeliveryError: ``delivery-failed``: the connection is closed, or its buffer full.
    """
    message = encode(event, subject, mode=mode, reply=reply, headers=headers)
    check_size(message, nc.max_payload)
    with delivery(subject):
        await nc.publish(message.subject, message.data, message.reply, headers=as_nats_headers(message.headers))


async def flush(nc: Client) -> None:
    """
    Wait until the server has everything that was published, and every subscription, on a connection so far.

    nats-py's own ``flush()`` writes its PING ahead of what is still in its buffer. While the first one waits for its
    PONG the buffer is written, so the second one's PING stands behind it.

    Raises:
        DeliveryError: ``delivery-failed``: the connection is closed, or the server does not answer.
    """
    with delivery("flush"):
        await nc.flush()
        await nc.flush()


def encode(event: Any, subject: str, *, mode: ContentMode, reply: str = "", headers: HeadersLike = None) -> NatsMessage:
    """
    The message of an event, ready for nats-py.

    Raises:
        EncodeError: As :func:`publish` does, sizes aside.
    """
    message = to_nats_message(event, subject, mode=mode, reply=reply, headers=headers)
    check_subject(subject)  # to_nats_message leaves "" to be filled in later
    for name, value in message.headers.items():
        if value != value.strip():
            raise EncodeError(
                ErrorCode.INVALID_HEADER_VALUE,
                f"nats-py would strip the white space around the value of header {preview(name)}: {preview(value)}",
                header=name,
            )
    return message


def check_size(message: NatsMessage, max_payload: int) -> None:
    """
    Refuse what the server would cut the connection for.

    Args:
        message: What is to be sent.
        max_payload: Most bytes of headers and payload together.

    Raises:
        EncodeError: ``payload-too-large``.
    """
    size = header_bytes(message.headers) + len(message.data)
    if size > max_payload:
        raise EncodeError(
            ErrorCode.PAYLOAD_TOO_LARGE, f"headers and payload are {size} bytes, and the server takes {max_payload}"
        )


def header_bytes(headers: Headers) -> int:
    """Bytes of a header block as nats-py writes it, from ``NATS/1.0`` to the empty line."""
    lines = (len(name) + len(value.encode()) + _LINE_BYTES for name, value in headers.items())
    return _BLOCK_BYTES + sum(lines)


def as_nats_headers(headers: Headers) -> dict[str, str]:
    """Headers as nats-py's annotations want them; all it does is to run over ``items()``, so repeats get through."""
    return cast("dict[str, str]", headers)


@contextmanager
def delivery(target: str) -> Iterator[None]:
    """
    Give nats-py's errors a code.

    Args:
        target: What is spoken to, for the message: a subject, or a stream.

    Raises:
        EncodeError: ``invalid-header-name``, which nats-py notices before it sends.
        DeliveryError: ``delivery-failed`` for everything else.
    """
    try:
        yield
    except nats.errors.BadHeaderError as error:
        raise EncodeError(
            ErrorCode.INVALID_HEADER_NAME, f"nats-py cannot send a header named {preview(error.key)}", header=error.key
        ) from error
    except nats.errors.Error as error:
        raise DeliveryError(ErrorCode.DELIVERY_FAILED, f"{target}: {error}") from error
