"""
Media types, as far as the binding needs them: is it one, is it JSON or text, which charset.

RFC 2046 and RFC 2045 5.1; JSON event format 3.1.1 for what counts as JSON. The text itself is never rewritten.
"""

from __future__ import annotations

import codecs
import re
from enum import Enum
from typing import Final, NamedTuple

from .memory import Memory

__all__ = ["DataKind", "MediaType", "parse"]

# RFC 2045 5.1: any CHAR but SPACE, CTLs and tspecials.
_TOKEN: Final = r"[!#$%&'*+.^_`{|}~0-9A-Za-z-]+"
# RFC 2045 5.1: type "/" subtype *(";" parameter). Whatever follows the first ";" is let pass: real senders leave a
# trailing ";" or an empty parameter, and the type is clear all the same.
_MEDIA_TYPE: Final = re.compile(rf"({_TOKEN})/({_TOKEN})[ \t]*(;.*)?", re.DOTALL)
_PARAMETER: Final = re.compile(rf';[ \t]*({_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^;"]*))', re.DOTALL)
# Python's codecs hold more than character sets.
_NOT_CHARSETS: Final = {"unicode_escape", "raw_unicode_escape", "idna", "punycode", "undefined"}


class DataKind(Enum):
    """What event data of a media type is in Python: a JSON value, ``str`` or ``bytes``."""

    JSON = "json"
    TEXT = "text"
    BINARY = "binary"


class MediaType(NamedTuple):
    """
    A media type taken apart.

    Attributes:
        essence: ``type/subtype`` in lower case, without parameters.
        kind: What data of this type is in Python.
        charset: The charset parameter in lower case, ``""`` where there is none.
    """

    essence: str
    kind: DataKind
    charset: str

    @property
    def is_utf8(self) -> bool:
        """Whether text of this type is UTF-8 (ASCII is a part of it), as JSON has to be."""
        return self.charset in ("", "utf-8", "utf8", "us-ascii")

    def codec(self) -> str | None:
        """Name of the codec for the charset, UTF-8 where none is given; None for a charset that is not known."""
        if not self.charset:
            return "utf-8"
        try:
            found = codecs.lookup(self.charset)
            b" ".decode(self.charset, "ignore")  # refuses codecs that are not character sets, "hex" for one
        except (LookupError, ValueError):
            return None
        return None if found.name.replace("-", "_") in _NOT_CHARSETS else found.name


def _parse(text: str) -> MediaType | None:
    match = _MEDIA_TYPE.fullmatch(text)
    if match is None:
        return None
    maintype, subtype = match.group(1).lower(), match.group(2).lower()
    charset = ""
    for name, quoted, plain in _PARAMETER.findall(match.group(3) or ""):
        if name.lower() == "charset":
            charset = (quoted or plain).strip(" \t").lower()
            break
    return MediaType(f"{maintype}/{subtype}", _kind(maintype, subtype), charset)


def _kind(maintype: str, subtype: str) -> DataKind:
    # JSON format 3.1.1: "the media subtype is 'json' or has a '+json' suffix", whatever the type.
    if subtype == "json" or subtype.endswith("+json"):
        return DataKind.JSON
    if maintype == "text" or subtype == "xml" or subtype.endswith("+xml"):
        return DataKind.TEXT
    return DataKind.BINARY


_memory: Final = Memory(_parse)


def parse(text: str) -> MediaType | None:
    """Take a media type apart; None where the text is none."""
    return _memory[text]
