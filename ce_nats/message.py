"""
NATS headers, and messages as values.

ADR-4 "NATS Message Headers". Names are case-sensitive and may repeat, and the order of values of one name matters, so
neither a dict nor HTTP's case-insensitive headers fit: headers are a list of pairs with ADR-4's five operations.
Headers are text here; the bytes of a header block are encoded and decoded in ``wire/nats.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar, Union, cast, overload

from .errors import CeNatsError, DecodeError, EncodeError, ErrorCode, preview

__all__ = ["Headers", "HeadersLike", "Message", "NatsMessage", "StoredMessage"]

HeadersLike: TypeAlias = Union[
    "Headers", Mapping[str, str], Mapping[str, Iterable[str]], Iterable[tuple[str, str]], None
]

# By which a stream recognizes duplicates.
MSG_ID: Final = "Nats-Msg-Id"

_T = TypeVar("_T")

# "The field-name must be composed of printable ASCII characters (values between 33. and 126., except colon)."
_FIELD_NAME: Final = re.compile(r"[!-9;-~]+")
# "The field-body may be composed of any ASCII characters, except CR or LF." Non-ASCII text of the user is sent as
# UTF-8. ADR-4 allows NUL; it is an error here, because C clients truncate the value at it.
_FORBIDDEN_IN_VALUE: Final = re.compile("[\r\n\0\ud800-\udfff]")
_ONLY_STRINGS: Final = {str}
_LOWER: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


class Headers:
    """
    Ordered multimap of header names and values.

    All operations are case-sensitive, as ADR-4 requires, unless ``ignore_case=True`` is given; then they apply to
    all names that are equal without regard to the case of ASCII letters.

    ``len()`` counts pairs, iteration runs over distinct names, ``==`` compares pairs in order.

    It is registered as a ``collections.abc.Mapping``. Operations that keep one value of each name use the first one, as
    :meth:`get` and a subscript do: ``dict(headers)``, ``{**headers}``, ``some_dict | headers`` and
    ``some_dict.update(headers)``. ``headers | mapping`` returns ``Headers`` and keeps repeats; the mapping's pairs
    replace those of the same names, and come last. ``len()``, :meth:`items` and :meth:`values` count every pair, unlike
    those of other mappings, which count every name.

    Args:
        source: Pairs, a mapping to a string, a mapping to a list of strings, other ``Headers``, or None.

    Raises:
        DecodeError: ``invalid-header-name`` or ``invalid-header-value`` if a name or value is not a string.
    """

    __slots__ = ("_pairs",)

    def __init__(self, source: HeadersLike = ()) -> None:
        self._pairs: list[tuple[str, str]] = list(_normalised(source))

    @classmethod
    def _of(cls, pairs: list[tuple[str, str]]) -> Headers:
        """Wrap a list of pairs of strings, without a copy and without checks."""
        headers = cls.__new__(cls)
        headers._pairs = pairs
        return headers

    @overload
    def get(self, name: str, default: str = "", *, ignore_case: bool = False) -> str: ...
    @overload
    def get(self, name: str, default: _T, *, ignore_case: bool = False) -> str | _T: ...
    def get(self, name: str, default: object = "", *, ignore_case: bool = False) -> object:
        """Return the first value of a name (ADR-4 GET), or the default."""
        return next(self._matching(name, ignore_case), default)

    def values(self, name: str | None = None, *, ignore_case: bool = False) -> list[str]:
        """Return all values of a name (ADR-4 VALUES), or without a name the values of all pairs, in wire order."""
        return [value for _, value in self._pairs] if name is None else list(self._matching(name, ignore_case))

    def append(self, name: str, value: str, *, ignore_case: bool = False) -> None:
        """Add a value (ADR-4 APPEND); with ``ignore_case``, under the first existing name that matches."""
        ((name, value),) = _normalised([(name, value)])
        if ignore_case:
            wanted = folded(name)
            name = next((known for known, _ in self._pairs if folded(known) == wanted), name)
        self._pairs.append((name, value))

    def set(self, name: str, value: str, *, ignore_case: bool = False) -> None:
        """Delete all values of a name and append one (ADR-4 SET); the pair is the last, in the caller's case."""
        pairs = list(_normalised([(name, value)]))
        self.delete(name, ignore_case=ignore_case)
        self._pairs += pairs

    def delete(self, name: str, *, ignore_case: bool = False) -> None:
        """Remove all values of a name (ADR-4 DELETE); a missing name is not an error."""
        if ignore_case:
            wanted = folded(name)
            self._pairs = [pair for pair in self._pairs if folded(pair[0]) != wanted]
        else:
            self._pairs = [pair for pair in self._pairs if pair[0] != name]

    def items(self) -> list[tuple[str, str]]:
        """Return ``(name, value)`` pairs in wire order, repeats included."""
        return list(self._pairs)

    def keys(self) -> list[str]:
        """Return the distinct names, in the order of their first occurrence."""
        return list(dict.fromkeys(name for name, _ in self._pairs))

    def asdict(self) -> dict[str, list[str]]:
        """Return the values of each name, as ``publish()`` of nats-core accepts headers."""
        return {name: self.values(name) for name in self}

    def copy(self) -> Headers:
        return self._of(list(self._pairs))

    __copy__ = copy

    def __getitem__(self, name: str) -> str:
        for value in self._matching(name, ignore_case=False):
            return value
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return any(known == name for known, _ in self._pairs)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._pairs)

    def __or__(self, other: object) -> Headers:
        if not isinstance(other, Mapping):
            return NotImplemented
        pairs = header_pairs(other)
        names = {name for name, _ in pairs}
        return self._of([pair for pair in self._pairs if pair[0] not in names] + pairs)

    def __ror__(self, other: object) -> dict[Any, Any]:
        return {**other, **self} if isinstance(other, dict) else NotImplemented

    def __eq__(self, other: object) -> bool:
        return self._pairs == other._pairs if isinstance(other, Headers) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Headers({self._pairs!r})"

    def _matching(self, name: str, ignore_case: bool) -> Iterator[str]:
        if ignore_case:
            wanted = folded(name)
            return (value for known, value in self._pairs if folded(known) == wanted)
        return (value for known, value in self._pairs if known == name)


