"""
Subjects, patterns of subjects, and what they cover.

"Subject-Based Messaging" of the NATS documentation: tokens between dots; ``*`` stands for one token, ``>`` as the last
one for one or more. Pure text: nothing here asks a server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from .errors import CeNatsError, EncodeError, ErrorCode, preview

__all__ = ["check_pattern", "check_subject", "covers", "disjoint", "is_literal", "overlap"]

# A token has no white space. A wildcard is one as a whole token only, so "a*" is a token like any other.
_TOKEN_PATTERN: Final = "[^\x00-\x20\x7f.\ud800-\udfff]+"
_TOKEN: Final = re.compile(_TOKEN_PATTERN)
_SUBJECT: Final = re.compile(rf"{_TOKEN_PATTERN}(?:\.{_TOKEN_PATTERN})*")
_PLAIN_SUBJECT: Final = re.compile(r"[0-9A-Za-z_-]+(?:\.[0-9A-Za-z_-]+)*")
_WILDCARDS: Final = re.compile(r"(?:^|\.)[*>](?:\.|$)")


def check_subject(subject: object, error_class: type[CeNatsError] = EncodeError) -> None:
    """
    Refuse what is not a subject to publish to: white space, empty tokens, wildcards.

    Raises:
        error_class: ``invalid-subject``.
    """
    if subject.__class__ is str and _PLAIN_SUBJECT.fullmatch(subject):
        return
    if not isinstance(subject, str) or not _SUBJECT.fullmatch(subject) or _WILDCARDS.search(subject):
        raise error_class(ErrorCode.INVALID_SUBJECT, f"{preview(subject)} is not a subject that can be published to")


def check_pattern(pattern: str) -> None:
    """
    Refuse what is not a subject to subscribe to: white space, empty tokens, ``>`` before the end.

    Raises:
        EncodeError: ``invalid-subject``.
    """
    tokens = pattern.split(".")
    for position, token in enumerate(tokens):
        if not _TOKEN.fullmatch(token) or (token == ">" and position < len(tokens) - 1):
            raise EncodeError(
                ErrorCode.INVALID_SUBJECT, f"{preview(pattern)} is not a subject or a pattern of subjects"
            )


def is_literal(pattern: str) -> bool:
    """Whether a valid pattern has no wildcard, and so stands for one subject."""
    return not any(token in ("*", ">") for token in pattern.split("."))


def covers(pattern: str, other: str) -> bool:
    """Whether a pattern matches every subject that the other one, or the one subject, stands for."""
    tokens, others = pattern.split("."), other.split(".")
    for position, token in enumerate(tokens):
        if position == len(others):
            return False
        if token == ">":
            return True
        if others[position] == ">" or token not in ("*", others[position]):
            return False
    return len(tokens) == len(others)


def overlap(one: str, other: str) -> bool:
    """Whether there is a subject that both patterns match."""
    tokens, others = one.split("."), other.split(".")
    for a, b in zip(tokens, others):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(tokens) == len(others)


def disjoint(patterns: Iterable[str]) -> tuple[str, ...]:
    """
    The same subjects in patterns that do not overlap, as a consumer wants them: those that others cover are left out.

    Raises:
        EncodeError: ``invalid-subject`` for a pattern that is none, and for two of which neither covers the other.
    """
    given = dict.fromkeys(patterns)
    for pattern in given:
        check_pattern(pattern)
    # There may be thousands of subjects; only patterns have to be compared with one another.
    wide = _disjoint_wide([pattern for pattern in given if not is_literal(pattern)])
    return tuple(
        pattern
        for pattern in given
        if pattern in wide or (is_literal(pattern) and not any(covers(known, pattern) for known in wide))
    )


def _disjoint_wide(patterns: Iterable[str]) -> list[str]:
    """:func:`disjoint` for patterns with wildcards."""
    kept: list[str] = []
    for pattern in patterns:
        if any(covers(known, pattern) for known in kept):
            continue
        kept = [known for known in kept if not covers(pattern, known)]
        for known in kept:
            if overlap(known, pattern):
                raise EncodeError(
                    ErrorCode.INVALID_SUBJECT,
                    f"{preview(known)} and {preview(pattern)} overlap, and neither covers the other: "
                    "no consumer takes both",
                )
        kept.append(pattern)
    return kept
