r"""
A NATS message as a JSON object: what the command line's pipes and a capture in JSON lines are made of.

    {"subject": "orders.paid", "headers": [["ce-id", "1"], ...], "data": "text"}

``headers`` is an array of pairs, because names repeat and order counts. A payload that is UTF-8 is the string ``data``,
any other is ``data_base64``. A byte of a header that is not UTF-8 is a lone surrogate (PEP 383), which JSON writes as
``"\udcff"``, so that nothing is lost. Members that are empty may be left out, unknown ones are passed over.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any, Final

from ..codec.nesting import MAX_LEVELS, is_deeper
from ..errors import DecodeError, ErrorCode, preview
from ..message import Headers, NatsMessage

__all__ = ["as_fields", "as_line", "as_message", "read_object"]

# json.dumps() makes an encoder for each call with these.
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


def as_fields(headers: Iterable[tuple[str, str]], data: bytes, subject: str = "", reply: str = "") -> dict[str, Any]:
    """
    The object of a message.

    Args:
        headers: Pairs in wire order.
        data: Payload bytes.
        subject: Subject, left out where it is ``""``.
        reply: Reply subject, likewise.
    """
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
    """An object as one line of ASCII."""
    return _encode(fields).encode("ascii") + b"\n"


def read_object(text: bytes) -> dict[str, Any]:
    """
    Read a JSON object.

    Raises:
        DecodeError: ``invalid-json``, ``not-an-object``.
    """
    if is_deeper(text):  # else the interpreter would say how deep is too deep
        raise DecodeError(ErrorCode.INVALID_JSON, f"{preview(text)} is nested more than {MAX_LEVELS} levels deep")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DecodeError(ErrorCode.INVALID_JSON, f"{preview(text)} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise DecodeError(ErrorCode.NOT_AN_OBJECT, f"a message is a JSON object, not {preview(fields)}")
    return fields


def as_message(fields: dict[str, Any]) -> NatsMessage:
    """
    The message of an object.

    Raises:
        DecodeError: ``invalid-message``: a member is missing or has another form; ``data-conflict``; what
            :class:`~ce_nats.Headers` raises.
    """
    subject, reply = fields.get("subject", ""), fields.get("reply", "")
    if not isinstance(subject, str) or not isinstance(reply, str):
        raise _wrong("subject and reply are strings")
    headers = fields.get("headers")
    if not isinstance(headers, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in headers):
        raise _wrong("headers is an array of [name, value]")
    return NatsMessage(subject, _data(fields), Headers([(name, value) for name, value in headers]), reply)


def _data(fields: dict[str, Any]) -> bytes:
    if "data" in fields and "data_base64" in fields:
        raise DecodeError(ErrorCode.DATA_CONFLICT, "the message has both data and data_base64")
    try:
        if "data_base64" in fields:
            return b64decode(fields["data_base64"], validate=True)
        return str.encode(fields.get("data", ""))
    except (TypeError, ValueError) as error:
        raise _wrong(f"data is a string, and data_base64 one in Base64 ({error})") from error


def _wrong(what: str) -> DecodeError:
    return DecodeError(ErrorCode.INVALID_MESSAGE, f"in a message {what}")
