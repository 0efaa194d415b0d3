"""
Subjects built from an event's attributes.

Tokens and wildcards as in "Subject-Based Messaging" of the NATS documentation. A value cannot add tokens or wildcards:
all characters except letters, digits, ``-`` and ``_`` are percent-encoded as UTF-8, and decoded by ``parse``.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import unquote

from ..errors import EncodeError, ErrorCode, preview
from ..subjects import check_subject
from .attributes import canonical, check_name
from .event import EventLike, attributes_and_data
from .percent import join_surrogates

__all__ = ["SubjectTemplate"]

# At most one placeholder in a token; the text around it contains no braces and no wildcards.
_TOKEN: Final = re.compile(r"([^{}*>]*)(?:\{([^{}:]*)(:tokens)?\}([^{}*>]*))?")
_PLAIN: Final = re.compile("[0-9A-Za-z_-]+")
_ESCAPED: Final = [chr(byte) if _PLAIN.fullmatch(chr(byte)) else f"%{byte:02X}" for byte in range(256)]


class _Token(NamedTuple):
    """A token of a template: ``before``, the value of attribute ``name`` (if not ``""``), and ``after``."""

    before: str
    name: str
    keeps_dots: bool
    after: str


class SubjectTemplate:
    """
    A subject with placeholders for attributes: ``orders.{type}``.

    ``{name}`` is replaced by the attribute's canonical string in one token. ``{name:tokens}``, which must be the whole
    last token, keeps the dots of the value, so that ``com.example.paid`` becomes three tokens. A token has at most one
    placeholder, with optional text before and after it. Functions that publish events accept a template in place of a
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
            (">" if token.keeps_dots else "*") if token.name else token.before for token in self._tokens
        )

    def __repr__(self) -> str:
        return f"SubjectTemplate({self.template!r})"

    def format(self, event: EventLike) -> str:
        """
        Return the subject of an event.

        Raises:
            EncodeError: ``missing-attribute`` with the name of the attribute; ``invalid-subject`` if an empty value, or
                an empty part of it, would make a token empty; the attribute's own error if its value is invalid.
        """
        attributes, _ = attributes_and_data(event)
        filled = (
            f"{token.before}{self._filled(token, attributes.get(token.name))}{token.after}"
            if token.name
            else token.before
            for token in self._tokens
        )
        return ".".join(filled)

    def parse(self, subject: str) -> dict[str, str] | None:
        """Return the attributes in a subject as canonical strings, or None if it does not match this template."""
        tokens = subject.split(".", len(self._tokens) - 1)
        if len(tokens) != len(self._tokens):
            return None
        found: dict[str, str] = {}
        for token, text in zip(self._tokens, tokens):
            value = _value(token, text)
            if value is None or found.setdefault(token.name, value) != value:
                return None
        found.pop("", None)
        return found

    def _filled(self, token: _Token, value: object) -> str:
        if value is None:
            raise EncodeError(
                ErrorCode.MISSING_ATTRIBUTE,
                f"the event must have the attribute {preview(token.name)} of {self!r}",
                attribute=token.name,
            )
        parts = canonical(value, token.name)
        texts = [_escaped(part) for part in (parts.split(".") if token.keeps_dots else [parts])]
        if not all(token.before + text + token.after for text in texts):
            raise EncodeError(
                ErrorCode.INVALID_SUBJECT,
                f"attribute {preview(token.name)} must not make a token of {self!r} empty, got {preview(value)}",
                attribute=token.name,
            )
        return ".".join(texts)


def subject_of_text(text: str) -> str | SubjectTemplate:
    """
    Return the subject in an option that can only be text: a template if it has a placeholder.

    Raises:
        EncodeError: As :class:`SubjectTemplate` does.
    """
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
        if found[2] is not None:
            check_name(found[2], EncodeError)
        if text := found[1] + (found[4] or ""):
            check_subject(text)
        tokens.append(_Token(found[1], found[2] or "", bool(found[3]), found[4] or ""))
    return tokens


def _escaped(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    return "".join(map(_ESCAPED.__getitem__, join_surrogates(text).encode("utf-8")))


def _value(token: _Token, text: str) -> str | None:
    """Return the value at a token's placeholder ("" for a token without one), or None if the text does not match."""
    if not token.name:
        return "" if text == token.before else None
    enclosed = text.startswith(token.before) and text.endswith(token.after)
    if not enclosed or len(text) < len(token.before) + len(token.after):
        return None
    inner = text[len(token.before) : len(text) - len(token.after)]
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
