"""
All exceptions of the package, and the list of stable error codes.

    CeNatsError                         base class; raised itself for an unsupported version of nats-py
    ├── EncodeError (also ValueError)   an event, message or option to send is invalid
    ├── DecodeError (also ValueError)   a received message or event is invalid, or has other data than expected
    └── DeliveryError                   a server refused, did not reply, or is not connected (network only)
        ├── ApiError                    JetStream's API refused a request
        │   └── AtomicBatchError        a stream refused an atomic batch
        ├── NoStreamError               no stream has the subject
        ├── DataLossError               messages were removed from the stream before they were read
        ├── PublishError                events of a publisher were not acknowledged
        └── StanError                   a server of NATS Streaming refused or did not reply
    Reject                              raised by handlers of events, not by the package

A wrong call raises none of these: an argument of the wrong type is a TypeError, one that is out of range or not one of
the allowed values is a ValueError. Invalid configuration (URLs, credentials, files, variables, contexts) is an
EncodeError with the code ``invalid-option``. A DecodeError is always about received or stored data, never about an
argument.

Match on ``code``, never on the message: a code is not renamed or reused. The fixtures, the command line's JSON and
Spark's error column use the same strings.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MemberDescriptorType
from typing import Any, Final, TypeVar

__all__ = [
    "ApiError",
    "AtomicBatchError",
    "BatchError",
    "CeNatsError",
    "DataLossError",
    "DecodeError",
    "DeliveryError",
    "EncodeError",
    "ErrorCode",
    "Failure",
    "NoStreamError",
    "PublishError",
    "Reject",
    "StanError",
]


_Choice = TypeVar("_Choice", bound=Enum)


class ErrorCode(str, Enum):
    """
    Stable codes of all errors.

    Codes of the codec name the rule that a message or an event violates; ``data-mismatch`` means that the data is not
    of the type that the program requested, or does not match the schema of its type. ``event-expired`` means that the
    ``expirytime`` of an event to publish is in the past. ``unsupported-dataref`` means that the ``dataref`` of an event
    is not an object in the program's bucket, ``digest-mismatch`` that the object is not the data that the sender has
    stored, and ``data-too-large`` that the data exceeds a limit of the program. ``forbidden-subject`` means that a
    subject from a message (a dead letter, a captured message or a request) must not be published to: the server itself
    acts on it, or the stream in the dead letter does not have it. ``invalid-batch`` means that an atomic batch cannot
    have the event: it has 1,000 events already, or one with the same ``Nats-Msg-Id``, or events of another stream.
    Codes of the network, and what a program can do about them:

    - ``connection-failed``: no connection could be made; check URLs and TLS, or try again later.
    - ``authentication-failed``: the server rejected the credentials; use others, retrying does not help.
    - ``connection-closed``: the connection was closed, or lost permanently; create a new one.
    - ``permission-denied``: the user lacks permission on the subject named; change the server's configuration.
    - ``timeout``: no reply arrived in time, and the request may have been processed; resend it only if a duplicate is
      harmless, as with a ``Nats-Msg-Id``.
    - ``no-responders``: the subject has no subscriber and no stream, so nothing was processed; try again later, or
      create the subscriber or stream.
    - ``temporarily-unavailable``: JetStream cannot process the request now (no leader, no resources, or too many
      messages that are not stored yet); try again later.
    - ``buffer-full``: the connection is down and its buffer is full; wait for the reconnect, then resend.
    - ``publish-refused``: a stream refused the message; an :class:`ApiError` has the server's ``err_code``. Change the
      message, or the stream's limits.
    - ``request-refused``: the server refused a request other than a publish; change the request.
    - ``stream-not-found``: the stream (in NATS Streaming: channel) does not exist; create it or correct the name.
    - ``consumer-not-found``: the consumer (in NATS Streaming: durable) does not exist, or was deleted; create it or
      correct the name.
    - ``consumer-in-use``: another client uses the durable, or the consumer of ``run(key=)``; stop that client.
    - ``message-not-found``: the stream has no message with this sequence; it was deleted, or never existed.
    - ``object-not-found``: the data of an event is not in the bucket; it was deleted, or its time to live is over.
    - ``incompatible-config``: the stream or the consumer exists, and its configuration does not allow the operation;
      change the configuration, or use another one.
    - ``stream-mismatch``: messages are from a different stream than those that were copied or captured before, or from
      one that was deleted and created again; start over with a new target.
    - ``data-lost``: messages were removed from a stream before they were read; decide whether to continue without them.
    - ``unexpected-answer``: the reply does not follow the protocol; look for another program on the same subject.
    - ``not-open``: a publisher, consumer or subscription was used before it was entered or after it was closed; create
      a new one.
    - ``unsupported-nats-py``: the installed nats-py lacks a required function; install another version.
    - ``process-ended``: a message was redelivered repeatedly and its handler never returned, because it ends the
      process; examine the dead letter, and why the process ended.
    - ``handler-cancelled``: a task that a handler awaited was cancelled, and the handler with it; treated like an
      exception of the handler.
    - ``delivery-failed``: any other failure; ``__cause__`` is the error of the client library.
    """

    # The message as a whole.
    NOT_A_CLOUDEVENT = "not-a-cloudevent"
    BATCH_NOT_SUPPORTED = "batch-not-supported"
    UNSUPPORTED_FORMAT = "unsupported-format"
    UNSUPPORTED_CHARSET = "unsupported-charset"
    INVALID_MESSAGE = "invalid-message"

    # Attributes.
    MISSING_ATTRIBUTE = "missing-attribute"
    DUPLICATE_ATTRIBUTE = "duplicate-attribute"
    EMPTY_ATTRIBUTE = "empty-attribute"
    INVALID_ATTRIBUTE_NAME = "invalid-attribute-name"
    INVALID_ATTRIBUTE_TYPE = "invalid-attribute-type"
    INVALID_CHARACTER = "invalid-character"
    UNSUPPORTED_SPECVERSION = "unsupported-specversion"
    INTEGER_OUT_OF_RANGE = "integer-out-of-range"
    INVALID_BOOLEAN = "invalid-boolean"
    INVALID_INTEGER = "invalid-integer"
    INVALID_BASE64 = "invalid-base64"
    INVALID_MEDIA_TYPE = "invalid-media-type"
    INVALID_TIMESTAMP = "invalid-timestamp"
    INVALID_URI = "invalid-uri"
    INVALID_TRACE_CONTEXT = "invalid-trace-context"

    # Header values.
    UNTERMINATED_QUOTE = "unterminated-quote"
    INVALID_PERCENT_ESCAPE = "invalid-percent-escape"
    INVALID_UTF8 = "invalid-utf8"

    # JSON, protocol buffers and data.
    INVALID_JSON = "invalid-json"
    INVALID_PROTOBUF = "invalid-protobuf"
    NOT_AN_OBJECT = "not-an-object"
    DATA_CONFLICT = "data-conflict"
    INVALID_DATA = "invalid-data"
    DATA_MISMATCH = "data-mismatch"
    DATA_NOT_DELIVERED = "data-not-delivered"

    # Headers, frames and subjects.
    DUPLICATE_HEADER = "duplicate-header"
    RESERVED_HEADER = "reserved-header"
    INVALID_HEADER_NAME = "invalid-header-name"
    INVALID_HEADER_VALUE = "invalid-header-value"
    INVALID_HEADER_VERSION = "invalid-header-version"
    INVALID_HEADER_BLOCK = "invalid-header-block"
    INVALID_SUBJECT = "invalid-subject"
    FORBIDDEN_SUBJECT = "forbidden-subject"
    INVALID_FRAME = "invalid-frame"
    TRUNCATED_FRAME = "truncated-frame"
    UNKNOWN_HEADER_KIND = "unknown-header-kind"
    UNEXPECTED_HEADER_LAYOUT = "unexpected-header-layout"

    # Extensions.
    EVENT_EXPIRED = "event-expired"
    UNSUPPORTED_DATAREF = "unsupported-dataref"
    DIGEST_MISMATCH = "digest-mismatch"
    DATA_TOO_LARGE = "data-too-large"

    # Connections.
    INVALID_OPTION = "invalid-option"

    # Limits of the server.
    INVALID_BATCH = "invalid-batch"
    PAYLOAD_TOO_LARGE = "payload-too-large"
    HEADERS_TOO_LARGE = "headers-too-large"
    HEADERS_NOT_SUPPORTED = "headers-not-supported"

    # The network.
    CONNECTION_FAILED = "connection-failed"
    AUTHENTICATION_FAILED = "authentication-failed"
    CONNECTION_CLOSED = "connection-closed"
    PERMISSION_DENIED = "permission-denied"
    TIMEOUT = "timeout"
    NO_RESPONDERS = "no-responders"
    TEMPORARILY_UNAVAILABLE = "temporarily-unavailable"
    BUFFER_FULL = "buffer-full"
    PUBLISH_REFUSED = "publish-refused"
    REQUEST_REFUSED = "request-refused"
    STREAM_NOT_FOUND = "stream-not-found"
    CONSUMER_NOT_FOUND = "consumer-not-found"
    CONSUMER_IN_USE = "consumer-in-use"
    MESSAGE_NOT_FOUND = "message-not-found"
    OBJECT_NOT_FOUND = "object-not-found"
    INCOMPATIBLE_CONFIG = "incompatible-config"
    STREAM_MISMATCH = "stream-mismatch"
    DATA_LOST = "data-lost"
    UNEXPECTED_ANSWER = "unexpected-answer"
    NOT_OPEN = "not-open"
    UNSUPPORTED_NATS_PY = "unsupported-nats-py"
    PROCESS_ENDED = "process-ended"
    HANDLER_CANCELLED = "handler-cancelled"
    DELIVERY_FAILED = "delivery-failed"

    def __str__(self) -> str:
        return self.value


# Maximum number of characters of an error's text. Values in it are shortened separately; texts of libraries are not.
_MAX_TEXT: Final = 2000

# The default requirement of each code; an error may be raised with a more specific one.
_RULES: Final[dict[ErrorCode, str]] = {
    ErrorCode.NOT_A_CLOUDEVENT: "NB-3-04",
    ErrorCode.BATCH_NOT_SUPPORTED: "NB-1.3-02",
    ErrorCode.UNSUPPORTED_FORMAT: "NB-3-05",
    ErrorCode.UNSUPPORTED_CHARSET: "NB-3-05",
    ErrorCode.MISSING_ATTRIBUTE: "CE-CA-01",
    ErrorCode.DUPLICATE_ATTRIBUTE: "CE-CA-03",
    ErrorCode.INVALID_ATTRIBUTE_NAME: "CE-NM-01",
    ErrorCode.INVALID_ATTRIBUTE_TYPE: "CE-TS-14",
    ErrorCode.INVALID_CHARACTER: "CE-TS-07",
    ErrorCode.UNSUPPORTED_SPECVERSION: "CE-AT-SV-03",
    ErrorCode.INTEGER_OUT_OF_RANGE: "CE-TS-04",
    ErrorCode.INVALID_BOOLEAN: "CE-TS-02",
    ErrorCode.INVALID_INTEGER: "CE-TS-05",
    ErrorCode.INVALID_BASE64: "RF-4648-01",
    ErrorCode.INVALID_MEDIA_TYPE: "CE-AT-DCT-04",
    ErrorCode.INVALID_TIMESTAMP: "CE-TS-13",
    ErrorCode.INVALID_URI: "CE-AT-DS-02",
    ErrorCode.UNTERMINATED_QUOTE: "NB-3.1.3.2-06",
    ErrorCode.INVALID_PERCENT_ESCAPE: "RF-3986-01",
    ErrorCode.INVALID_UTF8: "NB-3.1.3.2-22",
    ErrorCode.INVALID_JSON: "NB-3-05",
    ErrorCode.INVALID_PROTOBUF: "ST-PB-01",
    ErrorCode.NOT_AN_OBJECT: "JF-3-01",
    ErrorCode.DATA_CONFLICT: "JF-3.1.1-13",
    ErrorCode.DUPLICATE_HEADER: "NB-3.1.2-01",
    ErrorCode.RESERVED_HEADER: "NB-3.1.2-01",
    ErrorCode.INVALID_HEADER_NAME: "H4-FMT-05",
    ErrorCode.INVALID_HEADER_VALUE: "H4-FMT-06",
    ErrorCode.INVALID_HEADER_VERSION: "H4-VER-01",
    ErrorCode.INVALID_HEADER_BLOCK: "H4-FMT-01",
    ErrorCode.INVALID_SUBJECT: "NP-08",
    ErrorCode.INVALID_FRAME: "NP-07",
    ErrorCode.TRUNCATED_FRAME: "NP-03",
    ErrorCode.UNKNOWN_HEADER_KIND: "IG-03",
    ErrorCode.UNEXPECTED_HEADER_LAYOUT: "IG-04",
}

_EMPTY_RULES: Final[dict[str, str]] = {
    "id": "CE-AT-ID-02",
    "source": "CE-AT-SRC-02",
    "type": "CE-AT-TYP-02",
    "specversion": "CE-AT-SV-02",
    "subject": "CE-AT-SUB-02",
    "dataschema": "CE-AT-DS-02",
    "datacontenttype": "CE-AT-DCT-04",
    "time": "CE-AT-TIM-02",
}


class CeNatsError(Exception):
    """
    Base class of the errors of this package.

    Pickles and copies keep all attributes, including those of a subclass with its own ``__init__``, and the
    ``__cause__``. A cause that cannot be pickled becomes an ``Exception`` with the name of its class and its text.

    Attributes:
        code: The error code, a member of :class:`ErrorCode` (a string).
        attribute: Name of the CloudEvents attribute that caused the error, or None.
        header: Name of the NATS header that caused the error, as received or given, or None.
        requirement: Id of the requirement that was violated, or None if no requirement applies.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        attribute: str | None = None,
        header: str | None = None,
        requirement: str | None = None,
    ) -> None:
        message = shortened(message, _MAX_TEXT)
        super().__init__(message)
        self.code = ErrorCode(code)
        self.message = message
        self.attribute = attribute
        self.header = header
        if requirement is None and code is ErrorCode.EMPTY_ATTRIBUTE:
            requirement = _EMPTY_RULES.get(attribute or "")
        self.requirement = requirement or _RULES.get(self.code)

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions with keyword arguments cannot be pickled by default, and Spark's workers pickle them.
        return _blank, (type(self), self.args), (_attributes(self), self.__cause__ and _Cause(self.__cause__))

    def __setstate__(self, state: Any) -> None:
        attributes, cause = state
        for name, value in attributes.items():
            object.__setattr__(self, name, value)
        if cause is not None:
            self.__cause__ = cause.error


