"""
Take the messages of some subscriptions out of the bytes that a client receives.

Many messages are taken at once, without an await for each. Everything else is passed on to the client's own parser,
unchanged and in order.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

# Subject, reply subject or b"", payload, and header block or None, as received.
RawMessage: TypeAlias = tuple[bytes, bytes, bytes, "bytes | None"]

# Line of MSG or HMSG, with several spaces or tabs as nats-py accepts them: nats-server 2.9.10 writes two spaces in
# place of a missing reply subject. Groups: H or None, subject, sid, reply subject or None, size of the headers or None,
# size.
_match_line: Final = re.compile(
    rb"(H)?MSG[ \t]+([^ \t\r\n]+)[ \t]+([^ \t\r\n]+)[ \t]+(?:([^ \t\r\n]+)[ \t]+)?"
    rb"(?(1)([0-9]{1,18})[ \t]+)([0-9]{1,18})\r\n"
).match
_OPERATIONS: Final = frozenset((b"MSG", b"HMSG"))
# First bytes of MSG and HMSG; no other operation of a server begins with them.
_M_OR_H: Final = b"MH"
_CR: Final = ord("\r")
_ERROR: Final = b"-"  # the first byte of -ERR
_MIN_WORDS: Final = 4  # of MSG without a reply subject
# A line without an end is an error beyond this length. Servers limit lines of clients to 4,096 bytes by default.
_MAX_LINE: Final = 64 * 2**10
_MAX_PLAIN_LINE: Final = 4096


class _At(Enum):
    """Position between two chunks of received bytes."""

    OPERATION = auto()
    """At the beginning of an operation."""
    MESSAGE_LINE = auto()
    """Inside of the line of a MSG or HMSG, which is kept."""
    OTHER_LINE = auto()
    """Inside of a line that is passed on."""
    WANTED_MESSAGE = auto()
    """Inside of a message that is kept."""
    OTHER_MESSAGE = auto()
    """Inside of a message that is passed on."""
    NOWHERE = auto()
    """After an error: everything is dropped until the next connection."""


class Split(NamedTuple):
    """
    Received bytes, split.

    Attributes:
        messages: Complete messages by sid, in order; None for a sid that is not wanted.
        rest: All other bytes: operations, the last of which may continue in the next bytes.
        is_malformed: Whether the bytes of this connection cannot be read any further.
        unread: Bytes after an error of the server, from the beginning of an operation on. They are to be passed again
            after ``messages`` and ``rest`` were processed: what an error refers to depends on the messages around it.
    """

    messages: dict[bytes, list[RawMessage] | None]
    rest: bytes
    is_malformed: bool = False
    unread: bytes = b""


class FrameSplitter:
    """
    Splits the bytes of a connection into wanted messages and everything else; a machine without I/O.

    It has to receive all bytes of a connection, from the beginning of an operation on. Which sids are wanted may change
    at any time: a message is either returned or passed on, never divided.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin with a new connection: the first part of an operation is forgotten."""
        self._at = _At.OPERATION
        self._kept: list[bytes] = []
        self._left = 0  # bytes of the message that have not arrived

    def skip(self, size: int) -> None:
        """Pass on the next ``size`` bytes, which end a message whose first part the client's parser has."""
        self._at, self._left = _At.OTHER_MESSAGE, size

    def feed(self, data: bytes, is_wanted: Callable[[bytes], bool]) -> Split:
        """
        Split the next bytes of the connection. Never raises.

        ``is_wanted``: Returns whether the messages of a sid are wanted. Called once for each sid; must not raise.
        """
        start = 0
        if self._kept:
            self._kept.append(data)
            self._left -= len(data)
            if self._at is _At.WANTED_MESSAGE and self._left > 0:
                return Split({}, b"")
            data, self._kept, self._at = b"".join(self._kept), [], _At.OPERATION
        elif self._at is _At.OTHER_MESSAGE:
            start = self._pass_message(0, self._left, len(data))
        elif self._at is _At.OTHER_LINE:
            start = self._pass_line(data, 0)
            return Split({}, data[:start], unread=data[start:])  # the line may be an error
        return self._split(data, start, is_wanted)

    def _split(self, data: bytes, at: int, is_wanted: Callable[[bytes], bool]) -> Split:
        """Split bytes; those before an index are passed on, and an operation begins or continues there."""
        messages: dict[bytes, list[RawMessage] | None] = {}
        rest: list[bytes] = []
        size, passed = len(data), 0
        while at < size and self._at is _At.OPERATION:
            line = _match_line(data, at)
            if line is None:
                is_error = data.startswith(_ERROR, at)
                at = self._keep_line(data, at) if data[at] in _M_OR_H else self._pass_line(data, at)
                if is_error:
                    break
                continue
            _, _, sid, _, headers, length = line.groups()
            if sid not in messages:
                messages[sid] = [] if is_wanted(sid) else None
            wanted = messages[sid]
            if wanted is None:
                at = line.end() + int(length) + 2
                if at > size:
                    at = self._pass_message(line.end(), int(length) + 2, size)
                else:
                    at = _skip_messages(data, at, sid)
            elif self._is_complete(data, line.end(), int(headers or 0), int(length)):
                if passed < at:
                    rest.append(data[passed:at])
                at = passed = _take_messages(data, at, line, wanted)
        if passed < at:
            rest.append(data[passed:at])
        if self._at in (_At.MESSAGE_LINE, _At.WANTED_MESSAGE):
            self._kept = [data[at:]]
        unread = data[at:] if self._at is _At.OPERATION else b""
        return Split(messages, rest[0] if len(rest) == 1 else b"".join(rest), self._at is _At.NOWHERE, unread)

    def _keep_line(self, data: bytes, at: int) -> int:
        """Keep the line of a MSG or HMSG that is not complete; return its index."""
        is_part = b"\n" not in data[at:] and len(data) - at <= _MAX_LINE
        self._at = _At.MESSAGE_LINE if is_part else _At.NOWHERE
        return at

    def _pass_line(self, data: bytes, at: int) -> int:
        """Return the index after the line of another operation."""
        end = data.find(b"\n", at) + 1
        self._at = _At.OPERATION if end else _At.OTHER_LINE
        return end or len(data)

    def _pass_message(self, start: int, length: int, size: int) -> int:
        """Return the index after a message that is not wanted, of which ``size - start`` bytes have arrived."""
        self._left = max(0, start + length - size)
        self._at = _At.OTHER_MESSAGE if self._left else _At.OPERATION
        return min(start + length, size)

    def _is_complete(self, data: bytes, start: int, headers: int, length: int) -> bool:
        """Return whether a wanted message has arrived as a whole, which begins at an index after its line."""
        end = start + length
        self._left = end + 2 - len(data)
        if headers > length or not b"\r\n".startswith(data[end : end + 2]):
            self._at = _At.NOWHERE
        elif self._left > 0:
            self._at = _At.WANTED_MESSAGE
        return self._at is _At.OPERATION


