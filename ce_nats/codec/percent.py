"""
Percent-encode attribute values for NATS headers, and decode them.

NATS protocol binding, section 3.1.3.2 "NATS Header Values".

These functions convert text to text. attributes.py makes the canonical string of a typed value.
"""

from __future__ import annotations

import re
from typing import Final

from ..errors import DecodeError, EncodeError, ErrorCode, preview

__all__ = ["decode", "encode"]

# "The following characters MUST be percent-encoded: Space (U+0020), Double-quote (U+0022), Percent (U+0025), any
# characters outside the printable ASCII range of U+0021-U+007E inclusive." All other characters are not encoded.
LITERAL: Final = "".join(map(chr, range(0x21, 0x7F))).translate({0x22: None, 0x25: None})
# Steps to encode a character: "Encode the character using UTF-8", "encode each byte as %xy", upper-case "for values
# A-F".
_ENCODED: Final = [chr(byte) if chr(byte) in LITERAL else f"%{byte:02X}" for byte in range(256)]
_TO_ENCODE: Final = re.compile(r"[^!#$&-~]")

_ENCODED_TEXT: Final = re.compile(r"(?:[!#$&-~]|%[0-9A-Fa-f]{2})*")

# RFC 3986 2.1: pct-encoded = "%" HEXDIG HEXDIG
_MALFORMED_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


def encode(text: str) -> str:
    """
    Percent-encode the characters that a NATS header value cannot contain, and no others.

    A surrogate pair is encoded as the one character that it represents.

    Args:
        text: Canonical string of an attribute value.

    Raises:
        EncodeError: ``invalid-character`` for an unpaired surrogate, which UTF-8 cannot represent.
    """
    if not _TO_ENCODE.search(text):
        return text
    try:
        utf8 = text.encode("utf-8")
    except UnicodeEncodeError:
        utf8 = join_surrogates(text).encode("utf-8")
    return "".join(map(_ENCODED.__getitem__, utf8))


def is_encoded(value: str) -> bool:
    """Whether a header value consists of escapes and characters that need no percent-encoding."""
    return _ENCODED_TEXT.fullmatch(value) is not None


def join_surrogates(text: str) -> str:
    """
    Replace each surrogate pair by its character.

    Raises:
        EncodeError: ``invalid-character`` for an unpaired surrogate.
    """
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise EncodeError(
            ErrorCode.INVALID_CHARACTER,
            f"text must not contain unpaired surrogates, got {preview(text)}",
            requirement="CE-TS-09",
        ) from error


def decode(value: str) -> str:
    """
    Decode a header value: the inverse of :func:`encode`, which also accepts every form that the binding allows.

    Double-quoted strings are unquoted first, then *one* round of percent-decoding runs. Lower-case and unnecessary
    escapes are accepted, and so are non-ASCII characters that a sender did not encode.

    Args:
        value: Header value as received, outer white space already removed.

    Raises:
        DecodeError: ``unterminated-quote``; ``invalid-percent-escape`` for a ``%`` without two hex digits;
            ``invalid-utf8`` for bytes that are not UTF-8 (overlong forms and surrogates included).
    """
    if '"' in value:
        value = _unquote(value)
    if "%" not in value and value.isascii():
        return value
    try:
        # Python's escapes are as strict as RFC 3986's ("\\x" takes exactly two hex digits), and decoding them is
        # several times faster than urllib's unquote_to_bytes.
        escaped = value.encode("utf-8").replace(b"\\", b"\\\\").replace(b"%", b"\\x")
        return escaped.decode("unicode_escape").encode("latin-1").decode("utf-8")
    except UnicodeError as error:
        if malformed := _MALFORMED_ESCAPE.search(value):
            raise DecodeError(
                ErrorCode.INVALID_PERCENT_ESCAPE,
                f"{preview(value[malformed.start() : malformed.start() + 3])} is not a percent-escape",
            ) from error
        raise DecodeError(ErrorCode.INVALID_UTF8, f"{preview(value)} is not valid UTF-8") from error


def _unquote(value: str) -> str:
    """Replace each quoted string by its content; a backslash outside quotes is an ordinary character."""
    unquoted = bytearray()
    position = 0
    while (quote_at := value.find('"', position)) >= 0:
        end = closing_quote(value, quote_at)
        if end < 0:
            raise DecodeError(
                ErrorCode.UNTERMINATED_QUOTE, f"a quoted string must have a closing quote, got {preview(value)}"
            )
        content = _utf8(value[quote_at + 1 : end])
        unquoted += _utf8(value[position:quote_at])
        unquoted += content.replace(b"\\\\", b"\xff").replace(b"\\", b"").replace(b"\xff", b"\\")  # UTF-8 has no 0xFF
        position = end + 1
    unquoted += _utf8(value[position:])
    return unquoted.decode("utf-8", "surrogatepass")


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # unpaired surrogates are reported later


def closing_quote(text: str, position: int) -> int:
    """
    Return the position of the quote that closes a quoted string (RFC 7230 3.2.6).

    A regular expression would take 80 bytes of memory for each quoted pair.

    Returns -1 if no quote is at ``position``, or if it is not closed.
    """
    if not text.startswith('"', position):
        return -1
    end = position
    while (end := text.find('"', position + 1)) >= 0:
        content = text[position + 1 : end]
        if (len(content) - len(content.rstrip("\\"))) % 2 == 0:
            break
        position = end  # after an odd number of backslashes, the quote is part of a quoted pair
    return end
