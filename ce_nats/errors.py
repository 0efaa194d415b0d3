"""
All exceptions of the package, and one list of stable codes.

    CeNatsError                         base class; itself raised for a version of nats-py that is not supported
    ├── EncodeError (also ValueError)   the specifications forbid what was to be sent
    ├── DecodeError (also ValueError)   the specifications forbid what was received
    └── DeliveryError                   a server refused, did not answer, or is not connected (network only)
        ├── ApiError                    JetStream's API refused a request
        ├── NoStreamError               the server says that no stream listens on the subject
        ├── DataLossError               messages that were to be read are gone from the stream
        ├── PublishError                events of a publisher were not acknowledged
        └── StanError                   a server of NATS Streaming refused or did not answer
    Reject                              raised by handlers of events, not by the package

Match on ``code``, never on the message: a code is not renamed or reused, and the same string stands in the
fixtures, in the command line's JSON and in Spark's error column.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from enum import Enum
from types import MemberDescriptorType
from typing import Any, Final, TypeVar

__all__ = [
    "ApiError",
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
    Stable names of everything that can go wrong.

    Codes of the codec say which rule a message or an event breaks. Codes of the network say what a program can do:

    - ``connection-failed``: no connection could be made; check URLs and TLS, or try again later.
    - ``authentication-failed``: the server refused the credentials; give others, trying again does not help.
    - ``connection-closed``: the connection was closed, or lost for good; make a new one.
    - ``permission-denied``: the user lacks permission on the subject named; change the server's configuration.
    - ``timeout``: no answer came in time, so what was sent may have been processed; send it again only where a copy
      does no harm, as with a ``Nats-Msg-Id``.
    - ``no-responders``: no subscriber and no stream listens on the subject, so nothing was processed; try again later,
      or create what is missing.
    - ``temporarily-unavailable``: JetStream is there and cannot answer now (no leader, resources); try again later.
    - ``buffer-full``: the connection is down and its buffer is full; wait for the reconnect, then send again.
    - ``publish-refused``: a stream refused the message; an :class:`ApiError` has the server's ``number``. Change the
      message, or the stream's limits.
    - ``request-refused``: the server refused a request other than a publish; change the request.
    - ``stream-not-found``: there is no such stream (in NATS Streaming: channel); create it or correct the name.
    - ``consumer-not-found``: there is no such consumer (in NATS Streaming: durable), or it was deleted; likewise.
    - ``consumer-in-use``: another client has the durable; stop that client.
    - ``message-not-found``: the stream has no message with this sequence; it was deleted, or never existed.
    - ``incompatible-config``: the stream or the consumer exists, and its configuration does not allow the operation;
      change the configuration, or use another one.
    - ``stream-mismatch``: messages are from another stream than those that were copied or captured before, or from one
      that was deleted and created again; start over with a new target.
    - ``data-lost``: messages were removed from a stream before they were read; decide whether to go on without them.
    - ``unexpected-answer``: the reply is not what the protocol says; look for another program on the same subject.
    - ``not-open``: a publisher, consumer or subscription was used before it was entered or after it ended; make a new
      one.
    - ``unsupported-nats-py``: the installed nats-py lacks something that is needed; install another version.
    - ``delivery-failed``: none of these; ``__cause__`` has the client library's own error.
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

    # Headers, frames and subjects.
    DUPLICATE_HEADER = "duplicate-header"
    RESERVED_HEADER = "reserved-header"
    INVALID_HEADER_NAME = "invalid-header-name"
    INVALID_HEADER_VALUE = "invalid-header-value"
    INVALID_HEADER_VERSION = "invalid-header-version"
    INVALID_HEADER_BLOCK = "invalid-header-block"
    INVALID_SUBJECT = "invalid-subject"
    INVALID_FRAME = "invalid-frame"
    TRUNCATED_FRAME = "truncated-frame"
    UNKNOWN_HEADER_KIND = "unknown-header-kind"
    UNEXPECTED_HEADER_LAYOUT = "unexpected-header-layout"

    # Connections.
    INVALID_OPTION = "invalid-option"

    # What a server does not take.
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
    INCOMPATIBLE_CONFIG = "incompatible-config"
    STREAM_MISMATCH = "stream-mismatch"
    DATA_LOST = "data-lost"
    UNEXPECTED_ANSWER = "unexpected-answer"
    NOT_OPEN = "not-open"
    UNSUPPORTED_NATS_PY = "unsupported-nats-py"
    DELIVERY_FAILED = "delivery-failed"

    def __str__(self) -> str:
        return self.value


# The rule that most often stands behind a code; the place that raises it may name a closer one.
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
    Base of everything that this package raises on purpose.

    Pickles and copies have every attribute, those of a subclass too, whatever the arguments of its ``__init__``, and
    the ``__cause__``. A cause that does not pickle becomes an ``Exception`` with its class and text.

    Attributes:
        code: What is wrong, as a member of :class:`ErrorCode` (a string).
        attribute: Name of the CloudEvents attribute at fault, or None.
        header: Name of the NATS header at fault, as it was given, or None.
        requirement: Id of the requirement that was broken, or None where no text has one.
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
        # Exceptions with keyword arguments do not pickle by themselves, and Spark's workers pickle them.
        return _blank, (type(self), self.args), (_attributes(self), self.__cause__ and _Cause(self.__cause__))

    def __setstate__(self, state: Any) -> None:
        attributes, cause = state
        for name, value in attributes.items():
            object.__setattr__(self, name, value)
        if cause is not None:
            self.__cause__ = cause.error


class EncodeError(CeNatsError, ValueError):
    """What was to be sent breaks a rule; nothing was sent."""


class DecodeError(CeNatsError, ValueError):
    """What was received breaks a rule of the specifications."""


class DeliveryError(CeNatsError):
    """A server refused, did not answer, or is not connected; ``__cause__`` is the client library's own error."""


