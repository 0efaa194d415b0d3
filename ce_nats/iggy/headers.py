"""
The user headers of an Iggy message: a map of keys to typed values, and its bytes.

Iggy, "Message headers", section "Binary transport" (August 2023): length of the key, key, kind, length of the value,
value; no count, and no order. Up to Iggy 0.6 keys are strings; from 0.7 on a key has a kind in front as a value has,
which changes every entry, so the layout has to be said. No bytes are headers in both: the first ones tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final, TypeAlias, cast

from ..errors import CeNatsError, DecodeError, EncodeError, ErrorCode, choice, preview
from ..wire.octets import as_octets
from .reader import Reader
from .value import MAX_FIELD, HeaderKind, HeaderValue, checked_kind

__all__ = ["MAX_HEADERS", "HeaderKey", "HeaderMap", "Layout", "decode_headers", "encode_headers"]

# "the total size of the headers is currently limited to 100 KB": 100,000 encoded bytes, which is the least that any
# version takes; the first one took 102,400, and counted values only.
MAX_HEADERS: Final = 100_000

_LENGTH_SIZE: Final = 4
# Two lengths and the kind of the value.
_SIZE_AROUND: Final = 2 * _LENGTH_SIZE + 1

# A string, or in Layout.TYPED_KEYS a value of any kind. A value that is a string is the same key as its text.
HeaderKey: TypeAlias = str | HeaderValue
HeaderMap: TypeAlias = Mapping[HeaderKey, HeaderValue]


class Layout(str, Enum):
    """
    How a header map is written.

    ``STRING_KEYS`` is the first layout, of Iggy up to 0.6, whose keys are strings. ``TYPED_KEYS`` is that of Iggy 0.7
    and later, whose keys have a kind.
    """

    STRING_KEYS = "string-keys"
    TYPED_KEYS = "typed-keys"

    def __str__(self) -> str:
        return self.value


def encode_headers(headers: HeaderMap, *, layout: Layout = Layout.STRING_KEYS) -> bytes:
    """
    Write a header map, in the map's order; an empty one is not bytes.

    Args:
        headers: Values by key. Keys are strings, in ``Layout.TYPED_KEYS`` also :class:`HeaderValue`.
        layout: Whose bytes.

    Raises:
        EncodeError: ``invalid-header-name`` for a key that is empty, has more than 255 bytes, or is none;
            ``invalid-header-value`` for what is not a :class:`HeaderValue`; ``invalid-utf8``; ``duplicate-header``
            for a key that is there as a string and as a value; ``headers-too-large`` for more than 100,000 bytes;
            ``invalid-header-block`` for what is not a mapping; ``invalid-message`` for no layout.
    """
    parts: list[bytes] = []
    for key, value in check_header_map(headers, layout):
        if layout == Layout.TYPED_KEYS:
            parts.append(_code(key))
        parts += (_with_length(key), _code(value), _with_length(value))
    return b"".join(parts)


def _code(value: HeaderValue) -> bytes:
    return value.kind.to_bytes(1, "little")


def _with_length(value: HeaderValue) -> bytes:
    return len(value.value).to_bytes(_LENGTH_SIZE, "little") + value.value


def check_header_map(headers: HeaderMap, layout: Layout) -> list[tuple[HeaderValue, HeaderValue]]:
    """
    Keys and values of a map that can be sent, each key as a value.

    Raises:
        EncodeError: As :func:`encode_headers`.
    """
    keys_are_strings = choice(Layout, layout, "layout") is Layout.STRING_KEYS
    if not isinstance(headers, Mapping):
        raise EncodeError(
            ErrorCode.INVALID_HEADER_BLOCK, f"headers are a mapping, not {preview(headers)}", requirement="IG-02"
        )
    entries: dict[HeaderValue, HeaderValue] = {}
    for key, value in headers.items():
        typed = _typed_key(key)
        if keys_are_strings and typed.kind is not HeaderKind.STRING:
            raise EncodeError(
                ErrorCode.INVALID_HEADER_NAME,
                f"key {preview(key)} is not a string: such keys are of Iggy 0.7 or later, for which encode_headers() "
                f"and encode_json() write them with layout=Layout.{Layout.TYPED_KEYS.name}",
                header=key_text(key),
                requirement="IG-01",
            )
        if not isinstance(value, HeaderValue):
            raise EncodeError(
                ErrorCode.INVALID_HEADER_VALUE,
                f"the value of {preview(key)} is a HeaderValue, not {preview(value)}",
                header=key_text(key),
                requirement="IG-03",
            )
        if typed in entries:
            raise duplicate_key(key, EncodeError)
        entries[typed] = value
    size = sum(len(key.value) + len(value.value) for key, value in entries.items())
    size += len(entries) * (_SIZE_AROUND if keys_are_strings else _SIZE_AROUND + 1)
    if size > MAX_HEADERS:
        raise EncodeError(
            ErrorCode.HEADERS_TOO_LARGE,
            f"the headers have {size} bytes, and Iggy takes {MAX_HEADERS}",
            requirement="IG-01",
        )
    return list(entries.items())


def _typed_key(key: object) -> HeaderValue:
    if isinstance(key, HeaderValue):
        return key
    if not isinstance(key, str):
        raise EncodeError(
            ErrorCode.INVALID_HEADER_NAME, f"a key is a str or a HeaderValue, not {preview(key)}", requirement="IG-01"
        )
    try:
        return HeaderValue.of(HeaderKind.STRING, key)
    except EncodeError as error:
        code = ErrorCode.INVALID_HEADER_NAME if error.code is ErrorCode.INVALID_HEADER_VALUE else error.code
        raise EncodeError(code, f"key {preview(key)}: {error.message}", header=key, requirement="IG-01") from error


def decode_headers(data: bytes, *, layout: Layout = Layout.STRING_KEYS) -> dict[HeaderKey, HeaderValue]:
    """
    Read a header map, in wire order.

    Each key and value is checked: its length, its kind, and that the bytes are of that kind. Nothing limits the size
    of the whole, which servers of different age count differently.

    Args:
        data: All bytes of the map; none is an empty map.
        layout: Whose bytes.

    Returns:
        Values by key. A key of kind string is a ``str``; of another kind, in ``Layout.TYPED_KEYS``, a
        :class:`HeaderValue`.

    Raises:
        DecodeError: The first fault: ``unexpected-header-layout`` where the map is that of the other layout;
            ``truncated-frame``; ``unknown-header-kind``; ``invalid-header-name`` (a key of 0 or more than 255 bytes, or
            not of its kind); ``invalid-header-value`` (likewise, and a bool that is neither 0 nor 1); ``invalid-utf8``;
            ``duplicate-header``; ``invalid-message`` for what is not bytes.
    """
    layout = choice(Layout, layout, "layout")
    octets = as_octets(data, "a header map", DecodeError)
    if layout is Layout.STRING_KEYS and _begins_with_key(octets, 1) and octets[0] in _CODES:
        raise _other_layout(layout, "Iggy 0.7 or later")
    if layout is Layout.TYPED_KEYS and _begins_with_key(octets, 0) and not _begins_with_empty_key(octets):
        raise _other_layout(layout, "Iggy before 0.7")
    headers: dict[HeaderKey, HeaderValue] = {}
    for key, value in _entries(Reader(octets, "IG-01"), layout):
        if key in headers:
            raise duplicate_key(key, DecodeError)
        headers[key] = value
    return headers


_CODES: Final = frozenset(HeaderKind)


def _begins_with_key(octets: bytes, start: int) -> bool:
    """Whether there is the length of a key. It cannot be at 0 and at 1: the three bytes behind its first one are 0."""
    length = octets[start : start + _LENGTH_SIZE]
    return len(length) == _LENGTH_SIZE and 0 < int.from_bytes(length, "little") <= MAX_FIELD


def _begins_with_empty_key(octets: bytes) -> bool:
    """Whether there is a kind and the length 0. The length of a key that begins with a NUL would look the same."""
    return octets[0] in _CODES and octets[1 : 1 + _LENGTH_SIZE] == bytes(_LENGTH_SIZE)


def _other_layout(layout: Layout, whose: str) -> DecodeError:
    return DecodeError(
        ErrorCode.UNEXPECTED_HEADER_LAYOUT, f"headers of layout {layout} were expected; these look like {whose}"
    )


def _entries(reader: Reader, layout: Layout) -> Iterator[tuple[HeaderKey, HeaderValue]]:
    while reader.left:
        kind = HeaderKind.STRING
        if layout is Layout.TYPED_KEYS:
            kind = checked_kind(reader.number(1, "the kind of a key"), DecodeError)
        key = decoded_key(kind, _field(reader, "a key", ErrorCode.INVALID_HEADER_NAME, None))
        name = key_text(key)
        kind = checked_kind(reader.number(1, "the kind of a value"), DecodeError, name)
        yield key, decoded_value(kind, _field(reader, "a value", ErrorCode.INVALID_HEADER_VALUE, name), key)


def _field(reader: Reader, what: str, code: ErrorCode, header: str | None) -> bytes:
    length = reader.number(_LENGTH_SIZE, f"the length of {what}")
    if not 0 < length <= MAX_FIELD:
        raise DecodeError(code, f"{what} has 1 to {MAX_FIELD} bytes, not {length}", header=header, requirement="IG-01")
    return reader.take(length, what)


def decoded_key(kind: HeaderKind, octets: bytes) -> HeaderKey:
    """
    The key of a kind and bytes that arrived.

    Raises:
        DecodeError: ``invalid-header-name``, ``invalid-utf8``.
    """
    key = _decoded(kind, octets, ErrorCode.INVALID_HEADER_NAME, "a key", None)
    return cast("str", key.python) if kind is HeaderKind.STRING else key


def decoded_value(kind: HeaderKind, octets: bytes, key: HeaderKey) -> HeaderValue:
    """
    The value of a kind and bytes that arrived under a key.

    Raises:
        DecodeError: ``invalid-header-value``, ``invalid-utf8``.
    """
    return _decoded(kind, octets, ErrorCode.INVALID_HEADER_VALUE, f"the value of {preview(key)}", key_text(key))


def _decoded(kind: HeaderKind, octets: bytes, code: ErrorCode, what: str, header: str | None) -> HeaderValue:
    try:
        return HeaderValue(kind, octets)
    except EncodeError as error:
        code = code if error.code is ErrorCode.INVALID_HEADER_VALUE else error.code
        raise DecodeError(code, f"{what}: {error.message}", header=header, requirement=error.requirement) from error


def key_text(key: HeaderKey) -> str:
    """A key as errors name it."""
    return key if isinstance(key, str) else f"{key.kind.label} {preview(key.python)}"


def duplicate_key(key: HeaderKey, error_class: type[CeNatsError]) -> CeNatsError:
    """The error of a key that is there twice: a map in which the last value wins hides the others."""
    return error_class(
        ErrorCode.DUPLICATE_HEADER, f"key {preview(key)} is there twice", header=key_text(key), requirement="IG-02"
    )
