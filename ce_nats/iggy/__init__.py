"""
Apache Iggy: encode and decode typed user headers and messages, as bytes and as JSON, and CloudEvents in messages.

Iggy, "Message headers" (August 2023); ``Layout.TYPED_KEYS`` is the layout of Iggy 0.7 and later. Unlike in NATS, a key
has exactly one value, which has a type and at most 255 bytes. No network I/O.
"""

from ._client import from_client_message, to_client_message
from ._event import detect_mode, from_iggy_message, to_iggy_message
from ._headers import MAX_HEADERS, HeaderKey, HeaderMap, Layout, decode_headers, encode_headers
from ._json import as_fields, as_message, decode_json, encode_json
from ._message import IggyMessage, decode_messages, encode_message
from ._value import MAX_FIELD, HeaderKind, HeaderValue

__all__ = [
    "MAX_FIELD",
    "MAX_HEADERS",
    "HeaderKey",
    "HeaderKind",
    "HeaderMap",
    "HeaderValue",
    "IggyMessage",
    "Layout",
    "as_fields",
    "as_message",
    "decode_headers",
    "decode_json",
    "decode_messages",
    "detect_mode",
    "encode_headers",
    "encode_json",
    "encode_message",
    "from_client_message",
    "from_iggy_message",
    "to_client_message",
    "to_iggy_message",
]
