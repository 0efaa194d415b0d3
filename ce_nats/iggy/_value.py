"""
Typed values of Iggy's user headers: fifteen kinds and their byte encodings.

Iggy, "Message headers", sections "Structures" and "Binary transport". Numbers are little-endian, in two's complement or
IEEE 754.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, cast

from ..errors import CeNatsError, EncodeError, ErrorCode, preview

# Maximum size of a key, and of a value, in bytes.
MAX_FIELD: Final = 255


class HeaderKind(IntEnum):
    """The type of a value, with its code on the wire."""

    RAW = 1
    STRING = 2
    BOOL = 3
    INT8 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    INT128 = 8
    UINT8 = 9
    UINT16 = 10
    UINT32 = 11
    UINT64 = 12
    UINT128 = 13
    FLOAT32 = 14
    FLOAT64 = 15

    @property
    def label(self) -> str:
        """The kind's name in JSON: ``raw``, ``uint128``."""
        return self.name.lower()


# Number of bits, and whether the integer is signed.
_INTEGERS: Final = {
    kind: (int(kind.label.rpartition("int")[2]), not kind.label.startswith("u"))
    for kind in HeaderKind
    if "int" in kind.label
}
_FLOATS: Final = {HeaderKind.FLOAT32: struct.Struct("<f"), HeaderKind.FLOAT64: struct.Struct("<d")}
# Size in bytes of the kinds with a fixed size.
_WIDTHS: Final[Mapping[HeaderKind, int]] = {
    HeaderKind.BOOL: 1,
    **{kind: bits // 8 for kind, (bits, _) in _INTEGERS.items()},
    **{kind: layout.size for kind, layout in _FLOATS.items()},
}


@dataclass(frozen=True, slots=True)
class HeaderValue:
    """
    A value: its kind and its bytes, which are always valid for the kind.

    Two values are equal if kind and bytes are equal, so that a NaN is equal to itself and 0.0 is not -0.0.

    Attributes:
        kind: Type of the value.
        value: 1 to 255 bytes; numbers are little-endian, in two's complement or IEEE 754, and have the kind's size.

    Raises:
        EncodeError: ``unknown-header-kind``; ``invalid-header-value`` for another size, a bool that is neither 0 nor 1
            and a value that is not bytes; ``invalid-utf8`` for a string that is not UTF-8.
    """

    kind: HeaderKind
    value: bytes

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", checked_kind(self.kind, EncodeError))
        if self.value.__class__ is not bytes:
            raise EncodeError(
                ErrorCode.INVALID_HEADER_VALUE,
                f"a header value must be bytes, got {preview(self.value)}",
                requirement="IG-01",
            )
        _check_value(self.kind, self.value)

    @classmethod
    def of(cls, kind: HeaderKind, value: bytes | str | bool | float) -> HeaderValue:
        """
        Return the value of a kind, from ``bytes`` (raw), ``str``, ``bool``, ``int`` or ``float``.

        NaN and the infinities are valid floats, and an ``int`` is accepted for a float. A number that the kind cannot
        represent exactly is an error; ``struct.unpack("f", struct.pack("f", number))`` rounds it.

        Raises:
            EncodeError: ``unknown-header-kind``; ``invalid-header-value`` if the value has another type, is out of
                range, empty or longer than 255 bytes; ``invalid-utf8`` for an unpaired surrogate.
        """
        kind = checked_kind(kind, EncodeError)
        try:
            octets = _WRITERS[kind](value)
        except UnicodeEncodeError as error:
            raise EncodeError(
                ErrorCode.INVALID_UTF8, f"text must not contain surrogates, got {preview(value)}", requirement="IG-01"
            ) from error
        except (TypeError, ValueError, OverflowError, struct.error) as error:
            raise EncodeError(
                ErrorCode.INVALID_HEADER_VALUE, f"value must be {kind.label}, got {preview(value)}", requirement="IG-01"
            ) from error
        return cls(kind, octets)

    def __repr__(self) -> str:
        return f"HeaderValue.of(HeaderKind.{self.kind.name}, {self.python!r})"

    @property
    def python(self) -> bytes | str | bool | int | float:
        """The value as ``bytes`` (raw), ``str``, ``bool``, ``int`` or ``float``."""
        return cast("bytes | str | bool | int | float", _READERS[self.kind](self.value))


def checked_kind(kind: object, error_class: type[CeNatsError], header: str | None = None) -> HeaderKind:
    """
    Return the kind with a code.

    Raises:
        error_class: ``unknown-header-kind``.
    """
    try:
        return HeaderKind(cast("int", kind))
    except ValueError as error:
        raise error_class(
            ErrorCode.UNKNOWN_HEADER_KIND, f"the kind of a header must be 1 to 15, got {preview(kind)}", header=header
        ) from error


def _check_value(kind: HeaderKind, octets: bytes) -> None:
    width = _WIDTHS.get(kind)
    if width is None:
        if not 0 < len(octets) <= MAX_FIELD:
            raise EncodeError(
                ErrorCode.INVALID_HEADER_VALUE,
                f"{kind.label} must have 1 to {MAX_FIELD} bytes, got {len(octets)}",
                requirement="IG-01",
            )
    elif len(octets) != width:
        raise EncodeError(
            ErrorCode.INVALID_HEADER_VALUE,
            f"{kind.label} must have {width} bytes, got {len(octets)}",
            requirement="IG-03",
        )
    if kind is HeaderKind.BOOL and octets not in (b"\0", b"\1"):
        raise EncodeError(ErrorCode.INVALID_HEADER_VALUE, f"bool must be 0 or 1, got {octets[0]}", requirement="IG-03")
    if kind is HeaderKind.STRING:
        try:
            octets.decode("utf-8")
        except UnicodeDecodeError as error:
            raise EncodeError(
                ErrorCode.INVALID_UTF8, f"{preview(octets)} is not valid UTF-8", requirement="IG-01"
            ) from error


def _write_raw(value: Any) -> bytes:
    return bytes(_of_type(value, (bytes, bytearray, memoryview)))


def _write_string(value: Any) -> bytes:
    return str.encode(_of_type(value, str), "utf-8")


def _write_bool(value: Any) -> bytes:
    return b"\1" if _of_type(value, bool) else b"\0"


def _integer_writer(bits: int, signed: bool) -> Callable[[Any], bytes]:
    def write(value: Any) -> bytes:
        if isinstance(value, bool):
            raise TypeError("value must be an int, got a bool")
        return int.to_bytes(_of_type(value, int), bits // 8, "little", signed=signed)

    return write


def _float_writer(layout: struct.Struct) -> Callable[[Any], bytes]:
    def write(value: Any) -> bytes:
        if isinstance(value, bool):
            raise TypeError("value must be a float, got a bool")
        octets = layout.pack(_of_type(value, (int, float)))
        if not math.isnan(value) and layout.unpack(octets)[0] != value:
            raise ValueError("value must be exact in a float of this size")
        return octets

    return write


def _of_type(value: Any, wanted: type | tuple[type, ...]) -> Any:
    if not isinstance(value, wanted):
        raise TypeError(f"value must be {wanted}, got {type(value)}")
    return value


def _integer_reader(signed: bool) -> Callable[[bytes], int]:
    return lambda octets: int.from_bytes(octets, "little", signed=signed)


def _float_reader(layout: struct.Struct) -> Callable[[bytes], float]:
    return lambda octets: cast("float", layout.unpack(octets)[0])


_WRITERS: Final[Mapping[HeaderKind, Callable[[Any], bytes]]] = {
    HeaderKind.RAW: _write_raw,
    HeaderKind.STRING: _write_string,
    HeaderKind.BOOL: _write_bool,
    **{kind: _integer_writer(*form) for kind, form in _INTEGERS.items()},
    **{kind: _float_writer(layout) for kind, layout in _FLOATS.items()},
}
_READERS: Final[Mapping[HeaderKind, Callable[[bytes], Any]]] = {
    HeaderKind.RAW: bytes,
    HeaderKind.STRING: lambda octets: octets.decode("utf-8"),
    HeaderKind.BOOL: lambda octets: octets == b"\1",
    **{kind: _integer_reader(signed) for kind, (_, signed) in _INTEGERS.items()},
    **{kind: _float_reader(layout) for kind, layout in _FLOATS.items()},
}
