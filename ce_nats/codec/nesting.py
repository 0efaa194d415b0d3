"""
How deep arrays and objects are nested in JSON text, told without a parser and without recursion.

RFC 8259, section 9: "An implementation may set limits on the maximum depth of nesting." Parsers do, each at another
depth; in Python that depends on the interpreter, and on how many calls are in progress. So the limit is set here, the
same for every reader and writer.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final

__all__ = ["MAX_LEVELS", "is_deeper"]

# Of arrays and objects in data, the outermost one counted. Python 3.10 and 3.11 have room for some 990 levels and
# calls in progress together, and pyspark needs four calls for each level of a VARIANT. Of others, Jackson (in Spark)
# reads 1,000 levels, encoding/json of Go 10,000, serde_json 127 and System.Text.Json 64.
MAX_LEVELS: Final = 128

_OTHERS: Final = bytes(set(range(256)).difference(b'[]{}"'))
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_STEPS: Final = {ord("["): 1, ord("]"): -1}
_BLOCK: Final = 128


def is_deeper(text: bytes, levels: int = MAX_LEVELS) -> bool:
    """
    Whether arrays and objects of a JSON text are nested more than so many levels deep.

    It takes time in proportion to the text's length, and next to none where there are few brackets. Text that is not
    JSON has an answer, too: whether so many are open somewhere in it, or False where it is too short to close them.

    Args:
        text: JSON in UTF-8; brackets in its strings do not count.
        levels: How many levels are not too deep.
    """
    if len(text) <= 2 * levels:
        return False
    # What is left out is counted so, because count() takes twice as long.
    if 2 * len(text) - len(text.replace(b"{", b"")) - len(text.replace(b"[", b"")) <= levels:
        return False
    if b"\\" in text:  # an escaped quote ends no string
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    kept = text.translate(None, _OTHERS)
    if 2 * kept.count(b'""') != kept.count(b'"'):  # else no string has a bracket in it
        kept = b"".join(kept.replace(b'""', b"").split(b'"')[::2])
    return _reaches(kept.translate(_ONE_KIND, b'"'), levels + 1)


def _reaches(brackets: bytes, level: int) -> bool:
    depth = 0
    for start in range(0, len(brackets), _BLOCK):
        block = brackets[start : start + _BLOCK]
        opening = block.count(b"[")
        # A look at every bracket is for blocks that might reach so far.
        if depth + opening >= level and max(accumulate(map(_STEPS.__getitem__, block), initial=depth)) >= level:
            return True
        depth += opening - (len(block) - opening)
    return False