def _take_messages(data: bytes, at: int, line: re.Match[bytes], wanted: list[RawMessage]) -> int:
    """
    Take messages of one subscription.

    Returns the index after them: of the end, of another operation, or of a message that is incomplete or unusual.
    """
    _, subject, sid, found, headers, length = line.groups()
    reply, start = found or b"", line.end()
    middle, end = start + int(headers or 0), start + int(length)
    find, has_at, add = data.find, data.startswith, wanted.append
    while True:
        if middle > end or not has_at(b"\r\n", end):
            return at
        add((subject, reply, data[middle:end], data[start:middle] or None))
        at = end + 2
        start = find(b"\n", at) + 1
        if not 0 < start < at + _MAX_PLAIN_LINE or data[start - 2] != _CR:
            return at
        words = data[at : start - 2].split(b" ")
        count = len(words)
        if count < _MIN_WORDS or words[2] != sid or not words[1] or not words[-1].isdigit():
            return at
        subject, middle, end = words[1], start, start + int(words[-1])
        if words[0] == b"HMSG" and words[-2].isdigit():
            middle += int(words[-2])
            count -= 1
        elif words[0] != b"MSG":
            return at
        if count == _MIN_WORDS:
            reply = b""
        elif count == _MIN_WORDS + 1:
            reply = words[3]
        else:
            return at


def _skip_messages(data: bytes, at: int, sid: bytes) -> int:
    """Return the index after the plain messages of a subscription that begin at an index, after another message."""
    find, size = data.find, len(data)
    while True:
        start = find(b"\n", at) + 1
        if not 0 < start < at + _MAX_PLAIN_LINE or data[start - 2] != _CR:
            return at
        words = data[at : start - 2].split(b" ")
        if len(words) < _MIN_WORDS or words[2] != sid or words[0] not in _OPERATIONS or not words[-1].isdigit():
            return at
        end = start + int(words[-1]) + 2
        if end > size:
            return at
        at = end
