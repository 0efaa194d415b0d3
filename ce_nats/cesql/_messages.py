"""
Apply an expression to received messages; those in binary mode that do not pass need not be decoded.

For each sequence of header names there is one regular expression, which matches a header block if the codec would
accept all of its attributes, and captures those that the filter reads. What it does not match is decoded. Decisions for
the same values are remembered, because most streams have few types, sources and tiers.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from ..codec.attributes import are_valid_names
from ..codec.binary import Dialect
from ..codec.event import DecodedEvent
from ..codec.mode import MARKERS, ContentMode, sort_names
from ..errors import preview
from ._evaluate import StopError, stop
from ._expression import Expression, compile
from ._syntax import Call, walk

_log: Final = logging.getLogger("ce_nats.filter")

# Number of errors of a filter that are logged, and of sequences of names that are known.
_LOGGED: Final = 3
_MAX_SHAPES: Final = 64
# Number of decisions that are known for each of them, and characters of a header block to remember one.
_MAX_KNOWN: Final = 256
_MAX_REMEMBERED: Final = 1024
_MARKERS: Final = {name.lower() for name in MARKERS}
_names: Final = re.compile("\n([!-9;-~]+):").findall
# Values that are the same before and after percent-decoding, and are valid.
_TEXT: Final = "[!#$&-~]+"
_DAY: Final = (
    "[12][0-9]{3}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
)
_CHECKED: Final = {
    "specversion": r"1\.0",
    "time": f"{_DAY}T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{{1,9}})?Z",
    "datacontenttype": r"[a-z]+/[a-z0-9.+-]+",
    "dataschema": "[A-Za-z][A-Za-z0-9+.-]*:[!#$&-~]*",
}

_Match: TypeAlias = Callable[[str], "re.Match[str] | None"]


class _Shape(NamedTuple):
    """What matches header blocks with some names, and the decisions for values in them that the filter reads."""

    match: _Match
    known: dict[tuple[str | None, ...], bool]


def _nothing(_: str) -> None:
    """Match no header block."""


_NOTHING: Final = _Shape(_nothing, {})


class MessageFilter:
    """
    Decides which messages of one source reach the program; the first errors of its expression are logged.

    The source is named in the log; mode, dialect and types are those of the decoder. Without ``reads_headers`` it
    decides by decoded events only.
    """

    def __init__(
        self,
        expression: Expression,
        source: str,
        *,
        mode: str | None = None,
        dialect: str = Dialect.SPEC,
        extension_types: Iterable[str] | None = None,
        reads_headers: bool = True,
    ) -> None:
        self._evaluate = expression._evaluate
        self._reads = expression.attributes
        self._source = source
        self._to_log = _LOGGED
        # A group of a regular expression must not begin with a digit.
        are_groups = all(map(str.isidentifier, expression.attributes))
        is_plain = mode != ContentMode.STRUCTURED and dialect == Dialect.SPEC and not extension_types
        self._reads_headers = reads_headers and is_plain and are_groups
        self._shape = _NOTHING  # of the last message
        self._shapes: dict[tuple[str, ...], _Shape] = {}
        # A function of the program may have another result later.
        calls = (part.function for part in walk(expression._tree) if isinstance(part, Call) and part.function)
        self._max_known = _MAX_KNOWN if all(function.is_built_in for function in calls) else 0

    @classmethod
    def of(cls, filter: str | Expression | None, source: str, **options: Any) -> MessageFilter | None:
        """
        Return the filter of an option ``filter``; None without one.

        Raises:
            ParseError: It is not an expression.
        """
        return None if filter is None else cls(compile(filter), source, **options)

    def decision(self, block: bytes | None) -> bool | None:
        """Whether the event in binary mode with this header block passes; None if it has to be decoded."""
        if not block or not self._reads_headers:
            return None
        try:
            text = block.decode("ascii")
        except UnicodeDecodeError:
            return None
        found = self._shape.match(text)
        if found is None:
            self._shape = self._shape_of(text)
            found = self._shape.match(text)
            if found is None:
                return None
        decision = self._shape.known.get(found.groups())
        return self._decide(found) if decision is None else decision

    def _decide(self, found: re.Match[str]) -> bool | None:
        """Evaluate the expression on the values in a header block, and remember the decision for them."""
        try:
            decision = self._evaluate(found.groupdict(), stop) is True
        except StopError:
            if self._to_log:
                return None  # the error is logged with the event
            decision = False
        known = self._shape.known
        if len(known) < self._max_known and len(found.string) <= _MAX_REMEMBERED:
            known[found.groups()] = decision
        return decision

    def _shape_of(self, text: str) -> _Shape:
        """Return the shape of header blocks with the names of this one, unless too many others are known."""
        names = tuple(_names(text))
        shape = self._shapes.get(names)
        if shape is None:
            if len(self._shapes) == _MAX_SHAPES:
                return _NOTHING
            shape = self._shapes[names] = _Shape(_matcher(names, self._reads), {})
        return shape

    def passes(self, event: DecodedEvent) -> bool:
        """Whether an event passes."""
        try:
            return self._evaluate(event.get_attributes(), stop) is True
        except StopError as stopped:
            if self._to_log:
                self._to_log -= 1
                last = "" if self._to_log else "; further errors of the filter are not logged"
                text = "%s: the event with id %s does not pass: %s%s"
                _log.warning(text, self._source, preview(event.get_id()), stopped.error, last)
            return False


def _matcher(names: tuple[str, ...], reads: Iterable[str]) -> _Match:
    """Return what matches header blocks with these names; nothing if they are not of an event."""
    found = sort_names(names)
    is_other = found.content_type_places or not _MARKERS.isdisjoint(map(str.lower, names))
    if is_other or not are_valid_names(found.attributes):
        return _nothing
    values = dict.fromkeys(range(len(names)), "[^\r\n]*")
    for place, name in zip(found.ce_places, found.attributes, strict=True):
        values[place] = f" ?({f'?P<{name}>' if name in reads else '?:'}{_CHECKED.get(name, _TEXT)})"
    lines = (f"{re.escape(name)}:{values[place]}\r\n" for place, name in enumerate(names))
    return re.compile(f"NATS/1\\.0\r\n{''.join(lines)}\r\n").fullmatch
