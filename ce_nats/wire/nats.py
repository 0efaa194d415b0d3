"""
The bytes of NATS messages: header blocks, and the frames of the client protocol around them.

ADR-4 "NATS Message Headers", and the "Client Protocol" page of the NATS documentation. What a block or a frame holds is
taken literally: a spelling that another reader could take for something else is refused, never repaired. There is no
socket here, and what headers mean is not known here (see binding.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ..errors import DecodeError, EncodeError, ErrorCode, preview
from ..message import Headers, HeadersLike, check_header, header_pairs
from ..subjects import check_subject
from .octets import as_octets

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
]

# Bytes of a control line without its CRLF. nats-server takes 4096 from a client by default, but the INFO that it sends
# lists every server of a cluster and is bound by nothing.
MAX_CONTROL_LINE: Final = 65_536

# nats-server reads sizes of at most nine digits ("999M").
_MAX_SIZE: Final = 999_999_999
_SIZE: Final = re.compile(r"[0-9]{1,9}")

# "Multiple whitespace characters will be treated as a single field delimiter", space and tab.
_FIELD: Final = re.compile(r"[^ \t]+")
_END_OF_NAME: Final = re.compile(rb"[ \t\r]")
# "The unique alphanumeric subscription ID"
_SID: Final = re.compile(r"[0-9A-Za-z]+")

# ADR-4: "a string identifying the header version (NATS/X.x), currently 1.0, so it is rendered as NATS/1.0␍␊".
# ADR-9 and ADR-13 show what the server may put behind it: "NATS/1.0 100 Idle Heartbeat".
_VERSION: Final = "NATS/1.0"
_VERSION_LINE: Final = re.compile(rb"NATS/1\.0(?: ([0-9]{3})(?:[ \t]([^\0]*))?)?")

# ADR-4: "a field name followed by a colon (:), optional leading whitespace, the field value, and optional trailing
# whitespace. No spaces are allowed between the header field name and colon." See check_header() for the characters.
_HEADER_LINE: Final = re.compile(rb"([!-9;-~]+):([^\0\r\n]*)")
_BARE_CR_OR_LF: Final = re.compile(rb"\r(?!\n)|(?<!\r)\n")

# The "Syntax" lines of the Client Protocol: what the arguments of an operation are, by their number.
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
# The argument of these is JSON or a sentence, spaces and all.
_FREE_TEXT: Final = frozenset({"INFO", "CONNECT", "-ERR"})
_OPERATIONS: Final = _FREE_TEXT | {op for op, _ in _ARGUMENTS}
# "only PUB, MSG, HPUB, and HMSG include payloads"
_WITH_PAYLOAD: Final = frozenset({"PUB", "HPUB", "MSG", "HMSG"})


# --- Header block ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Status:
    """
    What the server says on the version line.

    Attributes:
        code: Three digits: 100 heartbeat and flow control, 404 no messages, 408 timeout, 503 no responders.
        description: Its text without outer white space, or ``""``.
    """

    code: int
    description: str


@dataclass(frozen=True, slots=True)
class HeaderBlock:
    """
    A decoded header block.

    Attributes:
        headers: The pairs in wire order, names as sent; there may be none.
        status: The server's status, or None for an ordinary message.
    """

    headers: Headers
    status: Status | None = None


def encode_header_block(headers: HeadersLike) -> bytes:
    """
    Write a header block, from ``NATS/1.0`` to the empty line.

    ``Name: value``, one line per value in the order given; text beyond ASCII goes as UTF-8. A value that begins or ends
    with white space is refused, because every reader takes that for padding: it would arrive as a different value.

    Args:
        headers: Any shape that :class:`~ce_nats.Headers` takes.

    Raises:
        EncodeError: ``invalid-header-name``; ``invalid-header-value`` (a line break, a NUL, a lone surrogate, outer
            white space, no text); ``invalid-header-block`` where ``headers`` is neither pairs nor a mapping;
            ``invalid-utf8`` for a mail header of nats-py's with other bytes.
    """
    pairs = header_pairs(headers, EncodeError)
    for name, value in pairs:
        check_header(name, value)
    return write_header_block(pairs)


def write_header_block(pairs: Iterable[tuple[str, str]]) -> bytes:
    """
    :func:`encode_header_block` for headers that were checked, or that come from a server.

    Args:
        pairs: Names and values. A surrogate escape (PEP 383) in them is the byte that it stands for.
    """
    lines = "".join([f"{name}: {value}\r\n" for name, value in pairs])
    return f"{_VERSION}\r\n{lines}\r\n".encode("utf-8", "surrogateescape")


def decode_header_block(block: bytes) -> HeaderBlock:
    """
    Read a header block. The block's shape is looked at first, then its lines from first to last.

    Args:
        block: All HDR_LEN bytes, the empty line included.

    Raises:
        DecodeError: ``invalid-message`` where it is not bytes; ``invalid-header-block`` for a missing or early empty
            line, a CR or LF that is not CRLF, a folded line, a line without a colon; ``invalid-header-version`` for a
            first line other than ``NATS/1.0`` with a status of three digits or none; ``invalid-header-name`` (white
            space before the colon too); ``invalid-header-value`` for a NUL; ``invalid-utf8``.
    """
    octets = as_octets(block, "a header block", DecodeError)
    # HDR_LEN runs "from the start of the version string (NATS/1.0) up to and including the ␍␊ before the payload".
    if not octets.endswith(b"\r\n\r\n"):
        raise DecodeError(
            ErrorCode.INVALID_HEADER_BLOCK,
            f"a header block ends with an empty line, not with {preview(octets[-4:])}",
            requirement="H4-LEN-01",
        )
    if bare := _BARE_CR_OR_LF.search(octets):
        raise DecodeError(ErrorCode.INVALID_HEADER_BLOCK, f"byte {bare.start()} is a CR or LF that is not of a CRLF")
    version_line, *lines = octets[:-4].split(b"\r\n")
    status = _decode_version_line(version_line)
    return HeaderBlock(Headers._of([_decode_header_line(line) for line in lines]), status)


def _decode_version_line(line: bytes) -> Status | None:
    matched = _VERSION_LINE.fullmatch(line)
    if matched is None:
        raise DecodeError(
            ErrorCode.INVALID_HEADER_VERSION,
            f"the first line is {_VERSION}, alone or with a space and a status of three digits, not {preview(line)}",
        )
    code, description = matched.groups()
    if code is None:
        return None
    return Status(int(code), _utf8((description or b"").strip(b" \t"), "the status description"))


def _decode_header_line(line: bytes) -> tuple[str, str]:
    matched = _HEADER_LINE.fullmatch(line)
    if matched is None:
        raise _line_fault(line)
    name = matched[1].decode("ascii")
    return name, _utf8(matched[2].strip(b" \t"), "the value", header=name)


def _line_fault(line: bytes) -> DecodeError:
    """What is wrong with a line that is not a header line."""
    if line.startswith((b" ", b"\t")):
        # RFC 7230 3.2.4 would also allow to unfold; two readers that differ in that see different headers.
        return DecodeError(ErrorCode.INVALID_HEADER_BLOCK, f"{preview(line)} is a folded line", requirement="H4-FMT-07")
    name, colon, _ = line.partition(b":")
    if not colon:
        return DecodeError(ErrorCode.INVALID_HEADER_BLOCK, f"there is no colon in header line {preview(line)}")
    if _HEADER_LINE.fullmatch(name + colon):
        header = name.decode("ascii")
        return DecodeError(ErrorCode.INVALID_HEADER_VALUE, f"the value of {preview(header)} has a NUL", header=header)
    return DecodeError(
        ErrorCode.INVALID_HEADER_NAME,
        f"a header name is printable ASCII without a colon, and no space follows it: {preview(name)}",
        header=name.decode("latin-1"),
    )


# --- Frames ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """
    One operation of the client protocol.

    A frame has ``data`` and ``headers``, so :func:`~ce_nats.from_nats_message` takes it as it is.

    Attributes:
        op: Name of the operation, upper case: ``HPUB``, ``HMSG``, ``PUB``, ``MSG``, ``SUB``, ``UNSUB``, ``PING``,
            ``PONG``, ``+OK``, ``-ERR``, ``INFO`` or ``CONNECT``.
        args: The control line behind the operation, without outer white space: the JSON of INFO and CONNECT, the text
            of -ERR, and so on.
        subject: The subject as it stands, wildcards and all, or None where the operation has none.
        sid: Subscription id, or None.
        reply: Reply subject, or None.
        headers: The headers; None for an operation without a header block.
        status: The server's status, or None.
        payload: Payload bytes behind the header block; ``b""`` also for operations without payload.
        header_bytes: HDR_LEN, bytes of the header block; None where there is no header block.
        total_bytes: TOT_LEN, bytes of header block and payload, without the final CRLF.
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
    Write ``HPUB <SUBJ> [REPLY] <HDR_LEN> <TOT_LEN>`` CRLF, header block, payload, CRLF.

    Args:
        subject: Subject to publish to; no wildcards.
        payload: Bytes, ``bytearray`` or ``memoryview``; may be empty.
        headers: Any shape that :class:`~ce_nats.Headers` takes; without any, the block has no pairs.
        reply: Reply subject, or ``""``.

    Raises:
        EncodeError: ``invalid-subject``; ``invalid-message`` where the payload is not bytes; ``invalid-frame`` for more
            than 999,999,999 bytes, or a control line beyond :data:`MAX_CONTROL_LINE`; as :func:`encode_header_block`.
    """
    check_subject(subject)
    return _encode_frame(["HPUB", subject], payload, headers, reply)


def encode_hmsg(subject: str, sid: str | int, payload: bytes, headers: HeadersLike, *, reply: str = "") -> bytes:
    """
    Write ``HMSG <SUBJECT> <SID> [REPLY] <HDR_LEN> <TOT_LEN>`` CRLF, header block, payload, CRLF, as a server does.

    Args:
        subject: Subject the message was published to.
        sid: Subscription id, ASCII letters and digits.
        payload: As for :func:`encode_hpub`.
        headers: As for :func:`encode_hpub`.
        reply: Reply subject, or ``""``.

    Raises:
        EncodeError: As :func:`encode_hpub`; ``invalid-frame`` also for a ``sid`` that is none.
    """
    check_subject(subject)
    sid_text = str(sid) if type(sid) is int and sid.bit_length() <= 64 else sid
    if not isinstance(sid_text, str) or not _SID.fullmatch(sid_text):
        raise EncodeError(ErrorCode.INVALID_FRAME, f"a subscription id is letters and digits, not {preview(sid_text)}")
    return _encode_frame(["HMSG", subject, sid_text], payload, headers, reply)


def _encode_frame(fields: list[str], payload: bytes, headers: HeadersLike, reply: str) -> bytes:
    if reply:
        check_subject(reply)
        fields.append(reply)
    content = as_octets(payload, "a payload", EncodeError)
    block = encode_header_block(headers)
    total = len(block) + len(content)
    control_line = " ".join([*fields, str(len(block)), str(total)]).encode("utf-8")
    if total > _MAX_SIZE or len(control_line) > MAX_CONTROL_LINE:
        raise EncodeError(
            ErrorCode.INVALID_FRAME,
            f"{total} bytes behind a control line of {len(control_line)} bytes are too many",
        )
    # "Note that the trailing CR+LF is still required", behind an empty payload too.
    return b"".join((control_line, b"\r\n", block, content, b"\r\n"))


def decode_frames(data: bytes, *, max_control_line: int = MAX_CONTROL_LINE) -> list[Frame]:
    """
    Read whole frames, of either direction.

    Args:
        data: Bytes of zero or more frames, one behind the other.
        max_control_line: As for :class:`FrameReader`.

    Raises:
        DecodeError: The first fault, as :meth:`FrameReader.feed`; ``truncated-frame`` where the last frame is cut.
    """
    reader = FrameReader(max_control_line=max_control_line)
    frames = reader.feed(data)
    reader.close()
    return frames


class FrameReader:
    """
    Read frames from bytes that come in pieces, in time linear in their number, however small the pieces are.

    After an error there is no telling where the next frame begins, so the reader stays broken: every further call
    raises the same error. Frames in front of the bad one are not lost: where one call completes good frames and then
    meets a bad one, it returns the good ones, and the *next* call raises. Whoever reaches the end of the bytes calls
    :meth:`close`, which is then that next call.

    Args:
        max_control_line: Bytes that a control line may have, without its CRLF.
    """

    def __init__(self, *, max_control_line: int = MAX_CONTROL_LINE) -> None:
        self._max_control_line = max_control_line
        self._buffer = bytearray()
        self._position = 0  # in the buffer; what stands before it was read
        self._searched = 0  # in the buffer; no LF of a control line between position and here
        self._head: Frame | None = None  # a frame whose control line was read and whose payload was not
        self._error: DecodeError | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """
        Take bytes, give the frames that they complete, in order.

        Raises:
            DecodeError: ``invalid-message`` where ``data`` is not bytes, which leaves the reader as it was; else
                ``invalid-frame`` (unknown operation, number of arguments, size, line end, length of the line),
                ``invalid-utf8`` (control line), or what :func:`decode_header_block` raises.
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
        Say that no more bytes come.

        Raises:
            DecodeError: The error that :meth:`feed` still has to raise; ``truncated-frame`` in the middle of a frame.
        """
        self._raise_error()
        if self._head is not None:
            missing = self._head.total_bytes + 2 - len(self._buffer)
            raise DecodeError(ErrorCode.TRUNCATED_FRAME, f"{missing} bytes of the last {self._head.op} are missing")
        if self._buffer:
            line = preview(bytes(self._buffer))
            raise DecodeError(ErrorCode.TRUNCATED_FRAME, f"the last control line has no end: {line}")

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)

    def _next(self) -> Frame | None:
        """The next frame; None until there are more bytes."""
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
                    ErrorCode.INVALID_FRAME, f"a control line beyond {self._max_control_line} bytes: {preview(line)}"
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
                f"there is no CRLF behind the {head.total_bytes} bytes of {head.op}: "
                f"{preview(bytes(self._buffer[end : end + 2]))}",
                requirement="NP-03",
            )
        content = bytes(self._buffer[self._position : end])
        self._position = self._searched = end + 2
        if head.header_bytes is None:
            return replace(head, payload=content)
        block = decode_header_block(content[: head.header_bytes])
        return replace(head, headers=block.headers, status=block.status, payload=content[head.header_bytes :])


def _decode_control_line(line: bytes) -> Frame:
    """A frame without its payload, from a control line without its LF."""
    if not line.endswith(b"\r") or b"\r" in line[:-1]:
        raise DecodeError(
            ErrorCode.INVALID_FRAME, f"control line {preview(line)} does not end with CRLF", requirement="NP-03"
        )
    name = _END_OF_NAME.split(line, maxsplit=1)[0]
    # "NATS protocol operation names are case insensitive"
    op = name.upper().decode("latin-1")
    if op not in _OPERATIONS:
        raise DecodeError(ErrorCode.INVALID_FRAME, f"{preview(name)} is not an operation of NATS", requirement="NP-02")
    args = _utf8(line[len(name) : -1].strip(b" \t"), f"the control line of {op}")
    if op in _FREE_TEXT and args:
        return Frame(op, args)
    fields = _FIELD.findall(args)
    names = _ARGUMENTS.get((op, len(fields)))
    if names is None:
        raise DecodeError(ErrorCode.INVALID_FRAME, f"{len(fields)} arguments are not what {op} has: {preview(args)}")
    return _fill_in(op, args, dict(zip(names, fields, strict=True)))


def _fill_in(op: str, args: str, given: Mapping[str, str]) -> Frame:
    sizes = {name: _decode_size(op, given[name]) for name in _NUMBERS if name in given}
    header_bytes, total_bytes = sizes.get("header_bytes"), sizes.get("total_bytes", 0)
    if header_bytes is not None and header_bytes > total_bytes:
        raise DecodeError(
            ErrorCode.INVALID_FRAME, f"{op} has a header block of {header_bytes} bytes in {total_bytes} bytes"
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
    """Digits and nothing else: int() would take signs, underscores and the digits of other scripts."""
    if not _SIZE.fullmatch(field):
        raise DecodeError(ErrorCode.INVALID_FRAME, f"{op} has {preview(field)} for a number of up to nine digits")
    return int(field)


# --- Text and bytes -------------------------------------------------------------------------------------------------


def _utf8(octets: bytes, what: str, header: str | None = None) -> str:
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DecodeError(
            ErrorCode.INVALID_UTF8,
            f"{what} {preview(octets)} is not valid UTF-8",
            header=header,
            requirement="H4-ENC-01",
        ) from error