# Registered, not a subclass, because values() and items() differ from those of Mapping.
Mapping.register(Headers)


class Message(Protocol):
    """Any object with a payload and headers: nats-py's ``Msg`` and ``RawStreamMsg``, or a :class:`NatsMessage`."""

    @property
    def data(self) -> bytes | None: ...

    @property
    def headers(self) -> HeadersLike: ...


class UnreadableHeaders(dict[str, str]):
    """
    Headers of a received message whose header block or subject violates the protocol, as far as they can be read.

    Decoding the message raises ``error``.
    """

    def __init__(self, error: DecodeError, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(headers or {})
        self.error = error

    def __bool__(self) -> bool:
        return True  # a message without headers can be decoded


@dataclass(slots=True)
class NatsMessage:
    """
    A NATS message as a value, to be published by a client.

    Attributes:
        subject: NATS subject, or ``""`` if the sender sets it.
        data: Payload bytes, without the header block.
        headers: Always :class:`Headers`; other forms of headers are converted.
        reply: Reply subject, or ``""``.
    """

    subject: str = ""
    data: bytes = b""
    headers: Headers = field(default_factory=Headers)
    reply: str = ""

    if TYPE_CHECKING:  # the attribute is Headers, the argument may have any shape

        def __init__(
            self, subject: str = "", data: bytes = b"", headers: HeadersLike = None, reply: str = ""
        ) -> None: ...

    def __post_init__(self) -> None:
        if self.headers.__class__ is not Headers:
            self.headers = Headers(self.headers)

    def _repr_html_(self) -> str:
        from ._notebook import html_table, message_rows

        rows = [("subject", self.subject), *message_rows(self.headers.items(), self.data)]
        return html_table("NATS message", [*rows, ("reply", self.reply)] if self.reply else rows)


class StoredMessage(NamedTuple):
    """
    A message stored in a stream. :func:`ce_nats.from_nats_message` accepts it.

    Attributes:
        subject: NATS subject.
        reply: Reply subject; ``""`` for a message of a JetStream stream, which does not store it.
        headers: ``(name, value)`` pairs, in wire order, repeats included, white space around values removed. Bytes that
            are not UTF-8 are surrogate escapes (PEP 383), so that the wire bytes can be recovered.
        data: Payload bytes.
        stream: Name of the stream.
        sequence: Stream sequence, from 1.
        timestamp: A :class:`ce_nats.Timestamp`: the time at which the server stored it, in UTC, with nanoseconds.
    """

    subject: str
    reply: str
    headers: list[tuple[str, str]]
    data: bytes
    stream: str
    sequence: int
    timestamp: datetime

    def _repr_html_(self) -> str:
        from ._notebook import html_table, message_rows

        where = [("stream", self.stream), ("sequence", self.sequence), ("timestamp", str(self.timestamp))]
        rows = [*where, ("subject", self.subject), *message_rows(self.headers, self.data)]
        return html_table("stored NATS message", rows)


def header_columns(headers: HeadersLike) -> tuple[tuple[str, ...], Sequence[str]]:
    """
    Return names and values as two columns, in wire order, from headers in any accepted form.

    Raises:
        DecodeError: ``invalid-header-name`` or ``invalid-header-value`` if a name or value is not a string.
    """
    if headers.__class__ is dict:
        plain = cast("dict[str, str]", headers)
        values = list(plain.values())
        if set(map(type, plain)) <= _ONLY_STRINGS and set(map(type, values)) <= _ONLY_STRINGS:
            return tuple(plain), values
    pairs = header_pairs(headers)
    return tuple(name for name, _ in pairs), [value for _, value in pairs]


def header_pairs(headers: HeadersLike, error_class: type[CeNatsError] = DecodeError) -> list[tuple[str, str]]:
    """
    Return pairs of strings, in wire order, from headers in any accepted form.

    Raises:
        error_class: ``invalid-header-name`` or ``invalid-header-value`` if a name or value is not a string;
            ``invalid-header-block`` if the headers are neither pairs nor a mapping.
    """
    if isinstance(headers, Headers):
        return headers._pairs
    return list(_normalised(headers, error_class))


def check_header(name: str, value: str, error_class: type[CeNatsError] = EncodeError) -> None:
    """
    Check that a name and a value are legal in a header line (ADR-4; RFC 822 3.1.2).

    Raises:
        error_class: ``invalid-header-name`` or ``invalid-header-value``.
    """
    if not _FIELD_NAME.fullmatch(name):
        raise error_class(
            ErrorCode.INVALID_HEADER_NAME,
            f"a header name must be printable ASCII without spaces and colons, got {preview(name)}",
            header=name,
        )
    if _FORBIDDEN_IN_VALUE.search(value):
        raise error_class(
            ErrorCode.INVALID_HEADER_VALUE,
            f"the value of header {preview(name)} must not contain line breaks, NUL or unpaired surrogates, "
            f"got {preview(value)}",
            header=name,
        )
    if value != value.strip(" \t"):
        # "Field value may be preceded or followed by optional whitespace": receivers remove it.
        raise error_class(
            ErrorCode.INVALID_HEADER_VALUE,
            f"the value of header {preview(name)} must not begin or end with white space, got {preview(value)}",
            header=name,
            requirement="H4-FMT-03",
        )


def folded(name: str) -> str:
    """Return a name with ASCII letters in lower case. str.lower() would also change the Kelvin sign to a k."""
    return name.lower() if name.isascii() else name.translate(_LOWER)


def _normalised(headers: HeadersLike, error_class: type[CeNatsError] = DecodeError) -> Iterator[tuple[str, str]]:
    if headers is None:
        return
    try:
        for name, value in _pairs_or_lists(headers):
            if not isinstance(name, str):
                raise error_class(ErrorCode.INVALID_HEADER_NAME, f"a header name must be a str, got {preview(name)}")
            if isinstance(value, (list, tuple)):
                yield from ((name, _text(name, item, error_class)) for item in value)
            else:
                yield name, _text(name, value, error_class)
    except (TypeError, ValueError) as error:
        if isinstance(error, CeNatsError):
            raise
        raise error_class(
            ErrorCode.INVALID_HEADER_BLOCK, f"headers must be pairs or a mapping, got {preview(headers)}"
        ) from error


def _pairs_or_lists(headers: Any) -> Iterable[tuple[object, object]]:
    """Return names with one value, or with a list of values, from an object with headers."""
    # Of some multimaps, items() returns one value of each name: httpx.Headers, and Headers of nats-core after 0.2.0.
    # The Headers of nats-core 0.2.0 are not a Mapping, and their items() returns lists.
    for method in ("multi_items", "items"):
        pairs = getattr(headers, method, None)
        if callable(pairs):
            return cast("Iterable[tuple[object, object]]", pairs())
    return cast("Iterable[tuple[object, object]]", headers)


def _text(name: str, value: object, error_class: type[CeNatsError]) -> str:
    if isinstance(value, str):
        return value
    chunks = getattr(value, "_chunks", None)
    if chunks is not None:
        # nats-py's get_msg() parses headers as mail headers: a non-ASCII value is an email.header.Header, whose str()
        # lacks the original bytes. Its chunks have them, as surrogate escapes.
        try:
            return "".join(chunk for chunk, _ in chunks).encode("utf-8", "surrogateescape").decode("utf-8")
        except UnicodeError as error:
            raise error_class(
                ErrorCode.INVALID_UTF8, f"header {preview(name)} is not valid UTF-8", header=name
            ) from error
    raise error_class(
        ErrorCode.INVALID_HEADER_VALUE,
        f"the value of header {preview(name)} must be a str, got {preview(value)}",
        header=name,
    )
