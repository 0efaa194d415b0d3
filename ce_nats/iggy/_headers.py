"""
Encode and decode the user headers of an Iggy message: a map of keys to typed values.

Iggy, "Message headers", section "Binary transport" (August 2023): length of the key, key, kind, length of the value,
value; no count, and no order. Up to Iggy 0.6 keys are strings; from 0.7 on a key begins with a kind, as a value does.
This changes every entry, so the layout must be given. No bytes are valid in both layouts; the first bytes differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final, TypeAlias, cast

from ..errors import CeNatsError, DecodeError, EncodeError, ErrorCode, choice, preview
from ..wire._octets import as_octets
from ._reader import Reader
from ._value import MAX_FIELD, HeaderKind, HeaderValue, checked_kind

# "the total size of the headers is currently limited to 100 KB": 100,000 encoded bytes, which all versions accept. The
# first version accepted 102,400, and counted values only.
MAX_HEADERS: Final = 100_000

_LENGTH_SIZE: Final = 4
# Two lengths and the kind of the value.
_SIZE_AROUND: Final = 2 * _LENGTH_SIZE + 1

# A string, or in Layout.TYPED_KEYS a value of any kind. A value of kind string is the same key as its text.
HeaderKey: TypeAlias = str | HeaderValue
HeaderMap: TypeAlias = Mapping[HeaderKey, HeaderValue]


class Layout(str, Enum):
    """
    Layout of a header map.

    ``STRING_KEYS`` is that of Iggy up to 0.6, with keys that are strings. ``TYPED_KEYS`` is that of Iggy 0.7 and later,
    with keys that have a kind.
    """

    STRING_KEYS = "string-keys"
    TYPED_KEYS = "typed-keys"

    def __str__(self) -> str:
        return self.value


def encode_headers(headers: HeaderMap, *, layout: Layout = Layout.STRING_KEYS) -> bytes:
    """
    Encode a header map, in the map's order. An empty map is encoded as ``b""``.

    Args:
        headers: Values by key. Keys are strings, in ``Layout.TYPED_KEYS`` also :class:`HeaderValue`.
        layout: Layout of the bytes.

    Raises:
        EncodeError: ``invalid-header-name`` for a key that is empty, has more than 255 bytes, or has another type;
            ``invalid-header-value`` for a value that is not a :class:`HeaderValue`; ``invalid-utf8``;
            ``duplicate-header`` for a key that occurs as a string and as a value; ``headers-too-large`` for more than
            100,000 bytes; ``invalid-header-block`` if ``headers`` is not a mapping.
        ValueError: ``layout`` is not a layout.
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
    """Check a header map to be sent, and return its keys and values, each key as a HeaderValue."""
    keys_are_strings = choice(Layout, layout, "layout") is Layout.STRING_KEYS
    if not isinstance(headers, Mapping):
        raise EncodeError(
            ErrorCode.INVALID_HEADER_BLOCK, f"headers must be a mapping, got {preview(headers)}", requirement="IG-02"
        )
    entries: dict[HeaderValue, HeaderValue] = {}
    for key, value in headers.items():
        typed = _typed_key(key)
        if keys_are_strings and typed.kind is not HeaderKind.STRING:
            raise EncodeError(
                ErrorCode.INVALID_HEADER_NAME,
                f"a key must be a string, got {preview(key)}: keys of other kinds need Iggy 0.7 or later, and "
                f"layout=Layout.{Layout.TYPED_KEYS.name} in encode_headers() and encode_json()",
                header=key_text(key),
                requirement="IG-01",
            )
        if not isinstance(value, HeaderValue):
            raise EncodeError(
                ErrorCode.INVALID_HEADER_VALUE,
                f"the value of {preview(key)} must be a HeaderValue, got {preview(value)}",
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
            f"the headers must have at most {MAX_HEADERS} bytes for Iggy, got {size} bytes",
            requirement="IG-01",
        )
    return list(entries.items())