class ApiError(DeliveryError):
    """
    JetStream's API answered a request with an error.

    Attributes:
        number: The server's ``err_code``; 0 where it gave none.
    """

    number: int = 0

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return self.code in (ErrorCode.TEMPORARILY_UNAVAILABLE, ErrorCode.NO_RESPONDERS)


class NoStreamError(DeliveryError):
    """``no-responders``, where JetStream's API says that no stream listens on the subject: retrying does not help."""


class DataLossError(DeliveryError):
    """
    ``data-lost``: messages that were to be read are gone.

    Attributes:
        is_other_stream: The stream was deleted, and another one with its name was created.
    """

    is_other_stream: bool = False

    @classmethod
    def gone(cls, stream: str, first: int, last: int, begins: int) -> DataLossError:
        """Sequences ``first`` to ``last`` are gone, because the stream now begins at ``begins``."""
        which = f"message {first} is" if first == last else f"messages {first} to {last} are"
        return cls(
            ErrorCode.DATA_LOST,
            f"stream {stream}: {which} gone without having been read, because the stream now begins at {begins}: "
            "it was purged, or its limits removed them",
        )

    @classmethod
    def recreated(cls, stream: str, then: str, now: str) -> DataLossError:
        """The stream that was created at ``then`` was deleted, and another one created at ``now`` has its name."""
        error = cls(
            ErrorCode.DATA_LOST,
            f"stream {stream}: it was created at {then}, and now there is one that was created at {now}: "
            "it was deleted and created again, and what it held is gone",
        )
        error.is_other_stream = True
        return error

    @classmethod
    def shortened(cls, stream: str, known: int, last: int) -> DataLossError:
        """The stream had messages up to ``known``, and now ends at ``last``."""
        return cls(
            ErrorCode.DATA_LOST,
            f"stream {stream}: it had messages up to {known}, and now ends at {last}: "
            f"messages {last + 1} to {known} are gone, as when a backup is restored",
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """
    An event without an acknowledgement.

    Attributes:
        event: What was given to the publisher.
        subject: The subject it was published to.
        error: Why: ``no-responders`` (nothing was stored), ``publish-refused`` (likewise), ``permission-denied``,
            ``timeout`` (it may have been stored), or another code of the network.
    """

    event: Any
    subject: str
    error: DeliveryError


class PublishError(DeliveryError):
    """
    Events were not acknowledged. Code and text are those of the first.

    Attributes:
        failures: All of them that were not raised before, in the order in which they became known.
    """

    failures: tuple[Failure, ...] = ()


class StanError(DeliveryError):
    """A server of NATS Streaming refused a request, did not answer, or has dropped the client."""

    @property
    def text(self) -> str:
        """The server's own words, or those of NATS Streaming's other clients where the server said nothing."""
        return self.message

    @property
    def is_refusal(self) -> bool:
        """Whether the server refused, so that the same request would get the same answer."""
        return self.code in (ErrorCode.REQUEST_REFUSED, ErrorCode.PUBLISH_REFUSED)


class Reject(Exception):  # noqa: N818 - a verdict on the message, not an error of the program
    """Raised by a handler: this event can never be processed, so its message is dead-lettered at once."""


def _blank(kind: type[CeNatsError], args: tuple[Any, ...]) -> CeNatsError:
    """An error without its attributes. ``__init__`` is left out, because a subclass may have one that takes others."""
    return kind.__new__(kind, *args)


def _attributes(error: CeNatsError) -> dict[str, Any]:
    """All that an error has been given, by name: its slots' values, and its other attributes."""
    members = [vars(kind).items() for kind in type(error).__mro__]
    slots = [name for names in members for name, value in names if isinstance(value, MemberDescriptorType)]
    return {name: getattr(error, name) for name in slots if hasattr(error, name)} | vars(error)


class _Cause:
    """
    The ``__cause__`` of an error that is being pickled.

    It is pickled separately, so that a cause that cannot be pickled, or unpickled, does not make the error fail.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            pickled = pickle.dumps(self.error)
        except Exception:  # whatever a client library, or a caller, has put into it
            pickled = b""
        kind = type(self.error)
        return _Cause._arrived, (pickled, f"{kind.__module__}.{kind.__qualname__}: {_text(self.error)}")

    @staticmethod
    def _arrived(pickled: bytes, text: str) -> _Cause:
        try:
            error = pickle.loads(pickled)  # noqa: S301 - it came in a pickle that is being read already
        except Exception:
            error = None
        return _Cause(error if isinstance(error, BaseException) else Exception(text))


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a caller's object may do anything in __str__
        return ""


def at_header(error: DecodeError, attribute: str, header: str) -> DecodeError:
    """The same error, which says in addition what attribute and header it is about."""
    return DecodeError(
        error.code,
        f"{error.message} (header {preview(header)})",
        attribute=error.attribute or attribute,
        header=header,
        requirement=error.requirement,
    )


def choice(kind: type[_Choice], value: object, name: str) -> _Choice:
    """
    The member of an enumeration that a caller named, by itself or by its value.

    Args:
        kind: The enumeration.
        value: What was given.
        name: Name of the argument.

    Raises:
        ValueError: There is no such member.
    """
    try:
        return kind(value)
    except ValueError:
        members = " or ".join(repr(member.value) for member in kind)
        raise ValueError(f"{name} must be {members}, got {preview(value)}") from None


def preview(value: object, limit: int = 60) -> str:
    """``repr`` of a value for a message, short enough for one line whatever the peer sent."""
    try:
        text = repr(value[: limit + 1] if isinstance(value, (str, bytes)) else value)
    except Exception:  # a caller's object may do anything in __repr__
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else text[:limit] + "..."
