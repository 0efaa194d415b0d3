"""
Percent-encode header values, and undo quotes and percent-encoding, without a Python worker.

NATS protocol binding, section 3.1.3.2; the same rules as ce_nats/percent.py. ``url_decode`` alone will not do: it turns
``+`` into a space and bytes that are not UTF-8 into U+FFFD.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column

from ..errors import ErrorCode
from .expressions import full, let, matches, when_first
from .functions import F

__all__ = ["decode", "decode_plain", "encode"]

_MALFORMED_ESCAPE: Final = "%(?![0-9A-Fa-f]{2})"
# RFC 7230 3.2.6. Possessive throughout: what is between quotes can be read in one way only, and Java's regular
# expressions need no stack for it then.
_QUOTED_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_BALANCED: Final = full(rf'[^"]*+(?:{_QUOTED_STRING}[^"]*+)*+')
_PIECE: Final = rf'(?s){_QUOTED_STRING}|[^"]++'
# "Space (U+0020), Double-quote (U+0022), Percent (U+0025), any characters outside the printable ASCII range"
_LITERAL: Final = "!#$&-~"
_RUN: Final = f"[{_LITERAL}]++|[^{_LITERAL}]++"
_TO_END: Final = 2**31 - 1
_REPLACEMENT_CHARACTER: Final = "\ufffd"


def encode(text: Column) -> Column:
    """
    A header value.

    Args:
        text: Canonical string of an attribute, valid UTF-8.
    """

    def encoded(run: Column) -> Column:
        escapes = F.regexp_replace(F.hex(run), "(..)", "%$1")
        return F.when(run.rlike(f"[^{_LITERAL}]"), escapes).otherwise(run)

    runs = F.regexp_extract_all(text, F.lit(_RUN), F.lit(0))
    escaped = F.array_join(F.transform(runs, encoded), "")
    return F.when(text.rlike(f"[^{_LITERAL}]"), escaped).otherwise(text)


def decode(value: Column) -> Column:
    """
    A struct of ``text`` and ``code``, one of which is NULL.

    Args:
        value: Header value, outer white space removed, valid UTF-8.
    """
    unquoted = F.when(~value.contains('"'), value).when(matches(value, _BALANCED), _unquote(value))
    return let(
        unquoted,
        lambda text: let(
            F.when(~text.contains("%"), text).otherwise(_unescape(text)),
            lambda decoded: F.struct(
                decoded.alias("text"),
                when_first(
                    (text.isNull(), ErrorCode.UNTERMINATED_QUOTE),
                    (decoded.isNull() & matches(text, _MALFORMED_ESCAPE), ErrorCode.INVALID_PERCENT_ESCAPE),
                    (decoded.isNull(), ErrorCode.INVALID_UTF8),
                ).alias("code"),
            ),
        ),
    )


def decode_plain(value: Column) -> Column:
    """
    The text of a header value of printable ASCII without quotes.

    Cheaper than :func:`decode`, and NULL for a malformed escape; bytes that are not UTF-8 become U+FFFD, so a caller
    who finds one has to ask :func:`decode`.
    """
    return F.try_url_decode(F.replace(value, F.lit("+"), F.lit("%2B")))


def _unquote(value: Column) -> Column:
    """Replace each quoted string by its content; a backslash outside of quotes is a character like any other."""
    pieces = F.regexp_extract_all(value, F.lit(_PIECE), F.lit(0))

    def content(piece: Column) -> Column:
        inside = F.substring(piece, F.lit(2), F.length(piece) - 2)
        return F.when(piece.startswith('"'), F.regexp_replace(inside, r"(?s)\\(.)", "$1")).otherwise(piece)

    return F.array_join(F.transform(pieces, content), "")


def _unescape(text: Column) -> Column:
    """Bytes instead of escapes, read as UTF-8; NULL where an escape is malformed or the bytes are not UTF-8."""

    def in_hex(piece: Column, place: Column) -> Column:
        rest = F.hex(F.substring(piece, F.lit(3), F.lit(_TO_END)))
        return F.when(place == 0, F.hex(piece)).otherwise(F.concat(F.substring(piece, 1, 2), rest))

    pieces = F.transform(F.split(text, "%", -1), in_hex)
    return F.when(
        ~matches(text, _MALFORMED_ESCAPE), F.try_validate_utf8(F.unhex(F.array_join(pieces, "")).cast("string"))
    )
