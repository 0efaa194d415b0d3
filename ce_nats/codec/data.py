"""
Event data: Python values to bytes and back, by datacontenttype.

NATS binding 2.2 and 3.1.1; JSON event format 3.1 defines which types are JSON. Data has the same Python type in both
content modes: JSON media types are Python values, text is ``str``, everything else is ``bytes``.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

import msgspec

from ..errors import CeNatsError, DecodeError, EncodeError, ErrorCode, preview, shortened
from . import media_type, models
from ._nesting import MAX_LEVELS, is_deeper
from .media_type import DataKind, MediaType

__all__ = ["JsonText", "decode", "encode"]

# JSON format 3.1.1: "If the datacontenttype is unspecified, processing SHOULD proceed as if it had been specified
# explicitly as application/json."
IMPLIED_TYPE: Final = "application/json"

_to_json: Final = msgspec.json.Encoder().encode
_from_json: Final = msgspec.json.Decoder().decode
_ONLY_STRINGS: Final = {str}
# Module constants, because member look-up on an enum class is slow in Python 3.11.
_BINARY, _JSON = DataKind.BINARY, DataKind.JSON
_BRACKET: Final = ord("[")  # "in" on bytes is several times faster for an int than for bytes
_PLAIN_TYPES: Final = {str, int, float, bool}
# Python 3.10 and 3.11 count levels of JSON and Python calls in progress against the same limit.
_OVER_RECURSION_LIMIT: Final = "is nested deeper than the interpreter's recursion limit allows"
# Data "of type Binary" (JSON format 3.1.1).
BYTES: Final = (bytes, bytearray, memoryview)


class JsonText:
    """
    Data that is JSON text, written verbatim: numbers keep all digits. A ``str`` as data is a JSON string.

    Args:
        text: The text, not checked.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def encode(self) -> bytes:
        """
        Return the text in UTF-8.

        Raises:
            EncodeError: ``invalid-data``: it is not JSON that :func:`decode_json` accepts.
        """
        try:
            octets = self._text.encode("utf-8")
            decode_json(octets)
        except (UnicodeEncodeError, DecodeError) as error:
            raise EncodeError(
                ErrorCode.INVALID_DATA,
                f"the data must be valid JSON text, got {preview(self._text)}",
                attribute="data",
                requirement="JF-3.1.1-10",
            ) from error
        return octets


def encode(value: object, content_type: str | None) -> bytes:
    """
    Encode event data as payload bytes.

    Args:
        value: Event data that is present.
        content_type: The event's datacontenttype, already checked; None means JSON unless the value is bytes.

    Raises:
        EncodeError: ``invalid-data`` if the value cannot be written in that type; ``unsupported-charset``.
    """
    if isinstance(value, BYTES):
        return bytes(value)
    kind = media_type.parse(content_type) if content_type is not None else None
    if kind is None or kind.kind is _JSON:
        if kind is not None:
            check_json_charset(kind, EncodeError)
        return encode_json(value)
    text = check_text(value, kind)
    codec = kind.codec()
    if codec is None:
        raise _no_such_charset(EncodeError, kind)
    try:
        return text.encode(codec)
    except UnicodeEncodeError as error:
        raise EncodeError(
            ErrorCode.INVALID_DATA,
            f"the data must be text in {kind.charset or 'utf-8'}, the charset of its datacontenttype, which does not "
            f"have {preview(text[error.start])} at character {error.start}",
            attribute="data",
        ) from error


def encode_or_text(text: str, content_type: str | None) -> bytes | str:
    """
    Encode text of a media type other than JSON in its charset.

    Returns bytes; the text if the charset is unknown, or lacks a character of it.
    """
    try:
        return encode(text, content_type)
    except EncodeError:
        return text


def check_text(value: object, kind: MediaType) -> str:
    """
    Check that data is a string if it is neither of a JSON media type nor bytes (JSON format 3.1.1).

    Raises:
        EncodeError: ``invalid-data``.
    """
    if not isinstance(value, str):
        raise EncodeError(
            ErrorCode.INVALID_DATA,
            f"data of type {preview(kind.essence)} must be bytes or a str, got {type(value).__name__}",
            attribute="data",
            requirement="JF-3.1.1-11",
        )
    return value


def encode_json(value: object) -> bytes:
    """
    Encode a value as compact UTF-8 JSON that decodes to an equal value.

    Accepted are dicts with string keys, lists, tuples, strings, integers of any size, finite floats, booleans and None,
    nested up to ``MAX_LEVELS`` levels deep; and models (Structs, dataclasses, pydantic models), encoded by their
    library.

    Raises:
        EncodeError: ``invalid-data`` for values that JSON cannot represent (NaN, bytes and dates outside of models,
            keys other than strings) and for deeper nesting.
    """
    try:
        text = _to_json(value)
        # msgspec also encodes dates, sets, bytes, NaN (as null) and keys of other types, each as a different value. Its
        # text is right if it decodes to an equal value. That is cheaper than checking every value in Python, except for
        # one flat object, whose types are checked directly.
        if (_is_flat(text) and _has_plain_values(value)) or (not is_deeper(text) and _from_json(text) == value):
            return text
    except Exception:  # noqa: S110  # the slow path raises the right error, or accepts the value (large integers)
        pass
    if isinstance(value, JsonText):
        return value.encode()
    if models.is_model(value):
        return encode_json(_plain(value))
    try:
        plain = _json_value(value, MAX_LEVELS)
        return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (UnicodeEncodeError, ValueError) as error:
        if isinstance(error, EncodeError):
            raise
        raise _not_json("contains a surrogate or an integer of thousands of digits") from error
    except RecursionError as error:
        raise _not_json(_OVER_RECURSION_LIMIT) from error


