r"""
A NATS message as a JSON object: the format of the command line's pipes and of a capture in JSON lines.

    {"subject": "orders.paid", "headers": [["ce-id", "1"], ...], "data": "text"}

``headers`` is an array of pairs, because names may repeat and order matters. A UTF-8 payload is the string ``data``,
any other payload ``data_base64``. A byte of a header that is not UTF-8 is a surrogate escape (PEP 383), in JSON
``"\udcff"``, so that it can be restored. Empty members may be omitted; unknown members are ignored.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any, Final

from ..codec._nesting import MAX_LEVELS, is_deeper
from ..errors import DecodeError, ErrorCode, preview
from ..message import Headers, NatsMessage

# json.dumps() creates an encoder for each call with these arguments.
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


def as_fields(headers: Iterable[tuple[str, str]], data: bytes, subject: str = "", reply: str = "") -> dict[str, Any]:
    """Return the JSON object of a message."""
    fields: dict[str, Any] = {"subject": subject} if subject else {}
    if reply:
        fields["reply"] = reply
    fields["headers"] = [list(pair) for pair in headers]
    try:
        fields["data"] = data.decode("utf-8")
    except UnicodeDecodeError:
        fields["data_base64"] = b64encode(data).decode("ascii")
    return fields


def as_line(fields: dict[str, Any]) -> bytes:
    """Encode a JSON object as one line of ASCII."""
    return _encode(fields).encode("ascii") + b"\n"


def read_object(text: bytes) -> dict[str, Any]:
    """
    Read a JSON object.

    Raises:
        DecodeError: ``invalid-json``, ``not-an-object``.
    """
    if is_deeper(text):  # otherwise the limit would depend on the interpreter
        raise DecodeError(ErrorCode.INVALID_JSON, f"{preview(text)} is nested more than {MAX_LEVELS} levels deep")
    try:
        fields = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DecodeError(ErrorCode.INVALID_JSON, f"{preview(text)} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise DecodeError(ErrorCode.NOT_AN_OBJECT, f"a message must be a JSON object, got {preview(fields)}")
    return fields


def as_message(fields: dict[str, Any]) -> NatsMessage:
    """
    Return the message of a JSON object.

    Raises:
        DecodeError: ``invalid-message`` if a member is missing or has another type; ``data-conflict``; the errors of
            :class:`~ce_nats.Headers`.
    """
    subject, reply = fields.get("subject", ""), fields.get("reply", "")
    if not isinstance(subject, str) or not isinstance(reply, str):
        raise _wrong("subject and reply must be strings")
    headers = fields.get("headers")
    if not isinstance(headers, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in headers):
        raise _wrong("headers must be an array of [name, value]")
    return NatsMessage(subject, _data(fields), Headers([(name, value) for name, value in headers]), reply)


def _data(fields: dict[str, Any]) -> bytes:
    if "data" in fields and "data_base64" in fields:
        raise DecodeError(ErrorCode.DATA_CONFLICT, "a message must have data or data_base64, got both")
    try:
        if "data_base64" in fields:
            return b64decode(fields["data_base64"], validate=True)
        return str.encode(fields.get("data", ""))
    except (TypeError, ValueError) as error:
        raise _wrong(f"data must be a string, and data_base64 a string in base64 ({error})") from error


def _wrong(what: str) -> DecodeError:
    return DecodeError(ErrorCode.INVALID_MESSAGE, f"in a message {what}")
