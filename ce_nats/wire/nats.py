"""
Encode and decode NATS messages: header blocks, and the frames of the client protocol.

ADR-4 "NATS Message Headers", and the "Client Protocol" page of the NATS documentation. Decoding is strict: bytes that
different decoders could interpret differently are errors, never repaired. No network I/O. The meaning of headers is in
codec/binding.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from .._numbers import check_count
from ..errors import DecodeError, EncodeError, ErrorCode, preview
from ..message import Headers, HeadersLike, check_header, header_pairs
from ..subjects import check_subject
from ._octets import as_octets

__all__ = [
    "MAX_CONTROL_LINE",
    "Frame",
    "FrameReader",
    "HeaderBlock",
    "Status",
    "decode_frames",
    "decode_header_block",
    "encode_header_block",
    "encode_hmsg",
    "encode_hpub",
    "write_header_block",
    "write_publish",
]

# Bytes of a control line without its CRLF. nats-server accepts 4096 from a client by default, but the INFO that it
# sends lists every server of a cluster and has no limit.
MAX_CONTROL_LINE: Final = 65_536

# nats-server accepts sizes of at most nine digits ("999M").
_MAX_SIZE: Final = 999_999_999
_SIZE: Final = re.compile(r"[0-9]{1,9}")

# "Multiple whitespace characters will be treated as a single field delimiter", space and tab.
_FIELD: Final = re.compile(r"[^ \t]+")
_END_OF_NAME: Final = re.compile(rb"[ \t\r]")
# "The unique alphanumeric subscription ID"
_SID: Final = re.compile(r"[0-9A-Za-z]+")

# ADR-4: "a string identifying the header version (NATS/X.x), currently 1.0, so it is rendered as NATS/1.0␍␊".
# ADR-9 and ADR-13 show the status that the server may add: "NATS/1.0 100 Idle Heartbeat".
_VERSION: Final = "NATS/1.0"
_VERSION_LINE: Final = re.compile(rb"NATS/1\.0(?: ([0-9]{3})(?:[ \t]([^\0]*))?)?")

# ADR-4: "a field name followed by a colon (:), optional leading whitespace, the field value, and optional trailing
# whitespace. No spaces are allowed between the header field name and colon." See check_header() for the characters.
_HEADER_LINE: Final = re.compile(rb"([!-9;-~]+):([^\0\r\n]*)")
# The same as text, with the LF before it.
_PLAIN_LINE: Final = re.compile(r"\n([!-9;-~]+):([^\0\r\n]*)\r(?=\n)")
_BARE_CR_OR_LF: Final = re.compile(rb"\r(?!\n)|(?<!\r)\n")

# The "Syntax" lines of the Client Protocol: names of the arguments of an operation, by their number.
_ARGUMENTS: Final[Mapping[tuple[str, int], tuple[str, ...]]] = {
    ("PUB", 2): ("subject", "total_bytes"),
    ("PUB", 3): ("subject", "reply", "total_bytes"),
    ("HPUB", 3): ("subject", "header_bytes", "total_bytes"),
    ("HPUB", 4): ("subject", "reply", "header_bytes", "total_bytes"),
    ("MSG", 3): ("subject", "sid", "total_bytes"),
    ("MSG", 4): ("subject", "sid", "reply", "total_bytes"),
    ("HMSG", 4): ("subject", "sid", "header_bytes", "total_bytes"),
    ("HMSG", 5): ("subject", "sid", "reply", "header_bytes", "total_bytes"),
    ("SUB", 2): ("subject", "sid"),
    ("SUB", 3): ("subject", "queue_group", "sid"),
    ("UNSUB", 1): ("sid",),
    ("UNSUB", 2): ("sid", "max_msgs"),
    ("PING", 0): (),
    ("PONG", 0): (),
    ("+OK", 0): (),
}
_NUMBERS: Final = ("header_bytes", "total_bytes", "max_msgs")
# The argument of these operations is JSON or free text, including spaces.
_FREE_TEXT: Final = frozenset({"INFO", "CONNECT", "-ERR"})
_OPERATIONS: Final = _FREE_TEXT | {op for op, _ in _ARGUMENTS}
# "only PUB, MSG, HPUB, and HMSG include payloads"
_WITH_PAYLOAD: Final = frozenset({"PUB", "HPUB", "MSG", "HMSG"})


# --- Header block ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Status:
    """
    Status of the server on the version line.

    Attributes:
        code: Three digits: 100 heartbeat and flow control, 404 no messages, 408 timeout, 503 no responders.
        description: Text of the status without outer white space, or ``""``.
    """

    code: int
    description: str


@dataclass(frozen=True, slots=True)
class HeaderBlock:
    """
    A decoded header block.

    Attributes:
        headers: The pairs in wire order, names as received; may be empty.
        status: The server's status, or None for an ordinary message.
    """

    headers: Headers
    status: Status | None = None


def encode_header_block(headers: HeadersLike) -> bytes:
    """
    Encode a header block, from ``NATS/1.0`` to the empty line.

    ``Name: value``, one line per value in the order given; non-ASCII text is encoded as UTF-8. A value that begins or
    ends with white space is an error, because decoders remove it: the receiver would get a different value.

    Args:
        headers: Headers in any form that :class:`~ce_nats.Headers` accepts.

    Raises:
        EncodeError: ``invalid-header-name``; ``invalid-header-value`` (a line break, a NUL, an unpaired surrogate,
            outer white space, or not a string); ``invalid-header-block`` if ``headers`` is neither pairs nor a mapping;
            ``invalid-utf8`` for a mail header of nats-py with bytes that are not UTF-8.
    """
    pairs = header_pairs(headers, EncodeError)
    for name, value in pairs:
        check_header(name, value)
    return write_header_block(pairs)


def write_header_block(pairs: Iterable[tuple[str, str]]) -> bytes:
    """
    Encode a header block without checks, for headers that were checked or received from a server.

    Args:
        pairs: Names and values. A surrogate escape (PEP 383) is encoded as the byte that it represents.
    """
    lines = "\r\n".join(map(": ".join, pairs))
    end = "\r\n\r\n" if lines else "\r\n"
    return f"{_VERSION}\r\n{lines}{end}".encode("utf-8", "surrogateescape")


def decode_header_block(block: bytes) -> HeaderBlock:
    """
    Decode a header block. Its line ends are checked first, then the lines from first to last.

    Args:
        block: All HDR_LEN bytes, the empty line included.

    Raises:
        DecodeError: ``invalid-message`` if it is not bytes; ``invalid-header-block`` for a missing or early empty
            line, a CR or LF that is not part of a CRLF, a folded line, a line without a colon;
            ``invalid-header-version`` for a first line other than ``NATS/1.0`` with a status of three digits or none;
            ``invalid-header-name`` (also for white space before the colon); ``invalid-header-value`` for a NUL;
            ``invalid-utf8``.
    """
    return read_header_block(block, "strict")


def read_header_block(block: bytes, errors: str) -> HeaderBlock:
    """
    Decode a header block.

    ``errors``: Handling of bytes that are not UTF-8: ``strict`` raises ``invalid-utf8``, ``surrogateescape`` keeps them
    as surrogate escapes (PEP 383), so that unused headers are not checked.
    """
    octets = as_octets(block, "a header block", DecodeError)
    if (pairs := _plain_pairs(octets, errors)) is not None:
        return HeaderBlock(Headers._of(pairs))
    # HDR_LEN runs "from the start of the version string (NATS/1.0) up to and including the ␍␊ before the payload".
    if not octets.endswith(b"\r\n\r\n"):
        raise DecodeError(
            ErrorCode.INVALID_HEADER_BLOCK,
            f"a header block must end with an empty line, got {preview(octets[-4:])}",
            requirement="H4-LEN-01",
        )
    if bare := _BARE_CR_OR_LF.search(octets):
        raise DecodeError(
            ErrorCode.INVALID_HEADER_BLOCK,
            f"lines of a header block must end with CRLF, got a single CR or LF at byte {bare.start()}",
        )
    version_line, *lines = octets[:-4].split(b"\r\n")
    status = _decode_version_line(version_line, errors)
    return HeaderBlock(Headers._of([_decode_header_line(line, errors) for line in lines]), status)


def _plain_pairs(octets: bytes, errors: str) -> list[tuple[str, str]] | None:
    """Return the headers of a block without errors and status, at a quarter of the cost; None for any other block."""
    if not (octets.startswith(b"NATS/1.0\r\n") and octets.endswith(b"\r\n\r\n")):
        return None
    try:
        lines = _PLAIN_LINE.findall(octets.decode("utf-8", errors))
    except UnicodeDecodeError:
        return None
    # Each LF begins a line, except for that of the last line and that of the empty line.
    if len(lines) != octets.count(b"\n") - 2:
        return None
    return [(name, value.strip(" \t")) for name, value in lines]


def _decode_version_line(line: bytes, errors: str) -> Status | None:
    matched = _VERSION_LINE.fullmatch(line)
    if matched is None:
        raise DecodeError(
            ErrorCode.INVALID_HEADER_VERSION,
            f"the first line must be {_VERSION}, alone or with a space and a status of three digits, "
            f"got {preview(line)}",
        )
    code, description = matched.groups()
    if code is None:
        return None
    return Status(int(code), _utf8((description or b"").strip(b" \t"), "the status description", errors=errors))


def _decode_header_line(line: bytes, errors: str) -> tuple[str, str]:
    matched = _HEADER_LINE.fullmatch(line)
    if matched is None:
        raise _line_error(line)
    name = matched[1].decode("ascii")
    return name, _utf8(matched[2].strip(b" \t"), "the value", header=name, errors=errors)


def _line_error(line: bytes) -> DecodeError:
    """Return the error for a line that is not a header line."""
    if line.startswith((b" ", b"\t")):
        # RFC 7230 3.2.4 also allows decoders to unfold it; then two decoders would see different headers.
        return DecodeError(
            ErrorCode.INVALID_HEADER_BLOCK,
            f"a header line must not be folded, got {preview(line)}",
            requirement="H4-FMT-07",
        )
    name, colon, _ = line.partition(b":")
    if not colon:
        return DecodeError(ErrorCode.INVALID_HEADER_BLOCK, f"a header line must have a colon, got {preview(line)}")
    if _HEADER_LINE.fullmatch(name + colon):
        header = name.decode("ascii")
        return DecodeError(
            ErrorCode.INVALID_HEADER_VALUE, f"the value of header {preview(header)} must not contain NUL", header=header
        )
    return DecodeError(
        ErrorCode.INVALID_HEADER_NAME,
        f"a header name must be printable ASCII, followed by a colon without a space, got {preview(name)}",
        header=name.decode("latin-1"),
    )


# --- Frames ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """
    One operation of the client protocol.

    A frame has ``data`` and ``headers``, so that :func:`~ce_nats.from_nats_message` accepts it.

    Attributes:
        op: Name of the operation, upper case: ``HPUB``, ``HMSG``, ``PUB``, ``MSG``, ``SUB``, ``UNSUB``, ``PING``,
            ``PONG``, ``+OK``, ``-ERR``, ``INFO`` or ``CONNECT``.
        args: The rest of the control line after the operation, without outer white space: the JSON of INFO and CONNECT,
            the text of -ERR, and so on.
        subject: The subject as received, which may have wildcards, or None for an operation without one.
        sid: Subscription id, or None.
        reply: Reply subject, or None.
        headers: The headers; None for an operation without a header block.
        status: The server's status, or None.
        payload: Payload bytes after the header block; ``b""`` also for operations without payload.
        header_bytes: HDR_LEN, size of the header block in bytes; None without a header block.
        total_bytes: TOT_LEN, size of header block and payload in bytes, without the final CRLF.
    """

    op: str
    args: str = ""
    subject: str | None = None
    sid: str | None = None
    reply: str | None = None
    headers: Headers | None = None
    status: Status | None = None
    payload: bytes = b""
    header_bytes: int | None = None
    total_bytes: int = 0

    @property
    def data(self) -> bytes:
        """The payload."""
        return self.payload


def encode_hpub(subject: str, payload: bytes, headers: HeadersLike, *, reply: str = "") -> bytes:
    """
    Encode ``HPUB <SUBJ> [REPLY] <HDR_LEN> <TOT_LEN>`` CRLF, header block, payload, CRLF.

    Args:
        subject: Subject to publish to; no wildcards.
        payload: Bytes, ``bytearray`` or ``memoryview``; may be empty.
        headers: Headers in any form that :class:`~ce_nats.Headers` accepts; may be empty.
        reply: Reply subject, or ``""``.

    Raises:
        EncodeError: ``invalid-subject``; ``invalid-message`` if the payload is not bytes; ``invalid-frame`` for more
            than 999,999,999 bytes, or a control line of more than :data:`MAX_CONTROL_LINE` bytes; as
            :func:`encode_header_block` does.
    """
    check_subject(subject)
    block, content = _block_and_content(payload, headers, reply)
    return _checked(write_publish(subject, content, block, reply), len(block) + len(content))


def write_publish(subject: str, payload: bytes, block: bytes, reply: str = "") -> bytes:
    """
    Encode an HPUB frame, or a PUB frame if there is no header block, without checks.

    Args:
        subject: Subject to publish to, which was checked.
        payload: Bytes; may be empty.
        block: Header block, from :func:`write_header_block` or as received; ``b""`` if there are no headers.
        reply: Reply subject, which was checked, or ``""``.
    """
    if reply:
        subject = f"{subject} {reply}"
    total = len(block) + len(payload)
    control_line = f"HPUB {subject} {len(block)} {total}\r\n" if block else f"PUB {subject} {total}\r\n"
    # "Note that the trailing CR+LF is still required", after an empty payload too.
    return b"".join((control_line.encode(), block, payload, b"\r\n"))


def encode_hmsg(subject: str, sid: str | int, payload: bytes, headers: HeadersLike, *, reply: str = "") -> bytes:
    """
    Encode ``HMSG <SUBJECT> <SID> [REPLY] <HDR_LEN> <TOT_LEN>`` CRLF, header block, payload, CRLF, as a server does.

    Args:
        subject: Subject that the message was published to.
        sid: Subscription id, ASCII letters and digits.
        payload: As for :func:`encode_hpub`.
        headers: As for :func:`encode_hpub`.
        reply: Reply subject, or ``""``.

    Raises:
        EncodeError: As :func:`encode_hpub`; ``invalid-frame`` also for an invalid ``sid``.
    """
    check_subject(subject)
    sid_text = str(sid) if type(sid) is int and sid.bit_length() <= 64 else sid
    if not isinstance(sid_text, str) or not _SID.fullmatch(sid_text):
        raise EncodeError(
            ErrorCode.INVALID_FRAME, f"a subscription id must be ASCII letters and digits, got {preview(sid_text)}"
        )
    block, content = _block_and_content(payload, headers, reply)
    total = len(block) + len(content)
    control_line = " ".join(filter(None, ("HMSG", subject, sid_text, reply, str(len(block)), str(total))))
    return _checked(b"".join((control_line.encode(), b"\r\n", block, content, b"\r\n")), total)


def _block_and_content(payload: bytes, headers: HeadersLike, reply: str) -> tuple[bytes, bytes]:
    """Check what follows the subject of a frame; return its header block and its payload."""
    if reply:
        check_subject(reply)
    content = as_octets(payload, "a payload", EncodeError)
    return encode_header_block(headers), content


def _checked(frame: bytes, total: int) -> bytes:
    """
    Return a frame with ``total`` bytes of headers and payload.

    Raises:
        EncodeError: ``invalid-frame``: it is too large.
    """
    length = len(frame) - total - 2 * len(b"\r\n")
    if total > _MAX_SIZE or length > MAX_CONTROL_LINE:
        raise EncodeError(
            ErrorCode.INVALID_FRAME,
            f"a frame must have at most {_MAX_SIZE} bytes and a control line of at most {MAX_CONTROL_LINE} bytes, "
            f"got {total} and {length}",
        )
    return frame


def decode_frames(data: bytes, *, max_control_line: int = MAX_CONTROL_LINE) -> list[Frame]:
    """
    Decode complete frames, of either direction.

    Args:
        data: Bytes of zero or more frames in sequence.
        max_control_line: As for :class:`FrameReader`.

    Raises:
        DecodeError: The first error, as :meth:`FrameReader.feed`; ``truncated-frame`` if the last frame is incomplete.
    """
    reader = FrameReader(max_control_line=max_control_line)
    frames = reader.feed(data)
    reader.close()
    return frames


class FrameReader:
    """
    Decode frames from bytes that arrive in pieces of any size. The time is linear in the number of bytes.

    After an error the start of the next frame is unknown, so every further call raises the same error. Frames before
    the invalid one are not lost: if a call finds valid frames and then an invalid one, it returns the valid ones, and
    the *next* call raises the error. Call :meth:`close` at the end of the bytes; it raises a pending error.

    Args:
        max_control_line: Maximum size of a control line in bytes, without its CRLF.

    Raises:
        ValueError: ``max_control_line`` is not an integer, 1 or more.
    """

    def __init__(self, *, max_control_line: int = MAX_CONTROL_LINE) -> None:
        check_count("max_control_line", max_control_line)
        self._max_control_line = max_control_line
        self._buffer = bytearray()
        self._position = 0  # index in the buffer of the first byte not decoded
        self._searched = 0  # index in the buffer up to which no LF was found after _position
        self._head: Frame | None = None  # frame whose control line was decoded, and whose payload is incomplete
        self._error: DecodeError | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """
        Add bytes and return the frames that they complete, in order.

        Raises:
            DecodeError: ``invalid-message`` if ``data`` is not bytes, which does not change the reader's state; else
                ``invalid-frame`` (unknown operation, number of arguments, size, line end, length of the line),
                ``invalid-utf8`` (control line), or an error of :func:`decode_header_block`.
        """
        octets = as_octets(data, "a piece of a stream", DecodeError)
        self._raise_error()
        self._buffer += octets
        frames: list[Frame] = []
        try:
            while (frame := self._next()) is not None:
                frames.append(frame)
        except DecodeError as error:
            self._error = error
            self._buffer.clear()
            if not frames:
                raise
        else:
            del self._buffer[: self._position]
            self._searched -= self._position
            self._position = 0
        return frames

    def close(self) -> None:
        """
        Finish: check that the bytes did not end inside a frame.

        Raises:
            DecodeError: The pending error of :meth:`feed`; ``truncated-frame`` if the last frame is incomplete.
        """
        self._raise_error()
        if self._head is not None:
            missing = self._head.total_bytes + 2 - len(self._buffer)
            raise DecodeError(ErrorCode.TRUNCATED_FRAME, f"{missing} bytes of the last {self._head.op} are missing")
        if self._buffer:
            line = preview(bytes(self._buffer))
            raise DecodeError(ErrorCode.TRUNCATED_FRAME, f"the last control line must end with CRLF, got {line}")

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)

    def _next(self) -> Frame | None:
        """Return the next frame, or None if more bytes are needed."""
        head = self._read_control_line() if self._head is None else self._head
        if head is None or head.op not in _WITH_PAYLOAD:
            return head
        frame = self._read_payload(head)
        self._head = head if frame is None else None
        return frame

    def _read_control_line(self) -> Frame | None:
        limit = self._position + self._max_control_line + len(b"\r\n")
        end = self._buffer.find(b"\n", self._searched, limit)
        if end < 0:
            if len(self._buffer) >= limit:
                line = bytes(self._buffer[self._position : self._position + 100])
                raise DecodeError(
                    ErrorCode.INVALID_FRAME,
                    f"a control line must have at most {self._max_control_line} bytes, got {preview(line)}",
                )
            self._searched = len(self._buffer)
            return None
        line = bytes(self._buffer[self._position : end])
        self._position = self._searched = end + 1
        return _decode_control_line(line)

    def _read_payload(self, head: Frame) -> Frame | None:
        end = self._position + head.total_bytes
        if len(self._buffer) < end + 2:
            return None
        if self._buffer[end : end + 2] != b"\r\n":
            raise DecodeError(
                ErrorCode.INVALID_FRAME,
                f"the {head.total_bytes} bytes of {head.op} must be followed by CRLF, "
                f"got {preview(bytes(self._buffer[end : end + 2]))}",
                requirement="NP-03",
            )
        content = bytes(self._buffer[self._position : end])
        self._position = self._searched = end + 2
        if head.header_bytes is None:
            return replace(head, payload=content)
        block = decode_header_block(content[: head.header_bytes])
        return replace(head, headers=block.headers, status=block.status, payload=content[head.header_bytes :])


def _decode_control_line(line: bytes) -> Frame:
    """Decode a control line, given without its LF, to a frame without payload."""
    if not line.endswith(b"\r") or b"\r" in line[:-1]:
        raise DecodeError(
            ErrorCode.INVALID_FRAME, f"a control line must end with CRLF, got {preview(line)}", requirement="NP-03"
        )
    name = _END_OF_NAME.split(line, maxsplit=1)[0]
    # "NATS protocol operation names are case insensitive"
    op = name.upper().decode("latin-1")
    if op not in _OPERATIONS:
        raise DecodeError(
            ErrorCode.INVALID_FRAME, f"the operation must be one of NATS, got {preview(name)}", requirement="NP-02"
        )
    args = _utf8(line[len(name) : -1].strip(b" \t"), f"the control line of {op}")
    if op in _FREE_TEXT and args:
        return Frame(op, args)
    fields = _FIELD.findall(args)
    names = _ARGUMENTS.get((op, len(fields)))
    if names is None:
        numbers = " or ".join(str(number) for known, number in _ARGUMENTS if known == op) or "JSON or text"
        raise DecodeError(
            ErrorCode.INVALID_FRAME, f"{op} must have {numbers} arguments, got {len(fields)}: {preview(args)}"
        )
    return _fill_in(op, args, dict(zip(names, fields, strict=True)))


def _fill_in(op: str, args: str, given: Mapping[str, str]) -> Frame:
    sizes = {name: _decode_size(op, given[name]) for name in _NUMBERS if name in given}
    header_bytes, total_bytes = sizes.get("header_bytes"), sizes.get("total_bytes", 0)
    if header_bytes is not None and header_bytes > total_bytes:
        raise DecodeError(
            ErrorCode.INVALID_FRAME,
            f"the header block of {op} must fit in its total of {total_bytes} bytes, got {header_bytes} bytes",
        )
    return Frame(
        op=op,
        args=args,
        subject=given.get("subject"),
        sid=given.get("sid"),
        reply=given.get("reply"),
        header_bytes=header_bytes,
        total_bytes=total_bytes,
    )


def _decode_size(op: str, field: str) -> int:
    """Decode a number. ASCII digits only: int() also accepts signs, underscores and digits of other scripts."""
    if not _SIZE.fullmatch(field):
        raise DecodeError(
            ErrorCode.INVALID_FRAME, f"numbers of {op} must have one to nine digits, got {preview(field)}"
        )
    return int(field)


# --- Text and bytes -------------------------------------------------------------------------------------------------


def _utf8(octets: bytes, what: str, header: str | None = None, errors: str = "strict") -> str:
    try:
        return octets.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise DecodeError(
            ErrorCode.INVALID_UTF8,
            f"{what} {preview(octets)} is not valid UTF-8",
            header=header,
            requirement="H4-ENC-01",
        ) from error