def _is_flat(text: bytes) -> bool:
    """Whether JSON text is an object without nested containers, or a single value, and contains no null."""
    return _BRACKET not in text and text.find(b"{", 1) < 0 and text.find(b"null") < 0


def _has_plain_values(value: object) -> bool:
    return (
        value.__class__ is dict
        and set(map(type, value.values())) <= _PLAIN_TYPES
        and set(map(type, value)) <= _ONLY_STRINGS
    )


def _json_value(value: object, levels: int) -> object:
    """Return a copy with plain dicts, lists, strings and numbers; an error names what JSON cannot represent."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _not_json(f"contains {float(value)!r}")
        return float(value)
    if isinstance(value, (list, tuple, dict)) and not levels:
        raise _not_json(f"is nested more than {MAX_LEVELS} levels deep, or contains itself", "RF-8259-05")
    if isinstance(value, (list, tuple)):
        return [_json_value(item, levels - 1) for item in value]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise _not_json(f"has the key {preview(key)}, which is not a string")
        return {key: _json_value(item, levels - 1) for key, item in value.items()}
    if models.is_model(value):
        return _json_value(_plain(value), levels)
    raise _not_json(f"contains {type(value).__name__} {preview(value)}")


def _plain(model: object) -> object:
    try:
        return models.as_plain(model)
    except Exception as error:  # encoding a model may call user-defined code
        raise _not_json(f"contains a {type(model).__name__} that cannot be encoded: {shortened(str(error))}") from error


def _not_json(reason: str, requirement: str = "JF-3.1.1-10") -> EncodeError:
    return EncodeError(
        ErrorCode.INVALID_DATA, f"the data cannot be JSON: it {reason}", attribute="data", requirement=requirement
    )


def decode(payload: bytes, content_type: str | None) -> Any:
    """
    Decode payload bytes to a Python value: a JSON value, ``str`` or ``bytes``.

    Args:
        payload: Bytes of the data, never empty for JSON.
        content_type: The event's datacontenttype, already checked; None returns the bytes unchanged.

    Raises:
        DecodeError: ``invalid-json``, ``invalid-utf8``, ``invalid-data`` or ``unsupported-charset``, attribute
            ``data``.
    """
    kind = media_type.parse(content_type) if content_type is not None else None
    if kind is None or kind.kind is _BINARY:
        return payload
    if kind.kind is _JSON:
        check_json_charset(kind, DecodeError)
        return decode_json(payload)
    codec = kind.codec()
    if codec is None:
        raise _no_such_charset(DecodeError, kind)
    try:
        return payload.decode(codec)
    except UnicodeError as error:
        raise DecodeError(
            ErrorCode.INVALID_DATA, f"the data must be text in {kind.charset or 'utf-8'}", attribute="data"
        ) from error


def decode_or_bytes(payload: bytes, content_type: str | None) -> Any:
    """
    Decode bytes as :func:`decode` does.

    Returns a JSON value, ``str`` or bytes; the bytes unchanged if they are not JSON or text as the media type says.
    """
    try:
        return decode(payload, content_type)
    except DecodeError:
        return payload


def check_json_charset(kind: MediaType, error_class: type[CeNatsError]) -> None:
    """
    Check that a JSON media type has no charset other than UTF-8, as RFC 8259 8.1 requires.

    Raises:
        error_class: ``unsupported-charset``.
    """
    if not kind.is_utf8:
        raise error_class(
            ErrorCode.UNSUPPORTED_CHARSET,
            f"the charset of JSON must be UTF-8, got {preview(kind.charset)}",
            attribute="data",
            requirement="RF-8259-01",
        )


def decode_json(text: bytes) -> Any:
    """
    Decode strict RFC 8259 JSON: no NaN, no trailing text, no unpaired surrogates, no numbers outside a float's range.

    Raises:
        DecodeError: ``invalid-utf8`` or ``invalid-json``, attribute ``data``. Nesting deeper than ``MAX_LEVELS`` is
            reported first.
    """
    if is_deeper(text):
        raise too_deep(text, MAX_LEVELS, "the data", attribute="data")
    try:
        return _from_json(text)
    except (ValueError, RecursionError) as error:
        raise json_error(text, error, "the data", attribute="data") from error


def json_error(text: bytes, error: Exception, what: str, *, attribute: str | None = None) -> DecodeError:
    """Return ``invalid-utf8`` or ``invalid-json`` for text that the JSON parser rejected."""
    reason = _OVER_RECURSION_LIMIT if isinstance(error, RecursionError) else f"is not valid JSON: {error}"
    return _invalid(text, f"{what} {reason}", what, attribute, None)


def too_deep(text: bytes, levels: int, what: str, *, attribute: str | None = None) -> DecodeError:
    """Return ``invalid-utf8`` or ``invalid-json`` for text that is nested too deep."""
    return _invalid(text, f"{what} is nested more than {levels} levels deep", what, attribute, "RF-8259-05")


def _invalid(text: bytes, message: str, what: str, attribute: str | None, requirement: str | None) -> DecodeError:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return DecodeError(
            ErrorCode.INVALID_UTF8, f"{what} is not valid UTF-8", attribute=attribute, requirement="RF-8259-01"
        )
    return DecodeError(ErrorCode.INVALID_JSON, message, attribute=attribute, requirement=requirement)


def _no_such_charset(error_class: type[CeNatsError], kind: MediaType) -> CeNatsError:
    return error_class(
        ErrorCode.UNSUPPORTED_CHARSET,
        f"the charset must be one that Python has a codec for, got {preview(kind.charset)}",
        attribute="data",
    )
