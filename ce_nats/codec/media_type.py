"""
Media types: syntax, whether the type is JSON or text, and its charset.

RFC 2046 and RFC 2045 5.1; JSON event format 3.1.1 defines which types are JSON. The text itself is never changed.
"""

from __future__ import annotations

import codecs
import re
from enum import Enum
from typing import Final, NamedTuple

from .memory import Memory

# RFC 2045 5.1: any CHAR but SPACE, CTLs and tspecials.
_TOKEN: Final = r"[!#$%&'*+.^_`{|}~0-9A-Za-z-]+"
# RFC 2045 5.1: type "/" subtype *(";" parameter). Any text after the first ";" is accepted: real senders leave a
# trailing ";" or an empty parameter, which does not affect the type.
_MEDIA_TYPE: Final = re.compile(rf"({_TOKEN})/({_TOKEN})[ \t]*(;.*)?", re.DOTALL)
_PARAMETER: Final = re.compile(rf';[ \t]*({_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^;"]*))', re.DOTALL)
# Python also has codecs that are not character sets.
_NOT_CHARSETS: Final = {"unicode_escape", "raw_unicode_escape", "idna", "punycode", "undefined"}


class DataKind(Enum):
    """Python form of event data of a media type: a JSON value, ``str`` or ``bytes``."""

    JSON = "json"
    TEXT = "text"
    BINARY = "binary"


class MediaType(NamedTuple):
    """
    A parsed media type.

    Attributes:
        essence: ``type/subtype`` in lower case, without parameters.
        kind: Python form of data of this type.
        charset: The charset parameter in lower case, ``""`` if there is none.
    """

    essence: str
    kind: DataKind
    charset: str

    @property
    def is_utf8(self) -> bool:
        """Whether text of this type is UTF-8, of which ASCII is a subset. JSON must be."""
        return self.charset in ("", "utf-8", "utf8", "us-ascii")

    def codec(self) -> str | None:
        """Return the name of Python's codec for the charset (default UTF-8), or None for an unknown charset."""
        if not self.charset:
            return "utf-8"
        try:
            found = codecs.lookup(self.charset)
            b" ".decode(self.charset, "ignore")  # raises for codecs that are not character sets, for example "hex"
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
    """Parse a media type; return None if the text is not a media type."""
    return _memory[text]
