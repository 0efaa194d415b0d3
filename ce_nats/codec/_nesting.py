"""
Check how deep arrays and objects are nested in JSON text, without a parser and without recursion.

RFC 8259, section 9: "An implementation may set limits on the maximum depth of nesting." Each parser has its own limit;
Python's depends on the interpreter and on the number of calls in progress. This module sets one limit for all decoders
and encoders.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final

# Levels of arrays and objects in data, counting the outermost one. Python 3.10 and 3.11 allow about 990 levels and
# calls in progress together, and pyspark makes four calls for each level of a VARIANT. Other parsers: Jackson (in
# Spark) reads 1,000 levels, encoding/json of Go 10,000, serde_json 127 and System.Text.Json 64.
MAX_LEVELS: Final = 128

_NON_BRACKETS: Final = bytes(set(range(256)).difference(b'[]{}"'))
_BRACES_TO_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_STEPS: Final = {ord("["): 1, ord("]"): -1}
_BLOCK: Final = 128


def is_deeper(text: bytes, levels: int = MAX_LEVELS) -> bool:
    """
    Whether arrays and objects in a JSON text are nested deeper than a number of levels.

    The time is linear in the length of the text, and very short if the text has few brackets. Text that is not JSON is
    accepted: the result is True if more than ``levels`` brackets are open at some point, and False if the text is too
    short to close them.
    """
    if len(text) <= 2 * levels:
        return False
    # The number of "{" and "[" by replace(), because count() takes twice as long.
    if 2 * len(text) - len(text.replace(b"{", b"")) - len(text.replace(b"[", b"")) <= levels:
        return False
    if b"\\" in text:  # an escaped quote does not end a string
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    kept = text.translate(None, _NON_BRACKETS)
    if 2 * kept.count(b'""') != kept.count(b'"'):  # else no string has a bracket in it
        kept = b"".join(kept.replace(b'""', b"").split(b'"')[::2])
    return _reaches(kept.translate(_BRACES_TO_BRACKETS, b'"'), levels + 1)


def _reaches(brackets: bytes, level: int) -> bool:
    depth = 0
    for start in range(0, len(brackets), _BLOCK):
        block = brackets[start : start + _BLOCK]
        opening = block.count(b"[")
        # Brackets are followed one by one only in blocks that can reach the level.
        if depth + opening >= level and max(accumulate(map(_STEPS.__getitem__, block), initial=depth)) >= level:
            return True
        depth += opening - (len(block) - opening)
    return False
