"""
CloudEvents attributes: names, the seven types, and their canonical string values.

CloudEvents 1.0 "Naming Conventions", "Type System", "Context Attributes". The same checks run in both directions; only
the class of the error differs. Percent-encoding is in ``percent``, JSON in ``structured``.
"""

from __future__ import annotations

import re
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

from ..errors import CeNatsError, DecodeError, EncodeError, ErrorCode, preview
from . import media_type
from .percent import join_surrogates
from .timestamp import Timestamp, format_datetime

__all__ = ["ExtensionTypes", "canonical"]

ErrorClass: TypeAlias = type[CeNatsError]
ExtensionTypes: TypeAlias = Mapping[str, type]
JsonScalar: TypeAlias = str | int  # bool is an int

# The order in which a missing attribute is reported.
REQUIRED: Final = ("specversion", "id", "source", "type")

# "MUST consist of lower-case letters ('a' to 'z') or digits ('0' to '9') from the ASCII character set."
_NAME: Final = re.compile("[a-z0-9]+")
_RANGE: Final = range(-(2**31), 2**31)
# "the integer component of the JSON Number, optionally prefixed with a minus sign"
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)")
_MAX_DIGITS: Final = len("-2147483648")
# RFC 3986 4.3: absolute-URI starts with a scheme. A fragment, spaces and non-ASCII characters are accepted, as in other
# SDKs.
ABSOLUTE_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
# Strings must not contain control characters, noncharacters or unpaired surrogates.
_FORBIDDEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
    + "]"
)
# RFC 4648 4: the standard alphabet, padded to a multiple of four. Unused bits of the last character are not checked.
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}")


