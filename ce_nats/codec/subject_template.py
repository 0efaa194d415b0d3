"""
Subjects made of an event's attributes.

Tokens and wildcards as in "Subject-Based Messaging" of the NATS documentation. A value stays inside of its token: all
characters but letters, digits, ``-`` and ``_`` are percent-encoded as UTF-8, and decoded by ``parse``.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import unquote

from ..errors import EncodeError, ErrorCode, preview
from ..subjects import check_subject
from .attributes import canonical, check_name
from .event import Event, attributes_and_data
from .percent import join_surrogates

__all__ = ["SubjectTemplate"]

# At most one place in a token; nothing else in it is special, and no wildcard is left over.
_TOKEN: Final = re.compile(r"([^{}*>]*)(?:\{([^{}:]*)(:tokens)?\}([^{}*>]*))?")
_PLAIN: Final = re.compile("[0-9A-Za-z_-]+")
_ESCAPED: Final = [chr(byte) if _PLAIN.fullmatch(chr(byte)) else f"%{byte:02X}" for byte in range(256)]


class _Token(NamedTuple):
    """A token of a template: ``before``, the value of attribute ``name`` unless that is "", and ``after``."""

    before: str
    name: str
    keeps_dots: bool
    after: str


class SubjectTemplate:
    """
    A subject with places for attributes: ``orders.{type}``.

    ``{name}`` is the attribute's canonical string in one token. ``{name:tokens}``, as all of the last token, keeps the
    dots of the value, so that ``com.example.paid`` becomes three tokens. There is at most one place in a token; text
    may stand around it. Functions that publish events take a template in place of a subject; a ``str`` is never one.

    Args:
        template: Text with places.

    Attributes:
        template: The same text.
        wildcard: The subject to subscribe to: ``orders.*``.

    Raises:
        EncodeError: ``invalid-subject`` where it is malformed, or has a wildcard; ``invalid-attribute-name``.
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

    def format(self, event: Event) -> str:
        """
        The subject of an event.

        Raises:
            EncodeError: ``missing-attribute`` with the attribute that the event has not; ``invalid-subject`` where an
                empty value, or empty parts of it, would leave a token empty; what the attribute itself is refused for.
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
        """The attributes that a subject was made of, as canonical strings; None where it does not fit this template."""
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
                f"the event has no attribute {preview(token.name)}, which {self!r} needs",
                attribute=token.name,
            )
        parts = canonical(value, token.name)
        texts = [_escaped(part) for part in (parts.split(".") if token.keeps_dots else [parts])]
        if not all(token.before + text + token.after for text in texts):
            raise EncodeError(
                ErrorCode.INVALID_SUBJECT,
                f"attribute {preview(token.name)} is {preview(value)}, which would leave a token of {self!r} empty",
                attribute=token.name,
            )
        return ".".join(texts)


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
    """What stands in a token's place ("" for a token without one), or None where the text does not fit."""
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
    Undo :func:`_escaped`.

    Raises:
        ValueError: The text is not its result.
    """
    value = unquote(text, errors="strict")
    if _escaped(value) != text:
        raise ValueError(text)
    return value
