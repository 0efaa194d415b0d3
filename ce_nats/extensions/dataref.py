"""
The Dataref extension of CloudEvents (claim check): references to data in object stores of JetStream.

``dataref`` is a URI-reference to the data of an event that does not contain it. ``nats-obj:BUCKET/NAME`` refers to an
object in a bucket. :class:`ce_nats.aio.ClaimCheck` stores and reads the data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Final
from urllib.parse import quote, unquote

from ..codec._message_id import dedup_text
from ..codec.attributes import canonical
from ..codec.event import EventLike, attributes_and_data
from ..errors import DecodeError, EncodeError, ErrorCode, preview

__all__ = ["ObjectReference", "object_name", "object_reference"]

DATAREF: Final = "dataref"

# The server keeps objects in a stream OBJ_<bucket>; these are the names that clients of NATS accept.
_BUCKET: Final = re.compile("[A-Za-z0-9_-]{1,200}")
_MAX_NAME_BYTES: Final = 1000
# RFC 3986: a scheme, whose case does not matter, and characters of a path. Each character or escape is a byte of the
# name, and longer names are not decoded, which would need a hundred times the memory of the text.
_REFERENCE: Final = re.compile(
    f"(?i:nats-obj):({_BUCKET.pattern})/((?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{{2}}){{1,{_MAX_NAME_BYTES}}})"
)
_OWN_NAME: Final = re.compile("[0-9a-f]{32}-([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """
    Reference to an object in an object store. ``str()`` of it is the value of ``dataref``.

    Args:
        bucket: Name of the bucket: letters, digits, ``_`` and ``-``.
        name: Name of the object, 1 to 1,000 bytes of UTF-8.

    Raises:
        EncodeError: ``invalid-subject``: a name is not valid.
    """

    bucket: str
    name: str

    def __post_init__(self) -> None:
        if not _BUCKET.fullmatch(self.bucket):
            text = f"bucket must consist of letters, digits, '_' and '-', got {preview(self.bucket)}"
            raise EncodeError(ErrorCode.INVALID_SUBJECT, text)
        text = f"the name of an object must have 1 to {_MAX_NAME_BYTES} bytes of UTF-8, got {preview(self.name)}"
        try:
            size = len(self.name.encode())
        except UnicodeEncodeError as error:  # an unpaired surrogate
            raise EncodeError(ErrorCode.INVALID_SUBJECT, text) from error
        if not 0 < size <= _MAX_NAME_BYTES:
            raise EncodeError(ErrorCode.INVALID_SUBJECT, text)

    @classmethod
    def parse(cls, text: object) -> ObjectReference:
        """
        Parse the value of a ``dataref``.

        Raises:
            DecodeError: ``unsupported-dataref``: it is not a reference to an object of an object store.
        """
        found = _REFERENCE.fullmatch(text) if isinstance(text, str) else None
        try:
            if found is not None:
                return cls(found[1], unquote(found[2], errors="strict"))
        except UnicodeDecodeError as error:
            raise _unsupported(text) from error
        raise _unsupported(text)

    @property
    def sha256(self) -> bytes | None:
        """SHA-256 of the data if the name is that of :func:`object_name`, else None."""
        found = _OWN_NAME.fullmatch(self.name)
        return bytes.fromhex(found[1]) if found else None

    def __str__(self) -> str:
        return f"nats-obj:{self.bucket}/{quote(self.name, safe='')}"


def object_reference(event: EventLike) -> ObjectReference | None:
    """
    Return the object that the ``dataref`` of an event refers to; None if it has no ``dataref``.

    Raises:
        DecodeError: ``unsupported-dataref``: it refers to something else.
        EncodeError: ``invalid-message``: ``event`` is not an event.
    """
    value = attributes_and_data(event)[0].get(DATAREF)
    return None if value is None else ObjectReference.parse(value)


def object_name(event: EventLike, payload: bytes) -> str:
    """
    Return the name of the object for the data of an event: a hash of source and id, and the SHA-256 of the data.

    Args:
        event: The event, with ``source`` and ``id``.
        payload: The data, as bytes.

    Raises:
        EncodeError: ``missing-attribute``, ``invalid-attribute-type`` or ``invalid-message``.
    """
    attributes = attributes_and_data(event)[0]
    known = []
    for name in ("source", "id"):
        value = attributes.get(name)
        if value is None:
            raise EncodeError(ErrorCode.MISSING_ATTRIBUTE, f"the event must have {name!r}", attribute=name)
        known.append(canonical(value, name))
    identity = sha256(dedup_text(*known).encode("ascii")).hexdigest()[:32]
    return f"{identity}-{sha256(payload).hexdigest()}"


def _unsupported(value: object) -> DecodeError:
    text = f"dataref must be nats-obj:BUCKET/NAME, got {preview(value)}"
    return DecodeError(ErrorCode.UNSUPPORTED_DATAREF, text, attribute=DATAREF)