def check_name(name: object, error_class: ErrorClass) -> None:
    """
    Check that a name is a legal attribute name.

    Raises:
        error_class: ``invalid-attribute-name``, also for ``data``, which is a member of JSON events, not an attribute.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        text = name if isinstance(name, str) else preview(name)
        raise error_class(
            ErrorCode.INVALID_ATTRIBUTE_NAME,
            f"an attribute name must consist of a-z and 0-9, got {preview(name)}",
            attribute=text,
            requirement=None if name else "CE-NM-03",
        )
    if name == "data":
        raise error_class(
            ErrorCode.INVALID_ATTRIBUTE_NAME,
            "an attribute name must not be 'data'",
            attribute=name,
            requirement="CE-NM-06",
        )


def check_characters(name: str, value: str, error_class: ErrorClass) -> None:
    """
    Check that text has only characters that a CloudEvents String may contain.

    Raises:
        error_class: ``invalid-character``.
    """
    if value.isascii() and value.isprintable():
        return
    if found := _FORBIDDEN.search(value):
        raise error_class(
            ErrorCode.INVALID_CHARACTER,
            f"attribute {preview(name)} must not contain control characters, noncharacters or unpaired surrogates, "
            f"got U+{ord(found.group()):04X}",
            attribute=name,
        )


def check_required(attributes: Mapping[str, object], error_class: ErrorClass) -> None:
    """
    Check that an event has the four required attributes.

    Raises:
        error_class: ``missing-attribute``.
    """
    for name in REQUIRED:
        if name not in attributes:
            raise error_class(
                ErrorCode.MISSING_ATTRIBUTE, f"the event must have the attribute {preview(name)}", attribute=name
            )


def are_valid_names(names: Sequence[str]) -> bool:
    """Whether attribute names are legal and distinct, and include the required attributes."""
    try:
        for name in names:
            check_name(name, DecodeError)
    except DecodeError:
        return False
    return len(set(names)) == len(names) and set(names).issuperset(REQUIRED)


# --- The eight attributes that the specification defines -----------------------------------------------------------
# Each check accepts a string of legal characters and returns the Python value.


def _non_empty(name: str) -> Callable[[str, ErrorClass], str]:
    def check(value: str, error_class: ErrorClass) -> str:
        if not value:
            raise _empty(name, error_class)
        return value

    return check


def _specversion(value: str, error_class: ErrorClass) -> str:
    if value != "1.0":
        if not value:
            raise _empty("specversion", error_class)
        raise error_class(
            ErrorCode.UNSUPPORTED_SPECVERSION,
            f"specversion must be '1.0', got {preview(value)}",
            attribute="specversion",
        )
    return value


def _datacontenttype(value: str, error_class: ErrorClass) -> str:
    if media_type.parse(value) is None:
        if not value:
            raise _empty("datacontenttype", error_class)
        raise error_class(
            ErrorCode.INVALID_MEDIA_TYPE,
            f"datacontenttype must be a media type such as text/plain, got {preview(value)}",
            attribute="datacontenttype",
        )
    return value


def _dataschema(value: str, error_class: ErrorClass) -> str:
    if not ABSOLUTE_URI.match(value):
        if not value:
            raise _empty("dataschema", error_class)
        raise error_class(
            ErrorCode.INVALID_URI, f"dataschema must be an absolute URI, got {preview(value)}", attribute="dataschema"
        )
    return value


def _time(value: str, error_class: ErrorClass) -> Timestamp:
    if not value:
        raise _empty("time", error_class)
    try:
        return Timestamp._parse(value, error_class)
    except CeNatsError as error:
        error.attribute = "time"
        raise


def _empty(name: str, error_class: ErrorClass) -> CeNatsError:
    return error_class(ErrorCode.EMPTY_ATTRIBUTE, f"attribute {preview(name)} must not be empty", attribute=name)


CORE: Final[Mapping[str, Callable[[str, ErrorClass], Any]]] = {
    "specversion": _specversion,
    "id": _non_empty("id"),
    "source": _non_empty("source"),
    "type": _non_empty("type"),
    "subject": _non_empty("subject"),
    "datacontenttype": _datacontenttype,
    "dataschema": _dataschema,
    "time": _time,
}


# --- Python -> canonical -------------------------------------------------------------------------------------------


def checked_attributes(attributes: Mapping[str, Any]) -> dict[str, JsonScalar]:
    """
    Check every attribute of an event and convert it to its JSON value.

    Returns attributes in the event's order: booleans and integers unchanged, all others as canonical strings. An
    attribute that is None is unset, as a ``null`` in a JSON event (JSON format 2.2), and omitted.

    Raises:
        EncodeError: See :data:`CORE` and :func:`canonical`; ``missing-attribute``.
    """
    checked: dict[str, JsonScalar] = {}
    for key, value in attributes.items():
        check = CORE.get(key)
        if check is None:
            check_name(key, EncodeError)
        name = str.__str__(key)  # the value of a str enum's member, not its name
        if value is None:
            continue
        if check is None:
            checked[name] = _json_form(name, value)
        elif name == "time":
            checked[name] = _time_text(value)
        else:
            checked[name] = check(_core_text(name, value), EncodeError)
    check_required(checked, EncodeError)
    return checked


def canonical(value: object, name: str = "") -> str:
    """
    Return the canonical string of a value of one of the seven types.

    Args:
        value: ``bool``, ``int`` of 32 bits, ``str``, ``bytes``, timezone-aware ``datetime`` or :class:`Timestamp`.
            URIs are strings.
        name: Name of the attribute, for error messages.

    Raises:
        EncodeError: ``invalid-attribute-type``, ``integer-out-of-range`` or ``invalid-character``.
    """
    return scalar_text(_json_form(name, value))


def scalar_text(value: JsonScalar) -> str:
    """Return the canonical string of a value from :func:`checked_attributes`: ``true``, ``42`` or the string itself."""
    if isinstance(value, str):
        return value
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _json_form(name: str, value: object) -> JsonScalar:
    if isinstance(value, str):
        return _legal_text(name, value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return check_integer(name, int(value), EncodeError)
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    if isinstance(value, datetime):
        return _time_text(value, name)
    raise _wrong_type(name, value, "a bool, an int, a str, bytes or a timezone-aware datetime", EncodeError)


def _legal_text(name: str, value: str) -> str:
    text = str.__str__(value)  # the value of a str enum's member, not its name
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = _named(name, join_surrogates, text)
    check_characters(name, text, EncodeError)
    return text


def _core_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong_type(name, value, "a str", EncodeError)
    return _legal_text(name, value)


def _time_text(value: object, name: str = "time") -> str:
    if isinstance(value, Timestamp):
        return _named(name, lambda timestamp: timestamp.text, value)
    if isinstance(value, datetime):
        return _named(name, format_datetime, value)
    if name == "time" and isinstance(value, str):
        return _time(_legal_text(name, value), EncodeError).text
    raise _wrong_type(name, value, "a timezone-aware datetime or an RFC 3339 string", EncodeError)


def _named(name: str, function: Callable[[Any], str], value: object) -> str:
    """Call a function and add the attribute's name to the error that it raises."""
    try:
        return function(value)
    except CeNatsError as error:
        error.attribute = name
        raise


def check_integer(name: str, value: int, error_class: ErrorClass) -> int:
    """
    Check that an integer fits in 32 bits.

    Raises:
        error_class: ``integer-out-of-range``.
    """
    if value not in _RANGE:
        raise error_class(
            ErrorCode.INTEGER_OUT_OF_RANGE,
            f"attribute {preview(name)} must be from -2147483648 to 2147483647",
            attribute=name,
        )
    return value


