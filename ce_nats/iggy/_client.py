"""
Convert messages from and to those of apache-iggy, the official Python client.

The client has a class for each kind of key and value, such as ``HeaderValue.UnsignedInt8``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..errors import DecodeError, EncodeError, ErrorCode, preview
from ._headers import Layout, check_header_map
from ._message import IggyMessage
from ._value import HeaderKind, HeaderValue

if TYPE_CHECKING:
    from apache_iggy import ReceiveMessage, SendMessage

_NAMES: Final = {kind: kind.label.capitalize().replace("Uint", "UnsignedInt") for kind in HeaderKind}
_KINDS: Final = {name: kind for kind, name in _NAMES.items()}


def from_client_message(message: ReceiveMessage) -> IggyMessage:
    """
    Return a message that apache-iggy has received.

    Args:
        message: As ``IggyClient.poll_messages()`` returns it, or an object with its methods.

    Raises:
        DecodeError: ``invalid-message``: it is another object; ``unknown-header-kind``; ``invalid-header-value``.
    """
    try:
        headers = message.user_headers() or {}
        payload, numbers = message.payload(), (message.id(), message.offset(), message.timestamp())
    except AttributeError as error:
        text = f"the message must be a ReceiveMessage of apache-iggy, got {preview(message)}"
        raise DecodeError(ErrorCode.INVALID_MESSAGE, text) from error
    typed = {_from_client(key): _from_client(value) for key, value in headers.items()}
    plain = {str(key.python) if key.kind is HeaderKind.STRING else key: value for key, value in typed.items()}
    return IggyMessage(payload, plain, *numbers)


def to_client_message(message: IggyMessage) -> SendMessage:
    """
    Return a message for apache-iggy to send. Offset and timestamp are those that the server assigns.

    Raises:
        EncodeError: As :func:`encode_headers` does for ``Layout.TYPED_KEYS``.
        ImportError: apache-iggy is not installed.
    """
    from apache_iggy import HeaderKey, HeaderValue, SendMessage

    headers = {
        getattr(HeaderKey, _NAMES[key.kind])(key.python): getattr(HeaderValue, _NAMES[value.kind])(value.python)
        for key, value in check_header_map(message.headers, Layout.TYPED_KEYS)
    }
    return SendMessage(message.payload, headers or None, message.id or None)


def _from_client(given: Any) -> HeaderValue:
    """Return a key or a value of the client."""
    name = type(given).__name__
    if name not in _KINDS:
        text = f"a header must be a HeaderKey and a HeaderValue of apache-iggy, got {preview(given)}"
        raise DecodeError(ErrorCode.UNKNOWN_HEADER_KIND, text)
    try:
        return HeaderValue.of(_KINDS[name], given.value)
    except EncodeError as error:
        raise DecodeError(error.code, error.message) from error
