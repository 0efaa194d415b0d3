"""
Media types as columns: is it one, is it JSON, in which charset is text of it.

RFC 2046 and RFC 2045 5.1; the same rules as ce_nats/media_type.py. Of the charsets, those that Spark can write: UTF-8,
ASCII, Latin-1 and UTF-16, under every name that Python knows them by. All others are ``unsupported-charset``.
"""

from __future__ import annotations

from encodings import aliases
from typing import Final

from pyspark.sql import Column

from ..errors import ErrorCode
from .expressions import at, full, let, matches, when_first
from .functions import F

__all__ = ["charset", "encode", "is_json", "is_utf8", "is_valid"]

_TOKEN: Final = r"[!#$%&'*+.^_`{|}~0-9A-Za-z-]+"
_MEDIA_TYPE: Final = full(rf"{_TOKEN}/{_TOKEN}[ \t]*+(?:;.*+)?+")
_JSON: Final = rf"(?i)\A{_TOKEN}/(?:(?:{_TOKEN})?\+)?json[ \t]*+(?:;|\z)"
_PARAMETER: Final = rf';[ \t]*({_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*+)"|([^;"]*))'
_CHARSET: Final = r"(?i)\A;[ \t]*charset[ \t]*="


def is_valid(text: Column) -> Column:
    return matches(text, _MEDIA_TYPE)


def is_json(text: Column) -> Column:
    """Whether a media type is JSON: "the media subtype is 'json' or has a '+json' suffix" (JSON format 3.1.1)."""
    return matches(text, _JSON)


def charset(text: Column) -> Column:
    """The charset parameter in lower case, ``""`` where there is none."""
    # All parameters are taken, so that one within the quotes of another is not mistaken for one.
    parameters = F.regexp_extract_all(text, F.lit(f"(?s){_PARAMETER}"), F.lit(0))
    found = at(F.filter(parameters, lambda one: matches(one, _CHARSET)), 0)
    quoted, plain = (F.regexp_extract(found, f"(?s){_PARAMETER}", group) for group in (2, 3))
    value = F.when(quoted != "", quoted).otherwise(plain)
    return F.coalesce(F.lower(F.btrim(value, F.lit(" \t"))), F.lit(""))


def is_utf8(name: Column) -> Column:
    """Whether text in this charset is UTF-8 (ASCII is a part of it), as JSON has to be."""
    return name.isin("", "utf-8", "utf8", "us-ascii")


def encode(text: Column, media_type: Column) -> Column:
    """
    A struct of ``data`` (bytes) and ``code``, one of which is NULL.

    Args:
        text: Text to write, valid UTF-8, not NULL.
        media_type: A valid media type that is not JSON, not NULL.
    """
    # As Python looks a charset up: what is no letter or digit counts as "_".
    name = F.btrim(F.regexp_replace(charset(media_type), "[^a-z0-9.]+", "_"), F.lit("_"))
    return let(F.when(media_type.contains(";"), name).otherwise(F.lit("")), lambda bound: _encode(text, bound))


def _names(codec: str) -> list[str]:
    """Every name of a charset, as Python's ``codecs.lookup`` knows them."""
    return sorted({codec, *(alias for alias, found in aliases.aliases.items() if found == codec)})


def _encode(text: Column, name: Column) -> Column:
    is_ascii, is_latin_1 = name.isin(*_names("ascii")), name.isin(*_names("latin_1"))
    marked = {"utf_16": ("FFFE", "UTF-16LE"), "utf_16_le": ("", "UTF-16LE"), "utf_16_be": ("", "UTF-16BE")}
    data = F.when(name.isin("", *_names("utf_8")), F.encode(text, "UTF-8"))
    # Checked first: Spark's encode fails the query for a character that the charset lacks.
    data = data.when(is_ascii & ~matches(text, r"[^\x00-\x7f]"), F.encode(text, "UTF-8"))
    data = data.when(is_latin_1 & ~matches(text, r"[^\x00-\xff]"), F.encode(text, "ISO-8859-1"))
    for codec, (mark, charset_name) in marked.items():
        data = data.when(name.isin(*_names(codec)), F.concat(F.unhex(F.lit(mark)), F.encode(text, charset_name)))
    return let(
        data,
        lambda bound: F.struct(
            bound.alias("data"),
            when_first(
                (bound.isNull() & (is_ascii | is_latin_1), ErrorCode.INVALID_DATA),
                (bound.isNull(), ErrorCode.UNSUPPORTED_CHARSET),
            ).alias("code"),
        ),
    )
