"""Table of the streams that subjects belong to, and of the lanes of those that accept batches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from ...subjects import covers

_MAX_SUBJECTS: Final = 4096

# In place of the lane of a subject whose stream is not known.
UNKNOWN: Final = object()

L = TypeVar("L")


@dataclass(frozen=True, slots=True)
class _Stream(Generic[L]):
    patterns: Sequence[str]
    lane: L | None

    def listens_on(self, subject: str) -> bool:
        return any(covers(pattern, subject) for pattern in self.patterns)


class Routes(Generic[L]):
    """
    Streams that were looked up.

    Subjects of streams do not overlap, but a subject may have moved to another stream since a lookup. So a later lookup
    takes precedence over an earlier one.

    Attributes:
        by_subject: Lanes by subject, of subjects that were looked up; None for a stream without a lane.
    """

    def __init__(self) -> None:
        self.by_subject: dict[str, L | None] = {}
        self._streams: dict[str, _Stream[L]] = {}

    @property
    def has_streams(self) -> bool:
        """Whether a stream was found."""
        return bool(self._streams)

    def set_stream(self, name: str, patterns: Sequence[str], lane: L | None) -> None:
        """Set the result of a lookup, and forget the lanes of subjects, some of which may have another stream now."""
        self._streams.pop(name, None)
        self._streams[name] = _Stream(patterns, lane)
        self.by_subject.clear()

    def remember(self, subject: str, lane: L | None) -> None:
        """Set the lane of a subject."""
        if len(self.by_subject) >= _MAX_SUBJECTS:
            self.by_subject.clear()
        self.by_subject[subject] = lane

    def lane_of(self, name: str) -> L | None:
        """Return the lane of a stream, if it has one."""
        return self._streams[name].lane if name in self._streams else None

    def find(self, subject: str, names: Collection[str] | None = None) -> L | object | None:
        """Return the lane of the stream that listens on a subject, None if the stream has no lane, or ``UNKNOWN``."""
        for name, stream in reversed(self._streams.items()):
            if (names is None or name in names) and stream.listens_on(subject):
                return stream.lane
        return UNKNOWN

    def lanes_on(self, subject: str) -> Iterator[L]:
        """Yield the lanes of streams that listen on a subject, or did so when they were looked up."""
        for stream in list(self._streams.values()):
            if stream.lane is not None and stream.listens_on(subject):
                yield stream.lane