def _typed_key(key: object) -> HeaderValue:
    if isinstance(key, HeaderValue):
        return key
    if not isinstance(key, str):
        raise EncodeError(
            ErrorCode.INVALID_HEADER_NAME,
            f"a key must be a str or a HeaderValue, got {preview(key)}",
            requirement="IG-01",
        )
    try:
        return HeaderValue.of(HeaderKind.STRING, key)
    except EncodeError as error:
        code = ErrorCode.INVALID_HEADER_NAME if error.code is ErrorCode.INVALID_HEADER_VALUE else error.code
        raise EncodeError(code, f"key {preview(key)}: {error.message}", header=key, requirement="IG-01") from error


def decode_headers(data: bytes, *, layout: Layout = Layout.STRING_KEYS) -> dict[HeaderKey, HeaderValue]:
    """
    Decode a header map, in wire order.

    Each key and value is checked: its length, its kind, and that the bytes are valid for that kind. The total size is
    not limited, because versions of the server count it differently.

    Args:
        data: All bytes of the map; ``b""`` is an empty map.
        layout: Layout of the bytes.

    Returns:
        Values by key. A key of kind string is a ``str``; of another kind, in ``Layout.TYPED_KEYS``, a
        :class:`HeaderValue`.

    Raises:
        DecodeError: The first error: ``unexpected-header-layout`` if the map has the other layout;
            ``truncated-frame``; ``unknown-header-kind``; ``invalid-header-name`` (a key of 0 or more than 255 bytes, or
            invalid for its kind); ``invalid-header-value`` (a value of 0 or more than 255 bytes, or invalid for its
            kind, such as a bool that is neither 0 nor 1);
            ``invalid-utf8``; ``duplicate-header``; ``invalid-message`` if ``data`` is not bytes.
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
    """Whether the length of a key is at this index. It cannot be at both 0 and 1: its last three bytes are 0."""
    length = octets[start : start + _LENGTH_SIZE]
    return len(length) == _LENGTH_SIZE and 0 < int.from_bytes(length, "little") <= MAX_FIELD


def _begins_with_empty_key(octets: bytes) -> bool:
    """Whether the bytes begin with a kind and the length 0. The length of a key that begins with NUL looks the same."""
    return octets[0] in _CODES and octets[1 : 1 + _LENGTH_SIZE] == bytes(_LENGTH_SIZE)


def _other_layout(layout: Layout, version: str) -> DecodeError:
    return DecodeError(ErrorCode.UNEXPECTED_HEADER_LAYOUT, f"headers must have layout {layout}, got those of {version}")


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
        raise DecodeError(
            code, f"{what} must have 1 to {MAX_FIELD} bytes, got {length}", header=header, requirement="IG-01"
        )
    return reader.take(length, what)


def decoded_key(kind: HeaderKind, octets: bytes) -> HeaderKey:
    """
    Return the key with a kind and bytes that were received.

    Raises:
        DecodeError: ``invalid-header-name``, ``invalid-utf8``.
    """
    key = _decoded(kind, octets, ErrorCode.INVALID_HEADER_NAME, "a key", None)
    return cast("str", key.python) if kind is HeaderKind.STRING else key


def decoded_value(kind: HeaderKind, octets: bytes, key: HeaderKey) -> HeaderValue:
    """
    Return the value with a kind and bytes that were received for a key.

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
    """Return the text of a key for error messages."""
    return key if isinstance(key, str) else f"{key.kind.label} {preview(key.python)}"


def duplicate_key(key: HeaderKey, error_class: type[CeNatsError]) -> CeNatsError:
    """Return the error for a repeated key. In a dict the last value would silently replace the others."""
    return error_class(
        ErrorCode.DUPLICATE_HEADER,
        f"key {preview(key)} must occur at most once",
        header=key_text(key),
        requirement="IG-02",
    )
