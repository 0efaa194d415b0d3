"""Check subjects from messages before they are published to, with the prefixes of JetStream's API on a connection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from weakref import WeakKeyDictionary

from nats.aio.client import Client

from ..subjects import check_subject_from_message

_API_PREFIXES: Final[WeakKeyDictionary[Client, set[str]]] = WeakKeyDictionary()


def remember_api_prefix(nc: Client, prefix: str) -> None:
    """Store a prefix of JetStream's API that a connection uses."""
    _API_PREFIXES.setdefault(nc, set()).add(prefix)


def check_foreign_subject(nc: Client, subject: str, *, allowed: Iterable[str] = (), is_reply: bool = False) -> None:
    """
    Check a subject from a message, as :func:`~ce_nats.subjects.check_subject_from_message` does.

    Raises:
        EncodeError: ``invalid-subject`` or ``forbidden-subject``.
    """
    check_subject_from_message(subject, api_prefixes=_API_PREFIXES.get(nc, ()), allowed=allowed, is_reply=is_reply)
