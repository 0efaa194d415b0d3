"""Check subjects from messages before they are published to, with the prefixes of JetStream's API on a connection."""

from __future__ import annotations

from collections.abc import Iterable

from nats.aio.client import Client

from ..subjects import check_subject_from_message
from .link._link import Link


def check_foreign_subject(nc: Client, subject: str, *, allowed: Iterable[str] = (), is_reply: bool = False) -> None:
    """
    Check a subject from a message, as :func:`~ce_nats.subjects.check_subject_from_message` does.

    Raises:
        EncodeError: ``invalid-subject`` or ``forbidden-subject``.
    """
    check_subject_from_message(subject, api_prefixes=Link.of(nc).api_prefixes, allowed=allowed, is_reply=is_reply)
