"""
Media types: syntax, whether the type is JSON or text, and its charset.

RFC 2046 and RFC 2045 5.1; JSON event format 3.1.1 defines which types are JSON. The text itself is never changed.
"""

from __future__ import annotations

import codecs
import re
from encodings.aliases import aliases
from enum import Enum
from typing import Final, NamedTuple

from . import percent
from ._bounded_cache import BoundedCache

__all__ = ["DataKind", "MediaType", "parse"]

# RFC 2045 5.1: any CHAR but SPACE, CTLs and tspecials.
_TOKEN: Final = r"[!#$%&'*+.^_`{|}~0-9A-Za-z-]+"
# RFC 2045 5.1: type "/" subtype *(";" parameter). Any text after the first ";" is accepted: real senders leave a
# trailing ";" or an empty parameter, which does not affect the type.
_MEDIA_TYPE: Final = re.compile(rf"({_TOKEN})/({_TOKEN})[ \t]*(;.*)?", re.DOTALL)
_PARAMETER: Final = re.compile(rf";[ \t]*({_TOKEN})[ \t]*=[ \t]*([^;\"]*)")
# RFC 2978 2.3: names of charsets have at most 40 characters. Those that Python supports consist of these characters.
_CHARSET: Final = re.compile(r"[a-z0-9._:-]{1,40}")
_SEPARATORS: Final = re.compile("[^a-z0-9]+")
# Python's charsets without an alias. Its other codecs without an alias, such as unicode_escape, are not charsets.
_WITHOUT_ALIAS: Final = (
    *("charmap", "cp1006", "cp720", "cp737", "cp856", "cp874", "cp875", "koi8_t", "koi8_u", "mac_arabic"),
    *("mac_croatian", "mac_farsi", "mac_romanian", "palmos", "utf_8_sig"),
)


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

    @property
    def has_all_text(self) -> bool:
        """Whether all text is encoded in UTF-8 for this type. Text of an ASCII type may have other characters."""
        return self.is_utf8 and self.charset != "us-ascii"

    def codec(self) -> str | None:
        """Return the name of Python's codec for the charset (default UTF-8), or None for an unknown charset."""
        if not self.charset:
            return "utf-8"
        name = _ALIASES.get(_normalised(self.charset)) if _CHARSET.fullmatch(self.charset) else None
        if name is None:
            return None
        try:
            b" ".decode(name, "ignore")  # raises for codecs that are not character sets, for example "hex"
        except LookupError:
            return None
        return codecs.lookup(name).name


def _parse(text: str) -> MediaType | None:
    match = _MEDIA_TYPE.fullmatch(text)
    if match is None:
        return None
    maintype, subtype = match.group(1).lower(), match.group(2).lower()
    return MediaType(f"{maintype}/{subtype}", _kind(maintype, subtype), _charset(match.group(3) or ""))


def _charset(parameters: str) -> str:
    """Return the value of the first parameter ``charset`` in lower case, without the quotes of a quoted string."""
    position = 0
    while found := _PARAMETER.search(parameters, position):
        value, position = found.group(2), found.end()
        if not value and (end := percent.closing_quote(parameters, position)) >= 0:
            value, position = parameters[position + 1 : end], end + 1
        if found.group(1).lower() == "charset":
            return value.strip(" \t").lower()
    return ""


def _normalised(charset: str) -> str:
    """Return the form in which names of charsets are compared: ``iso_8859-1:1987`` is ``iso_8859_1_1987``."""
    return _SEPARATORS.sub("_", charset).strip("_")


def _kind(maintype: str, subtype: str) -> DataKind:
    # JSON format 3.1.1: "the media subtype is 'json' or has a '+json' suffix", for every type.
    if subtype == "json" or subtype.endswith("+json"):
        return DataKind.JSON
    if maintype == "text" or subtype == "xml" or subtype.endswith("+xml"):
        return DataKind.TEXT
    return DataKind.BINARY


# codecs.lookup() caches every name that it is called with, without a limit, so it is called with these names only.
_ALIASES: Final = {_normalised(name.lower()): name for name in (*aliases, *aliases.values(), *_WITHOUT_ALIAS)}
_parsed: Final = BoundedCache(_parse)


def parse(text: str) -> MediaType | None:
    """Parse a media type; return None if the text is not a media type."""
    return _parsed[text]