class EncodeError(CeNatsError, ValueError):
    """An event, a message or an option is invalid; nothing was sent."""


class DecodeError(CeNatsError, ValueError):
    """A received message or event violates a rule of the specifications, or its data is not of the expected type."""


class DeliveryError(CeNatsError):
    """A server refused, did not reply, or is not connected; ``__cause__`` is the error of the client library."""


class ApiError(DeliveryError):
    """
    JetStream's API replied to a request with an error.

    Attributes:
        err_code: The number of the error in the server's reply; 0 if the reply had none.
    """

    err_code: int = 0

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return self.code in (ErrorCode.TEMPORARILY_UNAVAILABLE, ErrorCode.NO_RESPONDERS)


class AtomicBatchError(ApiError):
    """
    A stream refused an atomic batch, and stored none of its events.

    Attributes:
        position: Position of the event that caused the error in the batch, from 0; None if it is not known.
        event: That event, or None.
        subject: Its subject, or ``""``.
    """

    position: int | None = None
    event: Any = None
    subject: str = ""


class NoStreamError(DeliveryError):
    """``no-responders``, and JetStream's API confirms that no stream has the subject: retrying does not help."""


class DataLossError(DeliveryError):
    """
    ``data-lost``: messages were removed from the stream before they were read.

    Attributes:
        stream: Name of the stream.
        first: Sequence of the first lost message; 0 if not known.
        last: Sequence of the last lost message; 0 if not known. Some messages between the two may have been read.
        is_other_stream: Whether the stream was deleted, and another one with its name was created.
    """

    stream: str = ""
    first: int = 0
    last: int = 0
    is_other_stream: bool = False

    @classmethod
    def gone(
        cls, stream: str, first: int, last: int, begins: int, *, retention: str = "limits", is_partial: bool = False
    ) -> DataLossError:
        """
        Return the error for messages before ``begins``, the first sequence of the stream now.

        Args:
            stream: Name of the stream.
            first: Sequence of the first message.
            last: Sequence of the last message.
            begins: Sequence of the stream's first message now.
            retention: The stream's retention.
            is_partial: Whether some of the messages from ``first`` to ``last`` were read.
        """
        which = f"message {first} is" if first == last else f"messages {first} to {last} are"
        which = f"some of {which}" if is_partial else which
        reasons = "it was purged, or its limits removed them"
        if retention != "limits":
            reasons = "consumers acknowledged them, it was purged, or its limits removed them"
        error = cls(
            ErrorCode.DATA_LOST,
            f"stream {stream}: {which} gone without having been read, because the stream now begins at {begins}: "
            f"{reasons}",
        )
        error.stream, error.first, error.last = stream, first, last
        return error

    @classmethod
    def recreated(cls, stream: str, then: str, now: str) -> DataLossError:
        """Return the error for a stream created at ``then`` that was deleted and created again at ``now``."""
        error = cls(
            ErrorCode.DATA_LOST,
            f"stream {stream}: it was created at {then}, and the stream with its name now was created at {now}: "
            "it was deleted and created again, and its messages are gone",
        )
        error.stream, error.is_other_stream = stream, True
        return error

    @classmethod
    def deleted(cls, stream: str) -> DataLossError:
        """Return the error for a stream that was deleted."""
        text = f"stream {stream}: it no longer exists: it was deleted, and its messages are gone"
        return cls(ErrorCode.DATA_LOST, text)

    @classmethod
    def not_selected(cls, stream: str, last: int, before: str, added: str) -> DataLossError:
        """Return the error for a query that has read some messages up to sequence ``last``, and now reads others."""
        error = cls(
            ErrorCode.DATA_LOST,
            f"stream {stream}: the query has read {before} up to message {last}, and would miss "
            f"earlier messages {added}: use another checkpointLocation to read them",
        )
        error.stream, error.last = stream, last
        return error

    @classmethod
    def shortened(cls, stream: str, known: int, last: int) -> DataLossError:
        """Return the error for a stream that had messages up to sequence ``known`` and now ends at ``last``."""
        error = cls(
            ErrorCode.DATA_LOST,
            f"stream {stream}: it had messages up to {known}, and now ends at {last}: "
            f"messages {last + 1} to {known} are gone, for example because a backup was restored",
        )
        error.stream, error.first, error.last = stream, last + 1, known
        return error

    @classmethod
    def not_copied(cls, stream: str, sequence: int) -> DataLossError:
        """Return the error for a message that did not fit into its dead letter and is no longer in its stream."""
        return cls(
            ErrorCode.DATA_LOST,
            f"stream {stream}: message {sequence} did not fit into its dead letter, which has neither its headers nor "
            "its payload, and the stream does not keep it: it was deleted, or its retention is not 'limits'",
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """
    An event that was not acknowledged.

    Attributes:
        event: The event given to the publisher.
        subject: The subject that it was published to.
        error: The error: ``no-responders``, ``publish-refused`` or ``temporarily-unavailable`` (not stored),
            ``permission-denied``, ``timeout`` (it may have been stored), or another code of the network.
    """

    event: Any
    subject: str
    error: DeliveryError


class PublishError(DeliveryError):
    """
    Events were not acknowledged. The code is that of the first failure, which the text names.

    Attributes:
        failures: All failures that no earlier error contained, in the order in which they occurred.
    """

    failures: tuple[Failure, ...] = ()


class StanError(DeliveryError):
    """A server of NATS Streaming refused a request, did not reply, or dropped the client."""

    @property
    def text(self) -> str:
        """The server's error text; if the server gave none, the text that other clients of NATS Streaming use."""
        return self.message

    @property
    def is_refusal(self) -> bool:
        """Whether the server refused the request, so that retrying it would have the same result."""
        return self.code in (ErrorCode.REQUEST_REFUSED, ErrorCode.PUBLISH_REFUSED)


class Reject(Exception):  # noqa: N818 - not an error of the program, but a result of a handler
    """Raised by a handler to reject an event that can never be processed; its message is dead-lettered at once."""


class BatchError(Exception):
    """
    Raised by a handler of batches: some events have failed, and the others are done.

        raise BatchError({3: ValueError("unknown customer")})

    A failed event is redelivered with back-off, or dead-lettered, as after its exception in a handler of
    :meth:`PullConsumer.run <ce_nats.aio.PullConsumer.run>`.

    Args:
        errors: Exceptions by the index of the event in the batch.

    Attributes:
        errors: As the argument.

    Raises:
        TypeError: ``errors`` is not a mapping of integers to exceptions.
        ValueError: It is empty.
    """

    def __init__(self, errors: Mapping[int, Exception]) -> None:
        given: object = errors
        if not isinstance(given, Mapping) or not all(
            type(index) is int and isinstance(error, Exception) for index, error in given.items()
        ):
            raise TypeError(f"errors must be a mapping of indexes to exceptions, got {preview(repr(errors))}")
        if not errors:
            raise ValueError("errors must have at least one index")
        self.errors = dict(errors)
        index, error = next(iter(self.errors.items()))
        super().__init__(f"{len(self.errors)} events of the batch have failed; event {index}: {error}")


def _blank(kind: type[CeNatsError], args: tuple[Any, ...]) -> CeNatsError:
    """Create an error without attributes. ``__init__`` is not called: that of a subclass may have other arguments."""
    return kind.__new__(kind, *args)


def _attributes(error: CeNatsError) -> dict[str, Any]:
    """Return all attributes of an error by name, including those in slots."""
    members = [vars(kind).items() for kind in type(error).__mro__]
    slots = [name for names in members for name, value in names if isinstance(value, MemberDescriptorType)]
    return {name: getattr(error, name) for name in slots if hasattr(error, name)} | vars(error)


class _Cause:
    """
    The ``__cause__`` of an error that is being pickled.

    It is pickled separately, so that the error can be pickled and unpickled even if its cause cannot.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            pickled = pickle.dumps(self.error)
        except Exception:  # pickling objects of a client library or a caller may raise anything
            pickled = b""
        kind = type(self.error)
        return _Cause._unpickled, (pickled, f"{kind.__module__}.{kind.__qualname__}: {text_of(self.error)}")

    @staticmethod
    def _unpickled(pickled: bytes, text: str) -> _Cause:
        try:
            error = pickle.loads(pickled)  # noqa: S301 - part of a pickle that the caller is already reading
        except Exception:
            error = None
        return _Cause(error if isinstance(error, BaseException) else Exception(text))


def text_of(error: BaseException) -> str:
    """Return the text of an exception, or ``""`` if its ``__str__`` raises."""
    try:
        return str(error)
    except Exception:  # the __str__ of a caller's object may raise anything
        return ""


def at_header(error: DecodeError, attribute: str, header: str) -> DecodeError:
    """Return a copy of an error with the attribute and the header that caused it."""
    return DecodeError(
        error.code,
        f"{error.message} (header {preview(header)})",
        attribute=error.attribute or attribute,
        header=header,
        requirement=error.requirement,
    )


def at_place(error: DecodeError, place: str) -> DecodeError:
    """Return a copy of an error whose text begins with a place, such as a file and a line."""
    return DecodeError(
        error.code,
        f"{place}: {error.message}",
        attribute=error.attribute,
        header=error.header,
        requirement=error.requirement,
    )


def choice(kind: type[_Choice], value: object, name: str) -> _Choice:
    """
    Return the member of an enumeration for an argument that is the member or its value.

    Raises:
        ValueError: The enumeration has no such member.
    """
    try:
        return kind(value)
    except ValueError:
        members = " or ".join(repr(member.value) for member in kind)
        raise ValueError(f"{name} must be {members}, got {preview(value)}") from None


def preview(value: object, limit: int = 60) -> str:
    """Return the ``repr`` of a value for an error message, cut to ``limit`` characters."""
    try:
        text = repr(value[: limit + 1] if isinstance(value, (str, bytes)) else value)
    except Exception:  # the __repr__ of a caller's object may raise anything
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else text[:limit] + "..."


def shortened(text: str, limit: int = 200) -> str:
    """Return text for an error message, cut to ``limit`` characters."""
    return text if len(text) <= limit else text[:limit] + "..."


def visible(text: str) -> str:
    r"""
    Return text with each character that is not printable as its escape in JSON, such as ``\u001b``.

    These are control characters, which a terminal would interpret, characters that change the direction of text or are
    invisible, and unpaired surrogates. The meaning of JSON text does not change.
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(char: str) -> str:
    # json.dumps() does not escape U+007F.
    return char if char.isprintable() else json.dumps(char)[1:-1].replace("\x7f", "\\u007f")
