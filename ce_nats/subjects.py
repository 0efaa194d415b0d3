"""
Check and compare subjects and subject patterns (subjects with wildcards).

"Subject-Based Messaging" of the NATS documentation: tokens separated by dots; the wildcard ``*`` matches one token,
``>`` as the last token matches one or more. No network I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from .errors import CeNatsError, EncodeError, ErrorCode, preview

__all__ = [
    "check_name",
    "check_pattern",
    "check_plain_subject",
    "check_subject",
    "check_subject_from_message",
    "covers",
    "disjoint",
    "is_literal",
    "overlap",
    "partition",
]

# A token has no white space. Only a whole token is a wildcard; "a*" is an ordinary token.
_TOKEN_PATTERN: Final = "[^\x00-\x20\x7f.\ud800-\udfff]+"
_TOKEN: Final = re.compile(_TOKEN_PATTERN)
# Most subjects match this. Only short ones are tried, because it takes 70 bytes of memory for each token.
_PLAIN_SUBJECT: Final = re.compile(r"[0-9A-Za-z_-]+(?:\.[0-9A-Za-z_-]+)*")
_SHORT: Final = 256
# An illegal character, or a token that is empty or a wildcard.
_NOT_IN_SUBJECT: Final = re.compile("[\x00-\x20\x7f\ud800-\udfff]|(?:\\A|\\.)[*>]?(?:\\.|\\Z)")
# FNV-1a with 32 bits: Fowler, Noll and Vo, http://www.isthe.com/chongo/tech/comp/fnv/.
_FNV_OFFSET: Final = 2166136261
_FNV_PRIME: Final = 16777619
# The server parses the number of partitions as a signed 32-bit integer.
_MAX_PARTITIONS: Final = 2**31 - 1
# Subjects that begin with "$" are reserved for the server. These two are for data: key-value buckets and object stores.
_DATA_PREFIXES: Final = ("$KV", "$O")
# Requests to JetStream's API that change something, with any prefix under which an account imports the API.
_API_REQUEST: Final = re.compile(
    r"\.(?:STREAM|CONSUMER|META|SERVER|ACCOUNT)\.(?:[A-Z]+\.)?"
    r"(?:CREATE|UPDATE|DELETE|PURGE|RESTORE|SNAPSHOT|REMOVE|STEPDOWN|MOVE|CANCEL_MOVE|NEXT|PAUSE|RESET|UNPIN)(?:\.|$)"
)


def check_subject(subject: object, error_class: type[CeNatsError] = EncodeError) -> None:
    """
    Check that a subject can be published to: no white space, empty tokens or wildcards.

    Raises:
        error_class: ``invalid-subject``.
    """
    if subject.__class__ is str and len(subject) <= _SHORT and _PLAIN_SUBJECT.fullmatch(subject):
        return
    if not isinstance(subject, str) or _NOT_IN_SUBJECT.search(subject):
        raise error_class(
            ErrorCode.INVALID_SUBJECT,
            f"a subject to publish to must have no white space, empty tokens or wildcards, got {preview(subject)}",
        )


def check_name(what: str, name: str) -> None:
    """
    Check the name of a stream or a consumer, which becomes a token of a subject.

    Args:
        what: Description of the name, for the error.
        name: The name.

    Raises:
        EncodeError: ``invalid-subject``.
    """
    check_subject(name)
    if "." in name:
        raise EncodeError(ErrorCode.INVALID_SUBJECT, f"{what} must be a name without dots, got {preview(name)}")


def check_subject_from_message(
    subject: object, *, api_prefixes: Iterable[str] = (), allowed: Iterable[str] = (), is_reply: bool = False
) -> None:
    """
    Check that a subject from a message (a dead letter, a captured message, a request) can be published to.

    The sender of the message chose it, and the program that publishes may have more permissions than the sender. So it
    must not be a subject on which the server itself acts, such as ``$JS.API.STREAM.PURGE.ORDERS``: no subject that
    begins with ``$``, except those of key-value buckets and object stores, and no request to JetStream's API under
    another prefix.

    Args:
        subject: The subject.
        api_prefixes: Known prefixes of JetStream's API, without a dot at the end.
        allowed: Patterns of subjects that hold data, even if they look like requests to JetStream's API under a prefix
            that is not known.
        is_reply: Whether it is a reply subject, which must not be a key or an object either.

    Raises:
        EncodeError: ``invalid-subject`` or ``forbidden-subject``.
    """
    check_subject(subject)
    assert isinstance(subject, str)
    first = subject.partition(".")[0]
    is_system = first.startswith("$") and (is_reply or first not in _DATA_PREFIXES)
    is_api = is_system or any(f"{subject}.".startswith(f"{prefix}.") for prefix in api_prefixes)
    if is_api or (_API_REQUEST.search(subject) and not any(covers(pattern, subject) for pattern in allowed)):
        raise EncodeError(
            ErrorCode.FORBIDDEN_SUBJECT,
            f"a subject from a message must not be one on which the server acts, got {preview(subject)}",
        )


def check_plain_subject(subject: object) -> None:
    """
    Check that a subject from the program can be published to, and is not a template.

    Subjects of existing messages may contain braces: use :func:`check_subject` for these.

    Raises:
        EncodeError: ``invalid-subject``.
    """
    check_subject(subject)
    if "{" in str(subject):
        raise EncodeError(
            ErrorCode.INVALID_SUBJECT,
            f"a subject must not contain '{{', got {preview(subject)}; use SubjectTemplate to fill in attributes",
        )


def check_pattern(pattern: str) -> None:
    """
    Check that a pattern can be subscribed to: no white space, empty tokens, or ``>`` before the last token.

    Raises:
        EncodeError: ``invalid-subject``.
    """
    tokens = pattern.split(".")
    for position, token in enumerate(tokens):
        if not _TOKEN.fullmatch(token) or (token == ">" and position < len(tokens) - 1):
            raise EncodeError(
                ErrorCode.INVALID_SUBJECT,
                "a subject or pattern must have no white space, empty tokens, or '>' before the last token, "
                f"got {preview(pattern)}",
            )


def is_literal(pattern: str) -> bool:
    """Whether a valid pattern has no wildcards, so that it matches one subject only."""
    return not any(token in ("*", ">") for token in pattern.split("."))


def covers(pattern: str, other: str) -> bool:
    """Whether a pattern matches every subject that the other pattern or subject matches."""
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
    """Whether at least one subject matches both patterns."""
    tokens, others = one.split("."), other.split(".")
    for a, b in zip(tokens, others):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(tokens) == len(others)


def disjoint(patterns: Iterable[str]) -> tuple[str, ...]:
    """
    Return patterns without those that another pattern covers. The filter subjects of a consumer must not overlap.

    Raises:
        EncodeError: ``invalid-subject`` for an invalid pattern, and for two that overlap without one covering the
            other.
    """
    given = dict.fromkeys(patterns)
    for pattern in given:
        check_pattern(pattern)
    # There may be thousands of subjects. Only patterns with wildcards are compared with each other.
    wide = _disjoint_wide([pattern for pattern in given if not is_literal(pattern)])
    return tuple(
        pattern
        for pattern in given
        if pattern in wide or (is_literal(pattern) and not any(covers(known, pattern) for known in wide))
    )


def _disjoint_wide(patterns: Iterable[str]) -> list[str]:
    """Return patterns with wildcards without those that another pattern covers, as :func:`disjoint` does."""
    kept: list[str] = []
    for pattern in patterns:
        if any(covers(known, pattern) for known in kept):
            continue
        kept = [known for known in kept if not covers(pattern, known)]
        for known in kept:
            if overlap(known, pattern):
                raise EncodeError(
                    ErrorCode.INVALID_SUBJECT,
                    f"the filter subjects of a consumer must not overlap: {preview(known)} and {preview(pattern)} "
                    "overlap, and neither covers the other",
                )
        kept.append(pattern)
    return kept


def partition(key: str | bytes | Iterable[str], count: int) -> int:
    """
    Return the number of a key's partition, as the server's subject mapping ``{{partition(count,...)}}`` computes it.

    It is the FNV-1a hash, with 32 bits, of the key's bytes, modulo ``count``. The server concatenates the tokens at the
    given wildcards, without dots: ``partition(["eu", "7"], 8)`` is ``partition("eu7", 8)``, and equals
    ``{{partition(8,1,2)}}`` for the subject ``orders.eu.7`` and the mapping from ``orders.*.*``. The server's
    ``{{partition(count)}}``, without wildcards, uses the whole subject, dots included.

    Args:
        key: A token or a subject, encoded as UTF-8; bytes; or several tokens.
        count: Number of partitions, 1 to 2**31 - 1.

    Returns:
        0 to ``count - 1``.

    Raises:
        ValueError: ``count`` is out of range, or the key has an unpaired surrogate.
        TypeError: ``key`` or ``count`` has another type.
    """
    if not _is_int(count):
        raise TypeError(f"count must be an int, got {preview(count)}")
    if not 1 <= count <= _MAX_PARTITIONS:
        raise ValueError(f"count must be from 1 to {_MAX_PARTITIONS}, got {preview(count)}")
    number = _FNV_OFFSET
    for byte in _key_bytes(key):
        number = (number ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return number % count


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _key_bytes(key: object) -> bytes:
    if isinstance(key, bytes):
        return key
    tokens: list[Any] = [key] if isinstance(key, str) else list(key) if isinstance(key, Iterable) else [None]
    if not all(isinstance(token, str) for token in tokens):
        raise TypeError(f"key must be a str, bytes, or an iterable of str, got {preview(key)}")
    try:
        return "".join(tokens).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"key must not have unpaired surrogates, got {preview(key)}") from None
