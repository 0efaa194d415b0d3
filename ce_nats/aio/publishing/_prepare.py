"""Prepare messages for streams: encode, and add the ``Nats-Msg-Id`` by which a stream detects duplicates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec
from nats.aio.client import Client

from ...codec import _fast_path
from ...codec._message_id import dedup_text
from ...codec.attributes import canonical
from ...codec.binding import Mode, dedup_id, subject_of, to_nats_message
from ...codec.event import EventLike, attributes_and_data
from ...codec.formats import Format
from ...codec.mode import ContentMode
from ...codec.subject_template import SubjectTemplate
from ...errors import DeliveryError, EncodeError, ErrorCode, preview
from ...extensions.tracing import TraceContext
from ...message import MSG_ID, HeadersLike, NatsMessage, check_header, header_pairs
from ...schemas import Validate, validator_of
from ...subjects import check_subject
from ...wire.nats import decode_header_block, write_header_block
from .._observer import Observer, Sending
from ..check_up._durability import RequiredStream
from ..core._publish import bytes_of, check_extra_headers, check_sizes, prepare, supports_headers
from ..link._client import server_info
from ._schedule import SCHEDULE, Schedule

DedupId: TypeAlias = Callable[[Any], str]
TimeToLive: TypeAlias = Callable[[Any], str | None]

NO_ACKNOWLEDGEMENT: Final = "the reply is not a PubAck: it must have the name of a stream"

# "header size exceeds maximum allowed of 64k": the server stores the length in 16 bits.
MAX_HEADER_BYTES: Final = 2**16 - 1
TTL: Final = "Nats-TTL"
# Characters of subjects that need no check of their length.
_SHORT: Final = 512
_TTL_VERSION: Final = (2, 11)


class Outgoing(msgspec.Struct, eq=False):
    """
    An event that was checked and is to be encoded.

    Attributes:
        event: The event, with a ``dataschema`` that the check has set, or with a reference to its data.
        given: The event that failures and outcomes have: that of the caller, or the one with the reference.
    """

    event: EventLike
    given: EventLike

    def with_reference(self, event: EventLike) -> Outgoing:
        """Return the event after a claim check, which returns the same one if its data is not stored."""
        return self if event is self.event else Outgoing(event, event)


class Prepared(msgspec.Struct, eq=False):
    """
    An encoded event before it is sent.

    Attributes:
        event: The event that failures and outcomes have.
        subject: Subject of the message.
        data: Its payload.
        block: Its header block; empty for a message without headers.
        sending: Observer of the outcome, or None.
        kept: The message if its headers are needed again, else None: the objects of a thousand messages would slow down
            the encoding of the next ones.
    """

    event: EventLike
    subject: str
    data: bytes
    block: bytes
    sending: Sending | None = None
    kept: NatsMessage | None = None

    @property
    def message(self) -> NatsMessage:
        """The message."""
        if self.kept is not None:
            return self.kept
        headers = decode_header_block(self.block).headers if self.block else None
        return NatsMessage(self.subject, self.data, headers)

    def abandon(self, error: BaseException) -> None:
        """Report that the event will not be sent."""
        if self.sending is not None:
            self.sending.abandon(error)


class Preparation:
    """Check and encode the events of a publisher or of a batch, in any thread."""

    # The only stream to which events may be published, or None.
    required: RequiredStream | None = None

    def __init__(
        self,
        nc: Client,
        *,
        mode: Mode,
        format: Format | None,  # noqa: A002
        dedup: DedupId | None,
        ttl: TimeToLive | None,
        validate: Validate | None,
        headerless: bool = False,
        observer: Observer | None,
        added_bytes: int = 0,
    ) -> None:
        self._nc = nc
        self._mode = mode
        self._format = format
        self._dedup = dedup
        self._ttl = ttl
        self._validator = validator_of(validate)
        self._headerless = headerless
        self._observer = observer
        self._added_bytes = added_bytes
        # Whether the fast path writes the same header block.
        is_plain = mode in (ContentMode.BINARY, "binary") and format is None and ttl is None
        self._is_plain = is_plain and observer is None and dedup in (None, dedup_id)
        self._has_message_id = dedup is not None
        # The server's INFO, and whether it supports headers.
        self._info: object = None
        self._has_headers = False

    def validated(self, event: EventLike) -> Outgoing:
        """Return an event that ``validate`` accepts, with ``dataschema`` if it sets one."""
        return Outgoing(event if self._validator is None else self._validator.checked(event), event)

    def encode(
        self,
        outgoing: Outgoing,
        subject: str | SubjectTemplate,
        *,
        headers: HeadersLike,
        trace: TraceContext | None,
        schedule: Schedule | None = None,
        check: Callable[[NatsMessage], None] | None = None,
    ) -> Prepared:
        """
        Encode an event, and check the size of its message.

        Raises:
            EncodeError: As :meth:`ce_nats.aio.Publisher.publish` does; as ``check`` does.
            DeliveryError: ``incompatible-config``.
        """
        event = outgoing.event
        if self._is_plain and headers is None and trace is None and schedule is None and check is None:
            prepared = self._encode_block(outgoing, subject)
            if prepared is not None:
                return prepared
        sending = None if self._observer is None else self._observer.send(event, subject)
        try:
            message = prepare_for_stream(
                self._nc,
                event,
                subject,
                mode=self._mode,
                format=self._format,
                headers=headers,
                dedup=self._dedup,
                ttl=self._ttl,
                headerless=self._headerless,
                trace=sending.trace if trace is None and sending is not None else trace,
                schedule=schedule,
            )
            if check is not None:
                check(message)
            block = write_header_block(message.headers.items()) if message.headers else b""
            self.check_size(message, block)
            if self.required is not None:
                self.required.check(message.subject)
        except BaseException as error:
            if sending is not None:
                sending.abandon(error)
            raise
        kept = None if check is None and sending is None else message
        return Prepared(outgoing.given, message.subject, message.data, block, sending, kept)

    def _encode_block(self, outgoing: Outgoing, subject: str | SubjectTemplate) -> Prepared | None:
        """Encode an event with the fast path, or return None if it does not handle the event."""
        nc = self._nc
        if (info := server_info(nc)) is not self._info:
            self._info, self._has_headers = info, supports_headers(nc)
        if not self._has_headers:
            return None
        encoded = _fast_path.encode_block(outgoing.event, self._has_message_id)
        if encoded is None:
            return None
        block, data = encoded
        plain = subject_of(subject, outgoing.event)
        if not plain:
            check_subject(subject)
        self._check_sizes(plain, data, block)
        if self.required is not None:
            self.required.check(plain)
        return Prepared(outgoing.given, plain, data, block)

    def check_size(self, message: NatsMessage, block: bytes) -> None:
        """
        Check the size of a message for the server that is connected now.

        Raises:
            EncodeError: ``payload-too-large``, ``headers-too-large`` or ``invalid-subject``.
        """
        self._check_sizes(message.subject, message.data, block)

    def _check_sizes(self, subject: str, data: bytes, block: bytes) -> None:
        header_size = len(block) + self._added_bytes
        size = header_size + len(data)
        max_payload = self._nc.max_payload
        if size > max_payload or header_size > MAX_HEADER_BYTES or len(subject) > _SHORT:
            check_sizes(header_size, size, bytes_of(subject), max_payload, MAX_HEADER_BYTES)


def event_id(event: EventLike) -> str:
    """
    Return the ``Nats-Msg-Id`` that Knative, Dapr and Argo use for an event: its id, unchanged.

    If two events from different sources have the same id, the stream drops the second one.

    Raises:
        EncodeError: ``missing-attribute`` or ``invalid-attribute-type``.
    """
    identifier = attributes_and_data(event)[0].get("id")
    if identifier is None:
        raise EncodeError(ErrorCode.MISSING_ATTRIBUTE, "the event must have an id", attribute="id")
    return canonical(identifier, "id")


def prepare_for_stream(
    nc: Client,
    event: EventLike,
    subject: str | SubjectTemplate,
    *,
    mode: Mode,
    format: Format | None,  # noqa: A002
    headers: HeadersLike,
    dedup: DedupId | None,
    ttl: TimeToLive | None = None,
    headerless: bool = False,
    trace: TraceContext | None,
    schedule: Schedule | None = None,
) -> NatsMessage:
    """Return the message of an event, checked for nats-py, the server and a stream, except for its size."""
    if headerless and not supports_headers(nc):
        for option, function, name in (("dedup", dedup, MSG_ID), ("ttl", ttl, TTL)):
            if function is not None:
                text = f"the server does not support headers, so {name!r} cannot be sent; use {option}=None"
                raise EncodeError(ErrorCode.HEADERS_NOT_SUPPORTED, text, header=name)
    times = [] if schedule is None else _schedule_headers(nc, event, schedule, headers)
    if times:
        headers = [*header_pairs(headers), *times]
    if headers is None and trace is None and supports_headers(nc):  # the usual case; does what prepare() does
        message = to_nats_message(event, subject, mode=mode, format=format)
        if not message.subject:
            check_subject(subject)
    else:
        message = prepare(
            nc, event, subject, mode=mode, format=format, headers=headers, headerless=headerless, trace=trace
        )
    if dedup is not None and not (headers and MSG_ID in message.headers):
        # Another schedule of an event is not a duplicate, and neither is the event itself.
        text = " ".join((_message_id(event, dedup), *(value for _, value in times)))
        message.headers._pairs.append((MSG_ID, text))  # append() would check it again
    if ttl is not None:
        _add_ttl(nc, message, event, ttl)
    return message


def _add_ttl(nc: Client, message: NatsMessage, event: EventLike, ttl: TimeToLive) -> None:
    """
    Add the time to live of an event, unless the message has one.

    Raises:
        EncodeError: ``headers-not-supported``; as ``ttl`` does.
        DeliveryError: ``incompatible-config``.
    """
    if TTL in message.headers:
        return
    value = ttl(event)
    if value is None:
        return
    _check_version(nc, repr(TTL), _TTL_VERSION)
    message.headers._pairs.append((TTL, _checked(TTL, value)))


def _schedule_headers(nc: Client, event: EventLike, schedule: Schedule, headers: HeadersLike) -> list[tuple[str, str]]:
    """
    Return the headers of the schedule of an event.

    Raises:
        EncodeError: ``reserved-header``: ``headers`` have a schedule; as :meth:`Schedule.headers` does.
        DeliveryError: ``incompatible-config``.
    """
    if any(name == SCHEDULE for name, _ in header_pairs(headers)):
        text = f"headers must not have {SCHEDULE!r} if there is a schedule"
        raise EncodeError(ErrorCode.RESERVED_HEADER, text, header=SCHEDULE)
    _check_version(nc, f"the schedule {schedule.pattern!r}", schedule.least_version)
    return schedule.headers(event)


def _check_version(nc: Client, feature: str, least: tuple[int, int]) -> None:
    """
    Check the version of the server, which would ignore a header that it does not have, and store the message.

    Raises:
        DeliveryError: ``incompatible-config``.
    """
    version = nc.connected_server_version
    if (version.major, version.minor) < least:
        number = f"{version.major}.{version.minor}.{version.patch}"
        text = f"{feature} needs nats-server {least[0]}.{least[1]} or later, got {number}"
        raise DeliveryError(ErrorCode.INCOMPATIBLE_CONFIG, text)


def _checked(name: str, value: object) -> str:
    """
    Return the value of a header that a function of the caller returned.

    Raises:
        EncodeError: ``invalid-header-value``.
    """
    if not isinstance(value, str):
        text = f"{name!r} must be a str, got {preview(value)}"
        raise EncodeError(ErrorCode.INVALID_HEADER_VALUE, text, header=name)
    check_header(name, value)
    check_extra_headers([(name, value)])
    return value


def _message_id(event: EventLike, dedup: DedupId) -> str:
    if dedup is dedup_id:
        attributes = attributes_and_data(event)[0]  # already checked
        return dedup_text(str(attributes["source"]), str(attributes["id"]))
    return _checked(MSG_ID, dedup(event))
