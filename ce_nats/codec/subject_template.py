"""
Subjects built from an event's attributes.

Tokens and wildcards as in "Subject-Based Messaging" of the NATS documentation. A value cannot add tokens or wildcards:
all characters except letters, digits, ``-`` and ``_`` are percent-encoded as UTF-8, and decoded by ``parse``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from ..errors import EncodeError, ErrorCode, preview
from ..subjects import check_subject, partition
from .attributes import canonical, check_name
from .event import EventLike, attributes_and_data
from .percent import join_surrogates

__all__ = ["SubjectTemplate"]

# At most one placeholder in a token; the text around it contains no braces and no wildcards.
_TOKEN: Final = re.compile(r"([^{}*>]*)(?:\{([^{}:]*)(:tokens)?\}([^{}*>]*))?")
_PLAIN: Final = re.compile("[0-9A-Za-z_-]+")
_ESCAPED: Final = [chr(byte) if _PLAIN.fullmatch(chr(byte)) else f"%{byte:02X}" for byte in range(256)]


_PARTITION: Final = re.compile(r" *partition *\( *([0-9]+) *((?:, *[^(), ]* *)+)\) *")
_NUMBER: Final = re.compile("0|[1-9][0-9]*")
_MAX_DIGITS: Final = 10


class _Token(NamedTuple):
    """
    A token of a template: ``before``, the value of a placeholder (if it has names), and ``after``.

    Attributes:
        names: Names of the attributes: none, one, or those that a partition number is computed from.
        keeps_dots: Whether the value becomes several tokens.
        partitions: Number of partitions; 0 if the placeholder is an attribute.
    """

    before: str
    names: tuple[str, ...] = ()
    keeps_dots: bool = False
    after: str = ""
    partitions: int = 0


class SubjectTemplate:
    """
    A subject with placeholders for attributes: ``orders.{type}``.

    ``{name}`` is replaced by the attribute's canonical string in one token. ``{name:tokens}``, which must be the whole
    last token, keeps the dots of the value, so that ``com.example.paid`` becomes three tokens. A token has at most one
    placeholder, with optional text before and after it.

    ``{partition(8,partitionkey)}`` is replaced by a number from 0 to 7: the partition of the attribute's value, or of
    several attributes' values, as they are in a subject, encoded. The server's mapping ``{{partition(8,1)}}`` computes
    the same number from a subject in which the value is the first wildcard (:func:`ce_nats.subjects.partition`).

    Functions that publish events accept a template in place of a
    subject. A ``str`` is never interpreted as a template, because it may contain text of other senders; it must not
    contain ``{``.

    Args:
        template: Text with placeholders.

    Attributes:
        template: The same text.
        wildcard: The subject to subscribe to: ``orders.*``.

    Raises:
        EncodeError: ``invalid-subject`` if the template is malformed or has a wildcard; ``invalid-attribute-name``.
    """

    __slots__ = ("_tokens", "template", "wildcard")

    def __init__(self, template: str) -> None:
        self.template = template
        self._tokens = _parse(template)
        self.wildcard = ".".join(
            (">" if token.keeps_dots else "*") if token.names else token.before for token in self._tokens
        )

    def __repr__(self) -> str:
        return f"SubjectTemplate({self.template!r})"

    @property
    def names(self) -> list[str]:
        """Names of the attributes, in the order of their placeholders."""
        return [name for token in self._tokens for name in token.names]

    def format(self, event: EventLike) -> str:
        """
        Return the subject of an event.

        Raises:
            EncodeError: ``missing-attribute`` with the name of the attribute; ``invalid-subject`` if an empty value, or
                an empty part of it, would make a token empty; the attribute's own error if its value is invalid.
        """
        attributes, _ = attributes_and_data(event)
        filled = (
            f"{token.before}{self._filled(token, attributes)}{token.after}" if token.names else token.before
            for token in self._tokens
        )
        return ".".join(filled)

    def parse(self, subject: str) -> dict[str, str] | None:
        """Return the attributes in a subject as canonical strings, or None if it does not match this template."""
        tokens = subject.split(".", len(self._tokens) - 1)
        if len(tokens) != len(self._tokens):
            return None
        found: dict[str, str] = {}
        numbers: list[tuple[_Token, int]] = []
        for token, text in zip(self._tokens, tokens):
            value = _value(token, text)
            if value is None:
                return None
            if token.partitions:
                numbers.append((token, int(value)))
            elif token.names and found.setdefault(token.names[0], value) != value:
                return None
        return found if all(_agrees(token, number, found) for token, number in numbers) else None

    def _filled(self, token: _Token, attributes: Mapping[str, Any]) -> str:
        if token.partitions:
            values = [_escaped(self._text(name, attributes)) for name in token.names]
            return str(partition(values, token.partitions))
        (name,) = token.names
        value = self._text(name, attributes)
        texts = [_escaped(part) for part in (value.split(".") if token.keeps_dots else [value])]
        if not all(token.before + text + token.after for text in texts):
            raise EncodeError(
                ErrorCode.INVALID_SUBJECT,
                f"attribute {preview(name)} must not make a token of {self!r} empty, got {preview(value)}",
                attribute=name,
            )
        return ".".join(texts)

    def _text(self, name: str, attributes: Mapping[str, Any]) -> str:
        value = attributes.get(name)
        if value is None:
            raise EncodeError(
                ErrorCode.MISSING_ATTRIBUTE,
                f"the event must have the attribute {preview(name)} of {self!r}",
                attribute=name,
            )
        return canonical(value, name)


def subject_of_text(text: str) -> str | SubjectTemplate:
    """Return the subject in an option that can only be text: a template if it has a placeholder."""
    return SubjectTemplate(text) if "{" in text else text


def _parse(template: object) -> list[_Token]:
    tokens: list[_Token] = []
    texts = template.split(".") if isinstance(template, str) else [""]
    for position, text in enumerate(texts, 1):
        found = _TOKEN.fullmatch(text)
        is_last_and_alone = position == len(texts) and text.startswith("{") and text.endswith("}")
        if not text or found is None or (found[3] and not is_last_and_alone):
            raise EncodeError(
                ErrorCode.INVALID_SUBJECT, f"a subject template must be like orders.{{type}}, got {preview(template)}"
            )
        if plain := found[1] + (found[4] or ""):
            check_subject(plain)
        if found[2] is None:
            tokens.append(_Token(found[1]))
            continue
        is_partition = "(" in found[2]
        names, partitions = _partition_field(found[2], keeps_dots=bool(found[3])) if is_partition else ((found[2],), 0)
        for name in names:
            check_name(name, EncodeError)
        tokens.append(_Token(found[1], names, bool(found[3]), found[4], partitions))
    return tokens


def _partition_field(text: str, *, keeps_dots: bool) -> tuple[tuple[str, ...], int]:
    """Return the names and the number of partitions in the text of a placeholder."""
    found = _PARTITION.fullmatch(text)
    try:
        if found is None or keeps_dots:
            raise ValueError(f"got {preview(text)}")
        count = int(found[1])
        partition(b"", count)
    except ValueError as error:
        raise EncodeError(
            ErrorCode.INVALID_SUBJECT,
            f"a partition in a subject template must be like {{partition(8,partitionkey)}}: {error}",
        ) from None
    return tuple(name.strip() for name in found[2].split(",")[1:]), count


def _agrees(token: _Token, number: int, found: dict[str, str]) -> bool:
    """Return whether a partition's number can be that of the attributes in a subject, which may lack some of them."""
    if all(name in found for name in token.names):
        return number == partition([_escaped(found[name]) for name in token.names], token.partitions)
    return number < token.partitions


def _escaped(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    return "".join(map(_ESCAPED.__getitem__, join_surrogates(text).encode("utf-8")))


def _value(token: _Token, text: str) -> str | None:
    """Return the value at a token's placeholder ("" for a token without one), or None if the text does not match."""
    if not token.names:
        return "" if text == token.before else None
    enclosed = text.startswith(token.before) and text.endswith(token.after)
    if not enclosed or len(text) < len(token.before) + len(token.after):
        return None
    inner = text[len(token.before) : len(text) - len(token.after)]
    if token.partitions:
        return inner if len(inner) <= _MAX_DIGITS and _NUMBER.fullmatch(inner) else None
    parts = inner.split(".") if token.keeps_dots else [inner]
    try:
        values = [_unescaped(part) for part in parts]
    except ValueError:
        return None
    return ".".join(values)


def _unescaped(text: str) -> str:
    """
    Decode text that :func:`_escaped` encoded.

    Raises:
        ValueError: The text is not a result of :func:`_escaped`.
    """
    value = unquote(text, errors="strict")
    if _escaped(value) != text:
        raise ValueError(text)
    return value
