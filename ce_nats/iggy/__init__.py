"""
Apache Iggy: typed user headers and the messages around them as bytes and as JSON, and CloudEvents in both.

Iggy, "Message headers" (August 2023); ``Layout.TYPED_KEYS`` is what Iggy 0.7 and later made of it. Like NATS with
headers, and unlike it in that a key has one value, with a type, of 255 bytes at most. There is no socket here.
"""

from .event import detect_mode, from_iggy_message, to_iggy_message
from .headers import MAX_HEADERS, HeaderKey, HeaderMap, Layout, decode_headers, encode_headers
from .json import as_fields, as_message, decode_json, encode_json
from .message import IggyMessage, decode_messages, encode_message
from .value import MAX_FIELD, HeaderKind, HeaderValue

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
    "from_iggy_message",
    "to_iggy_message",
]