def _wrong_type(name: str, value: object, wanted: str, error_class: ErrorClass) -> CeNatsError:
    return error_class(
        ErrorCode.INVALID_ATTRIBUTE_TYPE,
        f"attribute {preview(name)} must be {wanted}, got {type(value).__name__} {preview(value)}",
        attribute=name,
    )


# --- wire -> Python ------------------------------------------------------------------------------------------------


def check_extension_name(name: object, error_class: ErrorClass) -> None:
    """
    Check that a name is legal for an extension attribute.

    Raises:
        error_class: ``invalid-attribute-name``, also for a name that the specification defines.
    """
    check_name(name, error_class)
    if name in CORE:
        raise error_class(
            ErrorCode.INVALID_ATTRIBUTE_NAME,
            f"an extension must not have the name of an attribute of the specification, got {preview(name)}",
            attribute=str(name),
        )


def check_extension_types(types: object) -> None:
    """
    Check that declared types are a mapping. The types themselves are checked when a value is converted.

    Raises:
        TypeError: ``types`` is neither None nor a mapping.
    """
    if types is not None and not isinstance(types, Mapping):
        raise TypeError(f"extension_types must be a mapping of names to types, got {preview(types)}")


def decode_extension(name: str, value: str, wanted: Any) -> Any:
    """
    Convert an extension that arrived as a string to the Python type that the caller declared.

    Raises:
        DecodeError: ``invalid-boolean``, ``invalid-integer``, ``integer-out-of-range``, ``invalid-base64``,
            ``invalid-timestamp``.
        TypeError: The declared type is not one of these.
    """
    if wanted is None or wanted is str:
        return value
    parse = _PARSERS.get(wanted) if isinstance(wanted, type) else None
    if parse is None:
        raise TypeError(f"extension_types[{name!r}] must be bool, int, str, bytes or datetime, got {preview(wanted)}")
    return parse(name, value)


def decode_typed_attribute(name: str, value: object, wanted: type | None) -> Any:
    """
    Return the Python value of an attribute that arrived with a type: a JSON member that is not null, or a typed header.

    Raises:
        DecodeError: As :data:`CORE` and :func:`decode_extension` do; ``invalid-attribute-type`` for a value that is not
            a string, boolean, integer or bytes (a number with a fraction or exponent, an array, an object), and for a
            value other than a string in an attribute that the specification defines.
    """
    check = CORE.get(name)
    if check is not None:
        if value.__class__ is not str:
            raise _wrong_type(name, value, "a string", DecodeError)
        check_characters(name, value, DecodeError)
        return check(value, DecodeError)
    check_name(name, DecodeError)
    if isinstance(value, str):
        check_characters(name, value, DecodeError)
    elif isinstance(value, bytes):
        if wanted is None or wanted is bytes:
            return value
        value = b64encode(value).decode("ascii")
    elif not isinstance(value, int):
        raise _wrong_type(name, value, "a string, boolean or integer", DecodeError)
    elif not isinstance(value, bool):
        check_integer(name, value, DecodeError)
    if wanted is None or (wanted is value.__class__):
        return value
    return decode_extension(name, scalar_text(value), wanted)


def decode_base64(name: str, value: str) -> bytes:
    """
    Decode strict RFC 4648 base64: standard alphabet, padded, no other characters.

    Raises:
        DecodeError: ``invalid-base64``.
    """
    if len(value) % 4 or not _BASE64.fullmatch(value):
        raise DecodeError(
            ErrorCode.INVALID_BASE64, f"{preview(name)} must be padded base64, got {preview(value)}", attribute=name
        )
    return a2b_base64(value)


def _decode_boolean(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise DecodeError(
            ErrorCode.INVALID_BOOLEAN,
            f"attribute {preview(name)} must be true or false, got {preview(value)}",
            attribute=name,
        )
    return value == "true"


def _decode_integer(name: str, value: str) -> int:
    if not _INTEGER.fullmatch(value):
        raise DecodeError(
            ErrorCode.INVALID_INTEGER,
            f"attribute {preview(name)} must be a decimal integer, got {preview(value)}",
            attribute=name,
        )
    # Longer text is out of range in any case. Cutting it avoids converting millions of digits.
    return check_integer(name, int(value[: _MAX_DIGITS + 1]), DecodeError)


def _decode_timestamp(name: str, value: str) -> Timestamp:
    try:
        return Timestamp.parse(value)
    except DecodeError as error:
        error.attribute = name
        raise


_PARSERS: Final[Mapping[type, Callable[[str, str], Any]]] = {
    bool: _decode_boolean,
    int: _decode_integer,
    bytes: decode_base64,
    datetime: _decode_timestamp,
    Timestamp: _decode_timestamp,
}
